"""Vector instructions, ``v_*``, but matrix products."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernel.emulator import formats
from kernel.emulator.elementwise import COMPARE, FLOAT, INTEGER, Operation, fused, signed, wide
from kernel.emulator.formats import E4M3, Bits
from kernel.emulator.listing import Instruction
from kernel.emulator.wave import LANES, UnknownInstruction, Wave, first, join, lanes_of, numbers, operand

U32 = np.uint32
_DPP = ("quad_perm", "row_shr", "row_shl", "row_ror", "row_bcast", "row_half_mirror", "row_mirror", "wave_shr")
_KNOWN = {"op_sel", "op_sel_hi", "neg_lo", "neg_hi", "bound_ctrl", "row_mask", "bank_mask", "clamp", "bitop3", *_DPP,
          "dst_sel", "dst_unused", "src0_sel", "src1_sel"}  # fmt: skip
_PACKED: dict[str, Operation] = {"v_pk_mul_f32": operator.mul, "v_pk_add_f32": operator.add, "v_pk_fma_f32": fused}


def run(wave: Wave, ins: Instruction) -> None:
    """Execute one vector instruction.

    Raises:
        UnknownInstruction: it is none of those here, or has a modifier that none of them has.
    """
    unknown = set(ins.modifiers) - _KNOWN
    if unknown:
        raise UnknownInstruction(ins, f"modifier {', '.join(sorted(unknown))}")
    name = ins.name.removesuffix("_dpp").removesuffix("_sdwa")
    if name in INTEGER or name in FLOAT or name == "v_fmac_f32" or name == "v_bitop3_b32":
        _elementwise(wave, ins, name)
    elif name.startswith("v_cmp_"):
        _compare(wave, ins)
    elif name in _SPECIAL:
        _SPECIAL[name](wave, ins)
    elif name in _PACKED:
        _packed(wave, ins)
    else:
        raise UnknownInstruction(ins)


def _elementwise(wave: Wave, ins: Instruction, name: str) -> None:
    target, *sources = ins.operands
    lanes: NDArray[np.bool_] | None = None
    values = [wave.vector(text) for text in sources]
    if ins.name.endswith("_dpp"):
        values[0], lanes = _moved(values[0], ins)
    if ins.name.endswith("_sdwa"):
        values = [_part(value, ins.modifiers.get(f"src{n}_sel", "DWORD"), ins) for n, value in enumerate(values)]
    if name == "v_bitop3_b32":
        result: NDArray[Any] = _any_bit_operation(int(ins.modifiers["bitop3"], 0), *values)
    elif name in INTEGER:
        if "clamp" in ins.modifiers:
            if name != "v_sub_u32":
                raise UnknownInstruction(ins, "clamp")
            result = np.where(values[0] > values[1], values[0] - values[1], 0)
        else:
            result = INTEGER[name](*values)
    else:
        reals = [value.view(np.float32) for value in values]
        if "clamp" in ins.modifiers:
            raise UnknownInstruction(ins, "clamp")
        if name == "v_fmac_f32":
            reals.append(wave.floats(target))
        result = FLOAT.get(name, fused)(*reals)
    result = np.asarray(result)
    if ins.modifiers.get("dst_sel", "DWORD") != "DWORD":
        result = _into_part(wave.vectors[first(target)], result, ins)
    wave.set_vector(first(target), result, lanes)


# Sub-dword addressing: place and width in bits.
_PARTS = {"WORD_0": (0, 16), "WORD_1": (16, 16), **{f"BYTE_{n}": (8 * n, 8) for n in range(4)}}


def _part(value: Bits, part: str, ins: Instruction) -> Bits:
    """A part of a source, extended by zeros."""
    if part == "DWORD":
        return value
    if part not in _PARTS:
        raise UnknownInstruction(ins, part)
    place, width = _PARTS[part]
    return value >> U32(place) & U32((1 << width) - 1)


def _into_part(old: Bits, value: NDArray[Any], ins: Instruction) -> Bits:
    """A result in a part of the target, whose rest is kept or zero."""
    part, rest = ins.modifiers["dst_sel"], ins.modifiers.get("dst_unused", "UNUSED_PAD")
    if part not in _PARTS or rest not in ("UNUSED_PAD", "UNUSED_PRESERVE"):
        raise UnknownInstruction(ins, f"{part} {rest}")
    place, width = _PARTS[part]
    mask = U32(((1 << width) - 1) << place)
    bits = value.view(U32) if value.dtype == np.float32 else value.astype(U32)
    kept = old & ~mask if rest == "UNUSED_PRESERVE" else U32(0)
    return kept | bits << U32(place) & mask


def _any_bit_operation(table: int, x: Bits, y: Bits, z: Bits) -> Bits:
    """Bit ``4 x + 2 y + z`` of the table is the result."""
    result = np.zeros(64, U32)
    for row in range(8):
        if table >> row & 1:
            result |= (x if row & 4 else ~x) & (y if row & 2 else ~y) & (z if row & 1 else ~z)
    return result


def _moved(values: Bits, ins: Instruction) -> tuple[Bits, NDArray[np.bool_]]:
    """Data-parallel primitives: each lane's source by its modifier, and which lanes are written."""
    m = ins.modifiers
    row, place = LANES // 16, LANES % 16
    reachable = np.ones(64, bool)
    if "quad_perm" in m:
        source = LANES // 4 * 4 + np.array(numbers(m["quad_perm"]))[LANES % 4]
    elif "row_shr" in m:
        source, reachable = LANES - int(m["row_shr"]), place >= int(m["row_shr"])
    elif "row_shl" in m:
        source, reachable = LANES + int(m["row_shl"]), place + int(m["row_shl"]) < 16
    elif "row_ror" in m:
        source = row * 16 + (place - int(m["row_ror"])) % 16
    elif m.get("row_bcast") == "15":
        source, reachable = row * 16 - 1, row > 0
    elif m.get("row_bcast") == "31":
        source, reachable = np.full(64, 31), row > 1
    elif "row_half_mirror" in m:
        source = row * 16 + place // 8 * 8 + 7 - place % 8
    elif "row_mirror" in m:
        source = row * 16 + 15 - place
    elif "wave_shr" in m:
        source, reachable = LANES - 1, LANES > 0
    else:
        raise UnknownInstruction(ins)
    rows, banks = int(m.get("row_mask", "0xf"), 0), int(m.get("bank_mask", "0xf"), 0)
    written = ((rows >> row) & 1).astype(bool) & ((banks >> (place // 4)) & 1).astype(bool)
    moved = values[np.clip(source, 0, 63)]
    if "bound_ctrl" in m:
        return np.where(reachable, moved, 0).astype(U32), written
    return moved, written & reachable


def _compare(wave: Wave, ins: Instruction) -> None:
    _, _, how, kind = ins.name.split("_")
    target, x, y = ins.operands
    read: dict[str, Callable[[str], NDArray[Any]]] = {
        "f32": wave.floats, "u32": wave.vector, "i32": lambda text: signed(wave.vector(text)),
        "u64": wave.vector64, "i64": lambda text: wave.vector64(text).view(np.int64),
    }  # fmt: skip
    if kind not in read or how not in COMPARE:
        raise UnknownInstruction(ins)
    wave.set_mask(target, COMPARE[how](read[kind](x), read[kind](y)))


def _packed(wave: Wave, ins: Instruction) -> None:
    """Two fp32 operations: which half of each source the low and the high one take is in ``op_sel``, ``op_sel_hi``."""
    target, *sources = ins.operands
    m, count = ins.modifiers, len(sources)
    halves = []
    for default, sign in (("op_sel", "neg_lo"), ("op_sel_hi", "neg_hi")):
        chosen = numbers(m[default]) if default in m else [int(default == "op_sel_hi")] * count
        negated = numbers(m[sign]) if sign in m else [0] * count
        values = []
        for text, half, minus in zip(sources, chosen, negated, strict=True):
            bits = _half(wave, text, half).view(np.float32)
            values.append(-bits if minus else bits)
        halves.append(_PACKED[ins.name](*values))
    for place, half_result in enumerate(halves):
        wave.set_vector(first(target) + place, half_result)


def _half(wave: Wave, text: str, half: int) -> Bits:
    """One half of a 64-bit source; a constant is both."""
    pair = wave.vector64(text) if "[" in text else join(wave.vector(text), wave.vector(text))
    return (pair >> np.uint64(32 * half)).astype(U32)


# --- instructions of a form of their own ---


def _mixed_fma(wave: Wave, ins: Instruction) -> None:
    """``x y + z`` of sources that are fp32, or one half of a register in fp16."""
    target, *sources = ins.operands
    is_half = numbers(ins.modifiers.get("op_sel_hi", "[0,0,0]"))
    high = numbers(ins.modifiers.get("op_sel", "[0,0,0]"))
    values = []
    for text, half, place in zip(sources, is_half, high, strict=True):
        if not half:
            values.append(wave.floats(text))
            continue
        what = operand(text)
        if what.negate or what.absolute:
            raise UnknownInstruction(ins, "a sign of a half")
        values.append(formats.from_half((wave.vector(text) >> U32(16 * place) & U32(0xFFFF)).astype(np.uint16)))
    wave.set_vector(first(target), fused(*values))


def _packed_move(wave: Wave, ins: Instruction) -> None:
    low, high = ins.operands[1:]
    chosen = numbers(ins.modifiers.get("op_sel", "[0,0]"))
    values = _half(wave, low, chosen[0]), _half(wave, high, chosen[1] if "op_sel" in ins.modifiers else 0)
    for place, value in enumerate(values):
        wave.set_vector(first(ins.operands[0]) + place, value)


def _select(wave: Wave, ins: Instruction) -> None:
    target, no, yes, mask = ins.operands
    wave.set_vector(first(target), np.where(lanes_of(wave.scalar64(mask)), wave.vector(yes), wave.vector(no)))


def _read_first_lane(wave: Wave, ins: Instruction) -> None:
    lane = (wave.exec & -wave.exec).bit_length() - 1 if wave.exec else 0
    wave.set_scalar(ins.operands[0], int(wave.vector(ins.operands[1])[lane]))


def _read_lane(wave: Wave, ins: Instruction) -> None:
    target, source, lane = ins.operands
    wave.set_scalar(target, int(wave.vector(source)[wave.scalar(lane) & 63]))


def _write_lane(wave: Wave, ins: Instruction) -> None:
    target, source, lane = ins.operands
    wave.vectors[first(target)][wave.scalar(lane) & 63] = wave.scalar(source)


def _swap_lanes(wave: Wave, ins: Instruction) -> None:
    """Exchange the odd rows of ``size`` lanes of the first register with the even rows of the second."""
    if wave.active is not None:
        raise UnknownInstruction(ins, "with lanes switched off")
    size = 32 if "permlane32" in ins.name else 16
    x, y = (wave.vectors[first(text)] for text in ins.operands)
    for start in range(0, 64, 2 * size):
        odd = x[start + size : start + 2 * size].copy()
        x[start + size : start + 2 * size] = y[start : start + size]
        y[start : start + size] = odd


def _set64(wave: Wave, text: str, value: NDArray[Any]) -> None:
    bits = value.view(np.uint64)
    wave.set_vector(first(text), (bits & np.uint64(0xFFFFFFFF)).astype(U32))
    wave.set_vector(first(text) + 1, (bits >> np.uint64(32)).astype(U32))


def _wide_integer(wave: Wave, ins: Instruction) -> None:
    target, a = ins.operands[0], ins.operands[1:]
    if ins.name == "v_mov_b64":
        _set64(wave, target, wave.vector64(a[0]))
    elif ins.name == "v_lshl_add_u64":
        _set64(wave, target, (wave.vector64(a[0]) << wide(wave.vector(a[1]) & U32(7))) + wave.vector64(a[2]))
    else:
        count, value = wide(wave.vector(a[0]) & U32(63)), wave.vector64(a[1])
        if ins.name == "v_lshlrev_b64":
            _set64(wave, target, value << count)
        elif ins.name == "v_lshrrev_b64":
            _set64(wave, target, value >> count)
        else:
            _set64(wave, target, value.view(np.int64) >> count.astype(np.int64))


def _multiply_add_64(wave: Wave, ins: Instruction) -> None:
    target, _, x, y, z = ins.operands
    if ins.name == "v_mad_u64_u32":
        product = wide(wave.vector(x)) * wide(wave.vector(y))
    else:
        product = (signed(wave.vector(x)).astype(np.int64) * signed(wave.vector(y))).view(np.uint64)
    _set64(wave, target, product + wave.vector64(z))


def _with_carry(wave: Wave, ins: Instruction) -> None:
    target, carry, x, y, *before = ins.operands
    i, j = wave.vector(x).astype(np.int64), wave.vector(y).astype(np.int64)
    if ins.name == "v_subrev_co_u32":
        i, j = j, i
    extra = lanes_of(wave.scalar64(before[0])).astype(np.int64) if before else 0
    result = i + j + extra if ins.name.startswith("v_add") else i - j - extra
    mask = (result < 0) | (result >> 32 > 0)
    wave.set_vector(first(target), (result & 0xFFFFFFFF).astype(U32))
    wave.set_mask(carry, mask)


def _divide_scale(wave: Wave, ins: Instruction) -> None:
    """Division in steps; here the numbers are taken to need no scaling, which the last step makes up for."""
    wave.set_vector(first(ins.operands[0]), wave.vector(ins.operands[2]))
    wave.set_scalar64(ins.operands[1], 0)


def _divide_step(wave: Wave, ins: Instruction) -> None:
    target, x, y, z = ins.operands
    wave.set_vector(first(target), fused(wave.floats(x), wave.floats(y), wave.floats(z)))


def _divide_last(wave: Wave, ins: Instruction) -> None:
    target, _, below, above = ins.operands
    wave.set_vector(first(target), (wave.floats(above).astype(np.float64) / wave.floats(below)).astype(np.float32))


def _scale_by_power(wave: Wave, ins: Instruction) -> None:
    target, x, power = ins.operands
    result = np.ldexp(wave.floats(x).astype(np.float64), signed(wave.vector(power)))
    wave.set_vector(first(target), result.astype(np.float32))


def _high_half(ins: Instruction, place: int) -> int:
    return numbers(ins.modifiers["op_sel"])[place] if "op_sel" in ins.modifiers else 0


def _to_fp8(wave: Wave, ins: Instruction) -> None:
    """Two fp32 (or two halves of 16 bits), divided by a scale if there is one, as two E4M3 in a half of the target."""
    target, *sources = ins.operands
    if ins.name in ("v_cvt_scalef32_pk_fp8_bf16", "v_cvt_scalef32_pk_fp8_f16"):
        raise UnknownInstruction(ins)
    scale = wave.floats(sources[2]) if ins.name == "v_cvt_scalef32_pk_fp8_f32" else np.float32(1)
    codes = [formats.to_e4m3(wave.floats(text) / scale).astype(U32) for text in sources[:2]]
    pair = codes[0] | codes[1] << U32(8)
    old = wave.vectors[first(target)]
    high = _high_half(ins, -1)
    wave.set_vector(first(target), old & U32(0xFFFF) | pair << U32(16) if high else old & U32(0xFFFF0000) | pair)


def _from_fp8(wave: Wave, ins: Instruction) -> None:
    """Two E4M3 from a half of the source, times the scale if there is one, as bf16, fp16 or fp32."""
    target, source, *scale = ins.operands
    pair = wave.vector(source) >> U32(16 * _high_half(ins, 0))
    factor = wave.floats(scale[0]) if scale else np.float32(1)
    low, high = E4M3[pair & U32(255)] * factor, E4M3[pair >> U32(8) & U32(255)] * factor
    if "_pk_f32_" in ins.name:
        wave.set_vector(first(target), low)
        wave.set_vector(first(target) + 1, high)
    else:
        convert = formats.to_bf16 if "_bf16_" in ins.name else formats.to_half
        wave.set_vector(first(target), convert(low) | convert(high) << U32(16))


_SPECIAL: dict[str, Callable[[Wave, Instruction], None]] = {
    "v_pk_mov_b32": _packed_move, "v_cndmask_b32": _select,
    "v_readfirstlane_b32": _read_first_lane, "v_readlane_b32": _read_lane, "v_writelane_b32": _write_lane,
    "v_permlane32_swap_b32": _swap_lanes, "v_permlane16_swap_b32": _swap_lanes,
    "v_mov_b64": _wide_integer, "v_lshl_add_u64": _wide_integer, "v_lshlrev_b64": _wide_integer,
    "v_lshrrev_b64": _wide_integer, "v_ashrrev_i64": _wide_integer,
    "v_mad_u64_u32": _multiply_add_64, "v_mad_i64_i32": _multiply_add_64,
    "v_add_co_u32": _with_carry, "v_addc_co_u32": _with_carry, "v_sub_co_u32": _with_carry,
    "v_subb_co_u32": _with_carry, "v_subrev_co_u32": _with_carry,
    "v_div_scale_f32": _divide_scale, "v_div_fmas_f32": _divide_step, "v_div_fixup_f32": _divide_last,
    "v_ldexp_f32": _scale_by_power, "v_fma_mix_f32": _mixed_fma,
    "v_cvt_pk_fp8_f32": _to_fp8, "v_cvt_scalef32_pk_fp8_f32": _to_fp8,
    "v_cvt_scalef32_pk_f32_fp8": _from_fp8, "v_cvt_pk_f32_fp8": _from_fp8,
    "v_cvt_scalef32_pk_bf16_fp8": _from_fp8, "v_cvt_scalef32_pk_f16_fp8": _from_fp8,
}  # fmt: skip
