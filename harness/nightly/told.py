"""Series → what is to be said of each: one word, one sentence, one number, for every page, verb and issue alike."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from enum import Enum

from harness.nightly import images
from harness.nightly.expected import STALE_DAYS, Due, Expected
from harness.nightly.rulings import Rulings, clean, nobody
from harness.nightly.series import Series
from harness.stats.series import MIN_BASELINE, Change, Reading, read
from harness.verdict.compare import Excuse, Verdict, never
from harness.verdict.facts import facts


class Status(str, Enum):
    """What is said of a series, from the worst to what is fine."""

    REGRESSED = "regressed"  # a confirmed change for the worse, not undone since
    MISSING = "missing"  # its host still measures other rows
    STALE = "stale"  # nothing for days
    ALERT = "alert"  # may have changed: a paired A/B would tell
    UNSTABLE = "unstable"  # spreads too wide to be judged
    YOUNG = "young"  # too few nights to tell
    RETIRED = "retired"  # nobody asks for it any more
    MOVED = "moved"  # goes on as another series: another host, other conditions
    OK = "ok"


_VERDICTS = {
    Status.REGRESSED: Verdict.FAIL,
    Status.MISSING: Verdict.MISSING,
    Status.STALE: Verdict.MISSING,
    Status.ALERT: Verdict.INCONCLUSIVE,
    Status.UNSTABLE: Verdict.INCONCLUSIVE,
    Status.YOUNG: Verdict.NO_BASELINE,
    Status.RETIRED: Verdict.PASS,
    Status.MOVED: Verdict.PASS,
    Status.OK: Verdict.PASS,
}
WRONG = (Status.REGRESSED, Status.MISSING, Status.STALE, Status.ALERT, Status.UNSTABLE)
ENDED = (Status.MOVED, Status.RETIRED)  # judged no more


@dataclass(frozen=True)
class Name:
    """A change's name: the day on which it was first told, and the slowdown that it is part of, once it is sure."""

    day: date
    slowdown: str = ""


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
    reading: Reading = field(default_factory=Reading)
    seen: Mapping[int, Name] = field(default_factory=dict)  # first night of a change → its name, once it has one

    @property
    def verdict(self) -> Verdict:
        return _VERDICTS[self.status]

    def name_of(self, change: Change) -> Name:
        """What a change was first told as, which no later night changes once it is written down."""
        return self.seen.get(change.start, Name(self.series.nights[change.alerted].day))

    @property
    def slowdown(self) -> Change | None:
        """The change with which the slowdown that stands began."""
        nights = self.series.nights
        of_it = [change for change in self.changes if change.worse and nights[change.start].day == self.since]
        return of_it[-1] if of_it else None


def tell(
    series: Sequence[Series],
    today: date,
    excuse: Excuse = never,
    rulings: Rulings = nobody,
    expected: Callable[[Series, Sequence[Series]], Due] | None = None,
) -> list[Told]:
    """What is to be said of each series, the worst first. The rows of a scenario on a host are read together."""
    due = expected or Expected()
    places: dict[tuple[str, str], list[Series]] = {}
    for one in series:
        places.setdefault((one.key.host, one.key.scenario), []).append(one)
    out = []
    for siblings in places.values():
        readings = read([one.history(rulings(one)) for one in siblings])
        for one, reading in zip(siblings, readings, strict=True):
            told = _told(one, reading, today, series, siblings, due(one, siblings), excuse)
            out.append(replace(told, changes=reading.changes, reading=reading))
    order = list(Status)
    return sorted(out, key=lambda told: order.index(told.status))


def _told(
    one: Series,
    reading: Reading,
    today: date,
    everything: Sequence[Series],
    siblings: Sequence[Series],
    due: Due,
    excuse: Excuse,
) -> Told:
    last = one.nights[-1].day
    if (ended := _ended(one, everything, due, today)) is not None:
        return ended
    slow = _slow(one, reading, excuse)
    if slow is not None and slow.status is Status.REGRESSED:
        return slow
    if last < max(s.nights[-1].day for s in siblings) and due.every == 1:
        return Told(one, Status.MISSING, f"{one.key} is missing since {last}: its scenario still runs.", since=last)
    if (today - last).days > STALE_DAYS + due.every - 1:
        often = f", it is due every {due.every} days" if due.every > 1 else ""
        days = (today - last).days
        sentence = f"{one.key} is stale since {last}: nothing was measured for {days} days{often}."
        return Told(one, Status.STALE, sentence, since=last)
    if reading.swing:
        return Told(one, Status.UNSTABLE, f"{one.key} is unstable: {reading.swing}.")
    alert = reading.alert
    if alert is not None and alert.worse and alert.delta >= one.margins.tolerance:
        return _alert(one, alert, excuse)
    if slow is not None:
        return slow
    if len(one.nights) <= MIN_BASELINE and not one.past:
        young = f"{one.key} has {len(one.nights)} nights: alerts begin after {MIN_BASELINE}."
        return Told(one, Status.YOUNG, young)
    closed = next((change for change in reversed(reading.changes) if change.closed and change.worse), None)
    if closed is not None and closed.ruling is not None:
        day = one.nights[closed.start].day
        moved = f"changed by {percent(one, closed.delta)} on {day}: {closed.ruling.why}"
        return Told(one, Status.OK, f"{one.key} is as it was since then. It {moved}; its level starts anew there.")
    return Told(one, Status.OK, f"{one.key} is as it was.")


