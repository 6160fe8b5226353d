"""Vector instructions that do the same in each lane: functions from sources to the result."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernel.emulator import formats
from kernel.emulator.formats import Bits, Floats
from kernel.emulator.wave import LANES, join

U32 = np.uint32


def fused(x: Floats, y: Floats, z: Floats) -> Floats:
    """``x y + z``: the product is exact in fp64, so only rare double rounding differs from one operation."""
    return (x.astype(np.float64) * y.astype(np.float64) + z.astype(np.float64)).astype(np.float32)


def signed(x: Bits) -> NDArray[np.int32]:
    return x.view(np.int32)


def wide(x: Bits) -> NDArray[np.uint64]:
    return x.astype(np.uint64)


def _low24(x: Bits) -> Bits:
    return x & U32(0xFFFFFF)


def _signed24(x: Bits) -> NDArray[np.int64]:
    return ((x.astype(np.int64) & 0xFFFFFF) ^ 0x800000) - 0x800000


def _field(x: Bits, place: Bits, width: Bits) -> Bits:
    mask = (np.uint64(1) << (wide(width) & np.uint64(31))) - np.uint64(1)
    return (wide(x >> (place & U32(31))) & mask).astype(U32)


def _signed_field(x: Bits, place: Bits, width: Bits) -> Bits:
    bits = (width & U32(31)).astype(np.int64)
    value = _field(x, place, width).astype(np.int64)
    negative = (value >> np.maximum(bits - 1, 0)) & 1
    field: Bits = (value - (negative << bits)).astype(np.int32).view(U32)
    return field


def _permuted_bytes(x: Bits, y: Bits, selector: Bits) -> Bits:
    """Each byte of the result is one of ``y``'s (0-3) or ``x``'s (4-7), 0 for 12 and 0xFF from 13 on."""
    both = join(y, x)
    result = np.zeros(64, U32)
    for place in range(4):
        chosen = (selector >> U32(8 * place)) & U32(255)
        byte = (both >> (wide(np.minimum(chosen, U32(7))) * np.uint64(8))) & np.uint64(255)
        if np.any((chosen > 7) & (chosen < 12)):
            raise NotImplementedError("v_perm_b32 with the sign of a byte")
        result |= np.where(chosen < 8, byte, np.where(chosen > 12, 255, 0)).astype(U32) << U32(8 * place)
    return result


def _reversed_bits(x: Bits) -> Bits:
    bits = np.unpackbits(x.view(np.uint8), bitorder="little").reshape(64, 32)
    return np.packbits(bits[:, ::-1], axis=1, bitorder="little").reshape(-1).view(U32)


def _shift64(x: Bits, y: Bits, z: Bits) -> Bits:
    return (join(y, x) >> (wide(z) & np.uint64(31))).astype(U32)


def _float_min(x: Floats, y: Floats) -> Floats:
    return np.fmin(x, y)


def _float_max(x: Floats, y: Floats) -> Floats:
    return np.fmax(x, y)


def _to_unsigned(x: Floats) -> Bits:
    return np.clip(np.nan_to_num(x.astype(np.float64)), 0, 2**32 - 1).astype(U32)


def _to_signed(x: Floats) -> Bits:
    return np.clip(np.nan_to_num(x.astype(np.float64)), -(2**31), 2**31 - 1).astype(np.int32).view(U32)


def _tosigned(x: Floats) -> Bits:
    return np.clip(np.nan_to_num(x.astype(np.float64)), -(2**31), 2**31 - 1).astype(np.int32).view(U32)


def _median(x: Any, y: Any, z: Any) -> Any:
    return np.maximum(np.minimum(x, y), np.minimum(np.maximum(x, y), z))


def _bits_below(x: Bits, start: int) -> Bits:
    """Of the mask ``x`` (lanes ``start`` to ``start + 31``), the bits of lanes below each lane."""
    below = np.clip(LANES - start, 0, 32)
    mask = ((np.uint64(1) << below.astype(np.uint64)) - np.uint64(1)) & wide(x)
    return np.array([int(bits).bit_count() for bits in mask], U32)


Operation = Callable[..., Any]
# Bits in, bits out.
INTEGER: dict[str, Operation] = {
    "v_mov_b32": lambda x: x, "v_accvgpr_read_b32": lambda x: x, "v_accvgpr_write_b32": lambda x: x,
    "v_accvgpr_mov_b32": lambda x: x, "v_not_b32": operator.invert,
    "v_add_u32": operator.add, "v_sub_u32": operator.sub, "v_subrev_u32": lambda x, y: y - x,
    "v_add3_u32": lambda x, y, z: x + y + z, "v_and_b32": operator.and_, "v_or_b32": operator.or_,
    "v_xor_b32": operator.xor, "v_or3_b32": lambda x, y, z: x | y | z, "v_and_or_b32": lambda x, y, z: x & y | z,
    "v_xad_u32": lambda x, y, z: (x ^ y) + z, "v_lshl_add_u32": lambda x, y, z: (x << (y & U32(31))) + z,
    "v_add_lshl_u32": lambda x, y, z: (x + y) << (z & U32(31)), "v_lshl_or_b32": lambda x, y, z: x << (y & U32(31)) | z,
    "v_lshlrev_b32": lambda x, y: y << (x & U32(31)), "v_lshrrev_b32": lambda x, y: y >> (x & U32(31)),
    "v_ashrrev_i32": lambda x, y: (signed(y) >> signed(x & U32(31))).view(U32),
    "v_bfrev_b32": _reversed_bits, "v_bfe_u32": _field, "v_bfe_i32": _signed_field,
    "v_bfi_b32": lambda x, y, z: x & y | ~x & z,
    "v_min_i32": lambda x, y: np.minimum(signed(x), signed(y)).view(U32),
    "v_max_i32": lambda x, y: np.maximum(signed(x), signed(y)).view(U32),
    "v_med3_i32": lambda x, y, z: _median(signed(x), signed(y), signed(z)).view(U32), "v_med3_u32": _median,
    "v_max3_i32": lambda x, y, z: np.max([signed(x), signed(y), signed(z)], axis=0).view(U32),
    "v_min3_i32": lambda x, y, z: np.min([signed(x), signed(y), signed(z)], axis=0).view(U32),
    "v_min_u32": np.minimum, "v_max_u32": np.maximum,
    "v_mul_lo_u32": operator.mul, "v_mul_hi_u32": lambda x, y: (wide(x) * wide(y) >> np.uint64(32)).astype(U32),
    "v_mul_hi_i32": lambda x, y: (signed(x).astype(np.int64) * signed(y) >> 32).astype(np.int32).view(U32),
    "v_mul_u32_u24": lambda x, y: _low24(x) * _low24(y),
    "v_mul_i32_i24": lambda x, y: (_signed24(x) * _signed24(y)).astype(np.uint64).astype(U32),
    "v_mad_u32_u24": lambda x, y, z: _low24(x) * _low24(y) + z,
    "v_perm_b32": _permuted_bytes, "v_alignbit_b32": _shift64,
    "v_mbcnt_lo_u32_b32": lambda x, y: y + _bits_below(x, 0), "v_mbcnt_hi_u32_b32": lambda x, y: y + _bits_below(x, 32),
    "v_cvt_f32_u32": lambda x: x.astype(np.float32), "v_cvt_f32_i32": lambda x: signed(x).astype(np.float32),
    "v_cvt_f32_f16": lambda x: formats.from_half(x & U32(0xFFFF)),
}  # fmt: skip
# fp32 in, fp32 or bits out.
FLOAT: dict[str, Operation] = {
    "v_add_f32": operator.add, "v_sub_f32": operator.sub, "v_subrev_f32": lambda x, y: y - x,
    "v_mul_f32": operator.mul, "v_fma_f32": fused, "v_fmaak_f32": fused, "v_fmamk_f32": fused,
    "v_max_f32": _float_max, "v_min_f32": _float_min,
    "v_max3_f32": lambda x, y, z: _float_max(_float_max(x, y), z),
    "v_min3_f32": lambda x, y, z: _float_min(_float_min(x, y), z),
    # IEEE-754-2019: a NaN wins.
    "v_maximum3_f32": lambda x, y, z: np.maximum(np.maximum(x, y), z),
    "v_minimum3_f32": lambda x, y, z: np.minimum(np.minimum(x, y), z),
    "v_exp_f32": lambda x: np.exp2(x.astype(np.float64)).astype(np.float32),
    "v_log_f32": lambda x: np.log2(x.astype(np.float64)).astype(np.float32),
    "v_rcp_f32": lambda x: np.float32(1) / x, "v_rcp_iflag_f32": lambda x: np.float32(1) / x,
    "v_ceil_f32": np.ceil, "v_floor_f32": np.floor, "v_rndne_f32": np.rint, "v_trunc_f32": np.trunc,
    "v_cvt_u32_f32": _to_unsigned, "v_cvt_i32_f32": _to_signed,
    "v_cvt_f16_f32": formats.to_half,
    "v_cvt_pk_bf16_f32": lambda x, y: formats.to_bf16(x) | formats.to_bf16(y) << U32(16),
    "v_cvt_pk_f16_f32": lambda x, y: formats.to_half(x) | formats.to_half(y) << U32(16),
}  # fmt: skip
COMPARE: dict[str, Operation] = {
    "eq": operator.eq, "ne": operator.ne, "lg": lambda x, y: (x < y) | (x > y), "neq": lambda x, y: ~(x == y),
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "nlt": lambda x, y: ~(x < y), "nle": lambda x, y: ~(x <= y), "ngt": lambda x, y: ~(x > y),
    "nge": lambda x, y: ~(x >= y), "u": lambda x, y: np.isnan(x) | np.isnan(y),
    "o": lambda x, y: ~(np.isnan(x) | np.isnan(y)),
}  # fmt: skip
