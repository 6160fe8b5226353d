"""Which shape of the gfx950 kernel a device has shown to be the faster one.

``mtpbench kernel bench --tune`` times both and writes ``results/gfx950-shapes.json``: query rows -> shape.  Without
that file, or for rows that it lacks, the default is one wave a SIMD, which needs fewer instructions for each byte.
``MTPBENCH_CDNA4_SHAPE`` names a shape for a whole process, to compare the two in a server.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Sequence
from pathlib import Path

from kernel.config import CDNA4_SHAPES, ONE_WAVE

SHAPE_VARIABLE = "MTPBENCH_CDNA4_SHAPE"
SHAPES_FILE = Path(__file__).resolve().parent / "results" / "gfx950-shapes.json"


def measured_shape(arch_name: str, rows: int, possible: Sequence[str] = CDNA4_SHAPES) -> str:
    """The shape to run.

    Args:
        arch_name: ISA name; only gfx950 has a choice.
        rows: query rows of a tile: 16, 32 or 64.
        possible: shapes that this Triton can compile.

    Raises:
        ValueError: the variable names a shape that is not possible, or the file one that there is not.
    """
    if arch_name != "gfx950":
        return ONE_WAVE
    wanted = os.environ.get(SHAPE_VARIABLE)
    if wanted:
        return _known(wanted, SHAPE_VARIABLE, possible)
    measured = _known(_from_file(SHAPES_FILE).get(str(rows), ONE_WAVE), str(SHAPES_FILE), CDNA4_SHAPES)
    return measured if measured in possible else ONE_WAVE


@functools.cache
def _from_file(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    shapes: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))["shapes"]
    return shapes


def _known(shape: str, source: str, possible: Sequence[str]) -> str:
    if shape not in possible:
        raise ValueError(f"{source}: no shape {shape!r} with this Triton; there are {', '.join(possible)}")
    return shape
