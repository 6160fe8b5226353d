"""What is timed.  An arm says why it cannot run; it never fails in silence.

Our own arms: ``ours`` (on gfx950 also each shape of its kernel by itself) and ``generic``.  Peers:

====================  =================================================================================
``asm``               SGLang's gfx950 assembly (its default there from 0.5.20 on); rounds Q and weights to E4M3
``mtp-triton``        SGLang's Triton MTP kernel, which the assembly replaced
``aiter``             AITER's unified attention
``verify_splitkv``    SGLang 0.5.23's Triton kernels for its Triton backend on gfx95, which run on NVIDIA
``verify_shared_kv``  too; they round Q to E4M3
``flashinfer``        FlashInfer's paged prefill, queries in bf16
``xqa``               FlashInfer's Hopper kernel with FP8 arithmetic; rounds Q and weights to E4M3
====================  =================================================================================
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from kernel import ops
from kernel.bench.inputs import Inputs
from kernel.bench.shapes import PAGE
from kernel.call import Pages
from kernel.checks import device_arch
from kernel.config import ONE_WAVE, TWO_WAVES
from kernel.launches import cdna4_shapes

Call = Callable[[], object]
"""Runs one arm on one set of inputs; the result lands in ``inputs.out``."""


class ArmUnavailable(Exception):
    """The arm's library is not installed, or does not serve this shape or device."""


# --- ours ---


def _ours(inputs: Inputs, shape: str | None = None) -> Call:
    arguments = _paged(inputs)
    return lambda: ops.mtp_verify_attention(**arguments, shape=shape)


def _shape(shape: str) -> Callable[[Inputs], Call]:
    def arm(inputs: Inputs) -> Call:
        name = device_arch(inputs.q.device).name if inputs.q.is_cuda else "cpu"
        if name != "gfx950":
            raise ArmUnavailable(f"shapes are those of the kernel for gfx950, not {name}")
        if shape not in cdna4_shapes():
            raise ArmUnavailable("this Triton passes no attributes on to LLVM")
        return _ours(inputs, shape)

    return arm


def _generic(inputs: Inputs) -> Call:
    arguments = _paged(inputs)
    return lambda: ops.generic_attention(**arguments)


def _paged(inputs: Inputs) -> dict[str, Any]:
    return {
        "q": inputs.q,
        "k": inputs.k_cache,
        "v": inputs.v_cache,
        "out": inputs.out,
        "kv": Pages(inputs.seqused_k, inputs.block_table),
        "cu_seqlens_q": inputs.cu_seqlens_q,
        "max_seqlen_q": inputs.shape.max_query_length,
        "max_seqlen_k": inputs.block_table.shape[1] * PAGE,
        "softmax_scale": inputs.softmax_scale,
        "k_descale": inputs.k_descale,
        "v_descale": inputs.v_descale,
    }


# --- SGLang and AITER on pages ---


def _unified(inputs: Inputs) -> dict[str, Any]:
    """Arguments as AITER and SGLang name them, with int64 lengths: the assembly takes no others."""
    arguments = _paged(inputs)
    del arguments["kv"]
    return arguments | {"seqused_k": inputs.seqused_k.long(), "block_table": inputs.block_table}


@contextmanager
def _assembly(wanted: bool) -> Iterator[None]:
    """SGLang reads at every call whether its assembly may run."""
    name = "SGLANG_ASM_VERIFY_ATTN"
    before = os.environ.get(name)
    os.environ[name] = "1" if wanted else "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _mtp(inputs: Inputs, assembly: bool) -> Call:
    module = _optional("sglang.kernels.ops.attention.unified_attention_3d_mtp")
    arguments = _unified(inputs)
    if assembly:
        enabled = getattr(module, "asm_verify_attn_enabled", None)
        if enabled is None:
            raise ArmUnavailable("this SGLang has no assembly kernel: it is there from 0.5.20 on")
        with _assembly(True):
            # Otherwise the function takes the Triton kernel without a word.
            if not enabled() or not _assembly_takes(module, arguments):
                raise ArmUnavailable("SGLang's assembly kernel does not serve this device, its ROCm or this shape")
    elif inputs.shape.group != 16 or inputs.shape.max_query_length == 1:
        raise ArmUnavailable("the Triton MTP kernel serves 2 to 4 query tokens of 16 heads a KV head")
    reset = getattr(module, "reset_verify_attn_plan_cache", lambda: None)

    def call() -> None:
        with _assembly(assembly):
            reset()  # SGLang's backend does it at every forward
            if not assembly:
                module.unified_attention_3d_mtp_func(**arguments)
            elif not module.unified_attention_3d_mtp_ragged_func(**arguments):
                raise RuntimeError("SGLang's assembly kernel refused what it had accepted")

    return call


