"""Matrix products, ``v_mfma_*``.

A product is D[i, j] = sum over k of A[i, k] B[k, j] + C[i, j], of M x M elements (32 or 16).  Lane ``l`` holds row
(A) or column (B) ``l % M`` and of K its part ``l // M``, consecutive elements.  Of D and C it holds column ``l % M``.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernel.emulator import formats
from kernel.emulator.formats import E4M3, Floats
from kernel.emulator.listing import Instruction
from kernel.emulator.wave import LANES, UnknownInstruction, Wave, first, numbers, operand

_NAME = re.compile(r"^v_mfma_(?:scale_)?f32_(\d+)x\d+x(\d+)_(bf16|f16|f8f6f4|fp8_fp8)$")
_KNOWN = {"op_sel", "op_sel_hi", "cbsz", "blgp"}


def run(wave: Wave, ins: Instruction) -> None:
    """Execute one matrix product: sums in fp64, rounded once to fp32.

    Raises:
        UnknownInstruction: its shape or one of its formats is not known.
    """
    shape = _NAME.match(ins.name)
    # cbsz and blgp are the formats of A and B; 0 is E4M3.
    if not shape or set(ins.modifiers) - _KNOWN or any(ins.modifiers.get(x, "0") != "0" for x in ("cbsz", "blgp")):
        raise UnknownInstruction(ins)
    size, depth, form = int(shape[1]), int(shape[2]), shape[3]
    target, a, b, c, *scales = ins.operands
    left, right = (_matrix(wave, text, size, depth, form) for text in (a, b))
    if scales:
        left *= _scales(wave, ins, scales[0], 0, size, depth)
        right *= _scales(wave, ins, scales[1], 1, size, depth)
    product = left @ right.T  # [i, j]
    rows = _rows(size)
    count = size * size // 64
    old = operand(c)
    if old.vector:
        start = first(c)
        sums = wave.vectors[start : start + count].view(np.float32)
    else:
        sums = np.full((count, 64), wave.vector(c).view(np.float32)[0], np.float32)
    result = (product[rows, LANES % size] + sums).astype(np.float32)
    wave.vectors[first(target) : first(target) + count] = result.view(np.uint32)


@functools.cache
def _rows(size: int) -> NDArray[np.int64]:
    """(registers, lanes): the row of D that each register of a lane holds, four at a time."""
    register = np.arange(size * size // 64)[:, None]
    group = LANES // size
    rows: NDArray[np.int64] = (256 // size) * (register // 4) + 4 * group + register % 4
    return rows


def _matrix(wave: Wave, text: str, size: int, depth: int, form: str) -> NDArray[np.float64]:
    """An operand as [size, depth]."""
    share = depth * size // 64  # elements a lane
    width = 2 if form in ("bf16", "f16") else 1
    registers = wave.vectors[first(text) : first(text) + share * width // 4]
    data = np.ascontiguousarray(registers.T)  # [lanes, registers]
    values: Floats
    if form == "bf16":
        values = formats.from_bf16(data.view(np.uint16))
    elif form == "f16":
        values = formats.from_half(data.view(np.uint16))
    else:
        values = E4M3[data.view(np.uint8)]
    return _by_row(values, size).astype(np.float64)


def _by_row(values: NDArray[Any], size: int) -> NDArray[Any]:
    """[lanes, share] as [size, 64 // size * share]."""
    groups, share = 64 // size, values.shape[1]
    return values.reshape(groups, size, share).transpose(1, 0, 2).reshape(size, groups * share)


def _scales(wave: Wave, ins: Instruction, text: str, place: int, size: int, depth: int) -> NDArray[np.float64]:
    """A lane's factor for its row or column and its part of K: a power of two, E8M0, in a byte by ``op_sel``."""
    low = numbers(ins.modifiers.get("op_sel", "[0,0,0]"))[place]
    high = numbers(ins.modifiers.get("op_sel_hi", "[0,0,0]"))[place]
    code = wave.vector(text) >> np.uint32(8 * (low + 2 * high)) & np.uint32(255)
    if np.any(code == 255):
        raise UnknownInstruction(ins, "a scale is NaN")
    factor = np.exp2(code.astype(np.float64) - 127)
    return _by_row(np.repeat(factor[:, None], depth * size // 64, axis=1), size)
