"""How the kernel runs once the gate has let it: pure functions from a case to launch numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kernel.gate import ARCHITECTURES, GQA_RATIOS, MAX_BATCH, MAX_QUERY_LENGTH, AttentionCase

PORTABLE = "verify_attention"
HOPPER = "hopper_attention"
CDNA4 = "cdna4_attention"
# The Gluon kernel for gfx950 has two shapes that only a device can choose between: a wave of 32 query rows with all
# registers of its SIMD, or waves of 16 with half of them each, so that one works while the other waits.
ONE_WAVE = "one-wave"
TWO_WAVES = "two-waves"
CDNA4_SHAPES = (ONE_WAVE, TWO_WAVES)


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
        body: the module whose kernel runs: ``PORTABLE``, ``HOPPER`` or ``CDNA4``.
        rows: query rows a tile holds, at least query heads of a KV head x query tokens.
        tile: KV tokens a step.
        programs: programs that the device holds at once, the aim of the split.
        min_tiles: a split piece has no fewer KV tiles than this unless its item has.
        num_warps, num_stages: Triton's.
        arithmetic: ``bf16``, ``fp16`` or ``fp8``, the type both matrix products take.
        batch_block: sequences whose lengths a program reads to find its piece.
        reduction: how partial results are summed by a kernel of its own.
        shares: parts of an item's output that its programs sum up themselves; 0 where ``reduction`` runs.
        wave_rows: query rows of one wave (``CDNA4``).
        waves_per_eu: waves that a SIMD must have room for (``CDNA4``); 0 leaves it to the compiler.
    """

    body: str
    rows: int
    tile: int
    programs: int
    min_tiles: int
    num_warps: int
    num_stages: int
    arithmetic: str
    batch_block: int
    reduction: Reduction
    shares: int = 0
    wave_rows: int = 0
    waves_per_eu: int = 0


@dataclass(frozen=True)
class Reduction:
    """Launch numbers of the kernel that sums partial results.

    Attributes:
        chunk: partial results read at once.
        block: rows a program owns.
        columns: head elements a program owns.
        num_warps: Triton's.
    """

    chunk: int
    block: int
    columns: int
    num_warps: int = 4


@dataclass(frozen=True)
class GenericConfig:
    """Launch numbers of the generic arm: 16 rows a workgroup (16 heads of a query token, or 8 of two), KV in parts."""

    segments: int
    rows: int = 16
    tile: int = 16
    num_warps: int = 2
    num_stages: int = 2
    waves_per_eu: int = 2
    reduce_warps: int = 2


