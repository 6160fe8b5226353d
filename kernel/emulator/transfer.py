"""Loads and stores: LDS (``ds_*``) and global memory (``global_*``, ``buffer_*``)."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernel.emulator.listing import Instruction
from kernel.emulator.memory import Memory
from kernel.emulator.wave import LANES, UnknownInstruction, Wave, first, operand

Bytes = NDArray[np.uint8]
SIZES = {
    "u8": 1, "i8": 1, "b8": 1, "u16": 2, "i16": 2, "b16": 2, "b32": 4, "b64": 8, "b96": 12, "b128": 16,
    "ubyte": 1, "byte": 1, "ushort": 2, "short": 2, "dword": 4, "dwordx2": 8, "dwordx3": 12, "dwordx4": 16,
}  # fmt: skip
BANKS = 64  # of 4 bytes
_PAIR = re.compile(r"^ds_(read|write)2(st64)?_b(32|64)$")
_KNOWN = {"offset", "offset0", "offset1", "offen", "lds", "nt", "sc0", "sc1", "gds"}


def _check(ins: Instruction) -> None:
    unknown = set(ins.modifiers) - _KNOWN
    if unknown:
        raise UnknownInstruction(ins, f"modifier {', '.join(sorted(unknown))}")


def _number(ins: Instruction, name: str) -> int:
    return int(ins.modifiers.get(name, "0"), 0)


def _lanes(wave: Wave) -> NDArray[np.int64]:
    active = wave.active
    return LANES if active is None else LANES[active]


def _to_registers(wave: Wave, index: int, lanes: NDArray[np.int64], data: Bytes) -> None:
    """Rows of bytes, one a lane, into registers from ``index`` on; less than four bytes are extended by zeros."""
    if data.shape[1] < 4:
        data = np.pad(data, ((0, 0), (0, 4 - data.shape[1])))
    words = np.ascontiguousarray(data).view(np.uint32)
    wave.vectors[index : index + words.shape[1], lanes] = words.T


def _from_registers(wave: Wave, index: int, lanes: NDArray[np.int64], size: int) -> Bytes:
    """The inverse: (lanes, size) bytes."""
    words = wave.vectors[index : index + -(-size // 4), lanes].T
    return np.ascontiguousarray(words).view(np.uint8)[:, :size]


# --- LDS ---


def run_lds(wave: Wave, ins: Instruction, lds: Bytes) -> None:
    """Execute one LDS instruction.

    Raises:
        UnknownInstruction: it is none of those here.
        IndexError: it reads or writes past the end of ``lds``.
    """
    _check(ins)
    name, lanes = ins.name, _lanes(wave)
    if name == "ds_bpermute_b32":
        _exchange(wave, ins)
    elif name == "ds_swizzle_b32":
        _swizzle(wave, ins)
    elif name in ("ds_read_b64_tr_b8", "ds_read_b64_tr_b16"):
        _read_transposed(wave, ins, lds, int(name.removeprefix("ds_read_b64_tr_b")) // 8)
    elif pair := _PAIR.match(name):
        _pair(wave, ins, lds, lanes, int(pair[3]) // 8, 64 if pair[2] else 1)
    elif name.startswith("ds_read_") and name.removeprefix("ds_read_") in SIZES:
        if name.endswith(("_i8", "_i16")):
            raise UnknownInstruction(ins)
        places = addresses(wave, ins)[lanes, None] + np.arange(SIZES[name.removeprefix("ds_read_")])
        _to_registers(wave, first(ins.operands[0]), lanes, lds[places])
    elif name.startswith("ds_write_") and name.split("_")[2] in SIZES and name.count("_") in (2, 4):
        size = SIZES[name.split("_")[2]]
        source = first(ins.operands[1])
        data = _from_registers(wave, source, lanes, size)
        if name.endswith("_d16_hi"):
            data = _from_registers(wave, source, lanes, 4)[:, 2 : 2 + size]
        lds[addresses(wave, ins)[lanes, None] + np.arange(size)] = data
    else:
        raise UnknownInstruction(ins)


def addresses(wave: Wave, ins: Instruction) -> NDArray[np.int64]:
    """The place in LDS that each lane names."""
    text = ins.operands[1] if ins.name.startswith("ds_read") else ins.operands[0]
    return wave.vector(text).astype(np.int64) + _number(ins, "offset")


def bank_cycles(wave: Wave, ins: Instruction) -> float:
    """Cycles for each 256 bytes of a read of 8 or 16 bytes a lane: how often its busiest bank is asked, 1 at best."""
    size = 16 if "b128" in ins.name else 8
    places = addresses(wave, ins)
    worst = []
    for group in np.split(places, 64 * size // 256):
        words = np.unique((group[:, None] + np.arange(0, size, 4)) // 4)
        worst.append(int(np.bincount(words % BANKS).max()))
    return float(np.mean(worst))


def _exchange(wave: Wave, ins: Instruction) -> None:
    target, place, source = ins.operands
    lane = (wave.vector(place) >> np.uint32(2) & np.uint32(63)).astype(int)
    active = wave.active
    given = np.ones(64, bool) if active is None else active
    wave.set_vector(first(target), np.where(given[lane], wave.vector(source)[lane], 0))


def _swizzle(wave: Wave, ins: Instruction) -> None:
    """Lanes whose numbers differ in one bit exchange values: the only pattern that Triton uses."""
    target, source = ins.operands
    pattern = re.match(r"^swizzle\(SWAP,(\d+)\)$", ins.modifiers.get("offset", ""))
    if pattern is None or wave.active is not None:
        raise UnknownInstruction(ins)
    wave.set_vector(first(target), wave.vector(source)[LANES ^ int(pattern[1])])


def _read_transposed(wave: Wave, ins: Instruction, lds: Bytes, width: int) -> None:
    """Of 16 lanes that read 8 bytes each, lane ``n`` gets column ``n`` of what they read as a matrix.

    The matrix has ``8 / width`` rows of 16 elements of ``width`` bytes; lanes 2, 4, ... apart start a row.
    """
    if wave.active is not None:
        raise UnknownInstruction(ins, "with lanes switched off")
    read = lds[addresses(wave, ins)[:, None] + np.arange(8)]  # [64, 8]
    count = 8 // width
    matrix = read.reshape(4, count, 16, width)  # groups of 16 lanes, rows, elements
    _to_registers(wave, first(ins.operands[0]), LANES, matrix.transpose(0, 2, 1, 3).reshape(64, 8))


def _pair(wave: Wave, ins: Instruction, lds: Bytes, lanes: NDArray[np.int64], size: int, step: int) -> None:
    """Two elements a lane, at offsets that count elements (or 64 of them)."""
    places = [_number(ins, name) * size * step + np.arange(size) for name in ("offset0", "offset1")]
    if ins.name.startswith("ds_read"):
        start = wave.vector(ins.operands[1]).astype(np.int64)[lanes, None]
        _to_registers(wave, first(ins.operands[0]), lanes, np.concatenate([lds[start + p] for p in places], 1))
    else:
        start = wave.vector(ins.operands[0]).astype(np.int64)[lanes, None]
        for place, source in zip(places, ins.operands[1:], strict=True):
            lds[start + place] = _from_registers(wave, first(source), lanes, size)


# --- global memory ---


def run_global(wave: Wave, ins: Instruction, memory: Memory, lds: Bytes) -> None:
    """Execute one load or store of global memory.

    Raises:
        UnknownInstruction: it is none of those here.
        AccessError: it leaves the memory.
    """
    _check(ins)
    lanes = _lanes(wave)
    kind = ins.name.split("_")[-1]
    if kind not in SIZES or not ins.name.startswith(("global_load_", "global_store_", "buffer_load_", "buffer_store_")):
        raise UnknownInstruction(ins)
    if kind == "byte" and "load" in ins.name:
        raise UnknownInstruction(ins)
    if not len(lanes):
        return
    size = SIZES[kind]
    if ins.name.startswith("buffer"):
        where, inside = _buffer_addresses(wave, ins, size)
    else:
        where, inside = _global_addresses(wave, ins), np.ones(64, bool)
    chosen = lanes[inside[lanes]]
    if "_store_" in ins.name:
        register = ins.operands[0] if ins.name.startswith("buffer") else ins.operands[1]
        if len(chosen):
            memory.scatter(where[chosen], _from_registers(wave, first(register), chosen, size))
        return
    data = np.zeros((64, size), np.uint8)  # outside a buffer there are zeros
    if len(chosen):
        data[chosen] = memory.gather(where[chosen], size)
    if ins.to_lds:
        start = wave.m0 + _number(ins, "offset")
        lds[start + lanes[:, None] * size + np.arange(size)] = data[lanes]
    else:
        _to_registers(wave, first(ins.operands[0]), lanes, data[lanes])


def _global_addresses(wave: Wave, ins: Instruction) -> NDArray[np.uint64]:
    vector, base = ins.operands[0], ins.operands[-1]
    if "_load_" in ins.name and not ins.to_lds:
        vector = ins.operands[1]
    if base == "off":
        address = wave.vector64(vector)
    else:
        address = np.uint64(wave.scalar64(base)) + wave.vector(vector).astype(np.uint64)
    return (address.astype(np.int64) + _number(ins, "offset")).astype(np.uint64)


def _buffer_addresses(wave: Wave, ins: Instruction, size: int) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Addresses, and which lie inside: a descriptor has a base of 48 bits, and a size in its third word."""
    vector, resource, start = ins.operands[-3:]
    index = operand(resource).index
    if index is None:
        raise UnknownInstruction(ins)
    word = wave.scalars[index : index + 4]
    if word[1] >> 16 & 0x3FFF:
        raise UnknownInstruction(ins, "a buffer with a stride")
    base = word[0] | (word[1] & 0xFFFF) << 32
    offset = wave.vector(vector).astype(np.uint64) if "offen" in ins.modifiers else np.zeros(64, np.uint64)
    offset = offset + np.uint64(_number(ins, "offset"))
    inside: Any = offset + np.uint64(size) <= np.uint64(word[2])
    return np.uint64(base + wave.scalar(start)) + offset, inside
