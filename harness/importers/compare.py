"""Imported results compared with each other: the same tool's numbers under its own names, and the rule of `compare`.

A result of another tool is one measurement, and results pair up in the order in which they are given: nobody can tell
whether they shared a server, so the interval is no better than that order. Numbers of different tools, or measured with
other settings, are never put into a ratio.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from harness.errors import MtpbenchError
from harness.importers.registry import IMPORTERS
from harness.importers.units import factor
from harness.stats.decision import Margins, Plan, RowDecision, State, decide
from harness.store.imported_runs import ImportedRun, Number, Point, is_imported, load
from harness.text import escape, markdown_table, terminal_table
from harness.verdict.compare import EXIT_CODES, Verdict

_COLUMNS = ("load", "arm", "number", "base", "head", "change", "90 % interval", "pairs", "p", "")
_LEFT = ("arm", "number", "")  # columns of text
_VERDICTS = {
    State.SLOWER: Verdict.FAIL,
    State.FASTER: Verdict.IMPROVED,
    State.NOT_SLOWER: Verdict.PASS,
    State.OPEN: Verdict.INCONCLUSIVE,
}
# What a point's settings say about the load is its place in the table, not a difference.
_OF_THE_LOAD = ("request_rate", "max_concurrency", "strategy.rate", "strategy.streams", "strategy.max_concurrency")


@dataclass(frozen=True)
class ImportRow:
    """One number at one load; `base` and `head` are geometric means, in the tool's unit."""

    load: str
    arm: str
    number: Number
    verdict: Verdict
    base: float | None
    head: float | None
    decision: RowDecision
    why: str = ""  # it can't be judged

    @property
    def change(self) -> float | None:
        """Relative, of the value itself."""
        return _change(self.number, self.decision.mean)

    @property
    def interval(self) -> tuple[float, float] | None:
        ends = [_change(self.number, delta) for delta in (self.decision.low, self.decision.high)]
        known = sorted(end for end in ends if end is not None)
        return (known[0], known[1]) if len(known) == 2 else None


@dataclass(frozen=True)
class ImportComparison:
    """The answer. `tool` defines every number in it."""

    verdict: Verdict
    headline: str
    tool: str
    base: tuple[str, ...]
    head: tuple[str, ...]
    rows: tuple[ImportRow, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]


def imported_sides(base: Sequence[str], head: Sequence[str]) -> tuple[list[ImportedRun], list[ImportedRun]] | None:
    """Both sides where all of them are imported results; None where none is. Raises MtpbenchError for a mixture."""
    kinds = [is_imported(Path(name)) for name in (*base, *head)]
    if not any(kinds):
        return None
    if not all(kinds):
        raise MtpbenchError(
            "imported results can't be compared with measured runs: their numbers are defined otherwise",
            "Compare imports of one tool with each other; docs/importing.md has each definition.",
        )
    return [load(Path(name)) for name in base], [load(Path(name)) for name in head]


