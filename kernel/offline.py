"""Compile every configuration for a GPU that is not there, and read what the compiler made.

``python -m kernel.offline --arch gfx950`` prints a line a kernel and exits with 1 if one spills
or has no matrix instruction.  Triton's PyPI wheel holds the compilers for both vendors.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kernel.config import (
    H200,
    MI355X,
    Arch,
    GenericConfig,
    LaunchConfig,
    reachable,
    reachable_generic,
)

ARCHES = {"gfx950": MI355X, "sm_90": H200}
POINTERS = {
    "q_ptr": "*bf16",
    "k_ptr": "*fp8e4nv",
    "v_ptr": "*fp8e4nv",
    "out_ptr": "*bf16",
    "partial_ptr": "*fp16",
    "partial_max_ptr": "*fp32",
    "partial_sum_ptr": "*fp32",
    "partial_lse_ptr": "*fp32",
    "cu_seqlens_q_ptr": "*i32",
    "lengths_ptr": "*i32",
    "index_ptr": "*i32",
    "k_descale_ptr": "*fp32",
    "v_descale_ptr": "*fp32",
    "done_ptr": "*i32",
}
# Token slots are 64-bit in the engine that has them, page numbers 32-bit.
TOKEN_POINTERS = POINTERS | {"index_ptr": "*i64", "draft_ptr": "*i64"}
FLOATS = ("logit_scale", "out_scale")
# Launching specialises these on divisibility by 16 (heads of 256 elements, torch allocations).
# The slot stride divides too: a slot holds whole heads.
ALIGNED_SUFFIXES = ("_ptr", "_token", "_head", "_page", "_slot")
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
AMD_LOAD = re.compile(r"^\s*(?:global|buffer|flat)_load_(?:lds_)?(u?byte|u?short|dwordx[234]|dword)", re.MULTILINE)
AMD_LOAD_BYTES = {
    "byte": 1,
    "ubyte": 1,
    "short": 2,
    "ushort": 2,
    "dword": 4,
    "dwordx2": 8,
    "dwordx3": 12,
    "dwordx4": 16,
}
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


def inspect(arch: Arch, sample: bool = False) -> list[Resources]:
    """Compile everything that can run on ``arch``: all configurations and the generic arm.

    Args:
        arch: target.
        sample: of the Gluon kernel, which takes long to compile, only the configurations in ``SAMPLE``.

    Raises:
        RuntimeError: Triton is in interpreter mode, which cannot compile.
    """
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise RuntimeError("TRITON_INTERPRET=1 replaces the compiler; unset it and start again")
    found = []
    seen = set()
    for function, values, options in _launches(arch, sample):
        key = (function.__name__, tuple(values.items()), tuple(options.items()))
        if key not in seen:
            seen.add(key)
            found.append(compile_one(function, arch, values, options))
    return found


# Layout, and parts that an item's output is cut into.
SAMPLE = {("paged", 16), ("tokens", 16)}


def _launches(arch: Arch, sample: bool) -> Iterator[tuple[Any, dict[str, Any], dict[str, int]]]:
    """Every launch that :mod:`kernel.ops` can make: function, constants and options."""
    from kernel import generic_attention, verify_attention

    cases = list(reachable(arch))
    if arch.name == "sm_90":
        cases += [
            (case, config)
            for case, config in reachable(arch, gluon=True)
            if not sample or (case.layout, config.shares) in SAMPLE
        ]
    for case, config in cases:
        tokens = case.layout == "tokens"
        if config.gluon:
            from kernel.hopper_attention import hopper_kernel

            yield hopper_kernel, hopper_values(config, tokens), {"num_warps": config.num_warps}
        else:
            options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
            yield verify_attention.verify_kernel, verify_values(config, tokens), options
        if not config.shares:
            options = {"num_warps": config.reduce_warps}
            yield verify_attention.reduce_kernel, reduce_values(config, tokens), options
    for generic in reachable_generic(arch):
        options = {"num_warps": generic.num_warps, "num_stages": generic.num_stages}
        if arch.name == "gfx950":
            options["waves_per_eu"] = generic.waves_per_eu
        for tokens in (False, True):
            yield generic_attention.generic_kernel, generic_values(generic, tokens), options
        if generic.segments > 1:
            options = {"num_warps": generic.reduce_warps}
            values = generic_reduce_values(generic)
            yield generic_attention.generic_reduce_kernel, values, options


def hopper_values(config: LaunchConfig, tokens: bool) -> dict[str, Any]:
    """Compile-time arguments of the Gluon kernel, as :mod:`kernel.ops` passes them."""
    values: dict[str, Any] = _shared_values(config, tokens) | {"SHARES": config.shares}
    if not tokens:
        values["draft_ptr"] = None
    if not config.shares:
        values["done_ptr"] = None
    return values


def verify_values(config: LaunchConfig, tokens: bool) -> dict[str, Any]:
    """Compile-time arguments of the portable kernel."""
    values: dict[str, Any] = _shared_values(config, tokens) | {
        "HEAD": 256,
        "ROWS": config.rows,
        "TILE": config.tile,
        "PAGE": 1 if tokens else 16,
        "FP16": config.arithmetic == "fp16",
        "INTERPRETED": False,
    }
    if not tokens:
        values["draft_ptr"] = None
    return values


def reduce_values(config: LaunchConfig, tokens: bool) -> dict[str, Any]:
    """Compile-time arguments of the reduction."""
    return _shared_values(config, tokens) | {
        "HEAD": 256,
        "TILE": config.tile,
        "INTERPRETED": False,
        "CHUNK": config.reduce_chunk,
        "BLOCK": config.reduce_block,
        "COLUMNS": config.reduce_columns,
    }


def _shared_values(config: LaunchConfig, tokens: bool) -> dict[str, Any]:
    return {
        "GROUP": 16,
        "MIN_TILES": config.min_tiles,
        "BATCH_BLOCK": config.batch_block,
        "TOKENS": tokens,
    }


def generic_values(config: GenericConfig, tokens: bool) -> dict[str, Any]:
    """Compile-time arguments of the generic arm."""
    values: dict[str, Any] = {
        "HEAD": 256,
        "ROWS": config.block_m,
        "PAGE": 1 if tokens else 16,
        "TILE": config.tile,
        "DIRECT": config.segments == 1,
        "TOKENS": tokens,
        "INTERPRETED": False,
    }
    if not tokens:
        values["draft_ptr"] = None
    return values


def generic_reduce_values(config: GenericConfig) -> dict[str, Any]:
    """Compile-time arguments of its reduction."""
    return {
        "HEAD": 256,
        "ROWS": config.block_m,
        "SEGMENTS": config.segments,
        "INTERPRETED": False,
    }


def compile_one(function: Any, arch: Arch, values: dict[str, Any], options: dict[str, int]) -> Resources:
    """Compile ``function`` for ``arch`` and read its resources.

    Args:
        function: a ``triton.jit`` function.
        arch: target.
        values: its compile-time arguments.
        options: ``num_warps``, ``num_stages`` and, on AMD, ``waves_per_eu``.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature, attributes = {}, {}
    pointers = TOKEN_POINTERS if values.get("TOKENS") else POINTERS
    if function.__name__.startswith("generic"):
        pointers = pointers | {"partial_ptr": "*fp32"}
    for place, name in enumerate(function.arg_names):
        if name in values:
            signature[name] = "constexpr"
            continue
        signature[name] = pointers.get(name) or ("fp32" if name in FLOATS else "i32")
        if name.endswith(ALIGNED_SUFFIXES):
            attributes[(place,)] = [["tt.divisibility", 16]]
    amd = arch.name.startswith("gfx")
    target = GPUTarget("hip", arch.name, 64) if amd else GPUTarget("cuda", int(arch.name.removeprefix("sm_")), 32)
    if function.is_gluon():
        from triton.experimental.gluon._runtime import GluonASTSource

        source = GluonASTSource(function, signature, constexprs=values, attrs=attributes)
    else:
        source = ASTSource(function, signature, constexprs=values, attrs=attributes)
    compiled = triton.compile(source, target=target, options=options)
    shown = [f"{k}={v}" for k, v in values.items() if k in LABELLED]
    label = " ".join(shown + [f"{k}={v}" for k, v in options.items()])
    read = read_amd if amd else read_nvidia
    needs_matrix = "reduce" not in function.__name__
    return read(compiled, function.__name__, arch.name, label, options["num_warps"], needs_matrix)


