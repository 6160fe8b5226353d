"""What a comparison says, on launches made by hand: each complaint that other tools' users have filed is a case."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from launches import failed, launch, run, scenario, side

from harness.model import Finding, LoadLevel
from harness.scenario.workload import Arrival
from harness.store.ab_record import Side
from harness.verdict.compare import EXIT_CODES, Comparison, Verdict, compare, power_sentence
from harness.verdict.pairs import Metric, RowKey, one_label, pair_up
from harness.verdict.report import to_json, told

ONE = ("tpot_p50",)


def noisy(mean: float, count: int = 8, seed: int = 1, spread: float = 0.002) -> list[float]:
    return list(mean * np.exp(np.random.default_rng(seed).normal(0, spread, count)))


def tpot(base: list[float], head: list[float], **options: object) -> Comparison:
    names = options.pop("metrics", ONE)
    return compare(side("base", run(base, name="b")), side("head", run(head, name="h")), metrics=names, **options)  # type: ignore[arg-type]


def test_slower_is_a_fail_in_one_sentence() -> None:
    found = tpot(noisy(0.0100), noisy(0.0106, seed=2))
    assert found.verdict is Verdict.FAIL
    assert found.headline.startswith("FAIL: TPOT at concurrency 1 (TP1, mtp) is 6.0 % slower (90 % interval +5.")
    assert found.exit_code == 1


def test_equal_is_a_pass_and_faster_an_improvement() -> None:
    assert tpot(noisy(0.01), noisy(0.01, seed=2)).verdict is Verdict.PASS
    better = tpot(noisy(0.01), noisy(0.0094, seed=2))
    assert better.verdict is Verdict.IMPROVED
    assert "6.0 % faster" in better.headline
    assert len(set(EXIT_CODES.values())) == len(EXIT_CODES) == len(Verdict)


def test_two_launches_at_the_new_level_are_still_six_percent_against_the_base() -> None:
    """Base 10.0, then 10.6 and 10.6: what matters is the merge base, not the run before."""
    base = side("base", run(noisy(0.0100), name="b"))
    nights = side("head", run(noisy(0.0106, 4, 2), name="n1"), run(noisy(0.0106, 4, 3), name="n2"))
    found = compare(base, nights, metrics=ONE)
    assert found.verdict is Verdict.FAIL
    assert found.rows[0].change == pytest.approx(0.06, abs=0.003)


def test_no_baseline_is_no_pass() -> None:
    head = side("head", run(noisy(0.01)))
    for base in (Side("main", (), {}), side("main", run([], name="b"))):
        found = compare(base, head, metrics=ONE)
        assert found.verdict is Verdict.NO_BASELINE
        assert "nothing passed" in found.headline
        assert found.exit_code == 5


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"environment": {"host": "b"}}, "host: a → b"),
        ({"environment": {"gpus": [{"name": "H100"}]}}, 'gpus: not recorded → {"name": "H100"}'),
        ({"environment": {"prompts": "q"}}, "prompts: p → q"),  # another Python's texts
        ({"environment": {"variables": {"SGLANG_USE_AITER": "1"}}}, "variables.SGLANG_USE_AITER: not recorded → 1"),
        ({"packages": {"sglang": "0.5.23"}}, "packages.sglang: not recorded → 0.5.23"),
        ({"of": scenario(name="other")}, "scenario: scripted → other"),
        ({"of": scenario(passes=2)}, "passes: 1 → 2"),
        ({"of": scenario(arms={"mtp": {"step": "6ms"}})}, "server.step: 0.005 → 0.006"),
        (
            {"of": scenario(arrival=Arrival(concurrency=[1], requests_per_slot=4, min_requests=9))},
            "arrival.min_requests: 8 → 9",
        ),
    ],
)
def test_another_machine_or_version_is_incomparable(changes: dict[str, object], named: str) -> None:
    base, head = run(noisy(0.01), name="b"), run(noisy(0.01), name="h", **changes)  # type: ignore[arg-type]
    found = compare(side("base", base), side("head", head), metrics=ONE)
    assert found.verdict is Verdict.INCOMPARABLE
    assert named in found.headline
    fact = named.partition(":")[0]
    allowed = compare(side("base", base), side("head", head), metrics=ONE, allowed=[fact])
    assert allowed.verdict is Verdict.PASS
    assert any(named in note for note in allowed.notes)


def test_what_is_tested_may_differ() -> None:
    base = run(noisy(0.01), name="b", environment={"commit": "1" * 40, "kernel_hash": "x"})
    head = run(noisy(0.01), name="h", environment={"commit": "2" * 40, "kernel_hash": "y"})
    found = compare(side("base", base), side("head", head), metrics=ONE)
    assert found.verdict is Verdict.PASS
    assert {d.fact for d in found.differences} == {"commit", "kernel_hash"}


def test_the_headline_is_never_better_than_its_worst_row() -> None:
    """Four rows regress while the mean of all rows does not move."""
    plan = scenario(arms={name: {} for name in "abcdefgh"}, launches=8)

    def passes(means: list[float], seed: int) -> list:  # type: ignore[type-arg]
        return [
            launch(i, value, arm=arm)
            for arm, mean in zip("abcdefgh", means, strict=True)
            for i, value in enumerate(noisy(mean, seed=seed))
        ]

    base = side("base", run(passes([0.01] * 8, 1), name="b", of=plan))
    head = side("head", run(passes([0.011] * 4 + [0.009] * 4, 2), name="h", of=plan))
    found = compare(base, head, metrics=ONE)
    assert found.verdict is Verdict.FAIL
    assert "So are 3 other rows." in found.headline
    assert [row.verdict for row in found.rows].count(Verdict.IMPROVED) == 4


def test_bistable_code_is_bimodal() -> None:
    """The same code now at 2.9, now at 3.4 ms."""
    base = [0.0029, 0.0034, 0.0029, 0.0034, 0.0034, 0.0029, 0.0029, 0.0034]
    head = [0.0034, 0.0029, 0.0029, 0.0034, 0.0029, 0.0034, 0.0029, 0.0029]
    wobble = np.exp(np.random.default_rng(1).normal(0, 0.004, 16))
    found = tpot(list(np.array(base) * wobble[:8]), list(np.array(head) * wobble[8:]))
    assert found.verdict is Verdict.BIMODAL
    assert "near 2.9" in found.headline
    assert "or near 3.4" in found.headline
    # Where both sides move together the pairs have taken it out.
    together = tpot(list(np.array(base) * wobble[:8]), list(np.array(base) * wobble[8:]))
    assert together.verdict is Verdict.PASS


def test_a_row_that_vanished_is_missing() -> None:
    plan = scenario(arms={"mtp": {}, "plain": {}}, launches=8)
    both = [launch(i, v, arm=arm) for arm in plan.arms for i, v in enumerate(noisy(0.01))]
    base = side("base", run(both, name="b", of=plan))
    head = side("head", run([one for one in both if one.record.key.arm == "mtp"], name="h", of=plan))
    found = compare(base, head, metrics=ONE)
    assert found.verdict is Verdict.MISSING
    assert "TPOT at concurrency 1 (TP1, plain) is missing: base has it, head does not." in found.headline
    other_way = compare(head, base, metrics=ONE)
    assert other_way.verdict is Verdict.NO_BASELINE
    assert "is new" in other_way.headline


def test_what_only_drafts_have_is_no_row_against_an_arm_without() -> None:
    """`ab --base arm:no-mtp --head arm:mtp`: there is no step time to compare, and that is no missing baseline."""
    plan = scenario(arms={"plain": {}, "drafts": {"speculative": True}, "more": {"speculative": True}}, launches=8)
    passes = [launch(i, v, arm="plain") for i, v in enumerate(noisy(0.010))]
    passes += [launch(i, v, arm="drafts", accept=3.0) for i, v in enumerate(noisy(0.008, seed=2))]
    passes += [launch(i, v, arm="more") for i, v in enumerate(noisy(0.008, seed=3))]  # set to draft, and did not
    made = run(passes, of=plan)

    def between(base: str, head: str) -> Comparison:
        sides = one_label(Side("base", (made,), {base: base}), Side("head", (made,), {head: head}))
        return compare(*sides, metrics=("tpot_p50", "step_time_p50", "accept_length_mean"))

    found = between("plain", "drafts")
    assert found.verdict is Verdict.IMPROVED
    assert {row.key.metric for row in found.rows} == {"tpot_p50"}
    assert "plain → drafts: only head drafts, so Step time and Accept length are not compared." in found.notes
    other_way = between("drafts", "plain")
    assert other_way.verdict is Verdict.FAIL
    assert "drafts → plain: only base drafts, so Step time and Accept length are not compared." in other_way.notes
    dead = between("drafts", "more")
    assert dead.verdict is Verdict.MISSING


def test_a_measured_zero_is_no_measurement() -> None:
    """All tokens of a launch at one moment: a TPOT that can't be told, and a step time of zero is none either."""
    found = tpot([*noisy(0.01, 7), 0.0], noisy(0.01))
    assert found.verdict is Verdict.INVALID
    assert "base has no value in launch 7, though it has in others" in found.headline


