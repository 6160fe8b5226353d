"""Registers, LDS, matrix instructions and load widths of a compiled kernel, read from what the compiler made."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel import costs
from kernel.costs import LoopCost, load_bytes
from kernel.emulator.listing import parse

# Registers and LDS: AMD CDNA4 ISA guide and NVIDIA's Hopper tuning guide.
CDNA_REGISTERS = 512
CDNA_REGISTER_GRANULE = 8
CDNA_LDS = 160 * 1024
CDNA_MAX_WAVES = 8
HOPPER_REGISTERS = 65536
HOPPER_SHARED = 227 * 1024
HOPPER_RESERVED = 1024
HOPPER_MAX_WARPS = 64
UNITS_PER_CORE = 4  # SIMDs of a CU, schedulers of an SM
SASS_LOAD = re.compile(r"\b(?:LDG|LDGSTS)\.[A-Z0-9_.]*")
SASS_LOAD_BYTES = (("128", 16), ("64", 8), ("U8", 1), ("S8", 1), ("U16", 2), ("S16", 2))


@dataclass(frozen=True)
class Resources:
    """What one compiled kernel takes.

    Attributes:
        kernel: name of the Triton function.
        arch: ISA name.
        label: the configuration in words.
        vgprs: vector registers a lane on AMD (accumulation registers included), registers a
            thread on NVIDIA.
        agprs: accumulation registers a lane; 0 on NVIDIA.
        spills: registers spilled on AMD, bytes of local memory a thread on NVIDIA.
        lds_bytes: LDS or shared memory a workgroup.
        matrix_instructions: MFMA or WGMMA / HMMA in the code.
        load_bytes: bytes a lane and load -> number of global loads.
        waves_per_simd: waves (warps) that fit on a SIMD (scheduler).
        needs_matrix: whether the kernel is one that must use matrix units.
        loop: cost of its loop over KV, on gfx950.
    """

    kernel: str
    arch: str
    label: str
    vgprs: int
    agprs: int
    spills: int
    lds_bytes: int
    matrix_instructions: int
    load_bytes: dict[int, int]
    waves_per_simd: float
    needs_matrix: bool
    loop: LoopCost | None = None

    @property
    def faults(self) -> list[str]:
        """Why this must not ship; empty if it may."""
        found = []
        if self.spills:
            found.append(f"{self.spills} spilled")
        if self.needs_matrix and not self.matrix_instructions:
            found.append("no matrix instruction")
        if self.waves_per_simd == 0:
            found.append("does not fit the device")
        return found


def read_amd(compiled: Any, kernel: str, arch: str, label: str, warps: int, needs_matrix: bool, tile: int) -> Resources:
    """Resources from the metadata and text of an AMD assembly listing; ``tile``: KV tokens a turn of its loop."""
    listing = parse(compiled.asm["amdgcn"])
    number = listing.numbers
    vgprs = number["vgpr_count"]
    lds = max(number["group_segment_fixed_size"], int(compiled.metadata.shared))
    granules = -(-max(vgprs, 1) // CDNA_REGISTER_GRANULE) * CDNA_REGISTER_GRANULE
    by_registers = min(CDNA_MAX_WAVES, CDNA_REGISTERS // granules) * UNITS_PER_CORE // warps
    by_lds = CDNA_LDS // lds if lds else by_registers
    loads = Counter(load_bytes(ins) for ins in listing.instructions if load_bytes(ins))
    return Resources(
        kernel=kernel,
        arch=arch,
        label=label,
        vgprs=vgprs,
        agprs=number.get("agpr_count", 0),
        spills=number["vgpr_spill_count"] + number.get("sgpr_spill_count", 0),
        lds_bytes=lds,
        matrix_instructions=sum(ins.name.startswith("v_mfma") for ins in listing.instructions),
        load_bytes=dict(sorted(loads.items())),
        waves_per_simd=min(by_registers, by_lds) * warps / UNITS_PER_CORE,
        needs_matrix=needs_matrix,
        loop=costs.loop_cost(listing, tile, warps) if needs_matrix else None,
    )


def read_nvidia(compiled: Any, kernel: str, arch: str, label: str, warps: int, needs_matrix: bool) -> Resources:
    """Resources from the binary, by the tools in Triton's wheel."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = _tool("cuobjdump", "-res-usage", file.name)
        sass = _tool("nvdisasm", "-c", file.name)
    number = {key: int(value) for key, value in re.findall(r"\b([A-Z]+):(\d+)", usage)}
    shared = max(number.get("SHARED", 0), int(compiled.metadata.shared))
    blocks = min(
        HOPPER_REGISTERS // (-(-number["REG"] // 8) * 8 * 32 * warps),
        HOPPER_SHARED // (shared + HOPPER_RESERVED),
        HOPPER_MAX_WARPS // warps,
    )
    loads: Counter[int] = Counter()
    for load in SASS_LOAD.findall(sass):
        width = next((n for mark, n in SASS_LOAD_BYTES if mark in load.split(".")), 4)
        loads[width] += 1
    return Resources(
        kernel=kernel,
        arch=arch,
        label=label,
        vgprs=number["REG"],
        agprs=0,
        spills=number.get("LOCAL", 0) + len(re.findall(r"\b(?:LDL|STL)\b", sass)),
        lds_bytes=shared,
        matrix_instructions=len(re.findall(r"\b(?:[HQ]GMMA|[HQ]MMA)\b", sass)),
        load_bytes=dict(sorted(loads.items())),
        waves_per_simd=blocks * warps / UNITS_PER_CORE,
        needs_matrix=needs_matrix,
    )


def _tool(name: str, *arguments: str) -> str:
    import triton.backends.nvidia as nvidia

    path = Path(nvidia.__path__[0]) / "bin" / name
    done = subprocess.run([path, *arguments], check=True, capture_output=True, text=True)
    return done.stdout + done.stderr
