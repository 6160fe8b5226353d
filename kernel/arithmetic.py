"""Triton helpers on number formats that the kernels share.

``INTERPRETED`` is set on a CPU alone.  Triton's interpreter keeps bf16 as raw 16-bit integers: its
dot multiplies those integers and its conversion from fp32 truncates.  Rounding by hand and
multiplying in fp32 gives what the hardware gives.
"""

# Triton parses these functions itself and forbids most annotations on their parameters.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def power_of_two_near(x):
    """A power of two ``p`` with ``p <= x < 4 p``, and ``1 / p``, for fp32 ``x`` from 2^-126 up.

    Below that ``p`` is 2^-126.  It stops at 2^126 so that its inverse is a normal number too.
    """
    bits = x.to(tl.int32, bitcast=True) & 0x7F800000
    bits = tl.minimum(tl.maximum(bits, 0x00800000), 0x7E800000)
    power = bits.to(tl.float32, bitcast=True)
    inverse = (0x7F000000 - bits).to(tl.float32, bitcast=True)
    return power, inverse


@triton.jit
def nearest_bf16(x):
    """fp32 ``x`` rounded to the nearest bf16, ties to even, still as fp32."""
    bits = x.to(tl.int32, bitcast=True)
    bits = bits + 0x7FFF + ((bits >> 16) & 1)
    return (bits & -0x10000).to(tl.float32, bitcast=True)


@triton.jit
def operand(x, FP16: tl.constexpr, INTERPRETED: tl.constexpr):
    """``x`` as a matrix operand: fp16 or bf16."""
    if FP16:
        y = x.to(tl.float16)
    elif INTERPRETED:
        y = nearest_bf16(x.to(tl.float32))
    else:
        y = x.to(tl.bfloat16)
    return y


@triton.jit
def output(x, INTERPRETED: tl.constexpr):
    """fp32 ``x`` as bf16."""
    if INTERPRETED:
        x = nearest_bf16(x)
    return x.to(tl.bfloat16)
