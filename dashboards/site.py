"""What the pages of a site are made from: a store's runs, what the trend says of them, and what else a reader needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from functools import cached_property

import numpy as np

from dashboards.markup import slug
from harness.errors import MtpbenchError
from harness.explain.answer import Explanation, explain
from harness.explain.change import Subject
from harness.model import LoadLevel
from harness.nightly.judged import judge
from harness.nightly.night import Trouble, last_nights, read_nights, troubles
from harness.nightly.series import Series, build, night_of
from harness.nightly.told import Told
from harness.results.report import Report
from harness.results.report import build as report_of
from harness.stats import inference
from harness.store.ab_record import Side
from harness.store.archive import Archive, Kept
from harness.store.events import Event as SeriesEvent
from harness.store.runs import StoredRun, load_run
from harness.verdict.aa_floor import Floors, pooled
from harness.verdict.accepted import Ledger
from harness.verdict.facts import differences, facts
from harness.verdict.pairs import DEFAULT_METRICS, Metric, primary_name

# What the pages show beside the metrics that are judged.
SHOWN = (
    *DEFAULT_METRICS,
    "ttft_p90",
    "tpot_p90",
    "itl_p50",
    "e2e_p50",
    "interactivity",
    "output_throughput_per_gpu",
    "request_throughput",
)
CONCURRENCY = 16  # where upstream MTP was found to lose most
RECENT_NIGHTS = 7  # for tables and the frontier: the nights since the last confirmed change, but at most so many

Say = Callable[[str], None]


@dataclass(frozen=True)
class Event:
    """A night on which something besides the measured code was another than the night before."""

    day: date
    words: str


@dataclass(frozen=True)
class Recent:
    """A series' last nights: their geometric mean with its 90 % t interval, in the metric's unit."""

    value: float
    low: float
    high: float
    nights: int


@dataclass(frozen=True)
class Explained:
    """Why an arm's TPOT at concurrency 16 differs from the baseline's in one run, or why that can't be told."""

    title: str
    run: StoredRun
    answer: Explanation | str


@dataclass(frozen=True)
class ScenarioView:
    """One scenario's part of a site, runs and series in order of time."""

    name: str
    runs: tuple[Kept, ...]
    series: tuple[Series, ...]
    told: tuple[Told, ...]
    quarantined: tuple[Series, ...]

    @property
    def file(self) -> str:
        return slug(self.name)

    @property
    def nightly(self) -> list[StoredRun]:
        return [one.run for one in self.runs if one.session is None and not one.run.quarantine]

    @property
    def newest(self) -> StoredRun:
        """The last nightly run; of an A/B's scenario that never ran by night, the last one."""
        return (self.nightly or [one.run for one in self.runs])[-1]

    @property
    def question(self) -> str:
        return self.newest.scenario.question

    @cached_property
    def arms(self) -> tuple[str, ...]:
        """Every arm of a nightly run, those of the newest first."""
        runs = [self.newest, *reversed(self.nightly)]
        return tuple(dict.fromkeys(arm for run in runs for arm in run.scenario.arms))

    @property
    def primary(self) -> tuple[str, LoadLevel] | None:
        """The metric and level that the scenario is about."""
        scenario = self.newest.scenario
        level = scenario.primary_level
        return (primary_name(scenario.primary), level) if scenario.primary and level else None

    @cached_property
    def groups(self) -> tuple[tuple[int, LoadLevel], ...]:
        """(TP, level) of all series, in the order of a sweep."""
        found = {(one.key.row.tp, one.key.row.level) for one in self.series}
        return tuple(sorted(found, key=lambda g: (g[0], g[1].input_tokens, g[1].value)))

    @cached_property
    def days(self) -> tuple[date, ...]:
        """Every day from the first night to the last."""
        ends = [night.day for one in (*self.series, *self.quarantined) for night in (one.nights[0], one.nights[-1])]
        if not ends:
            return ()
        first = min(ends)
        return tuple(first + timedelta(n) for n in range((max(ends) - first).days + 1))

    def current(self, metric: str) -> list[Series]:
        """Of each row the series that was measured last: not those of hosts and conditions that it moved on from."""
        of_metric = [one for one in self.series if one.key.row.metric == metric]
        of_metric.sort(key=lambda one: one.nights[-1].run.created_at)
        return list({one.key.row: one for one in of_metric}.values())

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """What changed between consecutive nights: versions, kernel, driver, host. Commits change too often."""
        out, before = [], None
        for run in self.nightly:
            now = facts(run, run.scenario.baseline_arm)
            if before is not None:
                words = _changes(before, now)
                out += [Event(night_of(run)[0], words)] if words else []
            before = now
        return tuple(out)


