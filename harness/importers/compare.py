"""Imported results compared with each other: the same tool's numbers under its own names, and the rule of `compare`.

A result of another tool is one measurement, and results pair up in the order in which they are given: nobody can tell
whether they shared a server, so the interval is no better than that order. Numbers of different tools, or measured with
other settings, are never put into a ratio.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from harness.errors import MtpbenchError
from harness.importers.registry import IMPORTERS
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
    rows = _rows(ours, theirs, names)
    if not rows:
        known = sorted({n.name for points in ours.values() for p in points for n in p.numbers if _usable(n)})
        raise MtpbenchError(
            f"no number of {', '.join(names)} is on both sides at the same arm and load",
            f"--metric NAME with one of: {', '.join(known)}; --arm at import makes names agree.",
        )
    for name, has, other in (("base", ours, theirs), ("head", theirs, ours)):
        for arm, load_ in sorted({*has} - {*other}):
            notes.append(f"only {name} has {arm or 'the unnamed arm'} at {load_}")
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


def _rows(
    base: dict[tuple[str, str], list[Point]], head: dict[tuple[str, str], list[Point]], names: Sequence[str]
) -> list[ImportRow]:
    found: list[tuple[str, str, Number, list[tuple[float, float]]]] = []
    for arm, load_ in base:
        for name in names:
            ours = [n for point in base[arm, load_] if (n := point.get(name))]
            theirs = [n for point in head.get((arm, load_), []) if (n := point.get(name))]
            pairs = [(b.value, h.value) for b, h in zip(ours, theirs, strict=False) if b.value > 0 and h.value > 0]
            if pairs and _usable(ours[0]):
                found.append((load_, arm, ours[0], pairs))
    most = max((len(pairs) for *_, pairs in found), default=0)
    table = np.full((most, len(found)), np.nan)
    for column, (_, _, number, pairs) in enumerate(found):
        sign = -1.0 if number.higher_is_better else 1.0
        for row, (b, h) in enumerate(pairs):
            table[row, column] = sign * math.log(h / b)
    decided = decide(table, Plan.once(most), margins=[Margins()] * len(found)) if found else []
    out = []
    for column, (load_, arm, number, pairs) in enumerate(found):
        decision = decided[column]
        if decision.n == 1:  # a change without an interval
            decision = RowDecision(State.OPEN, 1, mean=float(table[0, column]))
        b, h = (float(np.exp(np.mean(np.log(side)))) for side in zip(*pairs, strict=True))
        out.append(ImportRow(load_, arm, number, _VERDICTS[decision.state], b, h, decision))
    return out


def _change(number: Number, delta: float) -> float | None:
    if not math.isfinite(delta):
        return None
    return math.expm1(-delta if number.higher_is_better else delta)


def _headline(worst: ImportRow, rows: Sequence[ImportRow]) -> str:
    place = f"{worst.number.name} at {worst.load}" + (f" ({worst.arm})" if worst.arm else "")
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
        f"{row.base:.5g}",
        f"{row.head:.5g}",
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
