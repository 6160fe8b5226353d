"""The public calls: check, select, allocate, launch.

Nothing here reads device memory on the host, and scratch sizes follow from host integers alone,
so every call may be captured in a CUDA or HIP graph.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from kernel.checks import (
    UnsupportedCase,
    check_lengths,
    check_paged_lengths,
    check_tensors,
    device_arch,
    split_descale,
)
from kernel.config import (
    Arch,
    GenericConfig,
    LaunchConfig,
    launched_programs,
    select,
    select_generic,
    split,
)
from kernel.gate import MAX_BATCH, AttentionCase, reject_reason
from kernel.generic_attention import generic_kernel, generic_reduce_kernel
from kernel.verify_attention import reduce_kernel, verify_kernel


def mtp_verify_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    out: torch.Tensor,
    *,
    cu_seqlens_q: torch.Tensor,
    seqused_k: torch.Tensor,
    block_table: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float,
    k_descale: torch.Tensor | float | None,
    v_descale: torch.Tensor | float | None,
    arch: Arch | None = None,
) -> torch.Tensor:
    """Causal attention of 1-4 query tokens a sequence over a paged FP8 cache.

    Args:
        q: (tokens, query heads, 256) bf16, last dimension contiguous.
        k_cache: (pages, 16, KV heads, 256) float8_e4m3fn, last dimension contiguous.
        v_cache: the same.
        out: like ``q``; overwritten.  Rows of ``q`` past ``cu_seqlens_q[-1]`` are left alone.
        cu_seqlens_q: (batch + 1,) int32 or int64 offsets of the sequences in ``q``.
        seqused_k: (batch,) int32 or int64 KV tokens, the query tokens included.
        block_table: (batch, width) int32 or int64 page numbers; entries past a length are unread.
        max_seqlen_q: longest query, in tokens.
        max_seqlen_k: longest KV length the host knows of, in tokens; may be padded.
        softmax_scale: factor of the logits.
        k_descale: value of a stored one: a number, ``None`` for 1, or an fp32 tensor that holds
            one number (also expanded from one).
        v_descale: the same for V.
        arch: the device, if not the one ``q`` is on.

    Returns:
        ``out``.  A row that sees no key is zero.

    Raises:
        UnsupportedCase: the gate refuses the case.
        ValueError: tensors that contradict each other.
    """
    check_tensors(q, k_cache, v_cache, out, cu_seqlens_q, page_dimensions=4)
    batch = check_paged_lengths(cu_seqlens_q, seqused_k, block_table)
    case, arch = _case(q, k_cache, batch, max_seqlen_q, max_seqlen_k, "paged", arch)
    _run(
        select(case, arch, gluon=gluon_fits(q, k_cache, v_cache)),
        q,
        k_cache,
        v_cache,
        out,
        page_size=k_cache.shape[1],
        cu_seqlens_q=cu_seqlens_q,
        lengths=seqused_k,
        index=block_table,
        drafts=None,
        softmax_scale=softmax_scale,
        k_descale=k_descale,
        v_descale=v_descale,
    )
    return out


def mtp_verify_attention_tokens(
    q: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    out: torch.Tensor,
    *,
    cu_seqlens_q: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    draft_slots: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float,
    k_descale: torch.Tensor | float | None,
    v_descale: torch.Tensor | float | None,
    arch: Arch | None = None,
) -> torch.Tensor:
    """The same attention where the metadata name a pool slot for every token.

    The prefix of sequence ``i`` lies in slots ``kv_indices[kv_indptr[i]:kv_indptr[i + 1]]`` and
    its query tokens' K and V, already written, in ``draft_slots`` at the places of ``q``.

    Args:
        q: (tokens, query heads, 256) bf16.
        k_buffer: (slots, KV heads, 256) float8_e4m3fn.
        v_buffer: the same.
        out: like ``q``; overwritten.
        cu_seqlens_q: (batch + 1,) int32 or int64 offsets of the sequences in ``q``.
        kv_indptr: (batch + 1,) int32 or int64.
        kv_indices: (prefix tokens,) int32 or int64; entries past ``kv_indptr[-1]`` are unread.
        draft_slots: (tokens,), of ``kv_indices``' dtype.
        max_seqlen_q: longest query, in tokens.
        max_seqlen_k: longest KV length the host knows of, in tokens; may be padded.
        softmax_scale: factor of the logits.
        k_descale: as in :func:`mtp_verify_attention`.
        v_descale: as in :func:`mtp_verify_attention`.
        arch: the device, if not the one ``q`` is on.

    Returns:
        ``out``.

    Raises:
        UnsupportedCase: the gate refuses the case.
        ValueError: tensors that contradict each other.
    """
    batch = _check_tokens(q, k_buffer, v_buffer, out, cu_seqlens_q, kv_indptr, kv_indices, draft_slots)
    case, arch = _case(q, k_buffer, batch, max_seqlen_q, max_seqlen_k, "tokens", arch)
    _run(
        select(case, arch, gluon=gluon_fits(q, k_buffer, v_buffer)),
        q,
        k_buffer.unsqueeze(1),
        v_buffer.unsqueeze(1),
        out,
        page_size=1,
        cu_seqlens_q=cu_seqlens_q,
        lengths=kv_indptr,
        index=kv_indices,
        drafts=draft_slots,
        softmax_scale=softmax_scale,
        k_descale=k_descale,
        v_descale=v_descale,
    )
    return out


def generic_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    out: torch.Tensor,
    *,
    cu_seqlens_q: torch.Tensor,
    seqused_k: torch.Tensor,
    block_table: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float,
    k_descale: torch.Tensor | float | None,
    v_descale: torch.Tensor | float | None,
    arch: Arch | None = None,
) -> torch.Tensor:
    """The generic arm: arguments, result and errors of :func:`mtp_verify_attention`."""
    check_tensors(q, k_cache, v_cache, out, cu_seqlens_q, page_dimensions=4)
    batch = check_paged_lengths(cu_seqlens_q, seqused_k, block_table)
    case, arch = _case(q, k_cache, batch, max_seqlen_q, max_seqlen_k, "paged", arch)
    _run_generic(
        select_generic(case, arch),
        q,
        k_cache,
        v_cache,
        out,
        max_seqlen_q=max_seqlen_q,
        cu_seqlens_q=cu_seqlens_q,
        lengths=seqused_k,
        index=block_table,
        drafts=None,
        softmax_scale=softmax_scale,
        k_descale=k_descale,
        v_descale=v_descale,
    )
    return out


def generic_attention_tokens(
    q: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    out: torch.Tensor,
    *,
    cu_seqlens_q: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    draft_slots: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float,
    k_descale: torch.Tensor | float | None,
    v_descale: torch.Tensor | float | None,
    arch: Arch | None = None,
) -> torch.Tensor:
    """The generic arm over token slots: arguments, result and errors of :func:`mtp_verify_attention_tokens`."""
    batch = _check_tokens(q, k_buffer, v_buffer, out, cu_seqlens_q, kv_indptr, kv_indices, draft_slots)
    case, arch = _case(q, k_buffer, batch, max_seqlen_q, max_seqlen_k, "tokens", arch)
    _run_generic(
        select_generic(case, arch),
        q,
        k_buffer.unsqueeze(1),
        v_buffer.unsqueeze(1),
        out,
        max_seqlen_q=max_seqlen_q,
        cu_seqlens_q=cu_seqlens_q,
        lengths=kv_indptr,
        index=kv_indices,
        drafts=draft_slots,
        softmax_scale=softmax_scale,
        k_descale=k_descale,
        v_descale=v_descale,
    )
    return out


def scratch(launched: int, rows: int, head: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Partial results (launched, rows, head) in fp16 and log2 of their weights in fp32, both unset."""
    return (
        torch.empty((launched, rows, head), dtype=torch.float16, device=device),
        torch.empty((launched, rows), dtype=torch.float32, device=device),
    )


