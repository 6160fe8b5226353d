"""Inputs on a GPU: several block tables over one pool, together larger than the L2 cache."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from kernel.bench.shapes import HEAD, PAGE, Shape

# Beyond this a graph takes longer to build than the measurement is worth.
MAX_SETS = 400
CHUNK_PAGES = 1 << 15


@dataclass(frozen=True)
class Inputs:
    """Arguments of one call; all sets of a shape share everything but ``block_table``."""

    shape: Shape
    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    out: torch.Tensor
    cu_seqlens_q: torch.Tensor
    seqused_k: torch.Tensor
    block_table: torch.Tensor
    k_descale: torch.Tensor
    v_descale: torch.Tensor

    @property
    def softmax_scale(self) -> float:
        """Factor of the logits."""
        return float(HEAD**-0.5)


# MI355X: AMD's data sheet. torch knows the L2 caches alone.
INFINITY_CACHE_BYTES = 256 << 20


def cache_bytes(device: torch.device) -> int:
    """The largest cache of a GPU."""
    cache = int(torch.cuda.get_device_properties(device).L2_cache_size)
    return max(cache, INFINITY_CACHE_BYTES) if torch.version.hip else cache


def sets_needed(shape: Shape, cache: int) -> int:
    """Sets that together hold three times the largest cache; one if a set does by itself."""
    return max(1, min(MAX_SETS, math.ceil(3 * cache / shape.kv_bytes)))


def make_inputs(shape: Shape, count: int, device: torch.device, seed: int = 0) -> list[Inputs]:
    """``count`` sets whose pages are disjoint and in random order.

    Args:
        shape: what to build.
        count: sets.
        device: where.
        seed: of values and page order; the same seed gives the same inputs.
    """
    generator = torch.Generator(device).manual_seed(seed)
    per_sequence = [math.ceil(length / PAGE) for length in shape.lengths]
    pages = sum(per_sequence)
    caches = [_random_pages(pages * count, shape.kv_heads, generator) for _ in range(2)]
    order = torch.randperm(pages * count, generator=generator, device=device).int()
    batch = len(shape.lengths)
    queries = torch.tensor([0, *shape.query_lengths], dtype=torch.int32, device=device)
    tokens = sum(shape.query_lengths)
    q = torch.randn(tokens, shape.query_heads, HEAD, generator=generator, device=device).bfloat16()
    lengths = torch.tensor(shape.lengths, dtype=torch.int32, device=device)
    offsets = queries.cumsum(0).int()
    ones = torch.ones(1, dtype=torch.float32, device=device)
    out = torch.empty_like(q)
    width = max(math.ceil(shape.context_length / PAGE), max(per_sequence))
    found = []
    for number in range(count):
        table = torch.zeros(batch, width, dtype=torch.int32, device=device)
        place = number * pages
        for seq, size in enumerate(per_sequence):
            table[seq, :size] = order[place : place + size]
            place += size
        found.append(
            Inputs(
                shape=shape,
                q=q,
                k_cache=caches[0],
                v_cache=caches[1],
                out=out,
                cu_seqlens_q=offsets,
                seqused_k=lengths,
                block_table=table,
                k_descale=ones,
                v_descale=ones,
            )
        )
    return found


def _random_pages(pages: int, kv_heads: int, generator: torch.Generator) -> torch.Tensor:
    device = generator.device
    cache = torch.empty(pages, PAGE, kv_heads, HEAD, dtype=torch.float8_e4m3fn, device=device)
    for start in range(0, pages, CHUNK_PAGES):
        part = cache[start : start + CHUNK_PAGES]
        part.copy_(torch.randn(part.shape, generator=generator, device=device))
    return cache


def fp32_answer(inputs: Inputs, sequences: int) -> torch.Tensor:
    """The fp32 result for the first ``sequences`` sequences: (tokens, query heads, 256).

    The same meaning as :mod:`kernel.reference`, a sequence at a time instead of a row.
    """
    rows = []
    shape, start = inputs.shape, 0
    for seq in range(sequences):
        length, tokens = shape.lengths[seq], shape.query_lengths[seq]
        pages = inputs.block_table[seq, : math.ceil(length / PAGE)].long()
        q = inputs.q[start : start + tokens].float().view(tokens, shape.kv_heads, shape.group, HEAD)
        start += tokens
        k = inputs.k_cache.view(torch.uint8)[pages].view(inputs.k_cache.dtype)
        v = inputs.v_cache.view(torch.uint8)[pages].view(inputs.v_cache.dtype)
        k = k.flatten(0, 1)[:length].float()  # (length, KV head, head size)
        v = v.flatten(0, 1)[:length].float()
        logits = torch.einsum("thgd,nhd->thgn", q, k) * inputs.softmax_scale
        position = torch.arange(length, device=q.device)
        last = length - tokens + torch.arange(tokens, device=q.device)
        logits.masked_fill_((position > last[:, None])[:, None, None], -math.inf)
        rows.append(torch.einsum("thgn,nhd->thgd", logits.softmax(-1), v).flatten(1, 2))
    return torch.cat(rows)
