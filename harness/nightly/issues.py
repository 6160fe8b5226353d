"""What a trend calls regressed → one issue for each slowdown, with a mark by which the next night finds it again.

Rows of one scenario on one host that got slower within a few nights are one slowdown. Its mark holds the night on
which the first of them was seen, which no later night changes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date

from harness.nightly.recovered import place_mark
from harness.nightly.told import Name, Status, Told, percent
from harness.text import escape
from harness.verdict.pairs import RowKey

APART_DAYS = 3  # rows seen at most so many days one after the other belong together
_TITLE, _BODY, _ROWS = 240, 60_000, 40
_LONGEST = 120  # of a name

Owner = Callable[[str, RowKey], str]  # scenario, row → who looks after it


@dataclass(frozen=True)
class Issue:
    """One issue. `name` is a file name, `marker` the first line of `body`."""

    name: str
    marker: str
    title: str
    body: str
    owner: str


def issues(told: Sequence[Told], owner: Owner = lambda _scenario, _row: "", site: str = "") -> list[Issue]:
    """An issue for every slowdown that is confirmed and still there, the largest first. `site`: URL of the pages."""
    out = []
    for place, rows in slowdowns(told).items():
        rows.sort(key=lambda one: -(one.delta or 0.0))
        out.append((rows[0].delta or 0.0, _issue(place, rows, owner, site)))
    return [issue for _, issue in sorted(out, key=lambda item: -item[0])]


def slowdowns(told: Sequence[Told]) -> dict[str, list[Told]]:
    """Name of a slowdown → its rows. A name that is written down stays; a new row joins it, or has a new one."""
    out: dict[str, list[Told]] = {}
    for (host, scenario), of_place in _by_place(told).items():
        starts = _starts(of_place)
        known = {
            _start_of(name.day, starts): name.slowdown
            for one in of_place
            for change in one.changes
            if (name := one.name_of(change)).slowdown
        }
        for one in of_place:
            if one.status is Status.REGRESSED:
                name = one.name_of(one.slowdown) if one.slowdown else Name(one.since or one.series.nights[-1].day)
                start = _start_of(name.day, starts)
                place = name.slowdown or known.get(start, "") or f"{scenario}-{host}-{start}"
                out.setdefault(place, []).append(one)
    return out


def _by_place(told: Sequence[Told]) -> dict[tuple[str, str], list[Told]]:
    out: dict[tuple[str, str], list[Told]] = {}
    for one in told:
        out.setdefault((one.series.key.host, one.series.key.scenario), []).append(one)
    return out


def _starts(of_place: Sequence[Told]) -> list[date]:
    """First nights of the slowdowns of a place: also of rows that have recovered since, so that marks stay."""
    days = sorted(
        {
            one.name_of(change).day
            for one in of_place
            for change in one.changes
            if change.worse
            and not change.withdrawn
            and (change.confirmed is not None or one.status is Status.REGRESSED)
        }
    )
    return [day for n, day in enumerate(days) if n == 0 or (day - days[n - 1]).days > APART_DAYS]


def _start_of(day: date, starts: Sequence[date]) -> date:
    return max((start for start in starts if start <= day), default=day)


def _issue(place: str, rows: Sequence[Told], owner: Owner, site: str) -> Issue:
    name = _name(place)
    key, start = rows[0].series.key, min(one.since or one.series.nights[-1].day for one in rows)
    scenario, host = key.scenario, key.host
    marker = f"<!-- mtpbench-regression:{name} -->"
    worst = rows[0]
    metric = worst.series.metric
    moved = percent(worst.series, worst.delta) if worst.delta is not None else "changed"
    more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
    title = f"{scenario}: {metric.label} {moved}{more} since {start} on {host}"
    return Issue(
        name, marker, _one_line(title)[:_TITLE], _body(marker, scenario, rows, owner, site), _owner_of(rows, owner)
    )


def _name(place: str) -> str:
    """A file name that no other slowdown has: what is cut off or replaced stays in it as a digest."""
    plain = re.sub(r"--+", "-", re.sub(r"[^A-Za-z0-9._-]+", "_", place))  # two dashes would end a comment
    if plain == place and len(plain) <= _LONGEST:
        return plain
    return f"{plain[: _LONGEST - 11]}-{hashlib.sha256(place.encode()).hexdigest()[:10]}"


def _body(marker: str, scenario: str, rows: Sequence[Told], owner: Owner, site: str) -> str:
    who = _owner_of(rows, owner)
    known = f"Owner: {escape(who)}" if who else "Nobody is named for it: `owners` in known-regressions.yaml would."
    worst = rows[0]
    place = place_mark(worst.series.key.host, worst.series.key.scenario)
    out = [marker, place, f"**{escape(worst.sentence)}**", "", known, ""]
    out += ["| what | change | since | last night |", "|---|---:|---|---:|"]
    out += [_line(one) for one in rows[:_ROWS]]
    if len(rows) > _ROWS:
        out.append(f"\n… and {len(rows) - _ROWS} more rows.")
    commands = list(dict.fromkeys(one.command for one in rows if one.command))[:5]
    if commands:
        out += ["", "A paired A/B of the night before against the first one of the new level:", ""]
        out += [f"    {_one_line(command)}" for command in commands]
    notes = list(dict.fromkeys(note for one in rows for note in one.series.notes))[:10]
    out += ["", *(f"- note: {escape(note)}" for note in notes)] if notes else []
    if site:
        out += ["", f"Pages: <{_plain_url(site)}>"]
    out += [
        "",
        "To accept it, add an entry with a bound, an owner and a last day to `known-regressions.yaml`. "
        "This text is written anew every night while the slowdown is there; comments stay.",
        "",
    ]
    return "\n".join(out)[:_BODY]


def _line(one: Told) -> str:
    metric, last = one.series.metric, one.series.nights[-1]
    value = f"{1e3 * last.value:.4g} ms" if metric.unit == "s" else f"{last.value:.4g}"
    moved = percent(one.series, one.delta) if one.delta is not None else ""
    return "| " + " | ".join(escape(cell) for cell in (str(one.series.key.row), moved, str(one.since), value)) + " |"


def _owner_of(rows: Sequence[Told], owner: Owner) -> str:
    return next((who for one in rows if (who := owner(one.series.key.scenario, one.series.key.row))), "")


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def _plain_url(url: str) -> str:
    return re.sub(r"[^A-Za-z0-9:/._~%?=&#+-]", "", url)


def to_json(found: Sequence[Issue]) -> str:
    """For programs: everything but the bodies."""
    rows = [{"name": i.name, "marker": i.marker, "title": i.title, "owner": i.owner} for i in found]
    return json.dumps(rows, indent=1) + "\n"
