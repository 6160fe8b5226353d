"""Stored nightly runs → one series for each (host, fingerprint class, scenario, arm, TP, load, metric).

A night is a UTC day; its value is the geometric mean over its launches. Everything that is unusual about a series is
said: a gap, launches left out, a night that was measured again, another host, a new name. What the series says is
`harness.stats.series`, and in words `told`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta, timezone

import numpy as np

from harness.stats.decision import Margins
from harness.stats.levels import Level, agreeing
from harness.stats.series import Earlier, History, Rule
from harness.store.ab_record import Side
from harness.store.archive import Archive
from harness.store.runs import StoredRun
from harness.verdict.facts import facts, fingerprint_class
from harness.verdict.pairs import Launched, Metric, RowKey, measure

GAP_DAYS = 7


@dataclass(frozen=True)
class Night:
    """One night of a series. `value` in the metric's unit."""

    day: date
    value: float
    launches: int
    run: StoredRun = field(repr=False)
    arm: str = ""  # by the name that it had that night

    @property
    def commit(self) -> str:
        return str(self.run.environment.get("commit") or "")


@dataclass(frozen=True)
class SeriesKey:
    """What must stay the same for numbers to be one series."""

    host: str
    fingerprint: str
    scenario: str
    row: RowKey

    def __str__(self) -> str:
        return f"{self.row}, {self.scenario} on {self.host}"


@dataclass(frozen=True)
class Past:
    """A level of nights that are no longer stored: its first night, and the level as a delta."""

    first: date
    level: Level
    closed: str = ""  # why the change that led to it is no slowdown


@dataclass(frozen=True)
class Series:
    """Nights in order, and what is unusual about them."""

    key: SeriesKey
    nights: tuple[Night, ...]
    notes: tuple[str, ...] = ()
    past: tuple[Past, ...] = ()  # what is known of deleted nights, oldest first

    @property
    def metric(self) -> Metric:
        return Metric.of(self.key.row.metric)

    def logs(self) -> list[float]:
        """Log values signed so that above is worse."""
        sign = -1.0 if self.metric.higher_is_better else 1.0
        return [sign * math.log(night.value) for night in self.nights]

    @property
    def margins(self) -> Margins:
        """Tolerance and floor as the A/B has them at this row's usual value."""
        usual = float(np.median([night.value for night in self.nights]))
        return Margins.of(usual, self.metric.floor)

    def history(self, rule: Rule) -> History:
        """As the model of a series reads it."""
        past = [Earlier(one.level, one.closed) for one in self.past]
        return History([night.day for night in self.nights], self.logs(), self.margins.tolerance, rule, past)


def night_of(run: StoredRun) -> tuple[date, str]:
    """The UTC day on which a run was begun, and what is odd about its time."""
    moment = datetime.fromisoformat(run.created_at.replace("Z", "+00:00"))
    if moment.tzinfo is None:
        return moment.date(), f"{run.id} has a time without a zone: taken as UTC"
    return moment.astimezone(timezone.utc).date(), ""


def until(archive: Archive, today: date) -> Archive:
    """An archive without runs that are dated after a day: they can't have been made yet. They are named."""
    late = [one for one in archive.kept if night_of(one.run)[0] > today]
    named = [f"{one.run.id} is dated {night_of(one.run)[0]}, after {today}: it does not count" for one in late[:5]]
    named += [f"{len(late) - 5} more runs are dated after {today}"] if len(late) > 5 else []
    kept = tuple(one for one in archive.kept if one not in late) if late else archive.kept
    return replace(archive, kept=kept, left_out=(*archive.left_out, *named))


def build(runs: Iterable[StoredRun], metrics: Sequence[str], renamed: Mapping[str, str] | None = None) -> list[Series]:
    """All series of some runs. `renamed`: old name of a scenario → new one, `SCENARIO@ARM` → the arm's new one."""
    found: dict[SeriesKey, dict[date, list[tuple[float, StoredRun, str]]]] = {}
    notes: dict[SeriesKey, list[str]] = {}
    names = dict(renamed or {})
    for run in sorted(runs, key=lambda one: one.created_at):
        day, odd = night_of(run)
        name = run.scenario.name
        for arm in run.scenario.arms:
            known = facts(run, arm)
            host = str(known.get("host", "unknown host"))
            conditions = fingerprint_class(known)
            measured = measure(Side("", (run,), {arm: arm}), metrics)
            scenario, label = new_name(name, arm, names)
            for (_, tp, level), launches in measured.launches.items():
                for metric in metrics:
                    key = SeriesKey(host, conditions, scenario, RowKey(metric, label, tp, level))
                    values, left_out = _usable(launches, metric)
                    said = notes.setdefault(key, [])
                    said += [odd] if odd and odd not in said else []
                    said += [f"{day} left out: {left_out}"] if left_out else []
                    said += [f"{day}: recorded as {name}, renamed"] if scenario != name else []
                    said += [f"{day}: recorded as the arm {arm}, renamed"] if label != arm else []
                    if values:
                        found.setdefault(key, {}).setdefault(day, []).extend((value, run, arm) for value in values)
    series = []
    for key, days in found.items():
        nights, again = _nights(days)
        series.append(Series(key, nights, (*_shortened(notes[key]), *again)))
    of_row: dict[tuple[str, RowKey], list[Series]] = {}
    for one in series:
        of_row.setdefault((one.key.scenario, one.key.row), []).append(one)
    return [_with_notes(one, of_row.get((one.key.scenario, one.key.row), [])) for one in _joined(series)]