def _changes(before: dict[str, object], now: dict[str, object]) -> str:
    found = [d for d in differences(before, now) if d.fact not in ("commit", "scenario")]
    shown = [_short(f"{d.fact.removeprefix('packages.')}: {d.base} → {d.head}") for d in found]
    return "; ".join(shown[:6]) + (f"; and {len(shown) - 6} more" if len(shown) > 6 else "")


def _short(sentence: str) -> str:
    return sentence if len(sentence) <= 160 else f"{sentence[:157]}…"


@dataclass(frozen=True)
class Site:
    """Everything that pages show."""

    archive: Archive
    today: date
    built: str  # UTC, ISO 8601
    judged: tuple[str, ...]
    shown: tuple[str, ...]
    told: tuple[Told, ...]
    scenarios: tuple[ScenarioView, ...]
    reports: dict[str, Report]  # by run
    ledger: Ledger
    troubles: tuple[Trouble, ...] = ()  # of each host's last night: steps that failed, rows that are missing
    floors: dict[tuple[str, str], Floors] = field(default_factory=dict)  # by host and scenario
    explained: dict[str, list[Explained]] = field(default_factory=dict)  # by scenario

    @property
    def simulated(self) -> list[str]:
        """Runs that say they are simulated."""
        return [one.run.id for one in self.archive.kept if one.run.simulated]

    @property
    def only_simulated(self) -> bool:
        return len(self.simulated) == len(self.archive.kept)

    def page_of(self, run: StoredRun) -> str:
        return f"run/{slug(run.path.name)}.html"


def gather(
    archive: Archive,
    today: date,
    built: str,
    ledger: Ledger,
    judged: Sequence[str] = DEFAULT_METRICS,
    shown: Sequence[str] = SHOWN,
    *,
    renamed: Mapping[str, str] | None = None,
    say: Say = lambda _: None,
) -> Site:
    """Judges and sums up a store. Raises MtpbenchError for an empty one and for unknown metrics."""
    if not archive.kept:
        why = f": {archive.left_out[0]}" if archive.left_out else ""
        raise MtpbenchError(
            f"{archive.root} holds no run that can be read{why}",
            "Name the folder that `mtpbench run --store` was given: it has RUN/run.json below it.",
        )
    names = tuple(dict.fromkeys([*judged, *shown]))
    for name in names:
        Metric.of(name)
    say(f"series of {len(names)} metrics over {len(archive.nightly())} nightly runs")
    judgement = judge(
        archive, today, tuple(judged), shown=names, renamed=renamed,
        excuse=lambda scenario, key, delta: ledger.excuse(scenario, key, delta, today),
    )  # fmt: skip
    archive, series, told = judgement.archive, judgement.series, judgement.told
    aside = [one.run for one in archive.kept if one.session is None and one.run.quarantine]
    odd = build([replace(run, quarantine="") for run in aside], names, judgement.renamed)  # drawn, never judged
    say(f"reports of {len(archive.kept)} runs")
    reports = {one.run.id: report_of(one.run) for one in archive.kept}
    places = {(s.key.host, s.key.scenario) for s in series}
    views = _scenarios(archive, series, told, odd)
    say("the account of concurrency 16")
    return Site(
        archive=archive,
        today=today,
        built=built,
        judged=tuple(judged),
        shown=names,
        told=tuple(told),
        scenarios=tuple(views),
        reports=reports,
        ledger=ledger,
        troubles=tuple(_troubles(archive, today, judgement.events)),
        floors={place: pooled(archive.aa_runs(*place)) for place in sorted(places)},
        explained={view.name: _explained(view, reports) for view in views},
    )


def _troubles(archive: Archive, today: date, events: Sequence[SeriesEvent]) -> list[Trouble]:
    nights, _ = read_nights(archive.root)
    last = last_nights([night for night in nights if night.day <= today], events)
    return [one for night in last for one in troubles(night, archive)]


