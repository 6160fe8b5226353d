"""What goes wrong in series of nights, as people report it, and the right word on every surface that says one.

Each history is read by `trend`, the pages, `ci issues` and `ci confirm`, on a metric of which less is better and on one
of which more is, and once with its noise doubled. Nights: three launches, 0.4 % between nights, 0.6 % between launches.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launches import run, scenario

from dashboards.overview import findings, overview
from dashboards.scenario_page import scenario_page
from dashboards.site import gather
from harness.metrics.definitions import PassView, pass_row
from harness.model import LoadLevel, Pass, PassKey, PassRecord
from harness.nightly.issues import issues
from harness.nightly.judged import judge
from harness.nightly.night import Night, Place
from harness.nightly.report import to_json, to_markdown
from harness.nightly.told import Status, Told, commands, headline, percent
from harness.scenario.format import Scenario
from harness.store.ab_record import Party, Session, sides
from harness.store.archive import Archive, Kept
from harness.store.events import Event, append
from harness.store.runs import StoredRun, write_below
from harness.tests.nightly.test_trend import commit
from harness.verdict.accepted import Entry, Ledger
from harness.verdict.compare import EXIT_CODES, Verdict, compare
from harness.verdict.pairs import Metric

FIRST = date(2026, 1, 1)
UP = 0.054
NIGHT, LAUNCH = 0.004, 0.006
LEVEL = LoadLevel(concurrency=1)
_EMPTY = pass_row(PassView.of(Pass(PassRecord(PassKey(0, "", 1, LEVEL, 0), "", 0.0, 0.0, "complete"), ())))


@dataclass(frozen=True)
class Variant:
    """A metric and its value on a quiet night; `noise`: a factor on both spreads."""

    metric: str
    value: float
    noise: float = 1.0

    @property
    def sign(self) -> float:
        return -1.0 if Metric.of(self.metric).higher_is_better else 1.0


VARIANTS = {
    "TPOT": Variant("tpot_p50", 0.010),
    "twice the noise": Variant("tpot_p50", 0.010, noise=2.0),
    "throughput": Variant("output_throughput", 4000.0),
}


@dataclass
class Store:
    """Nights of one variant, made one after the other. `worse` and `size` are relative: 0.054 is 5.4 % worse."""

    of: Variant
    root: Path
    kept: list[Kept] = field(default_factory=list)
    today: date = FIRST
    number: int = 0
    seed: int = 7

    def __post_init__(self) -> None:
        self.draw = np.random.default_rng(self.seed)

    def nights(self, *worse: float, host: str = "a", arm: str = "mtp", plan: Scenario | None = None,
               gap: int = 0, **environment: Any) -> Store:  # fmt: skip
        """A run a night; `worse`: by how much it is worse than a quiet one. The next one is on the next day."""
        self.number += gap
        for size in worse:
            day = FIRST + timedelta(self.number)
            off = math.log1p(size) + self.of.noise * self.draw.normal(0, NIGHT)
            launches = off + self.of.noise * self.draw.normal(0, LAUNCH, 3)
            self.add(day, launches.tolist(), host, arm, plan, **environment)
            self.number += 1
            self.today = day
        return self

    def add(self, day: date, launches: list[float], host: str = "a", arm: str = "mtp", plan: Scenario | None = None,
            hour: int = 2, **environment: Any) -> StoredRun:  # fmt: skip
        """A run of a day; `launches`: logarithms, above zero worse."""
        plan = plan or scenario(arms={arm: {}}, launches=len(launches))
        passes = [self._pass(n, self.of.value * math.exp(self.of.sign * x), arm) for n, x in enumerate(launches)]
        number = (day - FIRST).days
        made = run(passes, name=f"{plan.name}-{day}-{hour}-{host}-{arm}", of=plan,
                   created_at=f"{day}T{hour:02d}:00:00+00:00",
                   environment={"host": host, "commit": commit(number), **environment})  # fmt: skip
        self.kept.append(Kept(made))
        return made

    def _pass(self, launch: int, value: float, arm: str) -> Pass:
        key = PassKey(launch, arm, 1, LEVEL, 0)
        derived = {**_EMPTY, "requests": 8, "ok": 8, "counted": 8, "tpot_p50": 0.01, "launch": launch, "arm": arm}
        derived[self.of.metric] = value
        return Pass(PassRecord(key, "2026-01-01T00:00:00+00:00", 0.0, 1.0, "complete"), (), derived)

    def ab(self, base: int, head: int, size: float = 0.0, **where: str) -> Store:
        """A stored A/B of the commits of two nights, with the verdict that it really has."""
        host, arm, kind = where.get("host", "a"), where.get("arm", "mtp"), where.get("kind", "ab")
        arms = {arm: (f"base.{arm}", f"head.{arm}")}
        passes = [
            self._pass(n, self.of.value * math.exp(self.of.sign * (shift + self.draw.normal(0, 0.002))), side)
            for n in range(6)
            for side, shift in zip(arms[arm], (0.0, math.log1p(size)), strict=True)
        ]
        plan = scenario(arms={side: {} for side in arms[arm]}, launches=6)
        made = run(passes, name=f"ab-{base}-{head}", of=plan, environment={"host": host},
                   created_at=f"{FIRST + timedelta(head)}T05:00:00+00:00")  # fmt: skip
        parties = (Party(commit(n)[:10], "git", commit(n)) for n in (base, head))
        session = Session(kind, *parties, arms, 6, 4, (self.of.metric,), finished_pairs=6)
        word = compare(*sides(made, session), metrics=session.metrics).verdict.value
        self.kept.append(Kept(made, replace(session, verdict=word)))
        return self

    def archive(self) -> Archive:
        return Archive(self.root, tuple(sorted(self.kept, key=lambda one: one.run.created_at)))


def told_everywhere(store: Store, today: date | None = None, *, renamed: Mapping[str, str] | None = None,
                    ledger: Ledger | None = None) -> list[Told]:  # fmt: skip
    """What is told of a store, once all surfaces were seen to say the same word and the same number."""
    metric, day = (store.of.metric,), today or store.today
    ledger = ledger or Ledger(version=1)
    judged = judge(store.archive(), day, metric, renamed=renamed,
                   excuse=lambda scenario, key, delta: ledger.excuse(scenario, key, delta, day))  # fmt: skip
    told = list(judged.told)
    site = gather(store.archive(), day, "2026-12-01T00:00:00+00:00", ledger, metric, metric, renamed=renamed)
    word, sentence = headline(told)
    document = json.loads(to_json(told))
    assert (document["verdict"], document["headline"]) == (word.value, sentence)
    assert to_markdown(told).startswith("**" + word.value.replace("_", "\\_"))
    page = overview(site)
    of_rows = [one for one in findings(site) if "is no full result" not in one.sentence]
    assert (of_rows[0].word if of_rows else word.value) == word.value
    first = f'<p class="word">{word.value if not findings(site) else findings(site)[0].word}</p>'
    assert first in page
    regressed = [one for one in told if one.status is Status.REGRESSED]
    texts = issues(told)
    assert bool(texts) == bool(regressed)
    assert bool(commands(told)) == any(one.status is Status.ALERT for one in told)
    pages = page + "".join(scenario_page(site, view) for view in site.scenarios)
    for one in regressed:
        number = percent(one.series, one.delta or 0.0)
        assert number in one.sentence
        assert pages.count(number) >= 3  # the answer, its card, the row's line
        assert f"{number}" in texts[0].title or len(texts) > 1
        assert any(f"{number} " in text.body.replace("&#43;", "+").replace("\\", "") for text in texts)
        [row] = [s for s in document["series"] if s["sentence"] == one.sentence]
        assert f"{100 * row['change']:+.1f} %" == number
    return told


def the_one(store: Store, today: date | None = None, **options: Any) -> Told:
    [found] = told_everywhere(store, today, **options)
    return found


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS.keys())
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(request.param, tmp_path)


def slower(found: Told, size: float, first: int) -> None:
    """It FAILs, by a size within one point of the truth and since the right night."""
    assert found.status is Status.REGRESSED, found.sentence
    value = math.expm1(found.delta or 0.0)
    assert value == pytest.approx(size, abs=0.01)
    assert found.since is not None
    assert abs((found.since - FIRST).days - first) <= 1


QUIET = (0.0,)


# --- where it was blind -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("odd", [-0.49, -0.2, 1.0, 2.0])
def test_one_odd_night_hides_no_step(store: Store, odd: float) -> None:
    slower(the_one(store.nights(0, 0, 0, odd, *QUIET * 23, UP, UP, UP)), UP, 27)


def test_a_night_that_was_withdrawn_counts_in_no_number(store: Store) -> None:
    assert the_one(store.nights(*QUIET * 20, 1.0, *QUIET * 8)).status is Status.OK
    slower(the_one(store.nights(*(UP,) * 6)), UP, 29)


@pytest.mark.parametrize("odd", [0.2, -0.2])
@pytest.mark.parametrize("size", [UP, 0.10, 0.30])
def test_two_odd_nights_are_as_if_they_had_not_been(store: Store, odd: float, size: float) -> None:
    slower(the_one(store.nights(*QUIET * 20, odd, odd, *QUIET * 12, *(size,) * 5)), size, 34)


@pytest.mark.parametrize(("nights", "most"), [(50, 0.05), (100, 0.10)])
def test_a_slow_drift_is_told_as_one(store: Store, nights: int, most: float) -> None:
    found = the_one(store.nights(*(most * n / (nights - 1) for n in range(nights))))
    assert found.status is Status.REGRESSED
    assert "drifts" in found.sentence
    assert "a night" in found.sentence
    assert math.expm1(found.delta or 0.0) == pytest.approx(most, abs=0.02)


def test_a_run_from_the_future_is_named_and_does_not_count(store: Store) -> None:
    store.nights(*QUIET * 20)
    store.add(FIRST + timedelta(385), [0.0] * 3)
    today = FIRST + timedelta(41)
    found = the_one(store, today)
    assert found.status is Status.STALE
    archive = judge(store.archive(), today, (store.of.metric,)).archive
    assert any("2027-01-21" in text and "does not count" in text for text in archive.left_out)
    page = overview(gather(store.archive(), today, "", Ledger(version=1), (store.of.metric,), (store.of.metric,)))
    assert "does not count" in page


def test_a_launch_that_measured_zero_is_out_and_said(tmp_path: Path) -> None:
    store = Store(Variant("accept_length_mean", 3.2), tmp_path).nights(*QUIET * 20)
    made = store.kept.pop().run
    passes = tuple(
        replace(one, derived={**(one.derived or {}), "accept_length_mean": 0.0 if n < 2 else 3.2})
        for n, one in enumerate(made.passes)
    )
    store.kept.append(Kept(replace(made, passes=passes)))
    found = the_one(store)
    assert found.series.nights[-1].launches == 1
    said = "2026-01-20 left out: measured 0 (2 of 3 launches, the night counts by the others)"
    assert said in found.series.notes
    assert "measured 0" in to_markdown([found])


# --- where it was red for ever ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [3, 90])
def test_the_pass_of_an_ab_closes_it_and_the_host_is_named(store: Store, after: int) -> None:
    store.nights(*QUIET * 20, *(0.06,) * after).ab(19, 20)
    found = the_one(store)
    assert (found.status, found.verdict) == (Status.OK, Verdict.PASS)
    assert "so the host a did, not the commit" in found.sentence
    slower(the_one(store.nights(*(1.06 * (1 + UP) - 1,) * 6)), UP, 20 + after)


@pytest.mark.parametrize("other", [{"host": "b"}, {"arm": "plain"}, {"kind": "aa"}], ids=str)
def test_an_ab_of_something_else_settles_nothing(store: Store, other: dict[str, str]) -> None:
    store.nights(*QUIET * 20, *(0.06,) * 4).ab(19, 20, **other)
    assert the_one(store).status is Status.REGRESSED


def test_what_ended_on_a_host_and_goes_on_elsewhere_is_moved(store: Store) -> None:
    store.nights(*QUIET * 20, *(UP,) * 5)
    store.nights(*QUIET * 40, host="b")
    found = {one.series.key.host: one for one in told_everywhere(store)}
    assert (found["a"].status, found["b"].status) == (Status.MOVED, Status.OK)
    assert headline(list(found.values()))[0] is Verdict.PASS
    store.nights(*(UP,) * 5, host="b")  # the new series is judged
    slower(next(one for one in told_everywhere(store) if one.series.key.host == "b"), UP, 65)


def test_a_load_that_is_added_to_the_sweep_starts_no_new_series(store: Store) -> None:
    wider = scenario(launches=3)
    wider = wider.model_copy(update={"arrival": wider.arrival.model_copy(update={"concurrency": [1, 2, 4]})})
    store.nights(*QUIET * 20).nights(*(UP,) * 6, plan=wider)
    slower(next(one for one in told_everywhere(store) if one.series.key.row.level == LEVEL), UP, 20)


def test_what_is_undone_is_told_once(store: Store) -> None:
    store.nights(*QUIET * 20, 0.2, 0.2)
    assert the_one(store).status is not Status.OK
    found = the_one(store.nights(*QUIET * 3))
    assert found.status is Status.OK
    assert "is as it was" in found.sentence


@pytest.mark.parametrize(("metric", "value", "size"), [("tpot_p50", 0.00015, 0.08), ("ttft_p50", 0.015, 0.05)])
def test_floors_are_those_of_the_ab(tmp_path: Path, metric: str, value: float, size: float) -> None:
    """TPOT 0.150 to 0.162 ms, TTFT 15 to 15.75 ms: below what the client can tell, in the A/B and here."""
    store = Store(Variant(metric, value), tmp_path).nights(*QUIET * 20, *(size,) * 6)
    assert the_one(store).verdict is Verdict.PASS


@pytest.mark.parametrize(("bound", "status"), [(0.35, Status.OK), (0.40, Status.OK), (0.25, Status.REGRESSED)])
def test_a_bound_is_of_the_change_that_is_shown(tmp_path: Path, bound: float, status: Status) -> None:
    """A throughput that fell by 30 %: its inverse rose by 43 %."""
    entry = Entry.model_validate({
        "scenario": "scripted", "metric": "output_throughput", "bound": f"{100 * bound:g}%", "owner": "ann",
        "reason": "known and accepted", "expires": date(2027, 1, 1),
    })  # fmt: skip
    store = Store(Variant("output_throughput", 4000.0), tmp_path).nights(*QUIET * 20, *(1 / 0.7 - 1,) * 6)
    found = the_one(store, ledger=Ledger(version=1, regressions=[entry]))
    assert found.status is status
    assert "-30." in found.sentence or "-29." in found.sentence


def told_to_run(store: Store, *arms: str, every: int = 1, name: str = "scripted") -> Store:
    """Tonight's plan of host a: these arms."""
    places = tuple(Place(name, arm, 1, LEVEL) for arm in arms)
    begun = f"{store.today}T01:00:00+00:00"
    night = Night(store.today, f"{name}-{every}", "a", begun, places, {}, every)
    write_below(store.root, night.file, night.to_bytes())
    return store


