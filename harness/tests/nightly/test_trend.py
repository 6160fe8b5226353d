"""Series over nights: what is an alert, what a confirmed change, and what is said of gaps, hosts and names."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pytest
from launches import launch, run, scenario

from harness.errors import ScenarioError
from harness.model import Finding
from harness.nightly.judged import judge
from harness.nightly.report import to_json, to_markdown
from harness.nightly.series import Series, build, night_of
from harness.nightly.told import Status, Told, commands, headline, tell
from harness.stats import levels
from harness.store.ab_record import Party, Session, sides
from harness.store.archive import Archive, Kept
from harness.store.runs import StoredRun
from harness.verdict.accepted import Ledger
from harness.verdict.accepted import load as load_ledger
from harness.verdict.compare import Verdict, compare

FIRST = date(2026, 1, 1)
ONE = ("tpot_p50",)
QUIET = 0.0005


def commit(night: int) -> str:
    return f"{night:040x}"


def nights(levels: list[float], seed: int = 1, start: date = FIRST, **values: object) -> list[StoredRun]:
    """A run a night, three launches each, around these TPOTs in milliseconds; NaN: no run that night."""
    draw, out = np.random.default_rng(seed), []
    for i, level in enumerate(levels):
        noise = np.exp(draw.normal(0, QUIET, 3))
        if not math.isnan(level):
            day = start + timedelta(i)
            environment = {"commit": commit(i), **values.get("environment", {})}  # type: ignore[dict-item]
            rest = {key: value for key, value in values.items() if key != "environment"}
            out.append(
                run(list(level * 1e-3 * noise), name=f"r{day}", created_at=f"{day}T02:00:00+00:00",
                    environment=environment, **rest)  # type: ignore[arg-type]
            )  # fmt: skip
    return out


def one(runs: list[StoredRun], **options: object) -> Series:
    [series] = build(runs, ONE, **options)  # type: ignore[arg-type]
    return series


def told(runs: list[StoredRun], today: date | None = None, **options: object):  # type: ignore[no-untyped-def]
    series = build(runs, ONE)
    last = max(s.nights[-1].day for s in series)
    return tell(series, today or last, **options)  # type: ignore[arg-type]


def test_a_step_is_an_alert_on_its_first_night_and_names_the_ab_that_confirms_it() -> None:
    [found] = told(nights([10.0] * 20 + [10.6]))
    assert found.status is Status.ALERT
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.sentence.startswith("TPOT at concurrency 1 (TP1, mtp), scripted on a may have changed by +6.")
    assert found.command == f"mtpbench ab runs/r2026-01-21/scenario.yaml --base {commit(19)} --head {commit(20)}"
    assert commands([found]) == [found.command]


def test_a_lone_bad_night_is_no_change() -> None:
    for bad in (10.6, 20.0):
        [found] = told(nights([10.0] * 20 + [bad, 10.0]))
        assert found.status is Status.OK
        assert [change.withdrawn for change in found.changes] == [True]
        [later] = told(nights([10.0] * 20 + [bad] + [10.0] * 5 + [10.6, 10.6, 10.6]))
        assert later.status is Status.REGRESSED  # the bad night has not widened the baseline


def test_a_step_that_stays_is_confirmed_and_never_becomes_normal() -> None:
    """Base 10.0, then 10.6, 10.6: +6 % against the level before, however long it lasts."""
    for after in (3, 40):
        [found] = told(nights([10.0] * 20 + [10.6] * after))
        assert found.status is Status.REGRESSED
        assert found.verdict is Verdict.FAIL
        assert "changed by +6." in found.sentence
        assert "since 2026-01-21 and is still there" in found.sentence
    [back] = told(nights([10.0] * 20 + [10.6] * 20 + [10.0] * 5))
    assert back.status is Status.OK
    assert [change.worse for change in back.changes if change.confirmed is not None] == [True, False]


@pytest.mark.parametrize("nights_of_it", [3, 4, 6, 10])
def test_a_slowdown_that_is_fixed_within_days_is_gone(nights_of_it: int) -> None:
    fixed = nights([10.0] * 20 + [10.6] * nights_of_it + [10.0] * 4)
    [during] = told(fixed[: 20 + nights_of_it])
    assert during.status is Status.REGRESSED
    [after] = told(fixed)
    assert after.status is Status.OK
    assert [(change.start, change.worse) for change in after.changes] == [(20, True), (20 + nights_of_it, False)]


def test_two_small_steps_add_up() -> None:
    [found] = told(nights([10.0] * 20 + [10.3] * 20 + [10.6] * 10))
    assert found.status is Status.REGRESSED
    assert "changed by +6." in found.sentence
    assert "since 2026-01-21" in found.sentence


def test_an_improvement_is_no_alert() -> None:
    [found] = told(nights([10.0] * 20 + [9.0] * 5))
    assert found.status is Status.OK
    assert not found.changes[0].worse


def test_stale_missing_and_young() -> None:
    steady = nights([10.0] * 20)
    [stale] = told(steady, today=FIRST + timedelta(40))
    assert stale.status is Status.STALE
    assert "stale since 2026-01-20: nothing was measured for 21 days" in stale.sentence
    [young] = told(nights([10.0] * 5))
    assert young.status is Status.YOUNG
    assert headline([young])[0] is Verdict.NO_BASELINE

    plan = scenario(arms={"mtp": {}, "plain": {}}, launches=1)
    both = []
    for i in range(20):
        arms = ["mtp", "plain"] if i < 15 else ["mtp"]
        day = FIRST + timedelta(i)
        both.append(
            run([launch(0, 0.01, arm=arm) for arm in arms], name=f"r{i:02d}", created_at=f"{day}T00:00:00Z", of=plan)
        )
    found = told(both)
    assert found[0].status is Status.MISSING
    assert "plain), scripted on a is missing since 2026-01-15" in found[0].sentence
    assert found[1].status is Status.OK


def test_an_arm_with_settings_of_its_own_is_missing_at_once() -> None:
    """Its conditions are not those of the arms that still run: the scenario makes them siblings."""
    plan = scenario(arms={"mtp": {"speculative": True}, "plain": {}}, launches=1)
    runs = [
        run(
            [launch(0, 0.01, arm=arm) for arm in (("mtp", "plain") if i < 18 else ("mtp",))],
            name=f"r{i:02d}", created_at=f"{FIRST + timedelta(i)}T00:00:00Z", of=plan,
        )
        for i in range(20)
    ]  # fmt: skip
    assert len({series.key.fingerprint for series in build(runs, ONE)}) == 2
    found = told(runs)
    assert found[0].status is Status.MISSING
    assert found[0].since == FIRST + timedelta(17)
    # All arms went on under other conditions: that is another series, and nothing is missing.
    moved = [replace(one, environment={**one.environment, "rocm": "7.2"}) for one in runs[:2]]
    later = [replace(one, created_at=f"{FIRST + timedelta(18 + i)}T00:00:00Z") for i, one in enumerate(moved)]
    assert Status.MISSING not in {one.status for one in told([*runs[:18], *later])}


def test_gaps_bad_values_and_two_runs_of_one_night_are_said() -> None:
    runs = nights([10.0] * 10 + [math.nan] * 12 + [10.0] * 10)
    bad = run([0.0, 0.01, 0.01], name="zero", created_at=f"{FIRST + timedelta(32)}T02:00:00+00:00")
    no = Finding("cached_tokens", "found in a cache", invalid=True)
    invalid = run([launch(0, 0.05, findings=(no,))], name="inv", created_at=f"{FIRST + timedelta(33)}T02:00:00+00:00")
    twice = run([0.01] * 3, name="again", created_at=f"{FIRST}T20:00:00+00:00")
    series = one([*runs, bad, invalid, twice])
    assert len(series.nights) == 21
    assert series.nights[0].launches == 6
    for words in (
        "no data from 2026-01-11 to 2026-01-22",
        "2026-02-02 left out: launch 0 has no value",  # all its tokens at one moment: a TPOT that can't be told
        "2026-02-03 left out: found in a cache",
        "2026-01-01 has more than one run",
    ):
        assert any(words in note for note in series.notes), series.notes


def test_time_zones() -> None:
    late = run([0.01], created_at="2026-01-01T23:30:00-05:00")
    assert night_of(late) == (date(2026, 1, 2), "")
    assert night_of(run([0.01], created_at="2026-01-01T23:30:00Z"))[0] == FIRST
    day, odd = night_of(run([0.01], created_at="2026-01-01T23:30:00"))
    assert day == FIRST
    assert "without a zone" in odd


def test_another_host_is_another_series_and_said() -> None:
    here = nights([10.0] * 20)
    there = nights([10.5] * 20, start=FIRST + timedelta(20), environment={"host": "b"})
    found = told([*here, *there], today=FIRST + timedelta(39))
    assert {t.status for t in found} == {Status.MOVED, Status.OK}
    assert headline(found)[0] is Verdict.PASS
    moved = next(t.series for t in found if t.series.key.host == "b")
    assert any("before 2026-01-21 it ran on host a (host): a series of its own" in note for note in moved.notes)
    assert not any(t.changes for t in found)

    driver = nights([10.5] * 20, start=FIRST + timedelta(20), environment={"rocm": "7.1"})
    assert len(build([*here, *driver], ONE)) == 2
    upgraded = nights([10.5] * 20, start=FIRST + timedelta(20), packages={"sglang": "0.5.23"})
    [same] = build([*here, *upgraded], ONE)  # what a nightly series is there to follow
    assert len(same.nights) == 40


def test_a_renamed_scenario_goes_on() -> None:
    before = nights([10.0] * 20)
    after = nights([10.6] * 5, start=FIRST + timedelta(20), of=scenario(name="better-name", launches=3))
    series = one([*before, *after])
    assert series.key.scenario == "better-name"
    assert any("scripted was renamed better-name on 2026-01-21" in note for note in series.notes)
    [found] = tell([series], FIRST + timedelta(24))
    assert found.status is Status.REGRESSED
    assert len(one([*before, *after], renamed={"scripted": "better-name"}).nights) == 25


def ab(base: int, head: int, factor: float, *, host: str = "a", arm: str = "mtp", kind: str = "ab",
       level: int = 1) -> Kept:  # fmt: skip
    """A stored A/B of the commits of two nights: six pairs, head slower by `factor`; its verdict is the real one."""
    arms = {arm: (f"base.{arm}", f"head.{arm}")}
    draw = np.random.default_rng(base)
    passes = [
        launch(n, 0.01 * (factor if side.startswith("head") else 1.0) * float(np.exp(draw.normal(0, QUIET))), arm=side,
               concurrency=level)
        for n in range(6) for side in arms[arm]
    ]  # fmt: skip
    plan = scenario(arms={side: {} for side in arms[arm]}, launches=6)
    made = run(passes, name=f"ab-{base}-{head}-{host}-{arm}", of=plan, environment={"host": host},
               created_at=f"{FIRST + timedelta(head)}T05:00:00+00:00")  # fmt: skip
    parties = (Party(commit(n)[:10], "git", commit(n)) for n in (base, head))
    session = Session(kind, *parties, arms, 6, 4, ONE, finished_pairs=6)
    return Kept(made, replace(session, verdict=compare(*sides(made, session), metrics=ONE).verdict.value))


def judged(runs: list[StoredRun], *sessions: Kept, renamed: dict[str, str] | None = None) -> Told:
    """What is told of the one series of these nights, with these A/Bs in the store."""
    archive = Archive(Path("nowhere"), (*map(Kept, runs), *sessions))
    [found] = judge(archive, night_of(runs[-1])[0], ONE, renamed=renamed).told
    return found


def test_a_stored_ab_settles_an_alert() -> None:
    runs = nights([10.0] * 20 + [10.6])
    closed = judged(runs, ab(19, 20, 1.0))
    assert closed.status is Status.OK
    assert "the A/B ab-19-20-a-mtp says PASS, so the host a did, not the commit" in closed.sentence
    assert "its level starts anew there" in closed.sentence
    sure = judged(runs, ab(19, 20, 1.06))
    assert sure.status is Status.REGRESSED
    assert sure.sentence.endswith("; the A/B ab-19-20-a-mtp says FAIL.")


def test_the_pass_of_an_ab_closes_a_slowdown_that_confirmed_itself_and_the_next_one_is_seen() -> None:
    """As seen in use: +6 % from one night on, the A/B says PASS; it was FAIL for ever from the second night on."""
    for after in (3, 40, 90):
        closed = judged(nights([10.0] * 20 + [10.6] * after), ab(19, 20, 1.0))
        assert (closed.status, closed.verdict) == (Status.OK, Verdict.PASS)
    again = judged(nights([10.0] * 20 + [10.6] * 20 + [11.2] * 3), ab(19, 20, 1.0))
    assert again.status is Status.REGRESSED
    assert again.delta == pytest.approx(math.log(11.2 / 10.6), abs=0.005)
    assert again.since == FIRST + timedelta(40)


@pytest.mark.parametrize(
    "other",
    [
        ab(19, 20, 1.0, host="b"),
        ab(19, 20, 1.0, arm="plain"),
        ab(19, 20, 1.0, level=2),
        ab(20, 20, 1.0, kind="aa"),
        ab(20, 20, 1.0),  # the night's commit against itself
        ab(5, 10, 1.0),  # two commits from before
        ab(20, 22, 1.0),  # two commits from since
    ],
    ids=["host", "arm", "load", "aa", "itself", "before", "since"],
)
def test_an_ab_of_something_else_settles_nothing(other: Kept) -> None:
    assert judged(nights([10.0] * 20 + [10.6]), other).status is Status.ALERT
    assert judged(nights([10.0] * 20 + [10.6] * 5), other).status is Status.REGRESSED


def test_an_ab_of_a_wider_span_of_commits_or_of_the_arms_old_name_settles_it() -> None:
    runs = nights([10.0] * 20 + [10.6] * 5)
    assert judged(runs, ab(15, 24, 1.0)).status is Status.OK
    new = scenario(arms={"mtp-new": {}}, launches=3)
    renamed = [*nights([10.0] * 20), *nights([10.6] * 5, start=FIRST + timedelta(20), of=new)]
    after = [
        replace(one, environment={**one.environment, "commit": commit(20 + n)},
                passes=tuple(replace(p, record=replace(p.record, key=replace(p.record.key, arm="mtp-new")))
                                  for p in one.passes))
        for n, one in enumerate(renamed[20:])
    ]  # fmt: skip
    names = {"scripted@mtp": "mtp-new"}
    assert judged([*renamed[:20], *after], renamed=names).status is Status.REGRESSED
    assert judged([*renamed[:20], *after], ab(19, 20, 1.0), renamed=names).status is Status.OK


def test_without_another_commit_the_host_is_asked() -> None:
    runs = [
        *nights([10.0] * 20, environment={"commit": "x"}),
        *nights([10.6], start=FIRST + timedelta(20), environment={"commit": "x"}),
    ]
    assert told(runs)[0].command == "mtpbench aa runs/r2026-01-21/scenario.yaml"


def test_reports() -> None:
    found = told(nights([10.0] * 20 + [10.6] * 3))
    assert to_markdown(found).startswith("**FAIL: ")
    document = json.loads(to_json(found))
    assert document["verdict"] == "FAIL"
    assert document["series"][0]["changes"][0]["night"] == "2026-01-21"
    assert document["series"][0]["changes"][0]["change"] == pytest.approx(0.06, abs=0.01)
    assert headline([])[0] is Verdict.NO_BASELINE


def test_ar1_shrinks_the_number_of_nights() -> None:
    """Two nights with r = .5: var of the mean = (1 + .5)/2, so they are worth 4/3."""
    assert levels.effective(np.array([1, 2]), 0.5) == pytest.approx([1, 4 / 3])
    assert levels.effective(np.array([5]), 0.0) == pytest.approx([5])
    assert levels.autocorrelation(np.array([1.0, -1.0] * 10)) == 0.0
    assert levels.autocorrelation(np.repeat([-0.5, 0.5], 30)) == levels.MAX_AUTOCORRELATION


LEDGER = """\
version: 1
regressions:
  - scenario: scripted
    metric: tpot_p50
    arm: mtp
    level: 1
    bound: 8%
    owner: somebody
    reason: the safe path until the fix lands
    expires: 2026-06-30
