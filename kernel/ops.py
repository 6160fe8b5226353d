"""The public calls: check, select, allocate, launch.

Nothing here reads device memory on the host, and scratch sizes follow from host integers alone,
so every call may be captured in a CUDA or HIP graph.
"""

from __future__ import annotations

from typing import Any

import torch

from kernel import config as configs
from kernel.call import Call, Descale, Pages, TokenSlots, checked_call
from kernel.checks import split_descale
from kernel.config import Arch, GenericConfig, LaunchConfig, launched_programs, select, select_generic, split
from kernel.counters import counters
from kernel.gate import AttentionCase
from kernel.launches import (
    Launch,
    cdna4_shapes,
    generic_launch,
    generic_reduce_launch,
    gluon_kernel,
    reduce_launch,
    verify_launch,
)
from kernel.measured import measured_shape

__all__ = ["Pages", "TokenSlots", "chosen_body", "generic_attention", "mtp_verify_attention"]


def mtp_verify_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    kv: Pages | TokenSlots,
    *,
    cu_seqlens_q: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float,
    k_descale: Descale = None,
    v_descale: Descale = None,
    arch: Arch | None = None,
    shape: str | None = None,
) -> torch.Tensor:
    """Causal attention of 1-4 query tokens a sequence over an FP8 cache.

    Args:
        q: (tokens, query heads, 256) bf16, last dimension contiguous.
        k: float8_e4m3fn, last dimension contiguous: (pages, 16, KV heads, 256), or (slots, KV heads, 256).
        v: the same.
        out: like ``q``; overwritten.  Rows of ``q`` past ``cu_seqlens_q[-1]`` are left alone.
        kv: where each sequence's K and V lie, in pages or in slots of tokens.
        cu_seqlens_q: (batch + 1,) int32 or int64 offsets of the sequences in ``q``.
        max_seqlen_q: longest query, in tokens.
        max_seqlen_k: longest KV length the host knows of, in tokens; may be padded.
        softmax_scale: factor of the logits.
        k_descale: value of a stored one: a number, ``None`` for 1, or an fp32 tensor that holds
            one number (also expanded from one).
        v_descale: the same for V.
        arch: the device, if not the one ``q`` is on.
        shape: of the kernel for gfx950, one of :data:`kernel.config.CDNA4_SHAPES`; by default the measured one.

    Returns:
        ``out``.  A row that sees no key is zero.

    Raises:
        UnsupportedCase: the gate refuses the case.
        ValueError: tensors that contradict each other.
    """
    call = checked_call(
        q, k, v, out, kv, cu_seqlens_q=cu_seqlens_q, max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k,
        softmax_scale=softmax_scale, k_descale=k_descale, v_descale=v_descale, arch=arch,
    )  # fmt: skip
    gluon = gluon_fits(call.q, call.k, call.v, call.arch.name)
    shape = shape or measured_shape(call.arch.name, configs.query_rows(call.case), cdna4_shapes())
    config = select(call.case, call.arch, gluon, shape)
    partial, lse = scratch(launched_programs(config, call.case.batch, call.kv_heads), config.rows, q.shape[2], q.device)
    _launch_verify(call, config, partial, lse)
    if not config.shares:
        _launch_reduction(call, config, partial, lse)
    return out


def generic_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    kv: Pages | TokenSlots,
    *,
    cu_seqlens_q: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float,
    k_descale: Descale = None,
    v_descale: Descale = None,
    arch: Arch | None = None,
) -> torch.Tensor:
    """The generic arm: arguments, result and errors of :func:`mtp_verify_attention`."""
    call = checked_call(
        q, k, v, out, kv, cu_seqlens_q=cu_seqlens_q, max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k,
        softmax_scale=softmax_scale, k_descale=k_descale, v_descale=v_descale, arch=arch,
    )  # fmt: skip
    config = select_generic(call.case, call.arch)
    _launch_generic(call, config)
    return out


def chosen_body(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, case: AttentionCase) -> str:
    """The module whose kernel serves a case that the gate accepts, on a device like ``case.arch``."""
    if k.ndim == 3:
        k, v = k.unsqueeze(1), v.unsqueeze(1)
    return select(case, Arch(case.arch, 1), gluon_fits(q, k, v, case.arch)).body


def gluon_fits(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, arch_name: str) -> bool:
    """Whether a kernel in Gluon may run: it copies 16 bytes at a time, and K and V alike."""
    aligned = all(stride % 16 == 0 for stride in k.stride()[:-1]) and k.data_ptr() % 16 == v.data_ptr() % 16 == 0
    return q.device.type == "cuda" and k.stride() == v.stride() and aligned and gluon_kernel(arch_name) is not None


