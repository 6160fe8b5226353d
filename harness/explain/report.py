"""An explanation as a table for the terminal, as Markdown or JSON. Pure: an explanation in, text out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from harness.explain.answer import Explanation, Row
from harness.explain.change import Estimate
from harness.explain.hypotheses import State, sensible
from harness.text import escape, markdown_table, terminal_table

ACCOUNT_HEADERS = ("part", "base", "head", "of TPOT", "90 % interval")
HYPOTHESIS_HEADERS = ("#", "hypothesis", "", "figures")
LEGEND = (
    "TPOT = (decode step + other stalls) / accept length + prefill interference of a token; the line of other batch "
    "sizes shows the mean batch. Parts of TPOT add up to its change; × is what a part multiplies TPOT by. Indented "
    "lines divide the decode step once more, by the device's own times. docs/c16.md defines each."
)
_STYLES = {State.CONFIRMED: "bold", State.LIKELY: "bold", State.REFUTED: "dim", State.UNLIKELY: "dim"}


def account_rows(explanation: Explanation) -> list[tuple[str, ...]]:
    """The account's cells: TPOT, its parts, and, indented, the decode step by device times."""
    rows = [_cells(row, "") for row in explanation.rows]
    rows += [_cells(row, "  ") for row in explanation.device]
    rows += [_cells(row, "    ") for row in explanation.traced]
    return [_cells(explanation.tpot, ""), *rows]


def _cells(row: Row, indent: str) -> tuple[str, ...]:
    figures = (_value(row.base, row.unit), _value(row.head, row.unit))
    return (indent + row.label, *figures, *_change(row.change, row.factor))


def _value(value: float, unit: str) -> str:
    if unit == "s/token":
        return f"{1e3 * value:.3f} ms/token"
    return f"{1e3 * value:.3f} ms" if unit == "s" else f"{value:.2f} {unit}"


def _change(change: Estimate, factor: float) -> tuple[str, str]:
    interval = f"{100 * change.low:+.1f} to {100 * change.high:+.1f} %" if change.known else "–"
    times = "" if sensible(change.mean) else f", × {factor:.2g}"
    return f"{100 * change.mean:+.1f} %{times}", interval


def hypothesis_rows(explanation: Explanation) -> list[tuple[str, ...]]:
    """A line for each hypothesis: number, name, state, figures."""
    return [
        (str(one.hypothesis.number), one.hypothesis.name, one.outcome.state.value, one.outcome.figures)
        for one in explanation.tested
    ]


def headline(explanation: Explanation) -> str:
    """The sentence, marked where nothing of it was measured."""
    return f"SIMULATED, NOT MEASURED. {explanation.sentence}" if simulated(explanation) else explanation.sentence


def simulated(explanation: Explanation) -> bool:
    """Do launches of either side come from the simulator?"""
    return any(run.simulated for one in (explanation.case.base, explanation.case.head) for run in one.side.runs)


def to_rich(explanation: Explanation) -> RenderableType:
    """For the terminal."""
    account = terminal_table(ACCOUNT_HEADERS, ("part",))
    for position, cells in enumerate(account_rows(explanation)):
        style = "bold" if position == 0 else None
        account.add_row(*(Text(cell) for cell in cells), style=style, end_section=position == 0)
    tested = terminal_table(HYPOTHESIS_HEADERS, HYPOTHESIS_HEADERS[1:])
    for one, cells in zip(explanation.tested, hypothesis_rows(explanation), strict=True):
        tested.add_row(*(Text(cell) for cell in cells), style=_STYLES.get(one.outcome.state))
    colour = "bold" if explanation.cause else "bold yellow"
    parts: list[RenderableType] = [
        Text(headline(explanation), style=colour),
        account,
        Text(LEGEND, style="dim"),
        tested,
    ]
    parts += [Text(f"note: {note}", style="yellow") for note in explanation.notes]
    parts.append(Text(f"next: {explanation.next}  ({explanation.next_why})"))
    return Group(*parts)


def to_markdown(explanation: Explanation) -> str:
    """For a comment or a document; every name is escaped."""
    out = [f"**{escape(headline(explanation))}**", ""]
    out += markdown_table(ACCOUNT_HEADERS, account_rows(explanation), ("part",), escape)
    out += ["", *markdown_table(HYPOTHESIS_HEADERS, hypothesis_rows(explanation), HYPOTHESIS_HEADERS[1:], escape), ""]
    out += [f"- note: {escape(note)}" for note in explanation.notes]
    out.append(f"- next: {escape(explanation.next)} ({escape(explanation.next_why)})")
    out += ["", f"<sub>{escape(LEGEND)}</sub>", ""]
    return "\n".join(out)


def to_json(explanation: Explanation) -> str:
    """For programs: changes are fractions of base's TPOT, values in seconds, tokens and sequences, not rounded."""
    case = explanation.case

    def row(one: Row) -> dict[str, Any]:
        change = one.change
        return {
            "name": one.name,
            "label": one.label,
            "unit": one.unit,
            "base": one.base,
            "head": one.head,
            "change": change.mean,
            "interval_90": [change.low, change.high] if change.known else None,
            "p": _finite(change.p),
        }

    document = {
        "sentence": headline(explanation),
        "simulated": simulated(explanation),
        "cause": explanation.cause,
        "causes": [
            {"cause": one.cause or None, "part": one.part, "change": one.change.relative(case.whole.mean).mean}
            for one in explanation.shares
        ],
        "base": case.base.name,
        "head": case.head.name,
        "pairs": case.whole.n,
        "log_change": case.whole.mean,
        "tpot": row(explanation.tpot),
        "parts": [row(one) for one in explanation.rows],
        "decode_step_by_device_time": [row(one) for one in explanation.device],
        "traced_step": [row(one) for one in explanation.traced],
        "hypotheses": [
            {
                "number": one.hypothesis.number,
                "name": one.hypothesis.name,
                "cause": one.hypothesis.cause,
                "state": one.outcome.state.value,
                "figures": one.outcome.figures,
                "confirms": one.hypothesis.confirms,
                "refutes": one.hypothesis.refutes,
                "experiment": one.hypothesis.experiment(case),
            }
            for one in explanation.tested
        ],
        "next": explanation.next,
        "next_why": explanation.next_why,
        "notes": explanation.notes,
    }
    return json.dumps(document, indent=1, allow_nan=False)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


RENDERERS: dict[str, Callable[[Explanation], str]] = {"markdown": to_markdown, "json": to_json}
