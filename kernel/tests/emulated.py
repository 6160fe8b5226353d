"""Runs what was compiled for gfx950 in the emulator: a whole call, every program of it, beside fp64.

Needs NumPy alone: ``python -m kernel.offline --arch gfx950 --listings FOLDER`` makes listings, in another process.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernel import config as configs
from kernel import costs
from kernel.config import Arch, LaunchConfig, launched_programs, select, split
from kernel.emulator import Machine, Memory
from kernel.emulator.formats import E4M3, from_bf16, to_bf16, to_e4m3
from kernel.emulator.listing import Listing, parse
from kernel.emulator.machine import pack
from kernel.gate import AttentionCase
from kernel.launches import Launch, reduce_launch, verify_launch

HEAD, PAGE = 256, 16
NAN_CODE = 0x7F  # of E4M3
NO_PAGE = 0x3FFFFFFF
V_SCALE = 1.5


@dataclass(frozen=True)
class Case:
    """One call.

    Attributes:
        lengths: KV tokens of each sequence, its query tokens included.
        queries: query tokens of each.
        kv_heads: KV heads.
        group: query heads a KV head.
        compute_units: of the device: programs are few, so that items are still cut.
        tokens: slots of tokens instead of pages.
        shape: of the kernel in Gluon; None for the portable kernel.
        query_size: factor of the queries.
        values: ``plain``; ``wide``: each token's times 2^-6 to 2^6; ``mean``: plus 1.
        late: loads arrive as late as the waits allow.
        far_pages: pages before the first one that is there: beyond 2^20 of them, 32 bits do not reach.
    """

    lengths: tuple[int, ...]
    queries: tuple[int, ...]
    kv_heads: int = 1
    group: int = 16
    compute_units: int = 2
    tokens: bool = False
    shape: str | None = configs.ONE_WAVE
    query_size: float = 1.0
    values: str = "plain"
    late: bool = False
    far_pages: int = 0
    k_descale: float = 0.75
    seed: int = 0

    @property
    def config(self) -> LaunchConfig:
        """Launch numbers."""
        arch = Arch("gfx950", self.compute_units)
        return select(self.attention_case, arch, self.shape is not None, self.shape or configs.ONE_WAVE)

    @property
    def attention_case(self) -> AttentionCase:
        """What the gate sees."""
        return AttentionCase(
            arch="gfx950", query_heads=self.group * self.kv_heads, kv_heads=self.kv_heads, head_size=HEAD,
            page_size=1 if self.tokens else PAGE, q_dtype="bfloat16", kv_dtype="float8_e4m3fn",
            batch=len(self.lengths), max_seqlen_q=max(self.queries), max_seqlen_k=max(1, *self.lengths),
            layout="tokens" if self.tokens else "paged",
        )  # fmt: skip


@dataclass(frozen=True)
class Result:
    """How a call went.

    Attributes:
        error: |out - answer| / |answer| over all rows.
        partial_error: the same of the partial results, summed in fp64: what the output has before it is bf16.
        worst_row: the same of their worst row.
        cycles: vector and matrix cycles of all that a wave of the first kernel executed, summed over waves.
        loop_cycles: of them those of ``tiles`` turns of the loop over KV.
        bank_cycles: cycles for each 256 bytes of LDS reads in the first kernel.
    """

    error: float
    partial_error: float
    worst_row: float
    cycles: int
    loop_cycles: int
    bank_cycles: dict[str, float] = field(default_factory=dict)


class Listings:
    """A folder of compiled kernels."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index: list[dict[str, Any]] = json.loads((folder / "index.json").read_text())
        self._parsed: dict[str, Listing] = {}

    def find(self, name: str, launch: Launch) -> tuple[Listing, dict[str, str], int]:
        """A kernel's listing, its arguments and its waves.

        Raises:
            KeyError: it was not compiled.
        """
        for entry in self.index:
            if (
                entry["kernel"] == name
                and entry["constants"] == launch.constants
                and entry["options"] == launch.options
            ):
                if entry["file"] not in self._parsed:
                    self._parsed[entry["file"]] = parse((self.folder / entry["file"]).read_text())
                return self._parsed[entry["file"]], entry["arguments"], entry["options"]["num_warps"]
        raise KeyError(f"{name} with {launch.constants} and {launch.options} was not compiled")