def test_only_what_the_nights_are_told_to_run_is_missed(store: Store) -> None:
    both = scenario(arms={"mtp": {}, "extra": {}}, launches=3)
    store.nights(*QUIET * 10)
    store.add(store.today, [0.0] * 3, arm="extra", plan=both, hour=12)  # by hand
    store.nights(*QUIET * 15)
    told_to_run(store, "mtp")
    found = {one.series.key.row.arm: one for one in told_everywhere(store)}
    assert (found["mtp"].status, found["extra"].status) == (Status.OK, Status.RETIRED)
    assert headline(list(found.values()))[0] is Verdict.PASS


def test_what_somebody_retired_is_not_missed_and_says_who_and_why(store: Store) -> None:
    both = scenario(arms={"mtp": {}, "old": {}}, launches=3)
    for _ in range(20):
        store.nights(0.0)
        store.add(store.today, [0.0] * 3, arm="old", plan=both, hour=3)
    store.nights(*QUIET * 5, plan=both)
    assert {one.status for one in told_everywhere(store)} == {Status.OK, Status.MISSING}
    facts = {"since": str(store.today)}
    append(store.root, [Event("retired", {"arm": "old"}, by="ann", why="nobody needs it", facts=facts)])
    found = {one.series.key.row.arm: one for one in told_everywhere(store)}
    assert found["old"].status is Status.RETIRED
    assert "retired by ann" in found["old"].sentence
    assert "nobody needs it" in found["old"].sentence


