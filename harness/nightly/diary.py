"""What is told of the series, as events: which are new, and what earlier ones say of a change that is seen again."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from typing import Any

from harness.nightly.issues import slowdowns
from harness.nightly.rulings import fits, named
from harness.nightly.series import Past, Series
from harness.nightly.told import ENDED, Name, Told
from harness.stats.levels import Level
from harness.stats.series import Change, Reading
from harness.store.events import Event

# A night that is uploaded late, or quarantined later, moves the first night of a change by a few days at most.
_SAME_DAYS = 7


def seen(one: Told, events: Sequence[Event]) -> dict[int, Name]:
    """First night of each change → the day on which it was first told, for those of which an event speaks.

    That day is a change's name, and every event of it carries it. Nights that come late, or that are put into
    quarantine, move its first night by a few days: each change takes the nearest name that no other one is nearer to.
    """
    named_nights: dict[tuple[bool, date], date] = {}
    slowdowns: dict[tuple[bool, date], str] = {}
    for event in events:
        if "seen" in event.facts and fits(event.series, one.series):
            name = bool(event.facts["worse"]), date.fromisoformat(event.facts["seen"])
            named_nights[name] = date.fromisoformat(event.facts["night"])
            if event.facts.get("slowdown"):
                slowdowns.setdefault(name, str(event.facts["slowdown"]))
    pairs = sorted(
        (far, change.start, name)
        for change in one.changes
        for name, night in named_nights.items()
        if name[0] == change.worse and (far := _apart(night, change, one.series)) <= _SAME_DAYS
    )
    out: dict[int, Name] = {}
    taken: set[tuple[bool, date]] = set()
    for _, start, name in pairs:
        if start not in out and name not in taken:
            out[start] = Name(name[1], slowdowns.get(name, ""))
            taken.add(name)
    return out


def _apart(night: date, change: Change, series: Series) -> int:
    """Days between a night and the first one of a change; a drift is at its beginning as long as it lasts."""
    first = series.nights[change.start].day
    end = series.nights[change.ended].day if change.ended is not None else series.nights[-1].day
    if change.drift and first <= night <= end:
        return 0
    return abs((night - first).days)


def new_events(told: Iterable[Told], events: Sequence[Event]) -> list[Event]:
    """What is told now and is in no event yet."""
    out = []
    told = list(told)
    slowdown = {id(one): name for name, rows in slowdowns(told).items() for one in rows}
    for one in told:
        known = [event for event in events if fits(event.series, one.series)]
        said = {(e.kind, e.facts["worse"], e.facts["seen"]) for e in known if "seen" in e.facts}
        for change in one.changes:
            of_it = _of_change(one, change, slowdown.get(id(one), "") if change is one.slowdown else "")
            out += [e for e in of_it if (e.kind, e.facts["worse"], e.facts["seen"]) not in said]
        if one.status in ENDED:
            kind = one.status.value
            facts = {"since": str(one.since)}
            if not any(e.kind == kind and (e.facts.get("since") == str(one.since) or e.by) for e in known):
                out.append(Event(kind, named(one.series), why=one.sentence, facts=facts))
    return out


def _of_change(one: Told, change: Change, slowdown: str) -> list[Event]:
    nights, metric = one.series.nights, one.series.metric
    facts: dict[str, Any] = {
        "night": str(nights[change.start].day),
        "seen": str(one.name_of(change).day),
        "change": round(metric.change(change.delta), 5),
        "worse": change.worse,
    }
    series, ruling = named(one.series), change.ruling
    by = ruling.why if ruling is not None else ""
    out = [Event("alert", series, facts=facts)] if change.worse else []
    if change.confirmed is not None:
        on = {**facts, "on": str(nights[change.confirmed].day), **({"slowdown": slowdown} if slowdown else {})}
        out.append(Event("confirmed", series, why=by or "its own nights", facts=on))
    if change.drift:
        out.append(Event("drift", series, facts={**facts, "a_night": round(metric.change(change.slope), 6)}))
    if change.closed:
        out.append(Event("closed", series, why=by, facts=facts))
    if change.ended is not None and change.worse:
        on = {**facts, "on": str(nights[change.ended].day)}
        out.append(Event("undone", series, why="later nights are back at the level before", facts=on))
    return out


def summary(one: Series, reading: Reading, before: date) -> Event | None:
    """The levels of a series up to a day, for when the nights before it are deleted; None where it has none."""
    sign = -1.0 if one.metric.higher_is_better else 1.0
    levels = [_as_facts(past.first, past.level, sign, past.closed) for past in one.past]
    closed = {change.start: change.ruling.why for change in reading.changes if change.closed and change.ruling}
    for stretch in reading.stretches:
        nights = [n for n in one.nights[max(0, stretch.start) : max(0, stretch.stop)] if n.day < before]
        if not nights:
            continue
        level = Level(stretch.level.mean, stretch.level.sd, len(nights), stretch.level.df, stretch.level.r)
        fact = _as_facts(nights[0].day, level, sign, closed.get(stretch.start, ""))
        if stretch.start < 0 or (levels and abs(levels[-1]["value"] / fact["value"] - 1) < 1e-9):
            fact |= {name: levels[-1][name] for name in ("from", "closed")}
            fact["nights"] += levels[-1]["nights"]
            levels.pop()
        levels.append(fact)
    return (
        Event("summary", named(one), facts={"until": str(before - timedelta(1)), "levels": levels}) if levels else None
    )


def _as_facts(first: date, level: Level, sign: float, closed: str) -> dict[str, Any]:
    value = math.exp(sign * level.mean)
    return {"from": str(first), "value": value, "spread": level.sd, "nights": level.n, "closed": closed}


def past_of(one: Series, events: Sequence[Event]) -> tuple[Past, ...]:
    """What the last summary says of the nights of a series that are deleted."""
    of_it = [event for event in events if event.kind == "summary" and fits(event.series, one)]
    if not of_it or date.fromisoformat(of_it[-1].facts["until"]) >= one.nights[0].day:
        return ()
    sign = -1.0 if one.metric.higher_is_better else 1.0
    return tuple(
        Past(
            date.fromisoformat(fact["from"]),
            Level(sign * math.log(fact["value"]), float(fact["spread"]), int(fact["nights"]), float(fact["nights"])),
            str(fact["closed"]),
        )
        for fact in of_it[-1].facts["levels"]
    )


def renames(events: Iterable[Event]) -> dict[str, str]:
    """Old name → new name of scenarios and, as SCENARIO@ARM, of arms."""
    names: dict[str, str] = {}
    for event in events:
        if event.kind == "renamed":
            old, new = str(event.facts["old"]), str(event.facts["new"])
            names = {name: new if now == old else now for name, now in names.items()} | {old: new}
    return names


def why(one: Told, events: Sequence[Event]) -> list[str]:
    """All that explains the word of a series: its levels, what happened to it, what is odd about it."""
    series, metric = one.series, one.series.metric
    factor, unit = (1e3, " ms") if metric.unit == "s" else (1.0, f" {metric.unit}")
    sign = -1.0 if metric.higher_is_better else 1.0
    out = [f"{one.verdict.value}: {one.sentence}", "levels:"]
    for stretch in one.reading.stretches:
        first, last = series.nights[max(0, stretch.start)].day, series.nights[max(0, stretch.stop - 1)].day
        level = stretch.level
        what = "came to" if stretch.drift else "is"
        value = f"{factor * math.exp(sign * level.mean):.4g}{unit}"
        out.append(
            f"  {first} to {last}: {what} {value}, nights spread by {100 * math.expm1(level.sd):.2f} % ({level.n})"
        )
    off = [str(series.nights[n].day) for n in one.reading.excursions]
    out += [f"excursions, which count nowhere: {', '.join(off)}"] if off else []
    out += ["events:"]
    known = [event for event in events if fits(event.series, series) and event.kind != "summary"]
    new = new_events([one], events)
    for event, mark in [*((e, "") for e in known), *((e, " (not yet written down)") for e in new)]:
        when = event.facts.get("on") or event.facts.get("seen") or event.at[:10]
        size = f" {100 * event.facts['change']:+.1f} % from {event.facts['night']}" if "change" in event.facts else ""
        by = f", by {event.by}" if event.by else ""
        because = f": {event.why}" if event.why else ""
        out.append(f"  {when} {event.kind}{size}{by}{because}{mark}")
    out += ["  none"] if not known and not new else []
    out += [f"note: {note}" for note in series.notes]
    return out