def new_name(scenario: str, arm: str, names: Mapping[str, str]) -> tuple[str, str]:
    """Scenario and arm by the names that they have now."""
    now = names.get(scenario, scenario)
    return now, names.get(f"{scenario}@{arm}", names.get(f"{now}@{arm}", arm))


def _shortened(notes: Sequence[str]) -> list[str]:
    """Each note once; of nights under an old name, the first and the last."""
    renamed = [note for note in notes if note.endswith(", renamed")]
    return [note for note in dict.fromkeys(notes) if note not in renamed[1:-1]]


def _usable(launches: Sequence[Launched], metric: str) -> tuple[list[float], str]:
    """The values of a run's launches, and why some are left out."""
    out, why = [], list[str]()
    for one in launches:
        value = one.values[metric]
        if one.invalid:
            why.append(one.invalid[0])
        elif value is not None and value > 0 and math.isfinite(value):
            out.append(value)
        elif value is not None:
            why.append(f"measured {value:g}")
        elif any(other.values[metric] is not None for other in launches):
            why.append(f"launch {one.launch} has no value")  # which others have: it was not measured there
    if why and out:
        part = f"{len(why)} of {len(why) + len(out)} launches, the night counts by the others"
        return out, f"{'; '.join(dict.fromkeys(why))} ({part})"
    return out, "; ".join(dict.fromkeys(why))


def _nights(days: Mapping[date, Sequence[tuple[float, StoredRun, str]]]) -> tuple[tuple[Night, ...], list[str]]:
    """The nights, and which launches of a night that was measured again are left out."""
    out, notes = [], []
    for day, values in sorted(days.items()):
        logs = np.log([value for value, _, _ in values])
        kept = np.ones(len(logs), dtype=np.bool_)
        if len({id(run) for _, run, _ in values}) > 1:
            kept = agreeing(logs)
        if not kept.all():
            off = 100 * math.expm1(float(logs[~kept].mean() - logs[kept].mean()))
            bad = dict.fromkeys(run.id for (_, run, _), good in zip(values, kept.tolist(), strict=True) if not good)
            notes.append(
                f"{day} was measured again: {int((~kept).sum())} of {len(kept)} launches are left out, {off:+.1f} % "
                f"off the others, which agree ({', '.join(bad)})"
            )
        _, run, arm = [one for one, good in zip(values, kept.tolist(), strict=True) if good][-1]
        out.append(Night(day, float(np.exp(logs[kept].mean())), int(kept.sum()), run, arm))
    return tuple(out), notes


def _joined(series: list[Series]) -> list[Series]:
    """Series that differ in nothing but the scenario's name, one after the other, are one: the file was renamed.

    They may share a day, on which it was measured under both names.
    """
    by_rest: dict[tuple[str, str, RowKey], list[Series]] = {}
    for one in sorted(series, key=lambda s: s.nights[0].day):
        group = by_rest.setdefault((one.key.host, one.key.fingerprint, one.key.row), [])
        if group and group[-1].nights[-1].day <= one.nights[0].day and group[-1].key.scenario != one.key.scenario:
            before = group.pop()
            note = f"{before.key.scenario} was renamed {one.key.scenario} on {one.nights[0].day}: one series"
            earlier = [night for night in before.nights if night.day < one.nights[0].day]
            one = Series(one.key, (*earlier, *one.nights), (*before.notes, *one.notes, note))
        group.append(one)
    return [one for group in by_rest.values() for one in group]


def _with_notes(one: Series, of_its_row: Sequence[Series]) -> Series:
    """The series with its gaps, doubled nights, and the series that it continues on another host."""
    notes = list(one.notes)
    for before, after in zip(one.nights, one.nights[1:], strict=False):
        if (after.day - before.day).days > GAP_DAYS:
            notes.append(f"no data from {before.day + timedelta(1)} to {after.day - timedelta(1)}")
    planned = [night for night in one.nights if night.launches > night.run.scenario.launches]
    notes += [f"{night.day} has more than one run: its launches count together" for night in planned]
    for other in of_its_row:
        if other.key != one.key and other.nights[0].day < one.nights[0].day:
            what = f"host {other.key.host}" if other.key.host != one.key.host else "other conditions on this host"
            known, theirs = (facts(s.nights[-1].run, s.nights[-1].arm) for s in (one, other))
            changed = [
                fact for fact in sorted({*known, *theirs}) if known.get(fact) != theirs.get(fact) and fact != "commit"
            ]
            notes.append(
                f"before {one.nights[0].day} it ran on {what} ({', '.join(changed[:4])}): a series of its own, "
                "not compared with this one"
            )
    return replace(one, notes=tuple(dict.fromkeys(notes)))
