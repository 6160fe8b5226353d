"""Puts a verify kernel into SGLang servers: the only file that imports sglang.

SGLang finds :func:`register` through its entry-point group ``sglang.srt.plugins`` and calls it in
the launcher and in every scheduler process.  The environment variable ``MTPBENCH_VERIFY`` picks
who serves target-verify:

=========  ==================================  ====================================
arm        aiter backend (AMD)                 Triton backend (NVIDIA)
=========  ==================================  ====================================
generic    AITER's unified attention, KV head  the generic arm of this package
           as it lies in the pool
in-tree    this package's verify kernel        this package's verify kernel
upstream   what SGLang does by itself          what SGLang does by itself
=========  ==================================  ====================================

Draft-extend has the same shape, a few query tokens a sequence on a long KV cache, and the arms
``generic`` and ``in-tree`` serve it too, as SGLang's own MTP kernel does on AMD from 0.5.19 on:
under the Triton backend it took more of a step than target-verify.  ``MTPBENCH_DRAFT_EXTEND=0``
leaves it alone, to tell the two effects apart.

Unset, nothing is hooked.  What the gate rejects keeps the path it had and is counted by reason;
:mod:`kernel.evidence` writes the counts down.  SGLang logs a plug-in's exceptions and serves on,
which would measure the baseline in the arm's name, so every failure here ends the process.

Written against SGLang 0.5.16 and 0.5.23.
"""

from __future__ import annotations

import inspect
import os
import pkgutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kernel.evidence import ARM_VARIABLE, FOLDER_VARIABLE, Evidence

ARMS = ("generic", "in-tree", "upstream")
TRITON_TARGET = "sglang.srt.layers.attention.triton_backend.TritonAttnBackend.forward_extend"
SPLIT_MODULE = "sglang.srt.layers.attention.hybrid_attn_backend"
SPLIT_TARGET = f"{SPLIT_MODULE}.HybridAttnBackend.__init__"
AITER_TARGET = "sglang.srt.layers.attention.aiter_backend.unified_attention"
AITER_EXTEND_TARGET = "sglang.srt.layers.attention.aiter_backend.AiterAttnBackend.forward_extend"
MTP_MODULE = "sglang.kernels.ops.attention.unified_attention_3d_mtp"
MTP_TARGET = f"{MTP_MODULE}.unified_attention_3d_mtp_func"
AITER_GENERIC = "aiter.ops.triton.attention.unified_attention:unified_attention"
# Our own reasons, beside the gate's: what only the engine's call shows.
OTHER_PATH = "other_path"  # the backend never came to the call that we replace
DRAFT_EXTEND_VARIABLE = "MTPBENCH_DRAFT_EXTEND"

Call = Callable[..., Any]

_engaged = False  # an installed mtpbench and the harness's folder may both name this entry point


class PluginError(Exception):
    """The arm can't be engaged; the message says why and what to do."""


@dataclass(frozen=True)
class Hook:
    """A function of SGLang to wrap, with the parameters that the wrapper relies on."""

    target: str
    parameters: tuple[str, ...]
    around: Call


def register() -> None:
    """The entry point.  Ends the process if an arm is asked for and can't be engaged."""
    global _engaged
    arm = os.environ.get(ARM_VARIABLE, "")
    if not arm or _engaged:
        return
    try:
        engage(arm)
        _engaged = True
    except Exception as error:
        # Not an Exception: SGLang would log it and serve without the arm.
        raise SystemExit(f"mtpbench: {ARM_VARIABLE}={arm} can't be engaged: {error}") from error


def engage(arm: str) -> Evidence:
    """Place the hooks of ``arm`` in this process.

    Raises:
        PluginError: unknown arm, or a hook that could not be placed.
    """
    if arm not in ARMS:
        raise PluginError(f"unknown arm; known: {', '.join(ARMS)}")
    import torch
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    amd = torch.version.hip is not None
    folder = os.environ.get(FOLDER_VARIABLE)
    evidence = Evidence(arm, {"sglang": _version("sglang")}, Path(folder) if folder else None)
    hooks = _aiter_hooks(arm, evidence) if amd else [_triton_hook(arm, evidence), *_split_hooks()]
    evidence.facts["hooks"] = [hook.target for hook in hooks]
    evidence.facts["serves_draft_extend"] = _serves_draft_extend(arm)
    for hook in hooks:
        before = _resolve(hook)
        HookRegistry.register(hook.target, hook.around, HookType.AROUND)
        HookRegistry.apply_hooks()  # only logs what it can't place
        if _resolve(hook) is before:
            raise PluginError(f"SGLang did not place the hook on {hook.target}: its log says why")
    evidence.start()
    print(f"mtpbench: verify arm {arm}, hooks on {', '.join(evidence.facts['hooks'])}", file=sys.stderr)
    return evidence


