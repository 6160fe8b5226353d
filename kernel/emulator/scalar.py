"""Scalar instructions, ``s_*``, but those that wait."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

import numpy as np

from kernel.emulator.listing import Instruction, Listing
from kernel.emulator.memory import Memory
from kernel.emulator.wave import ALL, WORD, UnknownInstruction, Wave, operand

_COMPARE = {
    "eq": operator.eq, "lg": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip


def signed(x: int, bits: int = 32) -> int:
    """``x`` as a two's complement number."""
    return x - (1 << bits) if x >> (bits - 1) else x


def _bit_field(x: int, place: int) -> int:
    return x >> (place & 31) & ((1 << (place >> 16 & 127)) - 1)


def _signed_bit_field(x: int, place: int) -> int:
    width = place >> 16 & 127
    return signed(_bit_field(x, place), width) if width else 0


# Results whose SCC says "not zero", and those that leave it alone.
_LOGIC: dict[str, Callable[[int, int], int]] = {
    "s_and_b32": operator.and_, "s_or_b32": operator.or_, "s_xor_b32": operator.xor,
    "s_andn2_b32": lambda x, y: x & ~y, "s_orn2_b32": lambda x, y: x | ~y, "s_not_b32": lambda x, y: ~x,
    "s_lshl_b32": lambda x, y: x << (y & 31), "s_lshr_b32": lambda x, y: x >> (y & 31),
    "s_ashr_i32": lambda x, y: signed(x) >> (y & 31), "s_bfe_u32": _bit_field, "s_bfe_i32": _signed_bit_field,
    "s_abs_i32": lambda x, y: abs(signed(x)), "s_bcnt1_i32_b32": lambda x, y: x.bit_count(),
}  # fmt: skip
_PLAIN: dict[str, Callable[[int, int], int]] = {
    "s_mov_b32": lambda x, y: x, "s_mul_i32": operator.mul, "s_mul_hi_u32": lambda x, y: x * y >> 32,
    "s_mul_hi_i32": lambda x, y: signed(x) * signed(y) >> 32, "s_sext_i32_i16": lambda x, y: signed(x & 0xFFFF, 16),
    "s_bfm_b32": lambda x, y: ((1 << (x & 31)) - 1) << (y & 31),
    "s_ff1_i32_b32": lambda x, y: (x & -x).bit_length() - 1,
    "s_flbit_i32_b32": lambda x, y: 32 - x.bit_length() if x else -1,
    "s_pack_ll_b32_b16": lambda x, y: x & 0xFFFF | y << 16,
}  # fmt: skip
_LOGIC64: dict[str, Callable[[int, int], int]] = {
    "s_and_b64": operator.and_, "s_or_b64": operator.or_, "s_xor_b64": operator.xor, "s_andn2_b64": lambda x, y: x & ~y,
    "s_orn2_b64": lambda x, y: x | ~y, "s_not_b64": lambda x, y: ~x,
    "s_lshl_b64": lambda x, y: x << (y & 63), "s_lshr_b64": lambda x, y: x >> (y & 63),
    "s_ashr_i64": lambda x, y: signed(x, 64) >> (y & 63),
}  # fmt: skip