def _generic_scratch(
    config: GenericConfig, batch: int, max_seqlen_q: int, kv_heads: int, head: int, device: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    shape = (batch, max_seqlen_q, kv_heads, config.segments, config.block_m)
    if config.segments == 1:
        shape = (1, 1, 1, 1, 1)  # written directly
    return (
        torch.empty((*shape, head), dtype=torch.float32, device=device),
        torch.empty(shape, dtype=torch.float32, device=device),
        torch.empty(shape, dtype=torch.float32, device=device),
    )


def _run(
    config: LaunchConfig,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    *,
    page_size: int,
    cu_seqlens_q: torch.Tensor,
    lengths: torch.Tensor,
    index: torch.Tensor,
    drafts: torch.Tensor | None,
    softmax_scale: float,
    k_descale: torch.Tensor | float | None,
    v_descale: torch.Tensor | float | None,
) -> None:
    kv_heads, head = k.shape[2], q.shape[2]
    batch = cu_seqlens_q.shape[0] - 1
    launched = launched_programs(config, batch, kv_heads)
    cut = split(config, batch, kv_heads)
    partial, lse = scratch(launched, config.rows, head, q.device)
    k_number, k_tensor = split_descale(k_descale)
    v_number, v_tensor = split_descale(v_descale)
    shared = {
        "GROUP": q.shape[1] // kv_heads,
        "MIN_TILES": config.min_tiles,
        "BATCH_BLOCK": config.batch_block,
        "TOKENS": drafts is not None,
    }
    if config.gluon:
        _launch(_gluon_kernel(), (launched,))(
            q,
            k,
            v,
            partial,
            lse,
            out,
            counters(q.device) if config.shares else None,
            cu_seqlens_q,
            lengths,
            index,
            drafts,
            k_tensor,
            v_tensor,
            softmax_scale * k_number,
            v_number,
            batch,
            kv_heads,
            *cut,
            index.stride(0),
            *q.stride()[:2],
            *k.stride()[:3],
            *out.stride()[:2],
            SHARES=config.shares,
            **shared,
            num_warps=config.num_warps,
            # Programs that wait for each other must all be on the device: so the driver promises.
            launch_cooperative_grid=config.shares > 0,
        )
        if config.shares:
            return
    else:
        _launch(verify_kernel, (launched,))(
            q,
            k,
            v,
            partial,
            lse,
            cu_seqlens_q,
            lengths,
            index,
            drafts,
            k_tensor,
            softmax_scale * k_number,
            batch,
            kv_heads,
            *cut,
            index.stride(0),
            *q.stride()[:2],
            *k.stride()[:3],
            *v.stride()[:3],
            HEAD=head,
            ROWS=config.rows,
            TILE=config.tile,
            PAGE=page_size,
            FP16=config.arithmetic == "fp16",
            INTERPRETED=q.device.type == "cpu",
            **shared,
            num_warps=config.num_warps,
            num_stages=config.num_stages,
        )
    reduce_grid = (
        batch * kv_heads,
        config.rows // config.reduce_block,
        head // config.reduce_columns,
    )
    _launch(reduce_kernel, reduce_grid)(
        out,
        partial,
        lse,
        cu_seqlens_q,
        lengths,
        v_tensor,
        v_number,
        batch,
        kv_heads,
        *cut,
        config.rows,
        *out.stride()[:2],
        HEAD=head,
        TILE=config.tile,
        INTERPRETED=q.device.type == "cpu",
        **shared,
        CHUNK=config.reduce_chunk,
        BLOCK=config.reduce_block,
        COLUMNS=config.reduce_columns,
        num_warps=config.reduce_warps,
    )


def _run_generic(
    config: GenericConfig,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    *,
    max_seqlen_q: int,
    cu_seqlens_q: torch.Tensor,
    lengths: torch.Tensor,
    index: torch.Tensor,
    drafts: torch.Tensor | None,
    softmax_scale: float,
    k_descale: torch.Tensor | float | None,
    v_descale: torch.Tensor | float | None,
) -> None:
    kv_heads, head = k.shape[2], q.shape[2]
    batch = cu_seqlens_q.shape[0] - 1
    partial, tops, sums = _generic_scratch(config, batch, max_seqlen_q, kv_heads, head, q.device)
    k_number, k_tensor = split_descale(k_descale)
    v_number, v_tensor = split_descale(v_descale)
    _launch(generic_kernel, (batch * max_seqlen_q, kv_heads, config.segments))(
        q,
        k,
        v,
        out,
        partial,
        tops,
        sums,
        cu_seqlens_q,
        lengths,
        index,
        drafts,
        k_tensor,
        v_tensor,
        softmax_scale * k_number,
        v_number,
        max_seqlen_q,
        config.segments,
        index.stride(0),
        *q.stride()[:2],
        *k.stride()[:3],
        *v.stride()[:3],
        *out.stride()[:2],
        HEAD=head,
        ROWS=config.block_m,
        PAGE=k.shape[1],
        TILE=config.tile,
        DIRECT=config.segments == 1,
        TOKENS=drafts is not None,
        INTERPRETED=q.device.type == "cpu",
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        **_amd_options(config.waves_per_eu),
    )
    if config.segments > 1:
        _launch(generic_reduce_kernel, (batch * max_seqlen_q, kv_heads, config.block_m))(
            out,
            partial,
            tops,
            sums,
            cu_seqlens_q,
            v_tensor,
            v_number,
            max_seqlen_q,
            *out.stride()[:2],
            HEAD=head,
            ROWS=config.block_m,
            SEGMENTS=config.segments,
            INTERPRETED=q.device.type == "cpu",
            num_warps=config.reduce_warps,
        )


@functools.cache
def _gluon_kernel() -> Any:
    """The Hopper kernel, or None where Triton has no Gluon that it knows."""
    try:
        from kernel.hopper_attention import hopper_kernel
    except (ImportError, AttributeError):
        return None
    return hopper_kernel


def gluon_fits(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether the Hopper kernel may run: it copies 16 bytes at a time, and K and V alike."""
    aligned = all(stride % 16 == 0 for stride in k.stride()[:-1]) and k.data_ptr() % 16 == v.data_ptr() % 16 == 0
    return q.device.type == "cuda" and k.stride() == v.stride() and aligned and _gluon_kernel() is not None


COUNTER_ROWS = 256
_counter_rows: dict[torch.device, torch.Tensor] = {}
_counter_row_of: dict[tuple[torch.device, int], int] = {}


def counters(device: torch.device) -> torch.Tensor:
    """Zeros that every launch leaves as zeros: programs of an item that are done.

    A stream has a row of its own, as launches of different streams may run at the same time.  Graphs
    captured on one stream share its row, so they must not be replayed at the same time.
    """
    if device not in _counter_rows:
        rows = torch.zeros((COUNTER_ROWS, MAX_BATCH), dtype=torch.int32, device=device)
        if torch.cuda.is_current_stream_capturing():
            return rows[0]  # the graph itself makes them zeros, and other graphs must not rely on it
        torch.cuda.synchronize(device)  # once: other streams may use their rows next
        _counter_rows[device] = rows
    key = (device, torch.cuda.current_stream(device).cuda_stream)
    row = _counter_row_of.setdefault(key, len(_counter_row_of))
    if row >= COUNTER_ROWS:
        return torch.zeros(MAX_BATCH, dtype=torch.int32, device=device)
    return _counter_rows[device][row]


def _launch(kernel: Any, grid: tuple[int, ...]) -> Callable[..., Any]:
    """Bind a grid; Triton's launcher type says nothing useful."""
    launcher: Callable[..., Any] = kernel[grid]
    return launcher


def _amd_options(waves_per_eu: int) -> dict[str, int]:
    return {"waves_per_eu": waves_per_eu} if waves_per_eu and torch.version.hip else {}


def _check_tokens(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    draft_slots: torch.Tensor,
) -> int:
    """The batch size, once the tensors agree on it."""
    check_tensors(q, k, v, out, cu_seqlens_q, page_dimensions=3)
    check_lengths(cu_seqlens_q, kv_indptr, kv_indices, draft_slots)
    batch = kv_indptr.shape[0] - 1
    if cu_seqlens_q.shape != (batch + 1,):
        raise ValueError(f"cu_seqlens_q must be ({batch + 1},), got {tuple(cu_seqlens_q.shape)}")
    if draft_slots.dtype != kv_indices.dtype:
        raise ValueError(f"draft_slots must have kv_indices' dtype {kv_indices.dtype}")
    if draft_slots.shape[0] < q.shape[0]:
        raise ValueError(f"{q.shape[0]} query tokens but {draft_slots.shape[0]} draft slots")
    return batch


def _case(
    q: torch.Tensor,
    k: torch.Tensor,
    batch: int,
    max_seqlen_q: int,
    max_seqlen_k: int,
    layout: str,
    arch: Arch | None,
) -> tuple[AttentionCase, Arch]:
    arch = arch or device_arch(q.device)
    case = AttentionCase(
        arch=arch.name,
        query_heads=q.shape[1],
        kv_heads=k.shape[-2],
        head_size=q.shape[2],
        page_size=k.shape[1] if layout == "paged" else 1,
        q_dtype=str(q.dtype).removeprefix("torch."),
        kv_dtype=str(k.dtype).removeprefix("torch."),
        batch=batch,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        layout=layout,
    )
    reason = reject_reason(case)
    if reason is not None:
        raise UnsupportedCase(reason, case)
    return case, arch
