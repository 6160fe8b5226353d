"""Where the simulated time between two steps goes, part by part: known exactly, because it was put there.

A request's step time (TPOT x accept length) is the server's step and what lies between two steps: other requests'
prefill, for which it waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from rich.console import RenderableType
from rich.text import Text

from harness.metrics.definitions import PassView, distribution
from harness.model import LoadLevel, Pass
from harness.text import markdown_table, terminal_table

PARTS = ("verify_attention", "draft", "gemm", "all_reduce", "other", "host_gap")
HEADERS = ("TP", "conc.", "arm", *(part.replace("_", " ") for part in PARTS), "step", "prefill", "TPOT")
TITLE = "Where the time goes: SIMULATED, ms a decode step; prefill is what a request waits between two steps"


@dataclass(frozen=True)
class StepParts:
    """Means over the passes of one arm at one level, seconds a step; `tpot` seconds a token."""

    tp: int
    level: LoadLevel
    arm: str
    parts: dict[str, float]
    prefill: float
    tpot: float

    @property
    def step(self) -> float:
        return sum(self.parts.values())


def breakdown(passes: Sequence[Pass]) -> list[StepParts]:
    """One row for each (TP, level, arm), in the order of a report."""
    groups: dict[tuple[int, LoadLevel, str], list[Pass]] = {}
    for one in passes:
        key = one.record.key
        groups.setdefault((key.tp, key.level, key.arm), []).append(one)
    rows = []
    for (tp, level, arm), group in groups.items():
        parts = {part: fmean(one.record.step_profile[part] for one in group) for part in PARTS}
        views = [PassView.of(one) for one in group]
        tpot = [value for view in views if (value := distribution("tpot", view).mean) is not None]
        # Without speculation a step is a token.
        steps = [
            value
            for view in views
            if (value := distribution("step_time", view).mean or distribution("tpot", view).mean) is not None
        ]
        if tpot and steps:
            rows.append(StepParts(tp, level, arm, parts, max(0.0, fmean(steps) - sum(parts.values())), fmean(tpot)))
    return sorted(rows, key=lambda row: (row.tp, row.level.input_tokens, row.level.value))


def cells(row: StepParts) -> tuple[str, ...]:
    """A row as text, in the order of HEADERS."""
    numbers = (*(row.parts[part] for part in PARTS), row.step, row.prefill, row.tpot)
    return (str(row.tp), row.level.label, row.arm, *(f"{1e3 * value:.2f}" for value in numbers))


def to_rich(rows: Sequence[StepParts]) -> RenderableType:
    """For the terminal."""
    table = terminal_table(HEADERS, ("arm",), TITLE)
    previous = None
    for row in rows:
        if previous is not None and previous != (row.tp, row.level):
            table.add_section()
        previous = row.tp, row.level
        table.add_row(*(Text(cell) for cell in cells(row)))
    return table


def to_markdown(rows: Sequence[StepParts]) -> str:
    """For a document."""
    return "\n".join([TITLE + ".", "", *markdown_table(HEADERS, map(cells, rows), ("arm",)), ""])