def _serves_draft_extend(arm: str) -> bool:
    return arm != "upstream" and os.environ.get(DRAFT_EXTEND_VARIABLE, "1") != "0"


@dataclass
class _Served:
    """A batch of few query tokens a sequence while the backend works on it; ``calls`` of attention seen so far."""

    evidence: Evidence
    draft_extend: bool
    sequences: int
    calls: int = 0

    def count_served(self, query_length: int, captured: bool, body: str) -> None:
        if self.draft_extend:
            self.evidence.count_draft_extend("served")
        else:
            self.evidence.count_served(self.sequences, query_length, captured, body)

    def count_passed(self, reason: str, captured: bool) -> None:
        if self.draft_extend:
            self.evidence.count_draft_extend(reason)
        else:
            self.evidence.count_passed(reason, self.sequences, captured)


def _few_tokens(evidence: Evidence, batch: Any, draft_extend: bool) -> _Served | None:
    """Is this batch one that the arm serves?"""
    mode = batch.forward_mode
    if mode.is_target_verify():
        return _Served(evidence, False, len(batch.seq_lens))
    if draft_extend and mode.is_draft_extend_v2():
        return _Served(evidence, True, len(batch.seq_lens))
    return None


def _resolve(hook: Hook) -> Any:
    try:
        found = pkgutil.resolve_name(hook.target)
    except (ImportError, AttributeError) as error:
        raise PluginError(f"{hook.target} is not there ({error}): this SGLang is not one that we know") from error
    known = inspect.signature(found, follow_wrapped=True).parameters
    missing = [name for name in hook.parameters if name not in known]
    if missing and not any(p.kind is p.VAR_KEYWORD for p in known.values()):
        raise PluginError(f"{hook.target} no longer has {', '.join(missing)}: this SGLang is not one that we know")
    return found


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


def _seen(evidence: Evidence, device: Any) -> bool:
    """Note rank and device once; is a graph being captured?"""
    import torch

    if evidence.rank is None:
        ready = torch.distributed.is_available() and torch.distributed.is_initialized()
        evidence.world_size = torch.distributed.get_world_size() if ready else 1
        if device.type == "cuda":
            evidence.facts["device"] = torch.cuda.get_device_name(device)
        evidence.rank = torch.distributed.get_rank() if ready else 0
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _arch(device: Any) -> str:
    from kernel import checks

    try:
        return checks.device_arch(device).name
    except ValueError:  # no GPU
        return str(device.type)


def _body(arch: str, q: Any, k: Any, v: Any) -> str:
    """Which of the in-tree kernels takes this call: the one for Hopper needs Gluon and aligned caches."""
    from kernel.ops import gluon_fits

    return "hopper_attention" if arch == "sm_90" and gluon_fits(q, k, v) else "verify_attention"


