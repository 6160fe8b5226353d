"""What a gfx950 loop costs by its instructions alone, beside what the memory takes for the same KV.

Everything is for each KB of K and V that a workgroup reads once, on a CU whose four SIMDs all have waves.  A vector
instruction holds the vector unit of a SIMD for 4 cycles, a transcendental one for 8, a 64-bit or full 32-bit
multiplication for 16; a matrix product holds the matrix unit for its passes.  Times of devices are not in here:
:func:`expected_bandwidth` names the one figure that was measured.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from kernel.emulator.listing import Instruction, Listing

# MI355X: AMD's data sheet.
BYTES_PER_SECOND = 8e12
COMPUTE_UNITS = 256
CLOCK_HZ = 2.4e9
SIMDS = 4
# Cycles of a CU in which the memory delivers its share of a KB.
MEMORY_CYCLES = 1024 / (BYTES_PER_SECOND / COMPUTE_UNITS / CLOCK_HZ)
# SGLang's Triton MTP kernel: 131.6 us a layer at 16 sequences of 35 000 tokens on an MI355X (its authors), 2.2 TB/s,
# and 178 cycles a KB by the same count of its listing: 0.63 of what that bound allows.
ANCHOR_FRACTION = 0.63
ANCHOR = "SGLang's Triton MTP kernel, 2.2 TB/s measured by its authors at 178 cycles a KB"

# Cycles of a matrix product on a SIMD: passes of 4 cycles, CDNA4 ISA guide; FP8 operands for f8f6f4.
MFMA_CYCLES = {
    "32x32x16_bf16": 32, "32x32x16_f16": 32, "16x16x32_bf16": 16, "16x16x32_f16": 16,
    "32x32x8_bf16": 32, "32x32x8_bf16_1k": 32, "16x16x16_bf16": 16,
    "32x32x16_fp8_fp8": 32, "16x16x32_fp8_fp8": 16, "32x32x64_f8f6f4": 64, "16x16x128_f8f6f4": 32,
}  # fmt: skip
_SLOW = re.compile(r"^v_(mul_lo_u32|mul_hi_[iu]32|mad_[iu]64_[iu]32)")
_TRANSCENDENTAL = re.compile(r"^v_(exp|log|rcp|rsq|sqrt|sin|cos)_")
_LOAD = re.compile(r"^(?:global|buffer|flat)_load_(?:lds_)?(\w+)$")
LOAD_BYTES = {
    "byte": 1, "ubyte": 1, "short": 2, "ushort": 2, "dword": 4, "dwordx2": 8, "dwordx3": 12, "dwordx4": 16,
}  # fmt: skip


def matrix_cycles(ins: Instruction) -> int:
    """Cycles that the matrix unit of a SIMD is held.

    Raises:
        KeyError: a matrix product whose passes are not known here.
    """
    if not ins.name.startswith("v_mfma_"):
        return 0
    return MFMA_CYCLES[re.sub(r"^v_mfma_(scale_)?f32_", "", ins.name)]


def vector_cycles(ins: Instruction) -> int:
    """Cycles that the vector unit of a SIMD is held."""
    if not ins.name.startswith("v_") or ins.name.startswith("v_mfma_"):
        return 0
    if _SLOW.match(ins.name):
        return 16
    return 8 if _TRANSCENDENTAL.match(ins.name) else 4


def load_bytes(ins: Instruction) -> int:
    """Bytes a lane that a load from global memory brings; 0 for anything else."""
    load = _LOAD.match(ins.name)
    return LOAD_BYTES.get(load[1], 0) if load else 0


@dataclass(frozen=True)
class LoopCost:
    """The loop that reads KV, for each KB of it.

    Attributes:
        instructions: instructions of all waves.
        vector_cycles, matrix_cycles: cycles of a SIMD's vector and matrix units, four SIMDs at work.
        lds_read: bytes that waves read from LDS, for each byte of KV.
        lds_written: the same, written by waves (not by copies).
        copies: bytes a lane -> copies from memory to LDS.
        loads: bytes a lane -> loads to registers.
        spill_accesses: reads and writes of spilled registers in the loop.
    """

    instructions: float
    vector_cycles: float
    matrix_cycles: float
    lds_read: float
    lds_written: float
    copies: dict[int, int]
    loads: dict[int, int]
    spill_accesses: int

    @property
    def cycles(self) -> float:
        """Vector and matrix cycles, as if neither could run beside the other."""
        return self.vector_cycles + self.matrix_cycles


def hot_loop(listing: Listing) -> list[Instruction] | None:
    """The loop over tiles: of those with the most matrix products the shortest; None without any."""
    best: list[Instruction] | None = None
    most = 0
    for places in listing.loops():
        body = listing.instructions[places.start : places.stop]
        products = sum(ins.name.startswith("v_mfma") for ins in body)
        if products > most or (best is not None and products == most and len(body) < len(best)):
            best, most = body, products
    return best if most else None


def loop_cost(listing: Listing, tile: int, waves: int) -> LoopCost | None:
    """The cost of a loop that reads ``tile`` tokens of 512 bytes a turn, with ``waves`` waves a workgroup."""
    body = hot_loop(listing)
    if body is None:
        return None
    kb = tile * 512 / 1024
    share = waves / SIMDS / kb
    lds = Counter[str]()
    for ins in body:
        kind = "read" if ins.name.startswith("ds_read") else "write" if ins.name.startswith("ds_write") else ""
        if kind:
            lds[kind] += _lds_bytes(ins) * 64 * waves
    return LoopCost(
        instructions=len(body) * waves / kb,
        vector_cycles=sum(map(vector_cycles, body)) * share,
        matrix_cycles=sum(map(matrix_cycles, body)) * share,
        lds_read=lds["read"] / (kb * 1024),
        lds_written=lds["write"] / (kb * 1024),
        copies=dict(sorted(Counter(load_bytes(ins) for ins in body if load_bytes(ins) and ins.to_lds).items())),
        loads=dict(sorted(Counter(load_bytes(ins) for ins in body if load_bytes(ins) and not ins.to_lds).items())),
        spill_accesses=sum(ins.name.startswith("scratch_") for ins in body),
    )


def _lds_bytes(ins: Instruction) -> int:
    """Bytes a lane of an LDS read or write."""
    bits = re.search(r"_[bui](\d+)", ins.name)
    both = 2 if re.match(r"ds_(read|write)2", ins.name) else 1
    return int(bits[1]) // 8 * both if bits else 0


def issue_cycles(listing: Listing, executed: Mapping[int, int]) -> int:
    """Vector and matrix cycles of all that was executed: number of an instruction -> how often."""
    code = listing.instructions
    return sum((vector_cycles(code[n]) + matrix_cycles(code[n])) * count for n, count in executed.items())


def expected_bandwidth(cycles: float) -> float:
    """Bytes a second of KV that a loop of so many cycles a KB may reach on an MI355X: a guess from one anchor."""
    return ANCHOR_FRACTION * BYTES_PER_SECOND * min(1.0, MEMORY_CYCLES / cycles)
