"""Runs workgroups of a listing."""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernel.emulator import matrix, scalar, transfer, vector
from kernel.emulator.listing import Instruction, Listing, parse
from kernel.emulator.memory import Memory
from kernel.emulator.wave import LANES, UnknownInstruction, Wave, first

LDS_BYTES = 160 * 1024
POISON = 0xFF  # NaN as E4M3, bf16 and fp32
# What changes nothing that is emulated: scheduling, priorities, caches and the mode of floating point, where Triton
# sets what is assumed here (round to nearest even, subnormals kept).
_NOTHING = {"s_nop", "s_setprio", "s_sleep", "s_setreg_imm32_b32", "s_sched_barrier", "s_icache_inv", "buffer_inv"}
_VMCNT = re.compile(r"vmcnt\((\d+)\)")


@dataclass
class Machine:
    """One kernel, ready to run workgroups.

    Attributes:
        listing: what runs.
        memory: what it reads and writes.
        waves: waves of a workgroup.
        late: loads and copies arrive as late as the waits allow, and until then their registers hold NaN; otherwise at
            once.  A wave runs up to a barrier before the next one starts, so what is right both ways has its waits and
            barriers.
        count_banks: count LDS bank conflicts, too.
        executed: number of an instruction -> how often waves executed it.
        bank_cycles: for each kind of LDS read, cycles for each 256 bytes.
    """

    listing: Listing
    memory: Memory
    waves: int
    late: bool = False
    count_banks: bool = False
    executed: Counter[int] = field(default_factory=Counter)
    bank_cycles: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str, memory: Memory, waves: int, late: bool = False, count_banks: bool = False) -> Machine:
        """A machine for the kernel of an assembly listing."""
        return cls(parse(text), memory, waves, late, count_banks)

    def launch(self, groups: Sequence[tuple[int, int, int]], arguments: bytes) -> None:
        """Run workgroups one after another.

        Args:
            groups: their numbers.
            arguments: the kernel's, as :func:`pack` makes them.
        """
        block = np.frombuffer(arguments + bytes(512), np.uint8).copy()
        address = self.memory.put(block)
        for group in groups:
            self._run_group(group, address, arguments)

    def _run_group(self, group: tuple[int, int, int], address: int, arguments: bytes) -> None:
        lds = np.full(LDS_BYTES, POISON, np.uint8)
        # Infinities and NaN are results like others.
        with np.errstate(all="ignore"):
            self._run_waves(group, address, arguments, lds)

    def _run_waves(self, group: tuple[int, int, int], address: int, arguments: bytes, lds: transfer.Bytes) -> None:
        waves = [self._start(number, group, address, arguments) for number in range(self.waves)]
        while not all(wave.done for wave in waves):
            for wave in waves:
                if not wave.done:
                    self._run_to_barrier(wave, lds)

    def _start(self, number: int, group: tuple[int, int, int], address: int, arguments: bytes) -> Wave:
        """A wave with what the hardware puts into its registers: arguments' address, their start, the group."""
        wave = Wave(place=self.listing.entry)
        sizes = {name: self.listing.numbers.get(f"amdhsa_user_sgpr_{name}", 0) for name in (
            "private_segment_buffer", "dispatch_ptr", "queue_ptr", "kernarg_segment_ptr", "dispatch_id",
            "kernarg_preload_length", "kernarg_preload_offset", "count",
        )}  # fmt: skip
        place = 4 * sizes["private_segment_buffer"] + 2 * (sizes["dispatch_ptr"] + sizes["queue_ptr"])
        wave.scalars[place : place + 2] = address & 0xFFFFFFFF, address >> 32
        place += 2 * (sizes["kernarg_segment_ptr"] + sizes["dispatch_id"])
        length, offset = sizes["kernarg_preload_length"], 4 * sizes["kernarg_preload_offset"]
        padded = arguments + bytes(512)
        wave.scalars[place : place + length] = struct.unpack_from(f"<{length}I", padded, offset)
        wave.scalars[sizes["count"] : sizes["count"] + 3] = group
        wave.vectors[0] = (LANES + 64 * number).astype(np.uint32)
        return wave

    def _run_to_barrier(self, wave: Wave, lds: transfer.Bytes) -> None:
        while True:
            instruction = self.listing.instructions[wave.place]
            self.executed[wave.place] += 1
            wave.place += 1
            if instruction.name == "s_endpgm":
                wave.done = True
                return
            if instruction.name == "s_barrier":
                return
            self._step(wave, instruction, lds)

    def _step(self, wave: Wave, ins: Instruction, lds: transfer.Bytes) -> None:
        name = ins.name
        if name == "s_waitcnt":
            if found := _VMCNT.search(ins.text):
                self._arrive(wave, int(found[1]))
        elif name.startswith("v_mfma"):
            matrix.run(wave, ins)
        elif name.startswith("v_"):
            vector.run(wave, ins)
        elif name.startswith("ds_"):
            if self.count_banks and name in ("ds_read_b128", "ds_read_b64_tr_b8"):
                self.bank_cycles.setdefault(name, []).append(transfer.bank_cycles(wave, ins))
            transfer.run_lds(wave, ins, lds)
        elif name in _NOTHING:
            pass
        elif name.startswith("s_"):
            scalar.run(wave, ins, self.listing, self.memory)
        elif name.startswith(("global_", "buffer_")):
            self._global(wave, ins, lds)
        else:
            raise UnknownInstruction(ins)

    def _global(self, wave: Wave, ins: Instruction, lds: transfer.Bytes) -> None:
        if not self.late:
            transfer.run_global(wave, ins, self.memory, lds)
            return
        if "_store_" in ins.name:
            transfer.run_global(wave, ins, self.memory, lds)
            wave.pending.append(lambda: None)
            return
        # What the load needs is read now, what it brings appears later.
        then = Wave(vectors=wave.vectors.copy(), scalars=list(wave.scalars), exec=wave.exec, vcc=wave.vcc, m0=wave.m0)
        targets: list[int] = []
        if not ins.to_lds:
            start = first(ins.operands[0])
            targets = list(range(start, start + -(-transfer.SIZES[ins.name.split("_")[-1]] // 4)))
            for register in targets:
                wave.set_vector(register, np.full(64, 0x7FC00BAD, np.uint32))
        active = wave.active

        def arrive() -> None:
            transfer.run_global(then, ins, self.memory, lds)
            for register in targets:
                lanes: Any = slice(None) if active is None else active
                wave.vectors[register][lanes] = then.vectors[register][lanes]

        wave.pending.append(arrive)

    @staticmethod
    def _arrive(wave: Wave, left: int) -> None:
        while len(wave.pending) > left:
            wave.pending.pop(0)()

    def instructions(self, chosen: Callable[[Instruction], bool]) -> int:
        """How many instructions of a kind were executed."""
        listing = self.listing.instructions
        return sum(count for place, count in self.executed.items() if chosen(listing[place]))


def pack(arguments: Sequence[tuple[str, float]]) -> bytes:
    """Kernel arguments as (Triton type, value), each at a multiple of its own size.

    A type is ``*...`` for a pointer, ``i32``, ``i64`` or ``fp32``.
    """
    codes = {"i32": "<I", "i64": "<Q", "fp32": "<f"}
    packed = b""
    for kind, value in arguments:
        code = "<Q" if kind.startswith("*") else codes[kind]
        packed += bytes(-len(packed) % struct.calcsize(code))
        packed += struct.pack(code, value if kind == "fp32" else int(value) & ((1 << 8 * struct.calcsize(code)) - 1))
    return packed