def test_one_word_for_a_small_and_certain_change() -> None:
    """+0.3 %, significant and small: it is not slower, and nothing else."""
    found = tpot(noisy(0.01, 10, spread=0.0005), noisy(0.01003, 10, 2, spread=0.0005))
    assert found.verdict is Verdict.PASS
    assert found.rows[0].decision.p_slower < 0.01
    assert found.rows[0].sentence.startswith("TPOT at concurrency 1 (TP1, mtp) is not slower (+0.3 %;")


def test_a_change_below_the_clock_is_no_change() -> None:
    """TTFT of 0.4 ms becomes 0.5 ms: +25 %, and a tenth of a millisecond. The floor is in seconds, as the value is."""
    slow = [launch(i, 0.01, ttft=v) for i, v in enumerate(noisy(0.0005, seed=2))]
    fast = [launch(i, 0.01, ttft=v) for i, v in enumerate(noisy(0.0004))]
    found = compare(side("base", run(fast, name="b")), side("head", run(slow, name="h")), metrics=["ttft_p50"])
    row = next(row for row in found.rows if row.key.metric == "ttft_p50")
    assert row.change == pytest.approx(0.25, abs=0.01)
    assert row.verdict is Verdict.PASS
    # At 400 ms the same +25 % is one.
    slow = [launch(i, 0.01, ttft=v) for i, v in enumerate(noisy(0.5, seed=2))]
    fast = [launch(i, 0.01, ttft=v) for i, v in enumerate(noisy(0.4))]
    found = compare(side("base", run(fast, name="b")), side("head", run(slow, name="h")), metrics=["ttft_p50"])
    assert found.verdict is Verdict.FAIL