def scratch(launched: int, rows: int, head: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Partial results (launched, rows, head) in fp16 and log2 of their weights in fp32, both unset."""
    return (
        torch.empty((launched, rows, head), dtype=torch.float16, device=device),
        torch.empty((launched, rows), dtype=torch.float32, device=device),
    )


def _run(launch: Launch, grid: tuple[int, ...], arguments: dict[str, Any], **options: Any) -> None:
    launch.function[grid](**arguments, **launch.constants, **launch.options, **options)


def _cut(call: Call, config: LaunchConfig) -> dict[str, Any]:
    """What both kernels find the pieces from."""
    slots, even_pieces = split(config, call.case.batch, call.kv_heads)
    return {
        "cu_seqlens_q_ptr": call.cu_seqlens_q,
        "lengths_ptr": call.kv.lengths,
        "batch": call.case.batch,
        "kv_heads": call.kv_heads,
        "slots": slots,
        "even_pieces": even_pieces,
    }


def _queries_and_index(call: Call) -> dict[str, Any]:
    """Q, K and V, the factor of the logits, and where KV lies."""
    k_number, k_tensor = split_descale(call.k_descale)
    return {
        "q_ptr": call.q,
        "k_ptr": call.k,
        "v_ptr": call.v,
        "index_ptr": call.kv.index,
        "k_descale_ptr": k_tensor,
        "logit_scale": call.softmax_scale * k_number,
        "index_stride": call.kv.index.stride(0),
        "q_stride_token": call.q.stride(0),
        "q_stride_head": call.q.stride(1),
    }


def _output(call: Call) -> dict[str, Any]:
    """The output and its factor."""
    v_number, v_tensor = split_descale(call.v_descale)
    return {
        "out_ptr": call.out,
        "v_descale_ptr": v_tensor,
        "out_scale": v_number,
        "out_stride_token": call.out.stride(0),
        "out_stride_head": call.out.stride(1),
    }


def _strides(call: Call, *, alike: bool) -> dict[str, int]:
    """Strides of K and V: once if they are alike."""
    names = ("stride_page", "stride_slot", "stride_head")
    if alike:
        return dict(zip(names, call.k.stride(), strict=False))
    return {
        f"{which}_{name}": stride
        for which, tensor in (("k", call.k), ("v", call.v))
        for name, stride in zip(names, tensor.stride(), strict=False)
    }


def _launch_verify(call: Call, config: LaunchConfig, partial: torch.Tensor, lse: torch.Tensor) -> None:
    launch = verify_launch(config, call.group, call.tokens, call.interpreted)
    arguments = _queries_and_index(call) | _cut(call, config)
    arguments |= _strides(call, alike=config.body != configs.PORTABLE)
    arguments |= {"partial_ptr": partial, "partial_lse_ptr": lse}
    if config.body != configs.CDNA4:
        arguments["draft_ptr"] = call.kv.drafts
    options = {}
    if config.body == configs.HOPPER:
        arguments |= _output(call) | {"done_ptr": counters(call.q.device) if config.shares else None}
        # Programs that wait for each other must all be on the device: so the driver promises.
        options["launch_cooperative_grid"] = config.shares > 0
    _run(launch, (partial.shape[0],), arguments, **options)


def _launch_reduction(call: Call, config: LaunchConfig, partial: torch.Tensor, lse: torch.Tensor) -> None:
    grid = (
        call.case.batch * call.kv_heads,
        config.rows // config.reduction.block,
        call.q.shape[2] // config.reduction.columns,
    )
    arguments = _cut(call, config) | _output(call)
    arguments |= {"partial_ptr": partial, "partial_lse_ptr": lse, "rows": config.rows}
    _run(reduce_launch(config, call.group, call.tokens, call.interpreted), grid, arguments)


def _launch_generic(call: Call, config: GenericConfig) -> None:
    blocks = -(-call.case.max_seqlen_q // (config.rows // call.group))  # of query tokens, a sequence
    shape = (call.case.batch, blocks, call.kv_heads, config.segments, config.rows)
    if config.segments == 1:
        shape = (1, 1, 1, 1, 1)  # written directly
    device = call.q.device
    partial = torch.empty((*shape, call.q.shape[2]), dtype=torch.float32, device=device)
    tops, sums = (torch.empty(shape, dtype=torch.float32, device=device) for _ in range(2))
    common = {
        "partial_ptr": partial,
        "partial_max_ptr": tops,
        "partial_sum_ptr": sums,
        "cu_seqlens_q_ptr": call.cu_seqlens_q,
        "query_blocks": blocks,
        **_output(call),
    }
    arguments = common | _queries_and_index(call) | _strides(call, alike=False)
    arguments |= {"lengths_ptr": call.kv.lengths, "draft_ptr": call.kv.drafts, "segments": config.segments}
    launch = generic_launch(config, call.group, call.tokens, bool(torch.version.hip), call.interpreted)
    _run(launch, (call.case.batch * blocks, call.kv_heads, config.segments), arguments)
    if config.segments > 1:
        grid = (call.case.batch * blocks, call.kv_heads, config.rows)
        _run(generic_reduce_launch(config, call.group, call.interpreted), grid, common)
