"""What is compiled for a configuration: the function, its constants and Triton's options.

The calls in :mod:`kernel.ops` launch these, and :mod:`kernel.offline` compiles them for a device that is not there, so
that what is inspected is what runs.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kernel import config as configs
from kernel.config import Arch, GenericConfig, LaunchConfig
from kernel.gate import HEAD_SIZE, PAGE_SIZE

# LLVM's scheduler that keeps the fewest registers in use, and no accumulation registers: two waves a SIMD have 256
# registers each. Triton passes such attributes on from 3.8 on.
LEAST_REGISTERS = "amdgpu-sched-strategy=iterative-minreg,amdgpu-agpr-alloc=0"


@dataclass(frozen=True)
class Launch:
    """One kernel as it is compiled.

    Attributes:
        function: a function of Triton or Gluon.
        constants: its compile-time arguments.
        options: Triton's: ``num_warps`` and so on.
        absent: pointers that are None, which Triton compiles away.
    """

    function: Any
    constants: dict[str, Any]
    options: dict[str, Any]
    absent: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The function's name."""
        return str(self.function.__name__)


@functools.cache
def gluon_kernel(arch_name: str) -> Any:
    """The kernel in Gluon for an architecture, or None where Triton has no Gluon that it knows."""
    try:
        if arch_name == "sm_90":
            from kernel.hopper_attention import hopper_kernel

            return hopper_kernel
        if arch_name == "gfx950":
            from kernel.cdna4_attention import cdna4_kernel

            return cdna4_kernel
    except (ImportError, AttributeError):
        pass
    return None


@functools.cache
def _has_function_attributes() -> bool:
    """Whether Triton passes attributes on to LLVM."""
    try:
        from triton.backends.amd.compiler import HIPOptions
    except ImportError:
        return False
    return "llvm_fn_attrs" in HIPOptions.__dataclass_fields__


def cdna4_shapes() -> tuple[str, ...]:
    """Shapes of the kernel for gfx950 that this Triton can compile: two waves a SIMD spill without that scheduler."""
    return configs.CDNA4_SHAPES if _has_function_attributes() else (configs.ONE_WAVE,)


def verify_launch(config: LaunchConfig, group: int, tokens: bool, interpreted: bool = False) -> Launch:
    """The kernel that makes partial results (or, with shares, the output).

    Args:
        config: its launch numbers.
        group: query heads a KV head.
        tokens: whether token slots are given, not pages.
        interpreted: for Triton's interpreter on a CPU.
    """
    constants: dict[str, Any] = {
        "GROUP": group,
        "MIN_TILES": config.min_tiles,
        "BATCH_BLOCK": config.batch_block,
    }
    options: dict[str, Any] = {"num_warps": config.num_warps}
    if config.body == configs.CDNA4:
        constants |= {"ROWS": config.rows, "BLOCK": config.wave_rows, "TILE": config.tile}
        if config.waves_per_eu:
            options["waves_per_eu"] = config.waves_per_eu
            options["llvm_fn_attrs"] = LEAST_REGISTERS
        return Launch(gluon_kernel("gfx950"), constants, options)
    constants["TOKENS"] = tokens
    absent: tuple[str, ...] = () if tokens else ("draft_ptr",)
    if config.body == configs.HOPPER:
        constants["SHARES"] = config.shares
        absent += () if config.shares else ("done_ptr",)
        return Launch(gluon_kernel("sm_90"), constants, options, absent)
    from kernel.verify_attention import verify_kernel

    constants |= {
        "HEAD": HEAD_SIZE,
        "ROWS": config.rows,
        "TILE": config.tile,
        "PAGE": 1 if tokens else PAGE_SIZE,
        "FP16": config.arithmetic == "fp16",
        "INTERPRETED": interpreted,
    }
    return Launch(verify_kernel, constants, options | {"num_stages": config.num_stages}, absent)


def reduce_launch(config: LaunchConfig, group: int, tokens: bool, interpreted: bool = False) -> Launch:
    """The kernel that sums partial results."""
    from kernel.verify_attention import reduce_kernel

    constants = {
        "GROUP": group,
        "MIN_TILES": config.min_tiles,
        "BATCH_BLOCK": config.batch_block,
        "TOKENS": tokens,
        "HEAD": HEAD_SIZE,
        "TILE": config.tile,
        "INTERPRETED": interpreted,
        "CHUNK": config.reduction.chunk,
        "BLOCK": config.reduction.block,
        "COLUMNS": config.reduction.columns,
    }
    return Launch(reduce_kernel, constants, {"num_warps": config.reduction.num_warps})


def generic_launch(config: GenericConfig, group: int, tokens: bool, amd: bool, interpreted: bool = False) -> Launch:
    """The generic arm."""
    from kernel.generic_attention import generic_kernel

    constants = {
        "GROUP": group,
        "HEAD": HEAD_SIZE,
        "ROWS": config.rows,
        "PAGE": 1 if tokens else PAGE_SIZE,
        "TILE": config.tile,
        "DIRECT": config.segments == 1,
        "TOKENS": tokens,
        "INTERPRETED": interpreted,
    }
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    if amd:
        options["waves_per_eu"] = config.waves_per_eu
    return Launch(generic_kernel, constants, options, () if tokens else ("draft_ptr",))


def generic_reduce_launch(config: GenericConfig, group: int, interpreted: bool = False) -> Launch:
    """The generic arm's reduction."""
    from kernel.generic_attention import generic_reduce_kernel

    constants = {
        "GROUP": group,
        "HEAD": HEAD_SIZE,
        "ROWS": config.rows,
        "SEGMENTS": config.segments,
        "INTERPRETED": interpreted,
    }
    return Launch(generic_reduce_kernel, constants, {"num_warps": config.reduce_warps})


def reachable_launches(arch: Arch, generic: bool = True) -> Iterator[Launch]:
    """Every launch that a call can make on ``arch``, each once: both shapes of the kernel for gfx950 too.

    Args:
        arch: where.
        generic: with the generic arm.
    """
    cases = list(configs.reachable(arch))
    if gluon_kernel(arch.name) is not None:
        shapes = cdna4_shapes() if arch.name == "gfx950" else (configs.ONE_WAVE,)
        for shape in shapes:
            cases += [pair for pair in configs.reachable(arch, True, shape) if pair[1].body != configs.PORTABLE]
    seen = set()
    for launch in _launches(arch, cases, generic):
        key = (launch.name, tuple(launch.constants.items()), tuple(launch.options.items()), launch.absent)
        if key not in seen:
            seen.add(key)
            yield launch


def _launches(arch: Arch, cases: list[tuple[Any, LaunchConfig]], generic: bool) -> Iterator[Launch]:
    for case, config in cases:
        tokens, group = case.layout == "tokens", case.query_heads // case.kv_heads
        yield verify_launch(config, group, tokens)
        if not config.shares:
            yield reduce_launch(config, group, tokens)
    for one in configs.reachable_generic(arch) if generic else ():
        for group in (16, 8):
            for tokens in (False, True):
                yield generic_launch(one, group, tokens, arch.name.startswith("gfx"))
            if one.segments > 1:
                yield generic_reduce_launch(one, group)