def query_rows(case: AttentionCase) -> int:
    """Query rows of an item, padded to 16, 32 or 64: one row count a compile."""
    return max(16, next_power_of_two(case.query_heads // case.kv_heads * case.max_seqlen_q))


def select(case: AttentionCase, arch: Arch, gluon: bool = False, shape: str = ONE_WAVE) -> LaunchConfig:
    """Launch numbers for a case that :func:`kernel.gate.reject_reason` accepts.

    Args:
        case: what is to run.
        arch: where.
        gluon: a kernel in Gluon may be chosen: Triton's can be imported and the tensors fit it.
        shape: of the one for gfx950.

    Raises:
        ValueError: ``arch`` is none that the gate knows; an accepted case never raises.
    """
    if arch.name not in ARCHITECTURES:
        raise ValueError(f"no configuration for {arch.name!r}; the gate should have refused it")
    if arch.name == "sm_90":
        return _select_hopper(case, arch) if gluon else _select_portable_hopper(case, arch)
    if gluon and case.layout == "paged":
        return _select_cdna4(case, arch, shape)
    return _select_portable_cdna(case, arch)


def _select_portable_cdna(case: AttentionCase, arch: Arch) -> LaunchConfig:
    items = case.batch * case.kv_heads
    return LaunchConfig(
        body=PORTABLE,
        # Fewer rows would add compiles for a kernel that only stands in where Triton lacks the other.
        rows=max(32, query_rows(case)),
        # Compiled: two waves a SIMD. Four warps spill when held to two waves, and a tile of 64 spills at any number
        # of warps once loads are pipelined. Pipelined token slots spill two registers under Triton 3.7.
        tile=32,
        num_warps=8,
        num_stages=1 if case.layout == "tokens" else 2,
        programs=arch.compute_units,
        min_tiles=2,
        arithmetic="bf16",
        # One block for every batch saves compiles, and one that differs from a tile's rows keeps the
        # compiler from giving both the same layout: with 64 the same kernel took 255 registers and
        # spilled on sm_90, with 512 it takes 223.
        batch_block=MAX_BATCH,
        reduction=_reduction(items, arch.compute_units),
    )


def _select_portable_hopper(case: AttentionCase, arch: Arch) -> LaunchConfig:
    items = case.batch * case.kv_heads
    return LaunchConfig(
        body=PORTABLE,
        # A WGMMA has 64 rows; 32 fall back to older instructions and spill.  A tile of 32 with four
        # warps and two workgroups an SM measured a fifth faster and spills under Triton 3.9.
        rows=64,
        tile=64,
        num_warps=8,
        num_stages=5,
        programs=arch.compute_units,
        min_tiles=2,
        arithmetic="fp16",
        batch_block=MAX_BATCH,
        reduction=_reduction(items, arch.compute_units),
    )


def _select_hopper(case: AttentionCase, arch: Arch) -> LaunchConfig:
    items = case.batch * case.kv_heads
    programs = 2 * arch.compute_units  # two workgroups an SM
    config = LaunchConfig(
        body=HOPPER,
        rows=64,
        tile=64,
        programs=programs,
        min_tiles=1,
        num_warps=4,
        num_stages=2,
        arithmetic="fp16",
        # Up to 32 lengths fit a warp, which then needs no other to find its piece.
        batch_block=32 if case.batch <= 32 else MAX_BATCH,
        reduction=_reduction(items, programs),
    )
    # A program may wait for the others of its item only if the device holds all of them at once.
    if launched_programs(config, case.batch, case.kv_heads) > programs:
        return config
    pieces = programs // items
    return replace(config, shares=next(n for n in (128, 64, 16, 4) if pieces >= n or n == 4))


def _select_cdna4(case: AttentionCase, arch: Arch, shape: str) -> LaunchConfig:
    rows = query_rows(case)
    programs = 2 * arch.compute_units  # 64 KiB of LDS each, of a CU's 160
    # One wave of 16 rows needs 360 registers, so it has one shape: held to two waves a SIMD it spills.
    two_waves = shape == TWO_WAVES and rows > 16
    wave_rows = 16 if two_waves else min(32, rows)
    return LaunchConfig(
        body=CDNA4,
        rows=rows,
        tile=128,
        programs=programs,
        min_tiles=1,
        num_warps=rows // wave_rows,
        num_stages=1,
        arithmetic="fp8",
        # Up to 64 lengths are one a lane.
        batch_block=64 if case.batch <= 64 else MAX_BATCH,
        reduction=_reduction(case.batch * case.kv_heads, programs),
        wave_rows=wave_rows,
        waves_per_eu=2 if two_waves else 0,
    )


def _reduction(items: int, programs: int) -> Reduction:
    """Few items have many partial results each: then more programs share an item."""
    if items * 32 <= programs:
        return Reduction(chunk=64, block=1, columns=64)
    if items * 8 <= programs:
        return Reduction(chunk=16, block=4, columns=256)
    return Reduction(chunk=4, block=8, columns=256)


def select_generic(case: AttentionCase, arch: Arch) -> GenericConfig:
    """AITER's rule for its unified attention, so that the baseline splits KV as the original does.

    ``programs = batch * (q + 1) * kv_heads`` (16 heads a KV head; with 8, a workgroup has two
    tokens); one segment when K <= 512 or programs > 4 CUs, else
    ``np2(max(8, min(ceil(16 CUs / programs), 128, ceil(K / 16))))`` with K the padded maximum.
    """
    tokens = 16 * case.kv_heads // case.query_heads  # a workgroup
    programs = case.batch * (case.max_seqlen_q // tokens + 1) * case.kv_heads
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


def reachable(arch: Arch, gluon: bool = False, shape: str = ONE_WAVE) -> Iterator[tuple[AttentionCase, LaunchConfig]]:
    """One case for every distinct configuration (and layout and ratio of heads) that :func:`select` can return.

    Batches step through every value because thresholds may sit anywhere.
    """
    seen = set()
    for layout, page in (("paged", 16), ("tokens", 1)):
        for ratio in GQA_RATIOS:
            for q in range(MAX_QUERY_LENGTH, 0, -1):
                for kv_heads in (1, 2):
                    for batch in range(1, MAX_BATCH + 1):
                        case = AttentionCase(
                            arch=arch.name,
                            query_heads=ratio * kv_heads,
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
                        config = select(case, arch, gluon, shape)
                        if (layout, ratio, config) not in seen:
                            seen.add((layout, ratio, config))
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