def _ended(one: Series, everything: Sequence[Series], due: Due, today: date) -> Told | None:
    """What is judged no more: it goes on elsewhere, or nobody asks for it."""
    last = one.nights[-1].day
    successors = [s for s in everything if (s.key.scenario, s.key.row) == (one.key.scenario, one.key.row)]
    successor = max(successors, key=lambda s: s.nights[-1].day)
    here = successor.key.host == one.key.host
    days = (successor.nights[-1].day - last).days
    # On the same host other conditions took over at once; another host may be a second one that runs beside it.
    if successor is not one and days > (0 if here else STALE_DAYS):
        where = "under other conditions" if here else f"on {successor.key.host}"
        return Told(one, Status.MOVED, f"{one.key} ended on {last} and goes on {where}.", since=last)
    if not due.due and (last < today or due.why_not.startswith("retired")):
        return Told(one, Status.RETIRED, f"{one.key} ended on {last}: {due.why_not}.", since=last)
    return None


def _slow(one: Series, reading: Reading, excuse: Excuse) -> Told | None:
    """A slowdown that is confirmed and still there: a FAIL, or why it is none."""
    standing = reading.standing
    if standing is None:
        return None
    first = max(0, standing.since)
    since = one.past[standing.past].first if standing.past is not None else one.nights[first].day
    change = percent(one, standing.delta)
    what = f"{one.key} changed by {change} since {since} and is still there"
    if standing.drift:
        drift = next(c for c in reversed(reading.changes) if c.drift)
        nights = len(one.nights) - drift.start
        what = f"{one.key} drifts: {change} since {since}, {percent(one, drift.slope, 2)} a night, over {nights} nights"
    if standing.high < one.margins.tolerance:
        limit = f"{100 * abs(one.metric.change(one.margins.tolerance)):.3g} %"
        less = f"{one.key} changed by {change} since {since}, which is less than the {limit} that count here."
        return Told(one, Status.OK, less, since=since, delta=standing.delta)
    reason = excuse(one.key.scenario, one.key.row, standing.delta)
    if reason:
        return Told(one, Status.OK, f"{what}: {reason}.", since=since, delta=standing.delta, excused=reason)
    confirmed = next((c.ruling.why for c in reversed(reading.changes) if c.ruling and not c.ruling.closes), "")
    by = f"; {confirmed}" if confirmed else ""
    command = _command(one, first, reading)
    return Told(one, Status.REGRESSED, f"{what}{by}.", command=command, since=since, delta=standing.delta)


def _alert(one: Series, change: Change, excuse: Excuse) -> Told:
    reason = excuse(one.key.scenario, one.key.row, change.delta)
    day, delta = one.nights[change.start].day, change.delta
    moved = f"{one.key} may have changed by {percent(one, delta)} on {day}"
    if reason:
        return Told(one, Status.OK, f"{moved}: {reason}.", since=day, delta=delta, excused=reason)
    command = _command(one, change.start, Reading())
    sentence = f"{moved} (p {change.p:.2g}), not confirmed."
    return Told(one, Status.ALERT, sentence, command=command, since=day, delta=delta)


def percent(one: Series, delta: float, digits: int = 1) -> str:
    """A delta as the change of the value itself."""
    return f"{100 * one.metric.change(delta):+.{digits}f} %"


def _command(one: Series, start: int, reading: Reading) -> str:
    """The paired A/B that would confirm a change: the night before against the first night of the new level."""
    earlier = [n for n in range(start) if n not in reading.excursions]
    before, since = one.nights[earlier[-1] if earlier else 0], one.nights[start]
    scenario = shlex.quote(str(since.run.path / "scenario.yaml"))
    if pair := images.sides(before, since):
        return f"mtpbench ab {scenario} --base {shlex.quote(pair[0])} --head {shlex.quote(pair[1])}"
    base, head = clean(before.commit), clean(since.commit)
    if base and head and base != head:
        return f"mtpbench ab {scenario} --base {base} --head {head}"
    known, then = facts(since.run, since.arm), facts(before.run, before.arm)
    if any(known.get(fact) != then.get(fact) for fact in known if fact.startswith("packages.")):
        return f"mtpbench ab {scenario} --base env:OLD_ENVIRONMENT --head env:NEW_ENVIRONMENT"
    return f"mtpbench aa {scenario}"  # no software changed: is the host itself as steady as before?


def commands(told: Iterable[Told]) -> list[str]:
    """What the nightly job runs to confirm its alerts: each command once."""
    return list(dict.fromkeys(one.command for one in told if one.status is Status.ALERT and one.command))


def headline(told: Sequence[Told]) -> tuple[Verdict, str]:
    """The worst series first."""
    if not told:
        return Verdict.NO_BASELINE, "NO_BASELINE: no stored run has a value of these metrics."
    judged = [one for one in told if one.status not in ENDED] or list(told)
    worst = judged[0]
    same = sum(one.status is worst.status for one in told)
    more = f" {same} of {len(told)} series are {worst.status.value}." if same > 1 else ""
    if worst.verdict is Verdict.PASS:
        return Verdict.PASS, f"PASS: none of {len(told)} series got slower."
    return worst.verdict, f"{worst.verdict.value}: {worst.sentence}{more}"
