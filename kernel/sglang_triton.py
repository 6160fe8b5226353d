"""The plug-in's hooks on SGLang's Triton backend (NVIDIA, and AMD where a server is started with it)."""

from __future__ import annotations

from typing import Any

from kernel.evidence import Evidence
from kernel.sglang_common import (
    OTHER_PATH,
    UPSTREAM,
    Call,
    Hook,
    PluginError,
    Served,
    exists,
    gate_case,
    seen,
    served_batch,
    served_modes,
)

TARGET = "sglang.srt.layers.attention.triton_backend.TritonAttnBackend.forward_extend"
SPLIT_MODULE = "sglang.srt.layers.attention.hybrid_attn_backend"
SPLIT_TARGET = f"{SPLIT_MODULE}.HybridAttnBackend.__init__"
# What the backend calls for a batch of few query tokens: the extend kernel, and before it, on gfx95 in 0.5.23, one of
# its own verify kernels, which take the same arguments and say whether they ran.
EXTEND_KERNEL = "extend_attention_fwd"
VERIFY_KERNELS = ("verify_shared_kv_fwd", "verify_splitkv_fwd")
# extend_attention_fwd's parameters, in 0.5.16 and 0.5.23.
_EXTEND = (
    "q", "k", "v", "out", "k_buffer", "v_buffer", "qo_indptr", "kv_indptr", "kv_indices", "custom_mask",
    "is_causal", "mask_indptr", "max_len_extend", "k_scale", "v_scale", "sm_scale",
)  # fmt: skip


def hooks(arm: str, evidence: Evidence) -> list[Hook]:
    """Where an arm stands in."""
    return [_extend_hook(arm, evidence), *_split_hooks()]


def _extend_hook(arm: str, evidence: Evidence) -> Hook:
    # Imported now: a kernel that can't be imported must end the server at its start.
    from kernel.ops import generic_attention, mtp_verify_attention

    serve = {"generic": generic_attention, "in-tree": mtp_verify_attention}.get(arm)
    modes = served_modes(arm)

    def around(
        original: Call, backend: Any, q: Any, k: Any, v: Any, layer: Any, batch: Any, *args: Any, **kw: Any
    ) -> Any:
        """The backend writes K and V and looks up its buffers as ever; only its last call is replaced."""
        served = served_batch(evidence, batch, modes)
        if served is None:
            return original(backend, q, k, v, layer, batch, *args, **kw)
        plain = {name: getattr(backend, name) for name in (EXTEND_KERNEL, *VERIFY_KERNELS) if hasattr(backend, name)}

        def extend(*values: Any, **named: Any) -> Any:
            served.calls += 1
            reason = _serve(serve, served, backend, batch, values, named)
            if reason is not None:
                served.count_passed(reason, seen(evidence, q.device))
                plain[EXTEND_KERNEL](*values, **named)

        def verify(name: str) -> Call:
            def call(*values: Any, **named: Any) -> bool:
                """One of SGLang's own verify kernels: what it does not serve comes to the extend kernel."""
                reason = UPSTREAM if serve is None else _serve(serve, served, backend, batch, values, named)
                done = reason is None or bool(plain[name](*values, **named))
                if done:
                    served.calls += 1
                if done and reason is not None:
                    served.count_passed(reason, seen(evidence, q.device))
                return done

            return call

        for name in plain:
            setattr(backend, name, extend if name == EXTEND_KERNEL else verify(name))
        try:
            result = original(backend, q, k, v, layer, batch, *args, **kw)
        finally:
            for name, kernel in plain.items():
                setattr(backend, name, kernel)
        if not served.calls:
            served.count_passed(UPSTREAM if serve is None else OTHER_PATH, seen(evidence, q.device))
        return result

    return Hook(TARGET, ("q", "k", "v", "layer", "forward_batch"), around)


def _split_hooks() -> list[Hook]:
    """Mends SGLang 0.5.16 where prefill and decode have backends of their own: the pair forgets its context length,
    which the MTP worker multiplies by, so that the first drafted step ends the server.  From 0.5.17 on it
    is set."""

    def around(original: Call, pair: Any, *args: Any, **kw: Any) -> None:
        original(pair, *args, **kw)
        if getattr(pair, "max_context_len", None) is None:
            pair.max_context_len = pair.decode_backend.max_context_len

    return [Hook(SPLIT_TARGET, ("decode_backend",), around)] if exists(SPLIT_MODULE) else []


def _named(values: tuple[Any, ...]) -> dict[str, Any]:
    if len(values) != len(_EXTEND):
        raise PluginError(f"{EXTEND_KERNEL} was called with {len(values)} values instead of {len(_EXTEND)}")
    return dict(zip(_EXTEND, values, strict=True))


def _serve(
    serve: Call | None,
    served: Served,
    backend: Any,
    batch: Any,
    values: tuple[Any, ...],
    named: dict[str, Any],
) -> str | None:
    """Stands in for ``extend_attention_fwd`` while a batch of few query tokens a sequence is served.

    Args:
        serve: the arm's kernel; None for SGLang's own.
        served: the batch.
        backend: SGLang's.
        batch: SGLang's.
        values: of the call.
        named: of the call.

    Returns:
        Why the call is not served; None where the output is written.
    """
    from kernel.call import TokenSlots
    from kernel.gate import reject_reason
    from kernel.ops import chosen_body

    call = _named(values)
    captured = seen(served.evidence, call["q"].device)
    served.sequences = call["kv_indptr"].shape[0] - 1
    case = None if serve is None else _case(served, backend, call, named)
    reason = UPSTREAM if case is None else reject_reason(case) or call_reason(backend, call, named)
    if serve is None or case is None or reason is not None:
        return reason
    generic = served.evidence.arm == "generic"
    body = "generic_attention" if generic else chosen_body(call["q"], call["k_buffer"], call["v_buffer"], case)
    served.count_served(case.max_seqlen_q, captured, body)
    serve(
        call["q"],
        call["k_buffer"],
        call["v_buffer"],
        call["out"],
        TokenSlots(call["kv_indptr"], call["kv_indices"], batch.out_cache_loc),
        cu_seqlens_q=call["qo_indptr"],
        max_seqlen_q=case.max_seqlen_q,
        max_seqlen_k=case.max_seqlen_k,
        softmax_scale=call["sm_scale"],
        k_descale=call["k_scale"],
        v_descale=call["v_scale"],
    )
    return None


def _case(served: Served, backend: Any, call: dict[str, Any], named: dict[str, Any]) -> Any:
    return gate_case(
        call["q"],
        call["k_buffer"],
        layout="tokens",
        window=named.get("sliding_window_size", -1),
        softcap=named.get("logit_cap"),
        sinks=named.get("sinks"),
        batch=served.sequences,
        max_seqlen_q=call["max_len_extend"],
        max_seqlen_k=backend.max_context_len,
        tree_width=max(backend.topk, 1),
    )


def call_reason(backend: Any, call: dict[str, Any], named: dict[str, Any]) -> str | None:
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
