"""A night cut into jobs, what of it is missing, and what people are told: pure functions, values by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest
from launches import launch, run, scenario

from harness.errors import MtpbenchError
from harness.nightly.blocks import ASSUMED, MARGIN, STORED, Cost, Plan, make_plan, missing, stored_costs
from harness.nightly.notices import State, after_a_night, message, on_watch, state_of
from harness.scenario.format import Scenario

BEFORE = "2025-12-31T00:00:00+00:00"


def plan(limit: float, seconds: float = 100.0, **changes: object) -> Plan:
    def cost(_scenario: Scenario, arm: str, _tp: int) -> Cost:
        return Cost(seconds, STORED if arm == "a" else ASSUMED)

    return make_plan([("s.yaml", scenario(arms={"a": {}, "b": {}, "c": {}}, **changes))], cost, limit, BEFORE)


def test_arms_share_a_job_as_long_as_it_fits() -> None:
    [whole] = plan(limit=3 * 100 * MARGIN + 1).blocks
    assert whole.arms == ("a", "b", "c")
    assert whole.seconds == pytest.approx(3 * 100 * MARGIN)
    assert whole.basis == ASSUMED  # of its least sure launch
    two, one = plan(limit=2 * 100 * MARGIN + 1).blocks
    assert (two.arms, one.arms) == (("a", "b"), ("c",))
    assert two.name.endswith(".1")
    assert one.name.endswith(".2")


def test_launches_count_and_an_arm_that_never_fits_is_named() -> None:
    with pytest.raises(MtpbenchError, match="arm a alone takes 6 minutes, a job has 5"):
        plan(limit=300, launches=3)


def test_a_plan_is_read_back_and_another_version_refused() -> None:
    made = plan(limit=1000)
    assert Plan.from_json(json.loads(json.dumps(made.to_json()))) == made
    with pytest.raises(MtpbenchError, match="a plan of version 99"):
        Plan.from_json({**made.to_json(), "plan_version": 99})
    for value in (
        {},
        {"plan_version": 1},
        {**made.to_json(), "blocks": [{"name": "x"}]},
        {**made.to_json(), "blocks": 3},
    ):
        with pytest.raises(MtpbenchError, match="that is no plan"):
            Plan.from_json(value)


def test_what_a_plan_lacks_is_missing_tonight() -> None:
    stored = run([0.01], created_at="2026-01-01T02:00:00+00:00")
    [arm] = stored.scenario.arms
    levels = [level.label for level in stored.scenario.levels()]
    [block] = make_plan([("s.yaml", stored.scenario)], lambda *_: Cost(1.0), 100, BEFORE).blocks
    made = Plan(BEFORE, 100, (block,))
    assert block.levels == tuple(levels)
    assert missing(made, [stored]) == []
    assert [str(one) for one in missing(made, [])] == [f"MISSING: {block.name}: {arm} at TP1 has no result"]
    later = Plan("2026-01-02T00:00:00+00:00", 100, (block,))  # that run is of the night before
    assert len(missing(later, [stored])) == 1


def test_costs_come_from_stored_launches_that_finished() -> None:
    stored = run([launch(0, 0.01)])
    [started] = stored.launches
    assert stored_costs([stored]) == {}  # nobody knows when that launch began
    begun = replace(started, started_at="2025-12-31T23:59:00+00:00")
    # Its only pass began a minute later and took one second.
    expected = {(stored.scenario.name, "mtp", 1): Cost(61.0, STORED)}
    assert stored_costs([replace(stored, launches=(begun,))]) == expected
    computed = {**stored.environment, "simulated": {"seed": 1}}
    assert stored_costs([replace(stored, launches=(begun,), environment=computed)]) == {}
    assert stored_costs([replace(stored, launches=(replace(begun, status="dead"),))]) == {}


def test_people_are_told_once() -> None:
    first, told = after_a_night(None, "PASS", "", "2026-01-01T06:00:00+00:00")
    assert told == "mtpbench: the night is PASS."
    same, told = after_a_night(first, "PASS", "", "2026-01-02T06:00:00+00:00")
    assert told == ""
    _, told = after_a_night(same, "FAIL", "TPOT +5 %", "2026-01-03T06:00:00+00:00")
    assert told == "mtpbench: the night is FAIL (before: PASS). TPOT +5 %"


def test_a_night_that_did_not_run_is_told_once() -> None:
    before = State("PASS", "2026-01-01T06:00:00+00:00")
    assert on_watch(before, "2026-01-02T06:00:00+00:00", timedelta(hours=30)) == (before, "")
    after, told = on_watch(before, "2026-01-03T06:00:00+00:00", timedelta(hours=30))
    assert told.startswith("mtpbench: no night has ended for 48 hours; the last was PASS")
    assert on_watch(after, "2026-01-04T06:00:00+00:00", timedelta(hours=30)) == (after, "")
    assert after is not None
    _, told = after_a_night(after, "PASS", "", "2026-01-04T07:00:00+00:00")
    assert "a night that did not run" in told


def test_state_and_webhooks() -> None:
    state = State("PASS", "2026-01-01T06:00:00+00:00")
    assert state_of(state.to_json()) == state
    assert state_of(None) is None
    with pytest.raises(MtpbenchError, match="damaged"):
        state_of(b"[1]")
    assert message("https://hooks.example/x", "t") == {"text": "t"}
    assert message("https://open.larksuite.com/x", "t") == {"msg_type": "text", "content": {"text": "t"}}
    assert message("https://larksuite.com.evil.example/x", "t") == {"text": "t"}
