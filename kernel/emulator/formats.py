"""Number formats, as NumPy arrays of their bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint32]
Floats = NDArray[np.float32]


def _e4m3_values() -> Floats:
    """The value of each of the 256 codes of OCP E4M3: bias 7, no infinity, NaN where all of S.1111.111 is set."""
    code = np.arange(256)
    exponent, mantissa = (code >> 3) & 15, code & 7
    value = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    value[(code & 127) == 127] = np.nan
    return np.where(code >> 7, -value, value).astype(np.float32)


E4M3 = _e4m3_values()


def to_e4m3(x: Floats) -> NDArray[np.uint8]:
    """Codes of the nearest values, ties to even; beyond 448 NaN, as gfx950 has it unless told to clamp.

    The quantum of a binade is 2^-3 of it, and never below 2^-9, where subnormals start.
    """
    x = np.asarray(x, np.float32)
    magnitude = np.where(np.isfinite(x), np.abs(x), 1.0)
    _, exponent = np.frexp(magnitude)  # magnitude = f * 2^exponent, f in [0.5, 1)
    exponent = np.where(magnitude == 0, -5, np.maximum(exponent, -5))
    steps = np.rint(np.ldexp(magnitude.astype(np.float64), 4 - exponent)).astype(np.int64)  # of 2^(exponent - 4)
    # Codes count through the binades: 8 steps to the next exponent, and rounding up to 16 steps carries by itself.
    code = steps + (exponent + 5) * 8
    bad = ~np.isfinite(x) | (code > 126)
    code = np.where(bad, 127, code)
    signed: NDArray[np.int64] = code | (np.signbit(x).astype(np.int64) << 7)
    return signed.astype(np.uint8)


def to_bf16(x: Floats) -> Bits:
    """Bits of the nearest bf16, ties to even, in the low half."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + np.uint64(0x7FFF) + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)
    return np.where(np.isnan(x), 0x7FC0, rounded & np.uint64(0xFFFF)).astype(np.uint32)


def from_bf16(bits: NDArray[np.uint16]) -> Floats:
    """Values of bf16."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def to_half(x: Floats) -> Bits:
    """Bits of the nearest fp16 in the low half."""
    return x.astype(np.float16).view(np.uint16).astype(np.uint32)


def from_half(bits: NDArray[np.uint16]) -> Floats:
    """Values of fp16."""
    return bits.astype(np.uint16).view(np.float16).astype(np.float32)