@pytest.mark.parametrize("overlap", [False, True])
def test_an_arm_that_is_renamed_on_the_night_of_a_step_is_compared(store: Store, overlap: bool) -> None:
    store.nights(*QUIET * 20)
    if overlap:  # a day on which it was measured under both names
        store.add(store.today, [0.0] * 3, arm="mtp-new", hour=12)
    store.nights(*(UP,) * 6, arm="mtp-new")
    assert Status.REGRESSED not in {one.status for one in told_everywhere(store)}
    slower(the_one(store, renamed={"scripted@mtp": "mtp-new"}), UP, 20)
    append(store.root, [Event("renamed", {}, by="ann", why="it was", facts={"old": "scripted@mtp", "new": "mtp-new"})])
    slower(the_one(store), UP, 20)


def test_a_weekly_scenario_is_not_missed_on_the_fourth_day(store: Store) -> None:
    for _ in range(12):
        told_to_run(store.nights(0.0, gap=6), "mtp", every=7)
    for days in (4, 7, 9):
        assert the_one(store, store.today + timedelta(days)).status is Status.OK
    assert the_one(store, store.today + timedelta(14)).status is Status.STALE


def test_good_reruns_replace_a_bad_night_by_rule(store: Store) -> None:
    store.nights(*QUIET * 20, 0.07)
    for hour in (4, 6):
        store.add(store.today, (store.draw.normal(0, LAUNCH, 3)).tolist(), hour=hour)
    found = the_one(store)
    assert found.status is Status.OK
    assert found.series.nights[-1].launches == 6
    assert any("was measured again: 3 of 9 launches are left out" in note for note in found.series.notes)


def test_long_names_do_not_share_a_marker(tmp_path: Path) -> None:
    markers = set()
    for n in range(3):
        long = scenario(name="s" * 62 + str(n), launches=3)
        store = Store(VARIANTS["TPOT"], tmp_path / str(n))
        store.nights(*QUIET * 20, *(UP,) * 4, plan=long, host="h" * 60 + str(n))
        markers |= {issue.name for issue in issues([the_one(store)])}
    assert len(markers) == 3
    assert all(len(name) <= 120 for name in markers)


def test_a_series_that_swings_is_said_to_be_unstable(tmp_path: Path) -> None:
    store = Store(Variant("tpot_p50", 0.010, noise=0.5), tmp_path).nights(*QUIET * 40)
    store.of = Variant("tpot_p50", 0.010, noise=12.0)
    found = the_one(store.nights(*QUIET * 15))
    assert found.status is Status.UNSTABLE
    assert "spread by" in found.sentence
    assert EXIT_CODES[found.verdict] == EXIT_CODES[Verdict.INCONCLUSIVE]
