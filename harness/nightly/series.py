"""Stored nightly runs → one series for each (host, fingerprint class, scenario, arm, TP, load, metric) → what changed.

A night is a UTC day; its value is the geometric mean over its launches. Everything that is unusual about a series is
said: a gap, a night left out, two runs of one night, another host, a renamed scenario.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta, timezone
from enum import Enum

import numpy as np

from harness.stats.change_points import MIN_BASELINE, Change, changes
from harness.stats.decision import TOLERANCE
from harness.store.ab_record import Side
from harness.store.runs import StoredRun
from harness.verdict.compare import Excuse, Verdict, never
from harness.verdict.facts import facts, fingerprint_class
from harness.verdict.pairs import Launched, Metric, RowKey, measure

STALE_DAYS = 3  # a nightly job may miss a weekend, not more
GAP_DAYS = 7


class Status(str, Enum):
    """What is said of a series, from the worst to what is fine."""

    REGRESSED = "regressed"  # a confirmed change for the worse, not undone since
    MISSING = "missing"  # its host still measures other rows
    STALE = "stale"  # nothing for days
    ALERT = "alert"  # may have changed: a paired A/B would tell
    YOUNG = "young"  # too few nights to tell
    MOVED = "moved"  # goes on as another series: another host, other conditions
    OK = "ok"


_VERDICTS = {
    Status.REGRESSED: Verdict.FAIL,
    Status.MISSING: Verdict.MISSING,
    Status.STALE: Verdict.MISSING,
    Status.ALERT: Verdict.INCONCLUSIVE,
    Status.YOUNG: Verdict.NO_BASELINE,
    Status.MOVED: Verdict.PASS,
    Status.OK: Verdict.PASS,
}


@dataclass(frozen=True)
class Night:
    """One night of a series. `value` in the metric's unit."""

    day: date
    value: float
    launches: int
    run: StoredRun = field(repr=False)

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
class Series:
    """Nights in order, and what is unusual about them."""

    key: SeriesKey
    nights: tuple[Night, ...]
    notes: tuple[str, ...] = ()

    @property
    def metric(self) -> Metric:
        return Metric.of(self.key.row.metric)

    def logs(self) -> list[float]:
        """Log values signed so that above is worse."""
        sign = -1.0 if self.metric.higher_is_better else 1.0
        return [sign * math.log(night.value) for night in self.nights]


@dataclass(frozen=True)
class Told:
    """A series and what its reader must know."""

    series: Series
    status: Status
    sentence: str
    changes: tuple[Change, ...] = ()
    command: str = ""  # confirms an alert
    since: date | None = None  # the first night of a change, the last night of what is gone
    delta: float | None = None  # by how much it changed, above zero worse
    excused: str = ""  # why its slowdown is accepted

    @property
    def verdict(self) -> Verdict:
        return _VERDICTS[self.status]


def night_of(run: StoredRun) -> tuple[date, str]:
    """The UTC day on which a run was begun, and what is odd about its time."""
    moment = datetime.fromisoformat(run.created_at.replace("Z", "+00:00"))
    if moment.tzinfo is None:
        return moment.date(), f"{run.id} has a time without a zone: taken as UTC"
    return moment.astimezone(timezone.utc).date(), ""


def build(runs: Iterable[StoredRun], metrics: Sequence[str], renamed: Mapping[str, str] | None = None) -> list[Series]:
    """All series of some runs. `renamed`: old name of a scenario → new one, where the files do not show it."""
    found: dict[SeriesKey, dict[date, list[tuple[float, StoredRun]]]] = {}
    notes: dict[SeriesKey, list[str]] = {}
    names = dict(renamed or {})
    for run in sorted(runs, key=lambda one: one.created_at):
        day, odd = night_of(run)
        for arm in run.scenario.arms:
            known = facts(run, arm)
            host, name = str(known.get("host", "unknown host")), run.scenario.name
            conditions = fingerprint_class(known)
            measured = measure(Side("", (run,), {arm: arm}), metrics)
            for group, launches in measured.launches.items():
                for metric in metrics:
                    key = SeriesKey(host, conditions, names.get(name, name), RowKey(metric, *group))
                    values, left_out = _usable(launches, metric)
                    said = notes.setdefault(key, [])
                    said += [odd] if odd and odd not in said else []
                    said += [f"{day} left out: {left_out}"] if left_out else []
                    if name in names:
                        said.append(f"{day}: recorded as {name}, renamed")
                    if values:
                        found.setdefault(key, {}).setdefault(day, []).extend((value, run) for value in values)
    series = [Series(key, _nights(days), tuple(dict.fromkeys(notes[key]))) for key, days in found.items()]
    of_row: dict[tuple[str, RowKey], list[Series]] = {}
    for one in series:
        of_row.setdefault((one.key.scenario, one.key.row), []).append(one)
    return [_with_notes(one, of_row.get((one.key.scenario, one.key.row), [])) for one in _joined(series)]