def _explained(view: ScenarioView, reports: Mapping[str, Report]) -> list[Explained]:
    """Each arm against the baseline at concurrency 16, in the last nightly run that has a value of both there."""
    out, read = [], dict[str, StoredRun]()
    for tp, level in view.groups:
        if level.concurrency != CONCURRENCY or level.factor:
            continue
        for arm in view.arms:
            found = [run for run in view.nightly if _has_both(run, reports[run.id], arm, tp, level)]
            if not found:
                continue
            run, base = found[-1], found[-1].scenario.baseline_arm
            title = f"{arm} against {base}, TP{tp}" + (
                f", {level.input_tokens} tokens in" if level.input_tokens else ""
            )
            try:
                raw = read.setdefault(run.id, run if run.passes[0].requests else load_run(run.path))
                side = Side(run.id, (raw,), {name: name for name in run.scenario.arms})
                answer: Explanation | str = explain(Subject(side, base, tp, level), Subject(side, arm, tp, level))
            except MtpbenchError as error:
                answer = f"No account: {error}."
            out.append(Explained(title, run, answer))
    return out


def _has_both(run: StoredRun, report: Report, arm: str, tp: int, level: LoadLevel) -> bool:
    """Has a run TPOT of an arm and of its baseline at one level, and raw records to account for it?"""
    base = run.scenario.baseline_arm
    have = {line.arm for line in report.lines if (line.tp, line.level) == (tp, level) and line.get("tpot_p50")}
    recorded = bool(run.passes[:1]) and (run.path / "passes").is_dir()
    return recorded and arm != base and {arm, base} <= have


def _scenarios(
    archive: Archive, series: Iterable[Series], told: Iterable[Told], odd: Iterable[Series]
) -> list[ScenarioView]:
    series, told, odd = list(series), list(told), list(odd)
    # A renamed scenario's nights belong to its new name.
    names = {night.run.path: one.key.scenario for one in series for night in one.nights}
    runs: dict[str, list[Kept]] = {}
    for one in archive.kept:
        runs.setdefault(names.get(one.run.path, one.run.scenario.name), []).append(one)
    return [
        ScenarioView(
            name,
            tuple(of),
            tuple(s for s in series if s.key.scenario == name),
            tuple(t for t in told if t.series.key.scenario == name),
            tuple(s for s in odd if s.key.scenario == name),
        )
        for name, of in sorted(runs.items())
    ]


def state_of(report: Report) -> tuple[str, str]:
    """(OK, INCOMPLETE or INVALID; why). That a run is simulated stands in a banner of its own."""
    kind, _, why = report.headline.partition(": ")
    return kind.rpartition(". ")[2], why


def recent(series: Series, told: Told | None = None) -> Recent:
    """The last nights of a series, none from before its present level and no excursion."""
    off = set(told.reading.excursions) if told else set()
    start = max(0, told.reading.stretches[-1].start) if told and told.reading.stretches else 0
    counted = [night for n, night in enumerate(series.nights) if n >= start and n not in off]
    nights = (counted or list(series.nights))[-RECENT_NIGHTS:]
    logs = np.log([[night.value] for night in nights])
    middle = float(np.exp(np.mean(logs)))
    if len(nights) < 2:
        return Recent(middle, middle, middle, len(nights))
    low, high = inference.interval(inference.spread(logs))
    return Recent(middle, math.exp(float(low[0])), math.exp(float(high[0])), len(nights))


def shown_unit(metric: Metric) -> tuple[float, str]:
    """(factor, unit) in which people read a metric: milliseconds for seconds."""
    return (1e3, "ms") if metric.unit == "s" else (1.0, metric.unit)


def shown_number(value: float | None, metric: Metric) -> str:
    """`5.63 ms`, `2686`; a dash for no value."""
    if value is None or not math.isfinite(value):
        return "–"
    factor, unit = shown_unit(metric)
    return f"{value * factor:.4g}" + (f" {unit}" if unit == "ms" else "")


def long_label(metric: Metric) -> str:
    """`TPOT, median`: what of the distribution it is."""
    stem, _, how = metric.name.rpartition("_")
    words = {"p50": "median", "mean": "mean"}
    base = metric.label
    if stem and how in words:
        return f"{base}, {words[how]}"
    return base