def compare_imported(
    base: Sequence[ImportedRun], head: Sequence[ImportedRun], metrics: Sequence[str] = (), allowed: Sequence[str] = ()
) -> ImportComparison:
    """Compares two sides. `metrics`: numbers by the tool's names, default those that a report shows first."""
    first = base[0]
    blank = ImportComparison(
        Verdict.PASS, "", first.origin.tool, tuple(run.id for run in base), tuple(run.id for run in head)
    )
    differing, notes = _differences([*base, *head], allowed)
    if differing:
        what = f"INCOMPARABLE: the results were measured under different conditions: {'; '.join(differing)}."
        return _with(blank, Verdict.INCOMPARABLE, what, notes=notes)
    invalid = [(p, f.message) for run in (*base, *head) for p in run.points for f in p.findings if f.invalid]
    if invalid:
        return _with(blank, Verdict.INVALID, f"INVALID: {invalid[0][0].where}: {invalid[0][1]}", notes=notes)
    names = metrics or IMPORTERS[first.origin.format].headline
    have = sorted({n.name for run in (*base, *head) for point in run.points for n in point.numbers if _usable(n)})
    if unknown := [name for name in metrics if name not in have]:
        what = f"no number of {', '.join(unknown)} is in any of these results"
        raise MtpbenchError(what, f"--metric NAME with one of: {', '.join(have)}")
    ours, theirs = _points(base), _points(head)
    if unlike := _unlike_units([*base, *head], names):
        what = f"INCOMPARABLE: no unit of one turns into that of the other: {'; '.join(unlike)}."
        return _with(blank, Verdict.INCOMPARABLE, what, notes=notes)
    rows = _rows(ours, theirs, names) if {*ours} & {*theirs} else []
    if not rows:
        known = sorted({n.name for points in ours.values() for p in points for n in p.numbers if _usable(n)})
        raise MtpbenchError(
            f"no number of {', '.join(names)} is on both sides at the same arm and load",
            f"--metric NAME with one of: {', '.join(known)}; --arm at import makes names agree.",
        )
    notes += [f"only head has {arm or 'the unnamed arm'} at {load_}" for arm, load_ in sorted({*theirs} - {*ours})]
    notes += [f"{name}: {there} is turned into {here}" for name, here, there in _converted([*base, *head], names)]
    worst = min(rows, key=lambda row: list(Verdict).index(row.verdict))
    return _with(blank, worst.verdict, _headline(worst, rows), rows, notes)


def _with(
    blank: ImportComparison, verdict: Verdict, headline: str, rows: Sequence[ImportRow] = (), notes: Sequence[str] = ()
) -> ImportComparison:
    return ImportComparison(verdict, headline, blank.tool, blank.base, blank.head, tuple(rows), tuple(notes))


def _points(runs: Sequence[ImportedRun]) -> dict[tuple[str, str], list[Point]]:
    """Results by arm and load, in the order given."""
    out: dict[tuple[str, str], list[Point]] = {}
    for run in runs:
        for point in run.points:
            out.setdefault((point.arm, point.load), []).append(point)
    return out


def _differences(runs: Sequence[ImportedRun], allowed: Sequence[str]) -> tuple[list[str], list[str]]:
    """What forbids a ratio, and what a reader must know."""
    against: list[str] = []
    notes: list[str] = []
    if len({run.origin.format for run in runs}) > 1:
        tools = ", ".join(dict.fromkeys(run.origin.tool for run in runs))
        return [f"different tools ({tools}) define numbers of one name differently"], []
    facts: dict[str, set[str]] = {}
    for run in runs:
        for name, value in (("host", run.host), ("tool version", run.origin.tool_version)):
            facts.setdefault(name, set()).add(value or "unknown")
        for point in run.points:
            for name, setting in point.settings.items():
                if name not in _OF_THE_LOAD:
                    facts.setdefault(name, set()).add(str(setting))
    for name, values in sorted(facts.items()):
        known = sorted(values - {"unknown"})
        if len(known) > 1:
            told = f"{name}: {' and '.join(known[:4])}"
            (notes if name in allowed else against).append(told + (", as meant" if name in allowed else ""))
        elif name == "host" and "unknown" in values:
            notes.append("the host of some results is unknown: `mtpbench import --host` says it")
    return against, notes


def _usable(number: Number) -> bool:
    return number.higher_is_better is not None


def _units(runs: Sequence[ImportedRun], name: str) -> list[str]:
    """The units in which a number is given, that of base first."""
    return list(dict.fromkeys(n.unit for run in runs for p in run.points if (n := p.get(name)) is not None))


def _unlike_units(runs: Sequence[ImportedRun], names: Sequence[str]) -> list[str]:
    """Numbers of which one side can't be put into the unit of the other."""
    out = []
    for name in names:
        units = _units(runs, name)
        if any(factor(unit, units[0]) is None for unit in units):
            out.append(f"{name} is in {' and in '.join(units)}")
    return out


def _converted(runs: Sequence[ImportedRun], names: Sequence[str]) -> list[tuple[str, str, str]]:
    """(number, the unit that is shown, another one in which it was given)."""
    units = {name: _units(runs, name) for name in names}
    return [(name, found[0], other) for name, found in units.items() for other in found[1:]]