def _usable(launches: Sequence[Launched], metric: str) -> tuple[list[float], str]:
    """The values of a run's launches, and why some are left out."""
    out, why = [], ""
    for one in launches:
        value = one.values[metric]
        if one.invalid:
            why = one.invalid[0]
        elif value is not None and value > 0 and math.isfinite(value):
            out.append(value)
        elif value is not None:
            why = f"measured {value:g}"
        elif any(other.values[metric] is not None for other in launches):
            why = f"launch {one.launch} has no value"  # which others have: it was not measured there
    return out, why


def _nights(days: Mapping[date, Sequence[tuple[float, StoredRun]]]) -> tuple[Night, ...]:
    return tuple(
        Night(day, float(np.exp(np.mean([math.log(value) for value, _ in values]))), len(values), values[-1][1])
        for day, values in sorted(days.items())
    )


def _joined(series: list[Series]) -> list[Series]:
    """Series that differ in nothing but the scenario's name, one after the other, are one: the file was renamed."""
    by_rest: dict[tuple[str, str, RowKey], list[Series]] = {}
    for one in sorted(series, key=lambda s: s.nights[0].day):
        group = by_rest.setdefault((one.key.host, one.key.fingerprint, one.key.row), [])
        if group and group[-1].nights[-1].day < one.nights[0].day:
            before = group.pop()
            note = f"{before.key.scenario} was renamed {one.key.scenario} on {one.nights[0].day}: one series"
            one = Series(one.key, before.nights + one.nights, (*before.notes, *one.notes, note))
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
            known, theirs = (facts(s.nights[-1].run, _arm(s)) for s in (one, other))
            changed = [
                fact for fact in sorted({*known, *theirs}) if known.get(fact) != theirs.get(fact) and fact != "commit"
            ]
            notes.append(
                f"before {one.nights[0].day} it ran on {what} ({', '.join(changed[:4])}): a series of its own, "
                "not compared with this one"
            )
    return replace(one, notes=tuple(dict.fromkeys(notes)))


def _arm(series: Series) -> str:
    return series.key.row.arm


def tell(
    series: Sequence[Series],
    today: date,
    excuse: Excuse = never,
    confirmed_by: Callable[[str, str, str], str] = lambda _scenario, _base, _head: "",
) -> list[Told]:
    """What is to be said of each series, the worst first. `confirmed_by`: verdict of a stored A/B of two commits."""
    out = [_tell(one, today, series, excuse, confirmed_by) for one in series]
    order = list(Status)
    return sorted(out, key=lambda told: order.index(told.status))


def _tell(
    one: Series,
    today: date,
    everything: Sequence[Series],
    excuse: Excuse,
    confirmed_by: Callable[[str, str, str], str],
) -> Told:
    found = tuple(changes(one.logs()))
    last = one.nights[-1].day
    level = _level(one, found)
    if level is not None:
        first, delta = level
        reason = excuse(one.key.scenario, one.key.row, delta)
        change = _percent(one, delta)
        sentence = f"{one.key} changed by {change} since {one.nights[first].day} and is still there"
        if reason:
            return Told(one, Status.OK, f"{sentence}: {reason}.", found, "", one.nights[first].day, delta, reason)
        return Told(one, Status.REGRESSED, f"{sentence}.", found, _command(one, first), one.nights[first].day, delta)
    successors = [s for s in everything if (s.key.scenario, s.key.row) == (one.key.scenario, one.key.row)]
    successor = max(successors, key=lambda s: s.nights[-1].day)
    if (successor.nights[-1].day - last).days > STALE_DAYS:
        where = f"on {successor.key.host}" if successor.key.host != one.key.host else "under other conditions"
        return Told(one, Status.MOVED, f"{one.key} ended on {last} and goes on {where}.", found, since=last)
    # Other arms have other settings, so other conditions: the host and the scenario make siblings.
    siblings = [s for s in everything if (s.key.host, s.key.scenario) == (one.key.host, one.key.scenario)]
    if last < max(s.nights[-1].day for s in siblings) and successor.nights[-1].day == last:
        sentence = f"{one.key} is missing since {last}: its scenario still runs."
        return Told(one, Status.MISSING, sentence, found, since=last)
    if (today - last).days > STALE_DAYS:
        return Told(one, Status.STALE, f"{one.key} is stale since {last}: nothing was measured for "
                                       f"{(today - last).days} days.", found, since=last)  # fmt: skip
    open_alerts = [c for c in found if c.confirmed is None and not c.withdrawn and c.worse]
    if open_alerts:
        return _alert(one, open_alerts[-1], found, excuse, confirmed_by)
    if len(one.nights) <= MIN_BASELINE:
        return Told(one, Status.YOUNG, f"{one.key} has {len(one.nights)} nights: alerts begin after "
                                       f"{MIN_BASELINE}.", found)  # fmt: skip
    return Told(one, Status.OK, f"{one.key} is as it was.", found)


