"""The public calls: check, select, allocate, launch.

Nothing here reads device memory on the host, and scratch sizes follow from host integers alone,
so every call may be captured in a CUDA or HIP graph.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from kernel.checks import (
    UnsupportedCase,
    attention_case,
    check_paged_lengths,
    check_tensors,
    check_token_lengths,
    device_arch,
    split_descale,
)
from kernel.config import (
    Arch,
    GenericConfig,
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
    call = _paged(
        q, k_cache, v_cache, out, cu_seqlens_q, seqused_k, block_table, max_seqlen_q, max_seqlen_k, softmax_scale,
        k_descale, v_descale, arch,
    )  # fmt: skip
    return _verify(call)


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
    call = _tokens(
        q, k_buffer, v_buffer, out, cu_seqlens_q, kv_indptr, kv_indices, draft_slots, max_seqlen_q, max_seqlen_k,
        softmax_scale, k_descale, v_descale, arch,
    )  # fmt: skip
    return _verify(call)


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
    call = _paged(
        q, k_cache, v_cache, out, cu_seqlens_q, seqused_k, block_table, max_seqlen_q, max_seqlen_k, softmax_scale,
        k_descale, v_descale, arch,
    )  # fmt: skip
    return _generic(call)


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
    call = _tokens(
        q, k_buffer, v_buffer, out, cu_seqlens_q, kv_indptr, kv_indices, draft_slots, max_seqlen_q, max_seqlen_k,
        softmax_scale, k_descale, v_descale, arch,
    )  # fmt: skip
    return _generic(call)


@dataclass(frozen=True)
class _Call:
    """One call in either layout: token slots are pages of one token.

    Attributes:
        k: (pages, page size, KV heads, 256); ``v`` the same.
        lengths: KV tokens of each sequence; with ``drafts``, offsets of the prefixes in ``index``.
        index: page numbers, or token slots.
        drafts: slots of the query tokens; ``None`` where pages are given.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    out: torch.Tensor
    cu_seqlens_q: torch.Tensor
    lengths: torch.Tensor
    index: torch.Tensor
    drafts: torch.Tensor | None
    softmax_scale: float
    k_descale: torch.Tensor | float | None
    v_descale: torch.Tensor | float | None
    case: AttentionCase
    arch: Arch


def _paged(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    seqused_k: torch.Tensor,
    block_table: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float,
    k_descale: torch.Tensor | float | None,
    v_descale: torch.Tensor | float | None,
    arch: Arch | None,
) -> _Call:
    """A checked call over pages.  Raises UnsupportedCase or ValueError."""
    check_tensors(q, k, v, out, cu_seqlens_q, page_dimensions=4)
    batch = check_paged_lengths(cu_seqlens_q, seqused_k, block_table)
    arch = arch or device_arch(q.device)
    case = attention_case(arch.name, q, k, batch=batch, max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k)
    _refuse(case)
    return _Call(
        q, k, v, out, cu_seqlens_q, seqused_k, block_table, None, softmax_scale, k_descale, v_descale, case, arch
    )


def _tokens(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    draft_slots: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float,
    k_descale: torch.Tensor | float | None,
    v_descale: torch.Tensor | float | None,
    arch: Arch | None,
) -> _Call:
    """A checked call over token slots.  Raises UnsupportedCase or ValueError."""
    check_tensors(q, k, v, out, cu_seqlens_q, page_dimensions=3)
    batch = check_token_lengths(q, cu_seqlens_q, kv_indptr, kv_indices, draft_slots)
    arch = arch or device_arch(q.device)
    case = attention_case(
        arch.name, q, k, batch=batch, max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k, layout="tokens"
    )
    _refuse(case)
    k, v = k.unsqueeze(1), v.unsqueeze(1)
    return _Call(
        q, k, v, out, cu_seqlens_q, kv_indptr, kv_indices, draft_slots, softmax_scale, k_descale, v_descale, case, arch
    )


def _refuse(case: AttentionCase) -> None:
    reason = reject_reason(case)
    if reason is not None:
        raise UnsupportedCase(reason, case)


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


def _verify(call: _Call) -> torch.Tensor:
    q, k, v, out = call.q, call.k, call.v, call.out
    config = select(call.case, call.arch, gluon=gluon_fits(q, k, v))
    kv_heads, head = k.shape[2], q.shape[2]
    batch = call.case.batch
    launched = launched_programs(config, batch, kv_heads)
    cut = split(config, batch, kv_heads)
    partial, lse = scratch(launched, config.rows, head, q.device)
    k_number, k_tensor = split_descale(call.k_descale)
    v_number, v_tensor = split_descale(call.v_descale)
    shared = {
        "GROUP": q.shape[1] // kv_heads,
        "MIN_TILES": config.min_tiles,
        "BATCH_BLOCK": config.batch_block,
        "TOKENS": call.drafts is not None,
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
            call.cu_seqlens_q,
            call.lengths,
            call.index,
            call.drafts,
            k_tensor,
            v_tensor,
            call.softmax_scale * k_number,
            v_number,
            batch,
            kv_heads,
            *cut,
            call.index.stride(0),
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
            return out
    else:
        _launch(verify_kernel, (launched,))(
            q,
            k,
            v,
            partial,
            lse,
            call.cu_seqlens_q,
            call.lengths,
            call.index,
            call.drafts,
            k_tensor,
            call.softmax_scale * k_number,
            batch,
            kv_heads,
            *cut,
            call.index.stride(0),
            *q.stride()[:2],
            *k.stride()[:3],
            *v.stride()[:3],
            HEAD=head,
            ROWS=config.rows,
            TILE=config.tile,
            PAGE=k.shape[1],
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
        call.cu_seqlens_q,
        call.lengths,
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
    return out


def _generic(call: _Call) -> torch.Tensor:
    q, k, v, out = call.q, call.k, call.v, call.out
    config = select_generic(call.case, call.arch)
    kv_heads, head = k.shape[2], q.shape[2]
    batch = call.case.batch
    partial, tops, sums = _generic_scratch(config, batch, call.case.max_seqlen_q, kv_heads, head, q.device)
    k_number, k_tensor = split_descale(call.k_descale)
    v_number, v_tensor = split_descale(call.v_descale)
    _launch(generic_kernel, (batch * call.case.max_seqlen_q, kv_heads, config.segments))(
        q,
        k,
        v,
        out,
        partial,
        tops,
        sums,
        call.cu_seqlens_q,
        call.lengths,
        call.index,
        call.drafts,
        k_tensor,
        v_tensor,
        call.softmax_scale * k_number,
        v_number,
        call.case.max_seqlen_q,
        config.segments,
        call.index.stride(0),
        *q.stride()[:2],
        *k.stride()[:3],
        *v.stride()[:3],
        *out.stride()[:2],
        HEAD=head,
        ROWS=config.block_m,
        PAGE=k.shape[1],
        TILE=config.tile,
        DIRECT=config.segments == 1,
        TOKENS=call.drafts is not None,
        INTERPRETED=q.device.type == "cpu",
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        **_amd_options(config.waves_per_eu),
    )
    if config.segments > 1:
        _launch(generic_reduce_kernel, (batch * call.case.max_seqlen_q, kv_heads, config.block_m))(
            out,
            partial,
            tops,
            sums,
            call.cu_seqlens_q,
            v_tensor,
            v_number,
            call.case.max_seqlen_q,
            *out.stride()[:2],
            HEAD=head,
            ROWS=config.block_m,
            SEGMENTS=config.segments,
            INTERPRETED=q.device.type == "cpu",
            num_warps=config.reduce_warps,
        )
    return out


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
