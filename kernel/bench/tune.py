"""Which shape of the gfx950 kernel is the faster one, from a report of the bench."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from kernel.config import CDNA4_SHAPES


def faster_shapes(report: dict[str, Any]) -> dict[str, str]:
    """Query rows -> shape: the one with the smaller geometric mean of times over the shapes that both ran."""
    seconds: dict[str, dict[str, dict[str, float]]] = {}  # query rows -> timed shape -> shape of the kernel -> seconds
    for row in report["rows"]:
        shape = row["arm"].removeprefix("ours-")
        if shape in CDNA4_SHAPES and row["status"] == "timed":
            timed = seconds.setdefault(str(row["query_rows"]), {})
            timed.setdefault(row["shape"], {})[shape] = row["seconds"]["median"]
    found = {}
    for rows, timed in seconds.items():
        both = [times for times in timed.values() if len(times) == len(CDNA4_SHAPES)]
        if both:
            logs = {shape: sum(math.log(times[shape]) for times in both) for shape in CDNA4_SHAPES}
            found[rows] = min(CDNA4_SHAPES, key=lambda shape: logs[shape])
    return found


def tuned_shapes(report: dict[str, Any], path: Path) -> str:
    """Write what was found, if anything, and say so."""
    shapes = faster_shapes(report)
    if not shapes:
        return "nothing to tune: the report has no times of both shapes of the kernel for gfx950"
    content = {"device": report["device"], "triton": report["triton"], "shapes": shapes}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return f"{path}: " + ", ".join(f"{rows} rows {shape}" for rows, shape in sorted(shapes.items()))