def test_ratios_have_one_direction() -> None:
    """More of a latency is worse, more of a rate is better; the change shown is always the value's own."""
    found = tpot(noisy(0.010), noisy(0.012, seed=2), metrics=("tpot_p50", "output_throughput"))
    latency, rate = found.rows
    assert latency.change == pytest.approx(0.2, abs=0.01)
    assert rate.change is not None
    assert rate.change < 0
    assert latency.decision.mean > 0
    assert rate.decision.mean > 0
    assert "slower" in latency.sentence
    assert "lower" in rate.sentence
    metric = Metric.of("output_throughput")
    assert metric.change(metric.delta(200.0, 100.0)) == pytest.approx(-0.5)


def test_mtp_that_accepts_nothing_is_invalid() -> None:
    """A row labelled MTP whose accept length is 1."""
    drafts = [launch(i, v, accept=1.0) for i, v in enumerate(noisy(0.01))]
    base = side("base", run([launch(i, v, accept=3.0) for i, v in enumerate(noisy(0.01))], name="b"))
    found = compare(base, side("head", run(drafts, name="h")), metrics=["accept_length_mean"])
    assert found.verdict is Verdict.INVALID
    assert "not one was accepted" in found.headline


def test_a_check_that_forbids_using_a_pass_forbids_the_verdict() -> None:
    bad = launch(7, 0.01, findings=(Finding("cached_tokens", "found in a cache", invalid=True),))
    found = compare(
        side("base", run(noisy(0.01), name="b")),
        side("head", run([*run(noisy(0.02, 7)).passes, bad], name="h")),
        metrics=ONE,
    )
    assert found.verdict is Verdict.INVALID
    assert "launch 7 of head is no result: found in a cache" in found.headline