def run(wave: Wave, ins: Instruction, listing: Listing, memory: Memory) -> None:
    """Execute one scalar instruction.

    Raises:
        UnknownInstruction: it is none of those here.
    """
    name, a = ins.name, ins.operands
    if name in _LOGIC or name in _PLAIN:
        x, y = wave.scalar(a[1]), wave.scalar(a[2]) if len(a) > 2 else 0
        result = (_LOGIC.get(name) or _PLAIN[name])(x, y) & WORD
        wave.set_scalar(a[0], result)
        if name in _LOGIC:
            wave.scc = int(result != 0)
    elif name in _LOGIC64:
        shift = "lsh" in name or "ashr" in name
        y = (wave.scalar(a[2]) if shift else wave.scalar64(a[2])) if len(a) > 2 else 0
        result = _LOGIC64[name](wave.scalar64(a[1]), y) & ALL
        wave.set_scalar64(a[0], result)
        wave.scc = int(result != 0)
    elif name.startswith(("s_branch", "s_cbranch")):
        if name == "s_branch" or _taken(wave, name.removeprefix("s_cbranch_"), ins):
            wave.place = listing.labels[a[0]]
    elif name.startswith("s_load_dword"):
        _load(wave, ins, memory)
    elif name.startswith("s_cmp_"):
        _, _, how, kind = name.split("_")
        x, y = (wave.scalar64(a[0]), wave.scalar64(a[1])) if kind == "u64" else (wave.scalar(a[0]), wave.scalar(a[1]))
        if kind == "i32":
            x, y = signed(x), signed(y)
        wave.scc = int(_COMPARE[how](x, y))
    elif name.startswith("s_cmpk_"):
        _, _, how, kind = name.split("_")
        x, y = wave.scalar(a[0]), int(a[1], 0) & 0xFFFF
        wave.scc = int(_COMPARE[how](signed(x), signed(y, 16)) if kind == "i32" else _COMPARE[how](x, y))
    elif name in ("s_cselect_b32", "s_cselect_b64"):
        chosen = a[1] if wave.scc else a[2]
        if name.endswith("64"):
            wave.set_scalar64(a[0], wave.scalar64(chosen))
        else:
            wave.set_scalar(a[0], wave.scalar(chosen))
    elif name == "s_mov_b64":
        wave.set_scalar64(a[0], wave.scalar64(a[1]))
    elif name in ("s_movk_i32", "s_addk_i32", "s_mulk_i32"):
        number = signed(int(a[1], 0) & 0xFFFF, 16)
        old = 0 if name == "s_movk_i32" else signed(wave.scalar(a[0]))
        wave.set_scalar(a[0], old * number if name == "s_mulk_i32" else old + number)
        if name == "s_addk_i32":
            wave.scc = int(not -(1 << 31) <= old + number < 1 << 31)
    elif name.endswith("_saveexec_b64"):
        _save_exec(wave, ins)
    else:
        _arithmetic(wave, ins)


def _taken(wave: Wave, condition: str, ins: Instruction) -> bool:
    conditions = {
        "scc0": wave.scc == 0, "scc1": wave.scc == 1, "vccz": wave.vcc == 0, "vccnz": wave.vcc != 0,
        "execz": wave.exec == 0, "execnz": wave.exec != 0,
    }  # fmt: skip
    if condition not in conditions:
        raise UnknownInstruction(ins)
    return conditions[condition]


def _load(wave: Wave, ins: Instruction, memory: Memory) -> None:
    target, base, offset = ins.operands
    count = int(ins.name.removeprefix("s_load_dword").lstrip("x") or 1)
    words = memory.read(wave.scalar64(base) + wave.scalar(offset), 4 * count).copy().view(np.uint32)
    what = operand(target)
    if what.name in ("vcc", "vcc_lo", "vcc_hi"):
        for name, word in zip((target,) if count == 1 else ("vcc_lo", "vcc_hi"), words.tolist(), strict=True):
            wave.set_scalar(name, word)
    else:
        assert what.index is not None
        wave.scalars[what.index : what.index + count] = words.tolist()


def _save_exec(wave: Wave, ins: Instruction) -> None:
    how = re.sub(r"^s_(\w+)_saveexec_b64$", r"\1", ins.name)
    source, old = wave.scalar64(ins.operands[1]), wave.exec
    results = {"and": source & old, "or": source | old, "andn2": source & ~old, "xor": source ^ old}
    if how not in results:
        raise UnknownInstruction(ins)
    wave.set_scalar64(ins.operands[0], old)
    wave.exec = results[how] & ALL
    wave.scc = int(wave.exec != 0)


def _arithmetic(wave: Wave, ins: Instruction) -> None:
    """Sums, differences and extremes, whose SCC is a carry, an overflow or a choice."""
    if len(ins.operands) != 3:
        raise UnknownInstruction(ins)
    target, *sources = ins.operands
    x, y = (wave.scalar(text) for text in sources)
    i, j = signed(x), signed(y)
    overflow = 1 << 31
    results = {
        "s_add_u32": (x + y, x + y > WORD), "s_addc_u32": (x + y + wave.scc, x + y + wave.scc > WORD),
        "s_sub_u32": (x - y, y > x), "s_subb_u32": (x - y - wave.scc, y + wave.scc > x),
        "s_add_i32": (x + y, not -overflow <= i + j < overflow),
        "s_sub_i32": (x - y, not -overflow <= i - j < overflow),
        "s_min_i32": (min(i, j), i < j), "s_max_i32": (max(i, j), i > j),
        "s_min_u32": (min(x, y), x < y), "s_max_u32": (max(x, y), x > y),
        **{f"s_lshl{n}_add_u32": ((x << n) + y, (x << n) + y > WORD) for n in (1, 2, 3, 4)},
    }  # fmt: skip
    if ins.name not in results:
        raise UnknownInstruction(ins)
    result, condition = results[ins.name]
    wave.set_scalar(target, result)
    wave.scc = int(condition)
