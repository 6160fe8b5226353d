"""Compile every configuration for a GPU that is not there, and read what the compiler made.

``python -m kernel.offline --arch gfx950`` prints a line a kernel, and what its loop over KV costs; it exits with 1
if one spills or has no matrix instruction.  Triton's PyPI wheel holds the compilers for both vendors.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kernel import costs
from kernel.config import H200, MI355X, Arch
from kernel.launches import Launch, reachable_launches
from kernel.resources import Resources, read_amd, read_nvidia

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
LABELLED = (
    "GROUP", "ROWS", "BLOCK", "TILE", "BATCH_BLOCK", "TOKENS", "SHARES", "DIRECT", "CHUNK", "COLUMNS", "SEGMENTS",
)  # fmt: skip


@dataclass(frozen=True)
class Compiled:
    """A kernel for a device that need not be there.

    Attributes:
        launch: what was compiled.
        binary: Triton's compiled kernel, with ``asm`` and ``metadata``.
        arguments: its run-time arguments in order: name -> Triton type.
    """

    launch: Launch
    binary: Any
    arguments: dict[str, str]


def compile_launch(launch: Launch, arch: Arch) -> Compiled:
    """Compile one launch for ``arch``.

    Raises:
        RuntimeError: Triton is in interpreter mode, which cannot compile.
    """
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise RuntimeError("TRITON_INTERPRET=1 replaces the compiler; unset it and start again")
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = launch.function
    constants = launch.constants | dict.fromkeys(launch.absent)
    pointers = TOKEN_POINTERS if constants.get("TOKENS") else POINTERS
    if launch.name.startswith("generic"):
        pointers = pointers | {"partial_ptr": "*fp32"}
    signature, attributes = {}, {}
    for place, name in enumerate(function.arg_names):
        if name in constants:
            signature[name] = "constexpr"
            continue
        signature[name] = pointers.get(name) or ("fp32" if name in FLOATS else "i32")
        if name.endswith(ALIGNED_SUFFIXES):
            attributes[(place,)] = [["tt.divisibility", 16]]
    amd = arch.name.startswith("gfx")
    target = GPUTarget("hip", arch.name, 64) if amd else GPUTarget("cuda", int(arch.name.removeprefix("sm_")), 32)
    kind: Any = ASTSource
    if function.is_gluon():
        from triton.experimental.gluon._runtime import GluonASTSource

        kind = GluonASTSource
    source = kind(function, signature, constexprs=constants, attrs=attributes)
    binary = triton.compile(source, target=target, options=dict(launch.options))
    return Compiled(launch, binary, {name: kind for name, kind in signature.items() if kind != "constexpr"})


def resources(compiled: Compiled, arch: Arch) -> Resources:
    """What a compiled kernel takes."""
    launch = compiled.launch
    shown = launch.constants | launch.options
    label = " ".join(f"{k}={v}" for k, v in shown.items() if k in LABELLED or k in launch.options)
    warps, needs_matrix = launch.options["num_warps"], "reduce" not in launch.name
    if arch.name.startswith("gfx"):
        tile = launch.constants.get("TILE", 0)
        return read_amd(compiled.binary, launch.name, arch.name, label, warps, needs_matrix, tile)
    return read_nvidia(compiled.binary, launch.name, arch.name, label, warps, needs_matrix)


def inspect(
    arch: Arch, sample: bool = False, only: str = "", listings: Path | None = None, generic: bool = True
) -> list[Resources]:
    """Compile everything that can run on ``arch``: all configurations and the generic arm.

    Args:
        arch: target.
        sample: of the kernels in Gluon, which take long to compile, only those that :func:`in_sample` names.
        only: only functions whose name contains this.
        generic: with the generic arm.
        listings: a folder for the listings of gfx950 and an ``index.json`` of them, for :mod:`kernel.emulator`.
    """
    rows: list[Resources] = []
    index: list[dict[str, Any]] = []
    for launch in reachable_launches(arch, generic):
        if only not in launch.name or (sample and not in_sample(launch)):
            continue
        compiled = compile_launch(launch, arch)
        rows.append(resources(compiled, arch))
        if listings is not None:
            index.append(_save_listing(compiled, listings, len(index)))
    if listings is not None:
        (listings / "index.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    return rows


def _save_listing(compiled: Compiled, folder: Path, number: int) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    launch = compiled.launch
    file = folder / f"{number:02}-{launch.name}.s"
    file.write_text(compiled.binary.asm["amdgcn"], encoding="utf-8")
    return {
        "file": file.name,
        "kernel": launch.name,
        "constants": launch.constants,
        "options": launch.options,
        "arguments": compiled.arguments,
    }


def in_sample(launch: Launch) -> bool:
    """What has 16 query heads a KV head; of the kernels in Gluon, only for four tokens and one batch block."""
    constants = launch.constants
    if constants["GROUP"] != 16:
        return False
    if launch.name == "hopper_kernel":
        return bool(constants["SHARES"] == 16)
    if launch.name == "cdna4_kernel":
        return bool(constants["ROWS"] == 64 and constants["BLOCK"] == 32 and constants["BATCH_BLOCK"] == 64)
    return True


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
    return "\n".join([*lines, *loop_table([row for row in rows if row.loop])])


def loop_table(rows: Sequence[Resources]) -> list[str]:
    """What loops cost for each KB of KV that a workgroup reads, as lines of text."""
    if not rows:
        return []
    lines = [
        "",
        f"for each KB of KV; the memory takes {costs.MEMORY_CYCLES:.1f} cycles, at "
        f"{costs.BYTES_PER_SECOND / 1e12:.0f} TB/s. TB/s: a guess, not a measurement: the bound by these",
        f"cycles and the memory, times {costs.ANCHOR_FRACTION}, the share that one measured kernel reached",
        f"({costs.ANCHOR})",
        f"{'kernel':22} {'instr':>6} {'VALU':>6} {'MFMA':>6} {'sum':>6} {'TB/s':>5} {'LDS read':>8} {'written':>7}  "
        "copies to LDS (bytes x count); configuration",
    ]
    for row in rows:
        loop = row.loop
        assert loop is not None
        copies = " ".join(f"{width}x{count}" for width, count in loop.copies.items()) or "none"
        lines.append(
            f"{row.kernel:22} {loop.instructions:6.1f} {loop.vector_cycles:6.1f} {loop.matrix_cycles:6.1f} "
            f"{loop.cycles:6.1f} {costs.expected_bandwidth(loop.cycles) / 1e12:5.1f} {loop.lds_read:7.1f}x "
            f"{loop.lds_written:6.1f}x  {copies}; {row.label}"
        )
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables (or JSON); 0 if all is well, 1 on a spill or a missing matrix instruction."""
    parser = argparse.ArgumentParser(prog="mtpbench kernel inspect", description=__doc__)
    parser.add_argument("--arch", choices=sorted(ARCHES), default="gfx950")
    parser.add_argument("--sample", action="store_true", help="skip most variants of the kernels in Gluon")
    parser.add_argument("--only", default="", metavar="NAME", help="only kernels whose function's name contains NAME")
    parser.add_argument("--no-generic", action="store_true", help="leave the generic arm out")
    parser.add_argument("--listings", type=Path, metavar="FOLDER", help="write the assembly listings of gfx950 there")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    chosen = parser.parse_args(arguments)
    rows = inspect(ARCHES[chosen.arch], chosen.sample, chosen.only, chosen.listings, not chosen.no_generic)
    print(json.dumps([asdict(row) for row in rows], indent=1) if chosen.json else table(rows))
    return int(any(row.faults for row in rows))


if __name__ == "__main__":
    sys.exit(main())