@dataclass(frozen=True)
class _Found:
    """One number at one load, before it is judged. `wrong`: why it can't be, with its word."""

    load: str
    arm: str
    number: Number
    base: tuple[float, ...] = ()
    head: tuple[float, ...] = ()
    wrong: tuple[Verdict, str] | None = None


def _find(base: Sequence[Point], head: Sequence[Point], name: str, load_: str, arm: str) -> _Found | None:
    """What both sides say of a number; None where neither has it."""
    ours, theirs = ([point.get(name) for point in side] for side in (base, head))
    known = [number for number in (*ours, *theirs) if number is not None]
    if not known or not _usable(known[0]):
        return None
    first = known[0]
    values = [
        [n.value * (factor(n.unit, first.unit) or math.nan) for n in side if n is not None] for side in (ours, theirs)
    ]
    found = _Found(load_, arm, first, tuple(values[0]), tuple(values[1]))
    if not values[1]:
        return replace(found, wrong=(Verdict.MISSING, "head does not have it"))
    if not values[0]:
        return replace(found, wrong=(Verdict.NO_BASELINE, "base does not have it"))
    for side, numbers, have in (("base", ours, values[0]), ("head", theirs, values[1])):
        if len(have) < len(numbers):
            what = f"{len(numbers) - len(have)} of {len(numbers)} results of {side} do not have it"
            return replace(found, wrong=(Verdict.INVALID, what))
        if min(have) <= 0:
            return replace(found, wrong=(Verdict.INVALID, f"{side} measured {min(have):g}"))
    return found


def _rows(
    base: dict[tuple[str, str], list[Point]], head: dict[tuple[str, str], list[Point]], names: Sequence[str]
) -> list[ImportRow]:
    places = [(arm, load_, name) for arm, load_ in base for name in names]
    maybe = [_find(base[arm, at], head.get((arm, at), []), name, at, arm) for arm, at, name in places]
    found = [one for one in maybe if one is not None]
    judged = [one for one in found if one.wrong is None]
    most = max((min(len(one.base), len(one.head)) for one in judged), default=0)
    table = np.full((most, len(judged)), np.nan)
    for column, one in enumerate(judged):
        sign = -1.0 if one.number.higher_is_better else 1.0
        for row, (b, h) in enumerate(zip(one.base, one.head, strict=False)):
            table[row, column] = sign * math.log(h / b)
    decided = iter(enumerate(decide(table, Plan.once(most), margins=[Margins()] * len(judged)) if judged else []))
    out = []
    for one in found:
        if one.wrong is not None:
            word, why = one.wrong
            ours, theirs = _geometric(one.base), _geometric(one.head)
            out.append(ImportRow(one.load, one.arm, one.number, word, ours, theirs, RowDecision(State.OPEN, 0), why))
            continue
        column, decision = next(decided)
        pairs = min(len(one.base), len(one.head))
        if decision.n == 1:  # a change without an interval
            decision = RowDecision(State.OPEN, 1, mean=float(table[0, column]))
        ours, theirs = _geometric(one.base[:pairs]), _geometric(one.head[:pairs])
        out.append(ImportRow(one.load, one.arm, one.number, _VERDICTS[decision.state], ours, theirs, decision))
    return out


def _geometric(values: Sequence[float]) -> float | None:
    """Their geometric mean; a zero among them makes it none, as it is worth seeing."""
    if not values:
        return None
    return 0.0 if min(values) <= 0 else float(np.exp(np.mean(np.log(values))))


def _change(number: Number, delta: float) -> float | None:
    if not math.isfinite(delta):
        return None
    return math.expm1(-delta if number.higher_is_better else delta)