def _assembly_takes(module: Any, arguments: dict[str, Any]) -> bool:
    names = ("q", "k", "v", "seqused_k", "cu_seqlens_q", "block_table", "max_seqlen_q", "k_descale", "v_descale")
    given = {name: arguments[name] for name in names}
    group = given["q"].shape[1] // given["k"].shape[2]
    return bool(module.asm_verify_attn_supported(**given, num_queries_per_kv=group))


def _aiter(inputs: Inputs) -> Call:
    module = _optional("aiter.ops.triton.attention.unified_attention")
    arguments = _unified(inputs) | {"seqused_k": inputs.seqused_k}
    arguments |= {"causal": True, "window_size": (-1, -1), "softcap": 0.0, "q_descale": None}
    return lambda: module.unified_attention(**arguments)


# --- SGLang's Triton backend: slots of tokens ---


def _verify_tokens(inputs: Inputs, module_name: str, function: str) -> Call:
    verify = getattr(_optional(module_name), function)
    shape = inputs.shape
    tokens = _uniform_queries(inputs)
    slots, drafts = [], []
    for seq, length in enumerate(shape.lengths):
        place = torch.arange(length, device=inputs.q.device)
        slot = inputs.block_table[seq].long()[place // PAGE] * PAGE + place % PAGE
        slots.append(slot[: length - tokens])
        drafts.append(slot[length - tokens :])
    prefixes = torch.tensor([0, *(length - tokens for length in shape.lengths)], device=inputs.q.device)
    k_buffer, v_buffer = (cache.flatten(0, 1) for cache in (inputs.k_cache, inputs.v_cache))
    own = torch.cat(drafts)
    # The drafts' K and V as the model made them, before they went to the cache.
    k_new, v_new = (
        buffer.view(torch.uint8)[own].view(buffer.dtype).bfloat16().contiguous() for buffer in (k_buffer, v_buffer)
    )
    values = (
        inputs.q, k_new, v_new, inputs.out, k_buffer, v_buffer, inputs.cu_seqlens_q, prefixes.cumsum(0).int(),
        torch.cat(slots), None, True, None, tokens, 1.0, 1.0, inputs.softmax_scale,
    )  # fmt: skip
    # It holds scratch for the largest batch that it ever saw.
    if not verify(*values):
        raise ArmUnavailable(f"{function} does not serve this shape")
    return lambda: verify(*values)


def _uniform_queries(inputs: Inputs) -> int:
    """Query tokens of every sequence."""
    if len(set(inputs.shape.query_lengths)) > 1:
        raise ArmUnavailable("it serves batches with as many query tokens in every sequence")
    return inputs.shape.max_query_length


# --- FlashInfer ---


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
        inputs.shape.query_heads,
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
    tokens = _uniform_queries(inputs)
    seen = [(1 << (token + 1)) - 1 for token in range(tokens)]
    mask = torch.tensor([[bits, 0] for bits in seen], dtype=torch.uint16, device=device)
    mask = mask.expand(len(inputs.shape.lengths), tokens, 2).contiguous()
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
        q_len_per_req=tokens,
        mask=mask,
    )


def _optional(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        # Of that name PyPI has another package, which is imported without complaint and has no operators.
        theirs = "; AMD's AITER is `amd-aiter` on PyPI, `aiter` there is something else"
        hint = theirs if name.startswith("aiter.") else ""
        raise ArmUnavailable(f"{name} cannot be imported: {error}{hint}") from error


ARMS: dict[str, Callable[[Inputs], Call]] = {
    "ours": _ours,
    f"ours-{ONE_WAVE}": _shape(ONE_WAVE),
    f"ours-{TWO_WAVES}": _shape(TWO_WAVES),
    "generic": _generic,
    "asm": lambda inputs: _mtp(inputs, assembly=True),
    "mtp-triton": lambda inputs: _mtp(inputs, assembly=False),
    "aiter": _aiter,
    "verify_splitkv": lambda inputs: _verify_tokens(
        inputs, "sglang.kernels.ops.attention.verify_splitkv", "verify_splitkv_fwd"
    ),
    "verify_shared_kv": lambda inputs: _verify_tokens(
        inputs, "sglang.kernels.ops.attention.verify_mla", "verify_shared_kv_fwd"
    ),
    "flashinfer": _flashinfer,
    "xqa": _xqa,
}
# An arm whose every set needs a plan, a workspace or indices of its own; fewer sets, still above L2 from
# a few MiB of KV a set on.
MAX_SETS_BY_ARM = {"flashinfer": 16, "xqa": 16, "verify_splitkv": 16, "verify_shared_kv": 16}
# Relative error beyond which an arm is not timed; a larger one is stated with the arm's times.
MAX_ERROR = 3e-3
MAX_ERROR_BY_ARM = {"flashinfer": 5e-3, **dict.fromkeys(("asm", "verify_splitkv", "verify_shared_kv", "xqa"), 5e-2)}
