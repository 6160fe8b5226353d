"""How the kernel runs once the gate has let it: pure functions from a case to launch numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kernel.gate import ARCHITECTURES, GQA_RATIO, MAX_BATCH, MAX_QUERY_LENGTH, AttentionCase


@dataclass(frozen=True)
class Arch:
    """A device as far as launching cares: its ISA name and its number of CUs or SMs."""

    name: str
    compute_units: int


MI355X = Arch("gfx950", 256)
H200 = Arch("sm_90", 132)


@dataclass(frozen=True)
class LaunchConfig:
    """Launch numbers of the verify kernel and its reduction.

    Attributes:
        rows: query rows a tile holds, 16 heads x (2 or 4) tokens.
        tile: KV tokens a step.
        programs: programs that the device holds at once, the aim of the split.
        min_tiles: a split piece has no fewer KV tiles than this unless its item has.
        num_warps, num_stages: Triton's.
        arithmetic: ``bf16`` or ``fp16``, the type both matrix products take.
        batch_block: sequences whose lengths a program reads to find its piece.
        gluon: :mod:`kernel.hopper_attention` runs; otherwise :mod:`kernel.verify_attention`.
        shares: parts of an item's output that its programs sum up themselves; 0 for a reduction of
            its own.
        reduce_chunk: partial results the reduction reads at once.
        reduce_block: rows a reduction program owns.
        reduce_columns: head elements a reduction program owns.
        reduce_warps: warps of the reduction.
    """

    rows: int
    tile: int
    programs: int
    min_tiles: int
    num_warps: int
    num_stages: int
    arithmetic: str
    batch_block: int
    gluon: bool
    shares: int
    reduce_chunk: int
    reduce_block: int
    reduce_columns: int
    reduce_warps: int


@dataclass(frozen=True)
class GenericConfig:
    """Launch numbers of the generic arm: one query token a workgroup, KV cut in segments."""

    segments: int
    block_m: int = GQA_RATIO
    tile: int = 16
    num_warps: int = 2
    num_stages: int = 2
    waves_per_eu: int = 2
    reduce_warps: int = 2


def select(case: AttentionCase, arch: Arch, gluon: bool = False) -> LaunchConfig:
    """Launch numbers for a case that :func:`kernel.gate.reject_reason` accepts.

    Args:
        case: what is to run.
        arch: where.
        gluon: the Hopper kernel may be chosen: Triton's Gluon can be imported and the tensors fit it.

    Raises:
        ValueError: ``arch`` is none that the gate knows; an accepted case never raises.
    """
    if arch.name not in ARCHITECTURES:
        raise ValueError(f"no configuration for {arch.name!r}; the gate should have refused it")
    if arch.name == "gfx950":
        # Two tokens pad to 32 rows and four to 64.  One token also takes 32: matrix work is not
        # what limits it, and a third row count would add a compile for a case verify never sends.
        rows = GQA_RATIO * (2 if case.max_seqlen_q <= 2 else 4)
        # Compiled: 222 VGPRs, no spill, two waves a SIMD.  Four warps spill when held to two
        # waves, and a tile of 64 spills at any number of warps once loads are pipelined.
        tile, warps, stages, per_unit, arithmetic = 32, 8, 2, 1, "bf16"
    else:
        # A WGMMA has 64 rows; 32 fall back to older instructions and spill.  A tile of 32 with four
        # warps and two workgroups an SM measured a fifth faster and spills under Triton 3.9.
        rows = GQA_RATIO * MAX_QUERY_LENGTH
        tile, warps, stages, per_unit, arithmetic = 64, 8, 5, 1, "fp16"
    if arch.name == "sm_90" and gluon:
        return _select_gluon(case, arch)
    programs = arch.compute_units * per_unit
    chunk, block, columns = _reduction(case.batch * case.kv_heads, programs)
    return LaunchConfig(
        rows=rows,
        tile=tile,
        programs=programs,
        min_tiles=2,
        num_warps=warps,
        num_stages=stages,
        arithmetic=arithmetic,
        # One block for every batch saves compiles, and one that differs from a tile's rows keeps the
        # compiler from giving both the same layout: with 64 the same kernel took 255 registers and
        # spilled on sm_90, with 512 it takes 223.
        batch_block=MAX_BATCH,
        gluon=False,
        shares=0,
        reduce_chunk=chunk,
        reduce_block=block,
        reduce_columns=columns,
        reduce_warps=4,
    )


def _select_gluon(case: AttentionCase, arch: Arch) -> LaunchConfig:
    items = case.batch * case.kv_heads
    programs = 2 * arch.compute_units  # two workgroups an SM
    config = LaunchConfig(
        rows=GQA_RATIO * MAX_QUERY_LENGTH,
        tile=64,
        programs=programs,
        min_tiles=1,
        num_warps=4,
        num_stages=2,
        arithmetic="fp16",
        # Up to 32 lengths fit a warp, which then needs no other to find its piece.
        batch_block=32 if case.batch <= 32 else MAX_BATCH,
        gluon=True,
        shares=0,
        reduce_chunk=1,
        reduce_block=1,
        reduce_columns=1,
        reduce_warps=4,
    )
    chunk, block, columns = _reduction(items, programs)
    config = replace(config, reduce_chunk=chunk, reduce_block=block, reduce_columns=columns)
    # A program may wait for the others of its item only if the device holds all of them at once.
    if launched_programs(config, case.batch, case.kv_heads) > programs:
        return config
    pieces = programs // items
    return replace(config, shares=next(n for n in (128, 64, 16, 4) if pieces >= n or n == 4))


def _reduction(items: int, programs: int) -> tuple[int, int, int]:
    """Partial results read at once, rows and head elements of a reduction program."""
    if items * 32 <= programs:
        return 64, 1, 64
    if items * 8 <= programs:
        return 16, 4, 256
    return 4, 8, 256


def select_generic(case: AttentionCase, arch: Arch) -> GenericConfig:
    """AITER's rule for its unified attention, so that the baseline splits KV as the original does.

    ``programs = batch * (q + 1) * kv_heads``; one segment when K <= 512 or programs > 4 CUs, else
    ``np2(max(8, min(ceil(16 CUs / programs), 128, ceil(K / 16))))`` with K the padded maximum.
    """
    programs = case.batch * (case.max_seqlen_q + 1) * case.kv_heads
    if case.max_seqlen_k <= 512 or programs > 4 * arch.compute_units:
        return GenericConfig(segments=1)
    wanted = min(-(-16 * arch.compute_units // programs), 128, -(-case.max_seqlen_k // 16))
    segments = next_power_of_two(max(8, wanted))
    # Two warps, as AITER takes, spill where they hold 64 or 128 rows: that would flatter us.
    return GenericConfig(segments=segments, reduce_warps=max(2, segments // 16))


def launched_programs(config: LaunchConfig, batch: int, kv_heads: int) -> int:
    """The launch grid: whole waves of programs, and more programs than items.

    A second wave is taken once the items would leave less than half of the first for cuts.
    """
    items = batch * kv_heads
    waves = -(-(items + config.programs // 2) // config.programs)
    return max(waves * config.programs, items + 1)


def split(config: LaunchConfig, batch: int, kv_heads: int) -> tuple[int, int]:
    """Two bounds on the cut: ``total tiles / slots`` and ``longest item / even_pieces`` tiles a piece.

    Every item can add one piece, its last; taking the items off the programs beforehand keeps the
    pieces within the launch.  Items of equal length are cut alike, with no such loss.
    """
    launched = launched_programs(config, batch, kv_heads)
    items = batch * kv_heads
    return launched - items, launched // items


def next_power_of_two(value: int) -> int:
    """Smallest power of two that is at least ``value`` (which must be positive)."""
    return 1 << (value - 1).bit_length()


def reachable(arch: Arch, gluon: bool = False) -> Iterator[tuple[AttentionCase, LaunchConfig]]:
    """One case for every distinct configuration that :func:`select` can return on ``arch``.

    Batches step through every value because thresholds may sit anywhere.
    """
    seen: set[tuple[str, LaunchConfig]] = set()
    for layout, page in (("paged", 16), ("tokens", 1)):
        for q in range(1, MAX_QUERY_LENGTH + 1):
            for kv_heads in (1, 2):
                for batch in range(1, MAX_BATCH + 1):
                    case = AttentionCase(
                        arch=arch.name,
                        query_heads=GQA_RATIO * kv_heads,
                        kv_heads=kv_heads,
                        head_size=256,
                        page_size=page,
                        q_dtype="bfloat16",
                        kv_dtype="float8_e4m3fn",
                        batch=batch,
                        max_seqlen_q=q,
                        max_seqlen_k=4096,
                        layout=layout,
                    )
                    config = select(case, arch, gluon)
                    if (layout, config) not in seen:
                        seen.add((layout, config))
                        yield case, config


def reachable_generic(arch: Arch) -> list[GenericConfig]:
    """Every distinct configuration that :func:`select_generic` can return on ``arch``."""
    found = {
        select_generic(replace(case, batch=batch, max_seqlen_k=length), arch)
        for case, _ in reachable(arch)
        for batch in range(1, MAX_BATCH + 1)
        for length in (512, 1024, 2048)
    }
    return sorted(found, key=lambda config: config.segments)