def run(case: Case, listings: Listings) -> Result:
    """Run a call and compare it with fp64.

    Raises:
        AccessError: a kernel read or wrote where it should not.
        AssertionError: rows that no sequence owns were written, or rows were left unwritten.
    """
    rng = np.random.default_rng(case.seed)
    batch, heads, total = len(case.lengths), case.group * case.kv_heads, sum(case.queries)
    config = case.config
    q_bits = to_bf16(rng.standard_normal((total, heads, HEAD)).astype(np.float32) * np.float32(case.query_size))
    q_bits = q_bits.astype(np.uint16)
    k, v, table, where = _caches(case, rng)
    out = np.full((total + 1, heads, HEAD), 0x7FC1, np.uint16)  # bf16 NaN
    memory = Memory()
    launched = launched_programs(config, batch, case.kv_heads)
    cut = split(config, batch, case.kv_heads)
    starts = np.concatenate([[0], np.cumsum(case.queries)]).astype(np.int32)
    if case.tokens:
        prefixes = [length - query for length, query in zip(case.lengths, case.queries, strict=True)]
        lengths = np.concatenate([[0], np.cumsum(prefixes)]).astype(np.int32)
        index = np.concatenate([slots[:prefix] for slots, prefix in zip(where, prefixes, strict=True)] or [[]])
        drafts = np.concatenate([slots[prefix:] for slots, prefix in zip(where, prefixes, strict=True)])
        index, drafts = index.astype(np.int64), drafts.astype(np.int64)
        strides = (case.kv_heads * HEAD, 0, HEAD)
    else:
        lengths, index, drafts = np.array(case.lengths, np.int32), table, np.zeros(1, np.int64)
        strides = (PAGE * case.kv_heads * HEAD, case.kv_heads * HEAD, HEAD)
    pages_before = case.far_pages * PAGE * case.kv_heads * HEAD
    partial = np.full((launched, config.rows, HEAD), np.nan, np.float16)
    lse = np.full((launched, config.rows), np.nan, np.float32)
    arguments = {
        "q_ptr": memory.put(q_bits), "k_ptr": memory.put(k, pages_before) - pages_before,
        "v_ptr": memory.put(v, pages_before) - pages_before, "out_ptr": memory.put(out),
        "partial_ptr": memory.put(partial), "partial_lse_ptr": memory.put(lse),
        "cu_seqlens_q_ptr": memory.put(starts), "lengths_ptr": memory.put(lengths), "index_ptr": memory.put(index),
        "draft_ptr": memory.put(drafts), "k_descale_ptr": memory.put(np.array([case.k_descale], np.float32)),
        "v_descale_ptr": memory.put(np.array([2 * V_SCALE], np.float32)),
        "logit_scale": HEAD**-0.5, "out_scale": 0.5, "batch": batch, "kv_heads": case.kv_heads, "slots": cut[0],
        "even_pieces": cut[1], "rows": config.rows, "index_stride": 1 if case.tokens else index.shape[1],
        **{f"{which}_stride_{name}": heads * HEAD if name == "token" else HEAD
           for which in ("q", "out") for name in ("token", "head")},
        **{f"{prefix}stride_{name}": stride for prefix in ("", "k_", "v_")
           for name, stride in zip(("page", "slot", "head"), strides, strict=True)},
    }  # fmt: skip

    def launch(name: str, what: Launch, grid: Sequence[tuple[int, int, int]], late: bool) -> Machine:
        listing, kinds, waves = listings.find(name, what)
        machine = Machine(listing, memory, waves, late=late, count_banks=name == "cdna4_kernel")
        machine.launch(grid, pack([(kind, arguments[argument]) for argument, kind in kinds.items()]))
        return machine

    body = {configs.CDNA4: "cdna4_kernel", configs.PORTABLE: "verify_kernel"}[config.body]
    verify = launch(
        body, verify_launch(config, case.group, case.tokens), [(n, 0, 0) for n in range(launched)], case.late
    )
    reduction = config.reduction
    grid = [
        (item, row, column)
        for item in range(batch * case.kv_heads)
        for row in range(config.rows // reduction.block)
        for column in range(HEAD // reduction.columns)
    ]
    launch("reduce_kernel", reduce_launch(config, case.group, case.tokens), grid, case.late)
    assert np.all(out[total] == 0x7FC1), "a row past the last sequence was written"
    answer = _answer(case, q_bits, k, v, where)
    error, _ = _errors(from_bf16(out[:total]).astype(np.float64), answer)
    partial_error, worst = _errors(_summed(case, config, partial, lse), answer)
    loop = costs.hot_loop(verify.listing) or []
    turn = sum(costs.vector_cycles(ins) + costs.matrix_cycles(ins) for ins in loop)
    tiles = sum(-(-length // config.tile) for length in case.lengths) * case.kv_heads
    return Result(
        error,
        partial_error,
        worst,
        costs.issue_cycles(verify.listing, verify.executed),
        turn * tiles * config.num_warps,
        {name: float(np.mean(cycles)) for name, cycles in verify.bank_cycles.items()},
    )


def _caches(
    case: Case, rng: np.random.Generator
) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.int32], list[NDArray[np.int64]]]:
    """K and V as codes (pages, 16, heads, 256), the block table, and each sequence's slots in the pool.

    Slots that no sequence owns hold NaN, pages come in random order, and unused entries name no page.
    """
    counts = [math.ceil(length / PAGE) for length in case.lengths]
    pages = sum(counts) + 2
    shape = (pages, PAGE, case.kv_heads, HEAD)
    values = rng.standard_normal(shape)
    if case.values == "wide":
        values = values * np.exp2(rng.uniform(-6, 6, (pages, PAGE, 1, 1)))
    elif case.values == "mean":
        values = values + 1
    k = to_e4m3(rng.standard_normal(shape).astype(np.float32))
    v = to_e4m3(np.clip(values, -448, 448).astype(np.float32))
    order = rng.permutation(pages)
    table = np.full((len(counts), max(counts)), NO_PAGE, np.int32)
    where, taken = [], 0
    owned = np.zeros(pages * PAGE, bool)
    for seq, (length, count) in enumerate(zip(case.lengths, counts, strict=True)):
        mine = order[taken : taken + count]
        taken += count
        table[seq, :count] = mine + case.far_pages
        token = np.arange(length)
        slots = mine[token // PAGE] * PAGE + token % PAGE if count else token
        owned[slots] = True
        where.append(slots)
    k.reshape(-1, case.kv_heads, HEAD)[~owned] = NAN_CODE
    v.reshape(-1, case.kv_heads, HEAD)[~owned] = NAN_CODE
    return k, v, table, where


def _answer(
    case: Case, q_bits: NDArray[np.uint16], k: NDArray[np.uint8], v: NDArray[np.uint8], where: list[NDArray[np.int64]]
) -> NDArray[np.float64]:
    """Causal attention in fp64; a row that sees no key is zero."""
    q = from_bf16(q_bits).astype(np.float64)
    answer = np.zeros(q.shape)
    row = 0
    for length, query, slots in zip(case.lengths, case.queries, where, strict=True):
        keys = E4M3[k.reshape(-1, case.kv_heads, HEAD)[slots]].astype(np.float64)
        values = E4M3[v.reshape(-1, case.kv_heads, HEAD)[slots]].astype(np.float64)
        for token in range(query):
            visible = length - query + token + 1
            for head in range(q.shape[1]):
                if visible > 0:
                    mine = head // case.group
                    logits = keys[:visible, mine] @ q[row, head] * (HEAD**-0.5 * case.k_descale)
                    weights = np.exp(logits - logits.max())
                    answer[row, head] = weights @ values[:visible, mine] / weights.sum() * V_SCALE
            row += 1
    return answer


def _summed(
    case: Case, config: LaunchConfig, partial: NDArray[np.float16], lse: NDArray[np.float32]
) -> NDArray[np.float64]:
    """The output from partial results, in fp64, by the same cut as the device's."""
    slots, even = split(config, len(case.lengths), case.kv_heads)
    tiles = [-(-length // config.tile) for length in case.lengths]
    size = max(min(-(-sum(tiles) * case.kv_heads // slots), -(-max(tiles) // even)), config.min_tiles)
    out = np.zeros((sum(case.queries), case.kv_heads, case.group, HEAD))
    place, row = 0, 0
    for count, query in zip(tiles, case.queries, strict=True):
        pieces = -(-count // size)
        for head in range(case.kv_heads):
            logs = lse[place : place + pieces, : query * case.group].astype(np.float64)
            means = partial[place : place + pieces, : query * case.group].astype(np.float64)
            place += pieces
            if pieces:
                top = logs.max(0)
                weights = np.exp2(logs - np.where(np.isinf(top), 0, top))
                total = np.maximum(weights.sum(0), np.finfo(np.float64).tiny)
                mean = (means * weights[..., None]).sum(0) / total[:, None]
                out[row : row + query, head] = mean.reshape(query, case.group, HEAD)
        row += query
    return out.reshape(sum(case.queries), case.kv_heads * case.group, HEAD) * V_SCALE


def _errors(actual: NDArray[np.float64], answer: NDArray[np.float64]) -> tuple[float, float]:
    """Relative error of all rows and of the worst; NaN anywhere gives NaN."""
    difference = ((actual - answer) ** 2).sum(-1)
    size = (answer**2).sum(-1)
    empty = size == 0
    if np.any(difference[empty] > 0):
        return math.nan, math.nan
    rows = difference[~empty] / size[~empty]
    whole = difference.sum() / size.sum() if size.sum() else difference.sum()
    return float(np.sqrt(whole)), float(np.sqrt(rows.max())) if len(rows) else 0.0