"""


def test_the_ledger_excuses_until_its_bound_and_its_date(tmp_path: Path) -> None:
    (tmp_path / "known.yaml").write_text(LEDGER)
    ledger = load_ledger(tmp_path / "known.yaml")

    def status(level: float, today: date) -> Status:
        [found] = told(
            nights([10.0] * 20 + [level] * 5), today=FIRST + timedelta(24),
            excuse=lambda s, key, delta: ledger.excuse(s, key, delta, today),
        )  # fmt: skip
        return found.status

    assert status(10.6, date(2026, 6, 30)) is Status.OK
    assert status(10.6, date(2026, 7, 1)) is Status.REGRESSED  # past its date
    assert status(11.0, date(2026, 6, 30)) is Status.REGRESSED  # past its bound
    assert [entry.owner for entry in ledger.lapsed(date(2026, 7, 1))] == ["somebody"]
    assert load_ledger(tmp_path / "absent.yaml") == Ledger(version=1)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "bound: 8%",
            "bound: 8",
            "known.yaml:7: regressions.0.bound: 8 is not a bound: write a percentage, such as 6%",
        ),
        ("bound: 8%", "bound: 500%", "known.yaml:7: regressions.0.bound: 500% is no bound: from above 0 to 50 %"),
        ("bound: 8%", "bound: 0%", "known.yaml:7: regressions.0.bound: 0% is no bound"),
        ("owner: somebody", "ower: somebody", "known.yaml:8: regressions.0.ower: unknown key; did you mean 'owner'?"),
        ("    owner: somebody\n", "", "known.yaml:3: regressions.0.owner: this key is required"),
        ("tpot_p50", "tpot", "known.yaml:4: regressions.0.metric: 'tpot' is no metric"),
        ("expires: 2026-06-30", "expires: soon", "known.yaml:10: regressions.0.expires:"),
        ("version: 1", "version: 2", "known.yaml:1: version:"),
        (LEDGER, "- 1", "a ledger is a mapping"),
        (LEDGER, "a: !!python/object:os.system {}", "known.yaml:1"),
    ],
)
def test_a_wrong_ledger_names_its_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = tmp_path / "known.yaml"
    path.write_text(LEDGER.replace(old, new))
    with pytest.raises(ScenarioError) as error:
        load_ledger(path)
    assert said in str(error.value)