def test_a_launch_that_served_something_else_forbids_the_verdict() -> None:
    """Refused for its evidence before anything was measured on it."""
    stored = run(noisy(0.01, 8), name="h")
    rejected = Finding("verify_rejected", "the in-tree kernel served no call", invalid=True)
    refused = replace(stored.launches[0], slug="08-mtp-tp1", launch=8, status="INVALID", findings=(rejected,))
    head = replace(stored, launches=(*stored.launches, refused))
    found = compare(side("base", run(noisy(0.01, 9), name="b")), side("head", head), metrics=ONE)
    assert found.verdict is Verdict.INVALID
    assert "launch 8 of head is no result: the in-tree kernel served no call" in found.headline


def test_a_launch_that_died_is_not_just_left_out() -> None:
    head = run(noisy(0.01, 7), name="h", failed=[failed(7, "the server ended")])
    found = compare(side("base", run(noisy(0.01), name="b")), side("head", head), metrics=ONE)
    assert found.verdict is Verdict.INVALID
    assert "the server ended" in found.headline


def test_inconclusive_says_how_many_more_pairs() -> None:
    found = tpot(noisy(0.01, 4, spread=0.02), noisy(0.0104, 4, 2, spread=0.02))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "more pairs would settle it" in found.headline
    assert (found.rows[0].more_pairs or 0) > 0
    assert "at least two pairs" in tpot([0.01], [0.01]).headline


def test_the_cause_of_a_tpot_change() -> None:
    """TPOT = step time / accept length: a head that accepts 10 % less at the same step time."""
    base = [launch(i, v, accept=3.0) for i, v in enumerate(noisy(0.010))]
    head = [launch(i, v, accept=2.5) for i, v in enumerate(noisy(0.012, seed=2))]
    found = compare(side("base", run(base, name="b")), side("head", run(head, name="h")))
    assert found.verdict is Verdict.FAIL
    note = next(note for note in found.notes if "its step time" in note)
    assert "its accept length by -16.7 %" in note


def test_two_arms_of_one_run_and_pairs_with_a_gap() -> None:
    plan = scenario(arms={"no-mtp": {}, "mtp": {"step": "6ms"}}, launches=8)
    passes = [launch(i, v, arm="no-mtp") for i, v in enumerate(noisy(0.010))]
    passes += [launch(i, v, arm="mtp") for i, v in enumerate(noisy(0.011, seed=2)) if i != 2]
    one = run(passes, of=plan)
    base, head = one_label(Side("a", (one,), {"no-mtp": "no-mtp"}), Side("b", (one,), {"mtp": "mtp"}))
    found = compare(base, head, metrics=ONE)
    assert found.rows[0].key.arm == "no-mtp → mtp"
    assert found.rows[0].decision.n == 7
    assert found.verdict is Verdict.FAIL
    assert not any("interleaved" in note for note in found.notes)


def test_an_accepted_slowdown_passes_and_says_so() -> None:
    found = tpot(
        noisy(0.01), noisy(0.0106, seed=2), excuse=lambda s, key, delta: "known until May" if delta < 0.08 else None
    )
    assert found.verdict is Verdict.PASS
    assert "accepted: TPOT at concurrency 1 (TP1, mtp) +6.0 % (known until May)" in found.headline
    assert "known until May" in told(found)[0].sentence
    assert tpot(noisy(0.01), noisy(0.012, seed=2), excuse=lambda s, key, delta: None).verdict is Verdict.FAIL


