"""What is timed.  An arm says why it cannot run; it never fails in silence."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

from kernel import ops
from kernel.bench.inputs import Inputs
from kernel.bench.shapes import PAGE, QUERY_LENGTH

Call = Callable[[], object]
"""Runs one arm on one set of inputs; the result lands in ``inputs.out``."""


class ArmUnavailable(Exception):
    """The arm's library is not installed."""


def _ours(inputs: Inputs) -> Call:
    return lambda: ops.mtp_verify_attention(**_paged(inputs))


def _generic(inputs: Inputs) -> Call:
    return lambda: ops.generic_attention(**_paged(inputs))


def _paged(inputs: Inputs) -> dict[str, Any]:
    return {
        "q": inputs.q,
        "k_cache": inputs.k_cache,
        "v_cache": inputs.v_cache,
        "out": inputs.out,
        "cu_seqlens_q": inputs.cu_seqlens_q,
        "seqused_k": inputs.seqused_k,
        "block_table": inputs.block_table,
        "max_seqlen_q": QUERY_LENGTH,
        "max_seqlen_k": inputs.block_table.shape[1] * PAGE,
        "softmax_scale": inputs.softmax_scale,
        "k_descale": inputs.k_descale,
        "v_descale": inputs.v_descale,
    }


def _upstream(inputs: Inputs) -> Call:
    module = _optional("sglang.kernels.ops.attention.unified_attention_3d_mtp")
    arguments = _paged(inputs)
    arguments["k"] = arguments.pop("k_cache")
    arguments["v"] = arguments.pop("v_cache")
    return lambda: module.unified_attention_3d_mtp_func(**arguments)


def _aiter(inputs: Inputs) -> Call:
    module = _optional("aiter.ops.triton.attention.unified_attention")
    arguments = _paged(inputs)
    arguments["k"] = arguments.pop("k_cache")
    arguments["v"] = arguments.pop("v_cache")
    arguments |= {"causal": True, "window_size": (-1, -1), "softcap": 0.0, "q_descale": None}
    return lambda: module.unified_attention(**arguments)


def _flashinfer(inputs: Inputs) -> Call:
    flashinfer = _optional("flashinfer")
    lengths = torch.tensor(inputs.shape.lengths, dtype=torch.int32)
    pages = (lengths + PAGE - 1) // PAGE
    indices = torch.cat([inputs.block_table[seq, : int(size)] for seq, size in enumerate(pages.tolist())])
    workspace = torch.empty(1 << 29, dtype=torch.uint8, device=inputs.q.device)
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend="fa2")
    wrapper.plan(
        inputs.cu_seqlens_q.cpu(),
        torch.cat([torch.zeros(1, dtype=torch.int32), pages.cumsum(0).int()]),
        indices,
        (lengths - 1) % PAGE + 1,
        16 * inputs.shape.kv_heads,
        inputs.shape.kv_heads,
        inputs.q.shape[2],
        PAGE,
        causal=True,
        sm_scale=inputs.softmax_scale,
        q_data_type=inputs.q.dtype,
        kv_data_type=inputs.k_cache.dtype,
    )
    return lambda: wrapper.run(inputs.q, (inputs.k_cache, inputs.v_cache), out=inputs.out)


def _xqa(inputs: Inputs) -> Call:
    """FlashInfer's Hopper kernel with FP8 arithmetic: it rounds Q and the weights to E4M3."""
    decode = _optional("flashinfer.decode")
    device = inputs.q.device
    # Its first 8 MiB are semaphores, which must start as zeros.
    workspace = torch.zeros(256 << 20, dtype=torch.uint8, device=device)
    seen = [(1 << (token + 1)) - 1 for token in range(QUERY_LENGTH)]
    mask = torch.tensor([[bits, 0] for bits in seen], dtype=torch.uint16, device=device)
    mask = mask.expand(len(inputs.shape.lengths), QUERY_LENGTH, 2).contiguous()
    return lambda: decode.xqa_batch_decode_with_kv_cache(
        query=inputs.q,
        kv_cache=(inputs.k_cache, inputs.v_cache),
        workspace_buffer=workspace,
        block_tables=inputs.block_table,
        seq_lens=inputs.seqused_k.view(torch.uint32),
        max_seq_len=inputs.block_table.shape[1] * PAGE,
        bmm1_scale=inputs.softmax_scale,
        bmm2_scale=1.0,
        out=inputs.out,
        q_len_per_req=QUERY_LENGTH,
        mask=mask,
    )


def _optional(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ArmUnavailable(f"{name} cannot be imported: {error}") from error


ARMS: dict[str, Callable[[Inputs], Call]] = {
    "ours": _ours,
    "generic": _generic,
    "upstream": _upstream,
    "aiter": _aiter,
    "flashinfer": _flashinfer,
    "xqa": _xqa,
}
# An arm whose every set needs a plan and a workspace of its own; fewer sets, still above L2 from
# a few MiB of KV a set on.
MAX_SETS_BY_ARM = {"flashinfer": 16, "xqa": 16}
# Relative error beyond which an arm is not timed; a larger one is stated with the arm's times.
MAX_ERROR = 3e-3
MAX_ERROR_BY_ARM = {"flashinfer": 5e-3, "xqa": 5e-2}