LABELLED = ("ROWS", "TILE", "BATCH_BLOCK", "TOKENS", "SHARES", "DIRECT", "CHUNK", "BLOCK", "COLUMNS", "SEGMENTS")


def read_amd(compiled: Any, kernel: str, arch: str, label: str, warps: int, needs_matrix: bool) -> Resources:
    """Resources from the metadata and text of an AMD assembly listing."""
    text: str = compiled.asm["amdgcn"]
    number = {key: int(value) for key, value in re.findall(r"\.(\w+?):\s+(\d+)\s*$", text, flags=re.MULTILINE)}
    vgprs = number["vgpr_count"]
    lds = max(number["group_segment_fixed_size"], int(compiled.metadata.shared))
    granules = -(-max(vgprs, 1) // CDNA_REGISTER_GRANULE) * CDNA_REGISTER_GRANULE
    by_registers = min(CDNA_MAX_WAVES, CDNA_REGISTERS // granules) * UNITS_PER_CORE // warps
    by_lds = CDNA_LDS // lds if lds else by_registers
    loads = Counter(AMD_LOAD_BYTES[width] for width in AMD_LOAD.findall(text))
    return Resources(
        kernel=kernel,
        arch=arch,
        label=label,
        vgprs=vgprs,
        agprs=number.get("agpr_count", 0),
        spills=number["vgpr_spill_count"] + number.get("sgpr_spill_count", 0),
        lds_bytes=lds,
        matrix_instructions=len(re.findall(r"^\s*v_mfma", text, flags=re.MULTILINE)),
        load_bytes=dict(sorted(loads.items())),
        waves_per_simd=min(by_registers, by_lds) * warps / UNITS_PER_CORE,
        needs_matrix=needs_matrix,
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


def table(rows: Sequence[Resources]) -> str:
    """``rows`` as aligned text, one line a kernel."""
    lines = [
        f"{'kernel':22} {'vgpr':>5} {'agpr':>5} {'spill':>5} {'LDS':>7} {'matrix':>6} "
        f"{'waves':>5}  loads (bytes x count); configuration"
    ]
    for row in rows:
        loads = " ".join(f"{width}x{count}" for width, count in row.load_bytes.items())
        lines.append(
            f"{row.kernel:22} {row.vgprs:5} {row.agprs:5} {row.spills:5} {row.lds_bytes:7} "
            f"{row.matrix_instructions:6} {row.waves_per_simd:5.1f}  {loads}; {row.label}"
            + "".join(f"  <- {fault}" for fault in row.faults)
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table (or JSON); 0 if all is well, 1 on a spill or a missing matrix instruction."""
    parser = argparse.ArgumentParser(prog="kernel.offline", description=__doc__)
    parser.add_argument("--arch", choices=sorted(ARCHES), default="gfx950")
    parser.add_argument("--sample", action="store_true", help="skip most variants of the Gluon kernel")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    chosen = parser.parse_args(arguments)
    rows = inspect(ARCHES[chosen.arch], chosen.sample)
    print(json.dumps([asdict(row) for row in rows], indent=1) if chosen.json else table(rows))
    return int(any(row.faults for row in rows))


if __name__ == "__main__":
    sys.exit(main())
