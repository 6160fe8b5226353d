"""Decode and verify attention over a paged FP8 KV cache: how KV is cut, what is read, how long a call takes.

    seconds = launch + max(walk, stream + stall) + segment bytes / bandwidth

`walk` is the longest way of one workgroup, wave after wave; `stream` the issued KV bytes at the rate that the kernel
reaches; `stall` what a fixed cut waits for the longest sequence. The cuts are those of the originals: AITER's unified
attention, the MTP kernel of SGLang pull request 36330, SGLang's Triton decode kernel (8 splits) and its extend kernel
(none), and the in-tree kernel's even cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.simulator.hardware import AttentionKernel, Hardware

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Tokens that one step of a kernel's loop reads.
TILES = {"none": 64, "triton": 64, "aiter": 16, "mtp": 32, "even": 64}
_TRITON_SPLITS = 8
_MTP_PARALLEL = 512
_FLOAT = 4


@dataclass(frozen=True)
class Call:
    """The shape of a call on one rank. `padded_context` is the page table's width in tokens, whatever lengths are."""

    query_tokens: int
    query_heads: int
    kv_heads: int
    head_size: int
    padded_context: int

    @property
    def heads_per_kv(self) -> int:
        return -(-self.query_heads // self.kv_heads)

    @property
    def kv_bytes_per_token(self) -> int:
        """K and V of one token, a byte a number."""
        return 2 * self.kv_heads * self.head_size

    @property
    def segment_bytes(self) -> int:
        """fp32 partial results of one segment of one sequence, sum and maximum included, written and read."""
        return 2 * _FLOAT * self.query_tokens * self.query_heads * (self.head_size + 2)


def segments(rule: str, batch: int, call: Call, compute_units: int) -> int:
    """Segments into which a kernel cuts each sequence, from the batch and the padded context alone.

    AITER: `np2(max(8, min(⌈16 CUs / p⌉, 128, ⌈K / 16⌉)))`, p = batch x (q + 1) x KV heads; none where K <= 512 or
    p > 4 CUs. MTP kernel: `min(64, np2(min(64, ⌈K / 32⌉, max(8, par, min(⌈K / 1024⌉, 8 par)))))`,
    par = `⌈512 / (batch x (q / 2 + 1) x KV heads)⌉`.
    """
    context = call.padded_context
    if rule == "triton":
        return _TRITON_SPLITS
    if rule == "aiter":
        programs = batch * (call.query_tokens + 1) * call.kv_heads
        if context <= 512 or programs > 4 * compute_units:
            return 1
        return _power_of_two(max(8, min(-(-16 * compute_units // programs), 128, -(-context // 16))))
    if rule == "mtp":
        parallel = -(-_MTP_PARALLEL // (batch * (-(-call.query_tokens // 2) + 1) * call.kv_heads))
        wanted = max(8, parallel, min(-(-context // 1024), 8 * parallel))
        return min(64, _power_of_two(min(64, -(-context // 32), wanted)))
    return 1


def live_segments(rule: str, cut: int, lengths: Ints) -> tuple[Ints, Ints]:
    """Of each length: segments that hold any token, and tokens of the longest one (whole tiles)."""
    tile = TILES[rule]
    tiles = -(-lengths // tile)
    piece = -(-tiles // cut)
    return -(-tiles // piece), piece * tile


def issued_bytes(kernel: AttentionKernel, call: Call, tokens: Any) -> Any:
    """KV bytes that workgroups ask for: each byte once for every workgroup that needs it."""
    reads = -(-call.query_tokens // kernel.query_tokens) * -(-call.heads_per_kv // kernel.heads)
    return reads * call.kv_bytes_per_token * tokens


def segment_traffic(kernel: AttentionKernel, hardware: Hardware, batch: int, call: Call, lengths: Ints) -> Floats:
    """Bytes of partial results, written and read. `lengths`: (batch, steps), query tokens included."""
    if kernel.segments == "even":  # at most as many partial results as workgroups, whatever the batch
        tiles = (-(-lengths // TILES["even"])).sum(axis=0) * call.kv_heads
        pieces = np.minimum(tiles, hardware.compute_units * kernel.workgroups_per_cu)
        return np.asarray(pieces * (call.segment_bytes / call.kv_heads))
    cut = segments(kernel.segments, batch, call, hardware.compute_units)
    if cut == 1:
        return np.zeros(lengths.shape[1])
    live, _ = live_segments(kernel.segments, cut, lengths)
    return np.asarray(live.sum(axis=0) * float(call.segment_bytes))


def seconds(kernel: AttentionKernel, hardware: Hardware, batch: int, call: Call, lengths: Ints) -> Floats:
    """Seconds of one call at each step.

    Args:
        batch: sequences of the launch, padding to the graph's size included; it decides about the cut.
        lengths: (sequences, steps), KV tokens of each with the query's own.
    """
    total, longest = lengths.sum(axis=0), lengths.max(axis=0)
    mean = total / lengths.shape[0]
    stream = issued_bytes(kernel, call, total) / (hardware.bandwidth * kernel.stream)
    slots = hardware.compute_units * kernel.workgroups_per_cu
    if kernel.segments == "even":
        walk = total * call.kv_heads / slots * kernel.per_key
    else:
        cut = segments(kernel.segments, batch, call, hardware.compute_units)
        live, piece = live_segments(kernel.segments, cut, lengths)
        groups = -(-call.query_tokens // kernel.query_tokens) * -(-call.heads_per_kv // kernel.heads)
        waves = np.ceil(live.sum(axis=0) * groups * call.kv_heads / slots)
        walk = kernel.per_key * (piece.max(axis=0) + (waves - 1) * piece.sum(axis=0) / lengths.shape[0])
    stall = kernel.ragged * stream * (longest / mean - 1)
    traffic = segment_traffic(kernel, hardware, batch, call, lengths) / hardware.bandwidth
    return np.asarray(kernel.launch + np.maximum(walk, stream + stall) + traffic)


def _power_of_two(value: int) -> int:
    """The smallest that is at least `value`."""
    return 1 << (value - 1).bit_length()
