"""A comparison as a table for the terminal, or JSON; pr_comment.py is its Markdown. Pure: a comparison in, text out."""

from __future__ import annotations

import json
import math
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from harness.verdict.compare import Comparison, Row, Verdict

_STYLES = {
    Verdict.PASS: "green",
    Verdict.IMPROVED: "bold green",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.FAIL: "bold red",
    Verdict.INVALID: "bold red",
}
HEADERS = ("TP", "load", "arm", "metric", "base", "head", "change", "90 % interval", "A/A floor", "pairs", "p", "")
LEGEND = (
    "change is of the value itself, head to base; p is for all rows together (Holm), that head is slower at all; "
    "A/A floor is what equal servers differ by in nine of ten comparisons; * marks the primary endpoint."
)


def rows_of(comparison: Comparison) -> list[tuple[str, ...]]:
    """The table's cells."""
    return [cells_of(row) for row in comparison.rows]


def label_of(row: Row, comparison: Comparison) -> str:
    """What a row is, in a few words: the arm and the TP only where there are several; * marks the primary endpoint."""
    level = row.key.level
    parts = [row.metric.label, level.label if level.open_loop else f"concurrency {level.label}"]
    if len({one.key.arm for one in comparison.rows}) > 1:
        parts.append(row.key.arm)
    if len({one.key.tp for one in comparison.rows}) > 1:
        parts.append(f"TP{row.key.tp}")
    return ", ".join(parts) + (" *" if row.primary else "")


def cells_of(row: Row) -> tuple[str, ...]:
    """A line of the table, a cell for each of HEADERS."""
    interval = f"{100 * row.interval[0]:+.1f} to {100 * row.interval[1]:+.1f} %" if row.interval else "–"
    floor = f"±{100 * math.expm1(row.floor):.1f} %" if row.floor is not None else "–"
    p = row.decision.p_slower
    return (
        str(row.key.tp),
        row.key.level.label,
        row.key.arm,
        row.metric.label + ("*" if row.primary else ""),
        _value(row.base, row),
        _value(row.head, row),
        f"{100 * row.change:+.1f} %" if row.change is not None else "–",
        interval,
        floor,
        str(row.decision.n),
        f"{p:.2g}" if row.interval else "–",
        row.word,
    )


def _value(value: float | None, row: Row) -> str:
    if value is None or not math.isfinite(value):
        return "–"
    return row.metric.shown(value) if row.metric.timed else f"{value:.4g}"


def to_rich(comparison: Comparison) -> RenderableType:
    """For the terminal."""
    style = _STYLES.get(comparison.verdict, "bold magenta")
    parts: list[RenderableType] = [Text(comparison.headline, style=style)]
    if comparison.rows:
        table = Table(box=box.SIMPLE_HEAD)
        for title in HEADERS:
            table.add_column(Text(title), justify="left" if title in ("arm", "metric", "") else "right")
        for row, cells in zip(comparison.rows, rows_of(comparison), strict=True):
            last = Text(cells[-1], style=_STYLES.get(row.verdict, "bold magenta"))
            table.add_row(*(Text(cell) for cell in cells[:-1]), last)
        parts += [table, Text(LEGEND, style="dim")]
    parts += [Text(row.sentence, style=_STYLES.get(row.verdict, "bold magenta")) for row in told(comparison)]
    parts += [Text(f"note: {note}", style="yellow") for note in comparison.notes]
    parts.append(Text(footer(comparison), style="dim"))
    return Group(*parts)


def told(comparison: Comparison) -> list[Row]:
    """Rows whose sentence says more than their line in the table."""
    quiet = (Verdict.PASS, Verdict.INCONCLUSIVE)
    return [row for row in comparison.rows if row.excused or row.verdict not in quiet]


def footer(comparison: Comparison) -> str:
    """What was compared, and how often it was looked at."""
    looks = comparison.plan.looks
    when = f"looked at after pairs {looks[0]} to {looks[-1]}" if len(looks) > 1 else "looked at once"
    where = f"; on {comparison.machine}" if comparison.machine else ""
    what = f"{comparison.scenario}: base {comparison.base}, head {comparison.head}"
    return f"{what}; {comparison.pairs} pairs, {when}{where}"


def to_json(comparison: Comparison) -> str:
    """For programs: relative changes as fractions, values in seconds and tokens, not rounded."""

    def row(one: Row) -> dict[str, Any]:
        decision = one.decision
        return {
            "metric": one.key.metric,
            "unit": one.metric.unit,
            "higher_is_better": one.metric.higher_is_better,
            "arm": one.key.arm,
            "tp": one.key.tp,
            "concurrency": one.key.level.concurrency or None,
            "rate": one.key.level.rate or None,
            "primary": one.primary,
            "verdict": one.verdict.value,
            "word": one.word,
            "sentence": one.sentence,
            "base": _finite(one.base),
            "head": _finite(one.head),
            "change": _finite(one.change),
            "interval_90": one.interval,
            "pairs": decision.n,
            "pairs_left_out": decision.left_out,
            "p_slower": decision.p_slower,
            "p_faster": decision.p_faster,
            "sd_log_ratio": _finite(decision.sd),
            "df": _finite(decision.df),
            "aa_floor": _finite(one.floor),
            "more_pairs": one.more_pairs,
            "excused": one.excused or None,
        }

    document = {
        "verdict": comparison.verdict.value,
        "exit_code": comparison.exit_code,
        "headline": comparison.headline,
        "scenario": comparison.scenario,
        "base": comparison.base,
        "head": comparison.head,
        "pairs": comparison.pairs,
        "looks": comparison.plan.looks,
        "rows": [row(one) for one in comparison.rows],
        "notes": comparison.notes,
        "differences": [
            {"fact": d.fact, "base": d.base, "head": d.head, "role": d.role.value} for d in comparison.differences
        ],
    }
    return json.dumps(document, indent=1, allow_nan=False)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
