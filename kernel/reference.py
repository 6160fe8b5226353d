"""What verify attention means, in fp32 and one row at a time: slow and obvious."""

from __future__ import annotations

import math

import torch


def reference_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    *,
    cu_seqlens_q: torch.Tensor,
    seqused_k: torch.Tensor,
    block_table: torch.Tensor,
    softmax_scale: float,
    k_descale: torch.Tensor | float | None = 1.0,
    v_descale: torch.Tensor | float | None = 1.0,
) -> torch.Tensor:
    """Causal attention of the last query tokens of each sequence over its paged KV.

    Args:
        q: (tokens, query heads, head size), any float dtype.
        k_cache: (pages, page size, KV heads, head size), any float dtype.
        v_cache: the same shape as ``k_cache``.
        cu_seqlens_q: (batch + 1,) offsets of each sequence's queries in ``q``.
        seqused_k: (batch,) KV tokens of each sequence, its query tokens included.
        block_table: (batch, pages a sequence) page numbers.
        softmax_scale: factor of the logits.
        k_descale: real value of a stored K of one; ``None`` for 1, or a tensor that holds it.
        v_descale: the same for V.

    Returns:
        (tokens, query heads, head size) fp32.  A row that sees no key is zero.
    """
    k_scale = _number(k_descale)
    v_scale = _number(v_descale)
    page_size = k_cache.shape[1]
    group = q.shape[1] // k_cache.shape[2]
    out = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
    starts = [int(x) for x in cu_seqlens_q]
    for seq, length in enumerate(int(x) for x in seqused_k):
        pages = block_table[seq, : math.ceil(length / page_size)].long()
        # (length, KV heads, head size) fp32
        k = k_cache[pages].float().flatten(0, 1)[:length] * k_scale
        v = v_cache[pages].float().flatten(0, 1)[:length] * v_scale
        query_length = starts[seq + 1] - starts[seq]
        for token in range(query_length):
            visible = length - query_length + token + 1
            if visible <= 0:
                continue
            for head in range(q.shape[1]):
                row = q[starts[seq] + token, head].float()
                logits = (k[:visible, head // group] @ row) * softmax_scale
                weights = torch.softmax(logits, dim=0)
                out[starts[seq] + token, head] = weights @ v[:visible, head // group]
    return out


def _number(descale: torch.Tensor | float | None) -> float:
    if descale is None:
        return 1.0
    return float(descale.flatten()[0]) if isinstance(descale, torch.Tensor) else descale


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """``|actual - expected| / |expected|`` over all elements in fp64; NaN anywhere gives NaN."""
    difference = actual.double() - expected.double()
    scale = expected.double().norm()
    return float(difference.norm() / scale) if scale > 0 else float(difference.norm())