def _exists(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even its package
        return False


# --- Triton backend ---


def _triton_hook(arm: str, evidence: Evidence) -> Hook:
    # Imported now: a kernel that can't be imported must end the server at its start.
    from kernel.ops import generic_attention_tokens, mtp_verify_attention_tokens

    serve = {"generic": generic_attention_tokens, "in-tree": mtp_verify_attention_tokens}.get(arm)
    draft_extend = _serves_draft_extend(arm)

    def around(
        original: Call, backend: Any, q: Any, k: Any, v: Any, layer: Any, batch: Any, *args: Any, **kw: Any
    ) -> Any:
        """The backend writes K and V and looks up its buffers as ever; only its last call is replaced."""
        served = _few_tokens(evidence, batch, draft_extend)
        if served is None:
            return original(backend, q, k, v, layer, batch, *args, **kw)
        plain = backend.extend_attention_fwd

        def extend(*values: Any, **named: Any) -> Any:
            served.calls += 1
            return _extend(serve, served, plain, backend, batch, values, named)

        backend.extend_attention_fwd = extend
        try:
            result = original(backend, q, k, v, layer, batch, *args, **kw)
        finally:
            backend.extend_attention_fwd = plain
        if not served.calls:
            reason = "upstream" if serve is None else OTHER_PATH
            served.count_passed(reason, _seen(evidence, q.device))
        return result

    parameters = ("q", "k", "v", "layer", "forward_batch")
    return Hook(TRITON_TARGET, parameters, around)


def _split_hooks() -> list[Hook]:
    """Mends SGLang 0.5.16 where prefill and decode have backends of their own: the pair forgets its context length,
    which the MTP worker multiplies by, so that the first drafted step ends the server.  From 0.5.17 on it
    is set."""

    def around(original: Call, pair: Any, *args: Any, **kw: Any) -> None:
        original(pair, *args, **kw)
        if getattr(pair, "max_context_len", None) is None:
            pair.max_context_len = pair.decode_backend.max_context_len

    return [Hook(SPLIT_TARGET, ("decode_backend",), around)] if _exists(SPLIT_MODULE) else []


# extend_attention_fwd's parameters, in 0.5.16 and 0.5.23.
_EXTEND = (
    "q", "k", "v", "out", "k_buffer", "v_buffer", "qo_indptr", "kv_indptr", "kv_indices", "custom_mask",
    "is_causal", "mask_indptr", "max_len_extend", "k_scale", "v_scale", "sm_scale",
)  # fmt: skip


def _extend(
    serve: Call | None,
    served: _Served,
    plain: Call,
    backend: Any,
    batch: Any,
    values: tuple[Any, ...],
    named: dict[str, Any],
) -> Any:
    """Stands in for ``extend_attention_fwd`` while a batch of few query tokens a sequence is served."""
    from kernel.checks import attention_case
    from kernel.gate import reject_reason

    if len(values) != len(_EXTEND):
        raise PluginError(f"extend_attention_fwd was called with {len(values)} values instead of {len(_EXTEND)}")
    call = dict(zip(_EXTEND, values, strict=True))
    q, k_buffer = call["q"], call["k_buffer"]
    captured = _seen(served.evidence, q.device)
    served.sequences = call["kv_indptr"].shape[0] - 1
    if serve is None:
        served.count_passed("upstream", captured)
        return plain(*values, **named)
    case = attention_case(
        _arch(q.device),
        q,
        k_buffer,
        batch=served.sequences,
        max_seqlen_q=call["max_len_extend"],
        max_seqlen_k=backend.max_context_len,
        layout="tokens",
        sliding_window=max(named.get("sliding_window_size", -1), 0),
        softcap=int(bool(named.get("logit_cap"))),
        sinks=int(named.get("sinks") is not None),
        tree_width=max(backend.topk, 1),
    )
    reason = reject_reason(case) or _triton_reason(backend, call, named)
    if reason is not None:
        served.count_passed(reason, captured)
        return plain(*values, **named)
    generic = served.evidence.arm == "generic"
    body = "generic_attention" if generic else _body(case.arch, q, k_buffer, call["v_buffer"])
    served.count_served(case.max_seqlen_q, captured, body)
    return serve(
        q,
        k_buffer,
        call["v_buffer"],
        call["out"],
        cu_seqlens_q=call["qo_indptr"],
        kv_indptr=call["kv_indptr"],
        kv_indices=call["kv_indices"],
        draft_slots=batch.out_cache_loc,
        max_seqlen_q=case.max_seqlen_q,
        max_seqlen_k=case.max_seqlen_k,
        softmax_scale=call["sm_scale"],
        k_descale=call["k_scale"],
        v_descale=call["v_scale"],
    )


def _triton_reason(backend: Any, call: dict[str, Any], named: dict[str, Any]) -> str | None:
    """What the gate's case has no field for."""
    if not call["is_causal"]:
        return "not_causal"
    if named.get("score_mod") is not None or named.get("xai_temperature_len", -1) > 0:
        return "logit_change"
    # Where slots are virtual, out_cache_loc names no place in the pool. Up to 0.5.18, and from 0.5.19 on.
    translator = getattr(backend, "kv_index_translator", None)
    if getattr(backend, "_translate_kv_loc", None) is not None or getattr(translator, "is_translating", False):
        return "virtual_slots"
    return None


# --- aiter backend ---


def _aiter_hooks(arm: str, evidence: Evidence) -> list[Hook]:
    from kernel.ops import mtp_verify_attention

    # The batch being served, if there is one. Up to 0.5.18, draft-extend never comes to these functions.
    serving: list[_Served] = []
    draft_extend = _serves_draft_extend(arm)

    def around_extend(
        original: Call, backend: Any, q: Any, k: Any, v: Any, layer: Any, batch: Any, *args: Any, **kw: Any
    ) -> Any:
        served = _few_tokens(evidence, batch, draft_extend)
        if served is None:
            return original(backend, q, k, v, layer, batch, *args, **kw)
        serving.append(served)
        try:
            return original(backend, q, k, v, layer, batch, *args, **kw)
        finally:
            serving.pop()
            if not served.calls:
                reason = "upstream" if arm == "upstream" else OTHER_PATH
                served.count_passed(reason, _seen(evidence, q.device))

    def serve(original: Call, call: dict[str, Any], generic: Call) -> Any:
        """One call of attention: `call` as SGLang made it, `generic` what the generic arm takes in its place."""
        if not serving:
            return original(**call)
        served = serving[-1]
        served.calls += 1
        captured = _seen(evidence, call["q"].device)
        served.sequences = call["seqused_k"].shape[0]
        packed = {**call, "k": packed_heads(call["k"]), "v": packed_heads(call["v"])}
        reason = "upstream" if arm == "upstream" else _aiter_reason(packed)
        if reason is not None:
            served.count_passed(reason, captured)
            return original(**call)
        body = "aiter" if arm == "generic" else _body(_arch(call["q"].device), packed["q"], packed["k"], packed["v"])
        served.count_served(call["max_seqlen_q"], captured, body)
        return generic(**packed) if arm == "generic" else mtp_verify_attention(**_ours(packed))

    def around_unified(original: Call, **call: Any) -> Any:
        """AITER's kernel, for prefill, decode, draft-extend and verify."""
        return serve(original, call, original)

    def around_mtp(original: Call, **call: Any) -> Any:
        """SGLang's own MTP kernel (from 0.5.19 on), behind its shape gate."""

        def aiter(**packed: Any) -> Any:
            unified: Call = pkgutil.resolve_name(AITER_GENERIC)
            return unified(**packed, causal=True, window_size=(-1, -1), softcap=0.0, q_descale=None)

        return serve(original, call, aiter)

    unified = ("q", "k", "v", "out", "cu_seqlens_q", "max_seqlen_q", "seqused_k", "max_seqlen_k", "block_table")
    extend = ("q", "k", "v", "layer", "forward_batch")
    hooks = [Hook(AITER_TARGET, unified, around_unified), Hook(AITER_EXTEND_TARGET, extend, around_extend)]
    if _exists(MTP_MODULE):
        hooks.append(Hook(MTP_TARGET, unified, around_mtp))
    return hooks


_OURS = (
    "q", "out", "cu_seqlens_q", "seqused_k", "block_table", "max_seqlen_q", "max_seqlen_k",
    "softmax_scale", "k_descale", "v_descale",
)  # fmt: skip


def _ours(call: dict[str, Any]) -> dict[str, Any]:
    return {name: call[name] for name in _OURS} | {"k_cache": call["k"], "v_cache": call["v"]}


def packed_heads(cache: Any) -> Any:
    """(pages, 16, heads, 256) with one head where SGLang 0.5.16 shows one as many by stride 0."""
    return cache[:, :, :1] if cache.shape[2] > 1 and cache.stride(2) == 0 else cache


def _aiter_reason(call: dict[str, Any]) -> str | None:
    from kernel.checks import attention_case
    from kernel.gate import reject_reason

    q = call["q"]
    case = attention_case(
        _arch(q.device),
        q,
        call["k"],
        batch=call["seqused_k"].shape[0],
        max_seqlen_q=call["max_seqlen_q"],
        max_seqlen_k=call["max_seqlen_k"],
        sliding_window=max(call.get("window_size", (-1, -1))[0] + 1, 0),
        softcap=int(bool(call.get("softcap"))),
        sinks=int(call.get("sinks") is not None),
    )
    reason = reject_reason(case)
    if reason is None and not call.get("causal", True):
        return "not_causal"
    return reason