def _headline(worst: ImportRow, rows: Sequence[ImportRow]) -> str:
    place = f"{worst.number.name} at {worst.load}" + (f" ({worst.arm})" if worst.arm else "")
    if worst.why:
        same = sum(row.verdict is worst.verdict for row in rows)
        more = f" {same} of {len(rows)} rows are {worst.verdict.value}." if same > 1 else ""
        return f"{worst.verdict.value}: {place}: {worst.why}.{more}"
    change = f"{100 * worst.change:+.1f} %" if worst.change is not None else "unknown"
    if worst.decision.n < 2:
        return (
            f"INCONCLUSIVE: {place} changed by {change}, one result on each side: nothing tells a change from "
            "the spread between runs. Import two or more of each."
        )
    assert worst.interval is not None, "two or more pairs"
    low, high = (100 * end for end in worst.interval)
    numbers = f"{change} (90 % interval {low:+.1f} to {high:+.1f} %, {worst.decision.n} pairs)"
    if worst.verdict is Verdict.PASS:
        return f"PASS: none of {len(rows)} rows is worse; {place}: {numbers}."
    return f"{worst.verdict.value}: {place}: {numbers}."


def cells(row: ImportRow) -> tuple[str, ...]:
    """One line of the table."""
    interval = f"{100 * row.interval[0]:+.1f} to {100 * row.interval[1]:+.1f} %" if row.interval else "–"
    return (
        row.load,
        row.arm or "unknown",
        f"{row.number.name} [{row.number.unit}]",
        f"{row.base:.5g}" if row.base is not None else "–",
        f"{row.head:.5g}" if row.head is not None else "–",
        f"{100 * row.change:+.1f} %" if row.change is not None else "–",
        interval,
        str(row.decision.n),
        f"{row.decision.p_slower:.2g}" if row.interval else "–",
        row.verdict.value,
    )


def _caveat(comparison: ImportComparison) -> str:
    return (
        f"Every number is {comparison.tool}'s, by its definition. change is of the value itself; p is for all rows "
        "together (Holm), that head is worse at all."
    )


def to_rich(comparison: ImportComparison) -> RenderableType:
    style = {Verdict.PASS: "green", Verdict.IMPROVED: "bold green", Verdict.INCONCLUSIVE: "yellow"}
    parts: list[RenderableType] = [Text(comparison.headline, style=style.get(comparison.verdict, "bold red"))]
    if comparison.rows:
        table = terminal_table(_COLUMNS, _LEFT)
        for row in comparison.rows:
            table.add_row(*(Text(cell) for cell in cells(row)))
        parts += [table, Text(_caveat(comparison), style="dim")]
    return Group(*parts, *(Text(f"note: {note}", style="yellow") for note in comparison.notes))


def to_markdown(comparison: ImportComparison) -> str:
    """Every name is escaped."""
    out = [f"**{escape(comparison.headline)}**", ""]
    if comparison.rows:
        out += markdown_table(_COLUMNS, map(cells, comparison.rows), _LEFT, escape)
    out += ["", *(f"- note: {escape(note)}" for note in comparison.notes)]
    return "\n".join([*out, "", f"<sub>{escape(_caveat(comparison))}</sub>", ""])


def to_json(comparison: ImportComparison) -> str:
    """For programs: relative changes as fractions, values in the tool's units."""

    def row(one: ImportRow) -> dict[str, Any]:
        return {
            "load": one.load,
            "arm": one.arm,
            "name": one.number.name,
            "unit": one.number.unit,
            "verdict": one.verdict.value,
            "why": one.why or None,
            "base": one.base,
            "head": one.head,
            "change": one.change,
            "interval_90": one.interval,
            "pairs": one.decision.n,
            "p_worse": one.decision.p_slower,
        }

    document = {
        "imported": True,
        "verdict": comparison.verdict.value,
        "exit_code": comparison.exit_code,
        "headline": comparison.headline,
        "tool": comparison.tool,
        "base": comparison.base,
        "head": comparison.head,
        "rows": [row(one) for one in comparison.rows],
        "notes": comparison.notes,
    }
    return json.dumps(document, indent=1, allow_nan=False)


RENDERERS: dict[str, Callable[[ImportComparison], str]] = {"markdown": to_markdown, "json": to_json}
