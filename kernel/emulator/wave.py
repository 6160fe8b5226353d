"""The registers of one wave, and the operands that name them."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernel.emulator.formats import Bits, Floats
from kernel.emulator.listing import Instruction

LANES = np.arange(64)
ALL = (1 << 64) - 1
WORD = 0xFFFFFFFF
SIGN = np.uint32(0x80000000)
_INLINE_FLOATS = {
    "0.5": 0x3F000000, "1.0": 0x3F800000, "2.0": 0x40000000, "4.0": 0x40800000, "0.15915494": 0x3E22F983,
    "-0.5": 0xBF000000, "-1.0": 0xBF800000, "-2.0": 0xC0000000, "-4.0": 0xC0800000,
}  # fmt: skip
_REGISTER = re.compile(r"^([vas])(?:(\d+)|\[(\d+):(\d+)\])$")
# Accumulation registers follow the vector registers in one file.
ACCUMULATION = 256


class UnknownInstruction(NotImplementedError):
    """An instruction, or a way to write it, that the emulator does not know."""

    def __init__(self, instruction: Instruction, why: str = "") -> None:
        super().__init__(f"the emulator does not know {instruction.text!r}" + (f": {why}" if why else ""))


@dataclass(frozen=True)
class Operand:
    """What an operand names: a vector or scalar register from ``index`` on, a special one by ``name``, or a number."""

    vector: bool
    index: int | None
    name: str
    number: int
    negate: bool = False
    absolute: bool = False


@functools.cache
def operand(text: str) -> Operand:
    """Read an operand as it is written."""
    negate = absolute = False
    if re.match(r"^-[|vas]", text) and text not in _INLINE_FLOATS:
        negate, text = True, text[1:]
    if text.startswith("|"):
        absolute, text = True, text[1:-1]
    if register := _REGISTER.match(text):
        first = int(register[2] or register[3])
        if register[1] == "s":
            return Operand(False, first, text, 0, negate, absolute)
        return Operand(True, first + (ACCUMULATION if register[1] == "a" else 0), text, 0, negate, absolute)
    if text in _INLINE_FLOATS:
        return Operand(False, None, "", _INLINE_FLOATS[text])
    try:
        return Operand(False, None, "", int(text, 0), negate, absolute)
    except ValueError:
        return Operand(False, None, text, 0, negate, absolute)


@dataclass
class Wave:
    """One wave of 64 lanes.

    Attributes:
        vectors: (512, 64) vector, then accumulation registers.
        scalars: scalar registers.
        exec: one bit a lane: which take part.
        place: number of the next instruction.
        pending: memory operations that have not arrived, oldest first.
    """

    vectors: Bits = field(default_factory=lambda: np.full((512, 64), 0x7FC0DEAD, np.uint32))
    scalars: list[int] = field(default_factory=lambda: [0xDEAD] * 128)
    exec: int = ALL
    vcc: int = 0
    scc: int = 0
    m0: int = 0
    place: int = 0
    done: bool = False
    pending: list[Callable[[], None]] = field(default_factory=list)

    # --- scalars ---

    def scalar(self, text: str) -> int:
        """A 32-bit scalar operand as an unsigned number."""
        what = operand(text)
        if what.index is not None:
            return self.scalars[what.index]
        if what.name:
            return self._special(what.name)
        return what.number & WORD

    def _special(self, name: str) -> int:
        full = {"vcc": self.vcc, "exec": self.exec}
        half, _, part = name.partition("_")
        if half in full and part in ("lo", "hi"):
            return full[half] >> (32 if part == "hi" else 0) & WORD
        if name in full:
            return full[name]
        return {"m0": self.m0, "scc": self.scc, "null": 0}[name]

    def scalar64(self, text: str) -> int:
        """A 64-bit scalar operand; a literal is sign-extended."""
        what = operand(text)
        if what.index is not None:
            return self.scalars[what.index] | self.scalars[what.index + 1] << 32
        if what.name:
            return self._special(what.name)
        return what.number & ALL

    def set_scalar(self, text: str, value: int) -> None:
        """Write a 32-bit scalar."""
        what, value = operand(text), value & WORD
        if what.index is not None and not what.vector:
            self.scalars[what.index] = value
        elif what.name == "m0":
            self.m0 = value
        elif what.name in ("vcc_lo", "exec_lo", "vcc_hi", "exec_hi"):
            name, _, part = what.name.partition("_")
            old: int = getattr(self, name)
            setattr(self, name, old & ~WORD | value if part == "lo" else old & WORD | value << 32)
        else:
            raise KeyError(text)

    def set_scalar64(self, text: str, value: int) -> None:
        """Write a 64-bit scalar."""
        what, value = operand(text), value & ALL
        if what.index is not None and not what.vector:
            self.scalars[what.index], self.scalars[what.index + 1] = value & WORD, value >> 32
        elif what.name in ("vcc", "exec"):
            setattr(self, what.name, value)
        elif what.name != "null":
            raise KeyError(text)

    # --- vectors ---

    @property
    def active(self) -> NDArray[np.bool_] | None:
        """Which lanes take part; None for all."""
        return None if self.exec == ALL else lanes_of(self.exec)

    def vector(self, text: str) -> Bits:
        """A 32-bit operand of a vector instruction, with its sign modifiers: bits of 64 lanes."""
        what = operand(text)
        bits = (
            self.vectors[what.index].copy() if what.vector else np.full(64, self.scalar(what.name or text), np.uint32)
        )
        if what.absolute:
            bits &= ~SIGN
        if what.negate:
            bits ^= SIGN
        return bits

    def floats(self, text: str) -> Floats:
        """A vector operand's 64 lanes as fp32."""
        return self.vector(text).view(np.float32)

    def vector64(self, text: str) -> NDArray[np.uint64]:
        """A 64-bit operand of a vector instruction."""
        what = operand(text)
        if what.vector:
            return join(self.vectors[what.index], self.vectors[first(text) + 1])
        return np.full(64, self.scalar64(text), np.uint64)

    def set_vector(self, index: int, values: NDArray[Any], lanes: NDArray[np.bool_] | None = None) -> None:
        """Write a register by number: lanes that take part, and of those only ``lanes`` if given."""
        bits = values.view(np.uint32) if values.dtype == np.float32 else values.astype(np.uint32, copy=False)
        active = self.active
        if lanes is not None:
            active = lanes if active is None else active & lanes
        if active is None:
            self.vectors[index] = bits
        else:
            self.vectors[index][active] = bits[active]

    def set_mask(self, text: str, lanes: NDArray[np.bool_]) -> None:
        """Write a mask, with zeros for lanes that take no part."""
        active = self.active
        self.set_scalar64(text, bits_of(lanes if active is None else lanes & active))


def first(text: str) -> int:
    """Number of the first register that a vector operand names."""
    what = operand(text)
    if not what.vector or what.index is None:
        raise KeyError(text)
    return what.index


def join(low: Bits, high: Bits) -> NDArray[np.uint64]:
    """64-bit numbers from their halves."""
    return low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)


def lanes_of(mask: int) -> NDArray[np.bool_]:
    """A 64-bit mask as 64 booleans."""
    return np.unpackbits(np.array([mask], "<u8").view(np.uint8), bitorder="little").astype(bool)


def bits_of(lanes: NDArray[np.bool_]) -> int:
    """64 booleans as a mask."""
    return int(np.packbits(lanes, bitorder="little").view("<u8")[0])


def numbers(text: str) -> list[int]:
    """``[0,1,0]`` as a list."""
    return [int(n) for n in text.strip("[]").split(",")]