def _alert(
    one: Series,
    change: Change,
    found: tuple[Change, ...],
    excuse: Excuse,
    confirmed_by: Callable[[str, str, str], str],
) -> Told:
    command = _command(one, change.start)
    reason = excuse(one.key.scenario, one.key.row, change.delta)
    moved = f"{one.key} may have changed by {_percent(one, change.delta)} on {one.nights[change.start].day}"
    day, delta = one.nights[change.start].day, change.delta
    if reason:
        return Told(one, Status.OK, f"{moved}: {reason}.", found, "", day, delta, reason)
    base, head = (_clean(one.nights[night].commit) for night in (change.start - 1, change.start))
    known = confirmed_by(one.key.scenario, base, head) if base and head else ""
    if known == Verdict.FAIL.value:
        return Told(one, Status.REGRESSED, f"{moved}; a paired A/B confirmed it.", found, command, day, delta)
    if known in (Verdict.PASS.value, Verdict.IMPROVED.value):
        return Told(one, Status.OK, f"{moved}; a paired A/B says {known}, so the host did.", found)
    return Told(one, Status.ALERT, f"{moved} (p {change.p:.2g}), not confirmed.", found, command, day, delta)


def _level(one: Series, found: Sequence[Change]) -> tuple[int, float] | None:
    """(first night, delta) of what the series is worse by than it was, over all confirmed changes; None if it isn't.

    The level before stays the reference until it is reached again: a slowdown does not become the new normal by
    lasting.
    """
    logs, sure = one.logs(), [change.start for change in found if change.confirmed is not None]
    levels = [float(np.mean(logs[a:b])) for a, b in zip([0, *sure], [*sure, len(logs)], strict=True)]
    reference, first = levels[0], None
    for start, level in zip(sure, levels[1:], strict=True):
        if level - reference < TOLERANCE:
            first, reference = None, min(reference, level)
        elif first is None:
            first = start
    return (first, levels[-1] - reference) if first is not None else None


def _percent(one: Series, delta: float) -> str:
    return f"{100 * one.metric.change(delta):+.1f} %"


def _clean(commit: str) -> str:
    return commit.removesuffix("-dirty")


def _command(one: Series, start: int) -> str:
    """The paired A/B that would confirm a change: the night before against the first night of the new level."""
    before, since = one.nights[max(0, start - 1)], one.nights[start]
    scenario = shlex.quote(str(since.run.path / "scenario.yaml"))
    base, head = _clean(before.commit), _clean(since.commit)
    if base and head and base != head:
        return f"mtpbench ab {scenario} --base {base} --head {head}"
    known, earlier = facts(since.run, _arm(one)), facts(before.run, _arm(one))
    if any(known.get(fact) != earlier.get(fact) for fact in known if fact.startswith("packages.")):
        return f"mtpbench ab {scenario} --base env:OLD_ENVIRONMENT --head env:NEW_ENVIRONMENT"
    return f"mtpbench aa {scenario}"  # no software changed: is the host itself as steady as before?


def commands(told: Iterable[Told]) -> list[str]:
    """What the nightly job runs to confirm its alerts: each command once."""
    return list(dict.fromkeys(one.command for one in told if one.status is Status.ALERT and one.command))


def headline(told: Sequence[Told]) -> tuple[Verdict, str]:
    """The worst series first."""
    if not told:
        return Verdict.NO_BASELINE, "NO_BASELINE: no stored run has a value of these metrics."
    worst = told[0]
    same = sum(one.status is worst.status for one in told)
    more = f" {same} of {len(told)} series are {worst.status.value}." if same > 1 else ""
    if worst.verdict is Verdict.PASS:
        return Verdict.PASS, f"PASS: none of {len(told)} series got slower."
    return worst.verdict, f"{worst.verdict.value}: {worst.sentence}{more}"