def several(means: dict[str, tuple[list[float], list[float]]]) -> Comparison:
    """TPOT is the primary endpoint; what is given of TTFT and of TPOT goes into the launches."""
    ttft, tpots = means["ttft"], means["tpot"]
    sides = [
        side(
            name, run([launch(i, t, ttft=f) for i, (t, f) in enumerate(zip(tpots[n], ttft[n], strict=True))], name=name)
        )
        for n, name in enumerate(("base", "head"))
    ]
    return compare(*sides, metrics=("tpot_p50", "ttft_p50"))


def test_open_rows_do_not_hide_the_primary_endpoint() -> None:
    loud = (noisy(0.5, 8, 3, 0.06), noisy(0.5, 8, 4, 0.06))
    better = several({"tpot": (noisy(0.010), noisy(0.0094, seed=2)), "ttft": loud})
    assert [row.verdict for row in better.rows] == [Verdict.IMPROVED, Verdict.INCONCLUSIVE]
    assert better.verdict is Verdict.IMPROVED
    assert better.headline.startswith("IMPROVED: TPOT at concurrency 1 (TP1, mtp) is 6.0 % faster")
    assert "Not yet told: TTFT at concurrency 1 (TP1, mtp) " in better.headline
    assert better.open_rows == better.rows[1:]
    equal = several({"tpot": (noisy(0.010), noisy(0.010, seed=2)), "ttft": loud})
    assert equal.verdict is Verdict.PASS
    assert "Not yet told: TTFT" in equal.headline
    worse = several({"tpot": (noisy(0.010), noisy(0.0094, seed=2)), "ttft": (noisy(0.4), noisy(0.5, seed=2))})
    assert worse.verdict is Verdict.FAIL
    assert worse.headline.startswith("FAIL: TTFT")
    unsure = several({"tpot": loud, "ttft": (noisy(0.4), noisy(0.4, seed=2))})
    assert unsure.verdict is Verdict.INCONCLUSIVE
    assert unsure.headline.startswith("INCONCLUSIVE: TPOT")


def test_what_looks_faster_and_is_not_certain_is_no_mere_pass() -> None:
    found = tpot([0.0100, 0.0101], [0.0060, 0.0064])
    [row] = found.rows
    assert (row.verdict, row.word) == (Verdict.PASS, "faster, not yet proven")
    assert found.headline.startswith("PASS: TPOT at concurrency 1 (TP1, mtp) is 38.3 % faster, not yet proven (90 %")
    assert json.loads(to_json(found))["rows"][0]["word"] == "faster, not yet proven"
    rate = tpot([0.0100, 0.0101], [0.0060, 0.0064], metrics=("output_throughput",)).rows[-1]
    assert rate.word in ("higher, not yet proven", "IMPROVED", "PASS")


def test_json_holds_what_was_computed() -> None:
    document = json.loads(to_json(tpot(noisy(0.01), noisy(0.0106, seed=2))))
    assert document["verdict"] == "FAIL"
    assert document["rows"][0]["change"] == pytest.approx(0.06, abs=0.005)
    assert json.loads(to_json(tpot([0.01], [0.01])))["rows"][0]["change"] is None  # one pair says nothing


def test_power_from_the_floor() -> None:
    key = RowKey("tpot_p50", "mtp", 1, LoadLevel(concurrency=1))
    found = tpot(noisy(0.01), noisy(0.01, seed=2), floors={key: (0.02, 5)})
    assert found.rows[0].floor == pytest.approx(2.015 * 0.02 / 8**0.5, rel=0.01)  # t(.95, 5) = 2.015
    sentence = power_sentence({key: (0.02, 5)}, 24, found.plan)
    assert "8 pairs detect" in sentence
    assert power_sentence({}, 24, found.plan) == ""


def test_pairs_of_one_run_keep_their_numbers() -> None:
    from harness.verdict.pairs import Launched

    base = [Launched("r", n, {}, ()) for n in (0, 1, 2)]
    head = [Launched("r", n, {}, ()) for n in (0, 2)]
    assert list(pair_up(base, head)) == [0, 2]
