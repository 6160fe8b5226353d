"""The plug-in's hooks on SGLang's aiter backend (AMD)."""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass
from typing import Any

from kernel.evidence import Evidence
from kernel.sglang_common import (
    DECODE,
    OTHER_PATH,
    UPSTREAM,
    Call,
    Hook,
    Served,
    exists,
    gate_case,
    seen,
    served_batch,
    served_modes,
)

BACKEND = "sglang.srt.layers.attention.aiter_backend"
UNIFIED_TARGET = f"{BACKEND}.unified_attention"
EXTEND_TARGET = f"{BACKEND}.AiterAttnBackend.forward_extend"
DECODE_TARGET = f"{BACKEND}.AiterAttnBackend.forward_decode"
MTP_MODULE = "sglang.kernels.ops.attention.unified_attention_3d_mtp"
MTP_TARGET = f"{MTP_MODULE}.unified_attention_3d_mtp_func"
# From 0.5.20 on: draft-extend and decode come to these first, which say whether they wrote the output.
RAGGED_TARGET = f"{MTP_MODULE}.unified_attention_3d_mtp_ragged_func"
DECODE_FUNC_TARGET = f"{MTP_MODULE}.unified_attention_3d_mtp_decode_func"
AITER_GENERIC = "aiter.ops.triton.attention.unified_attention:unified_attention"

_ATTENTION = ("q", "k", "v", "out", "seqused_k", "max_seqlen_k", "block_table")
_UNIFIED = (*_ATTENTION, "cu_seqlens_q", "max_seqlen_q")
_FORWARD = ("q", "k", "v", "layer", "forward_batch")


def hooks(arm: str, evidence: Evidence) -> list[Hook]:
    """Where an arm stands in."""
    arms = _Arm(arm, evidence)
    found = [
        Hook(UNIFIED_TARGET, _UNIFIED, arms.around_unified),
        Hook(EXTEND_TARGET, _FORWARD, arms.around_forward),
    ]
    if DECODE in arms.modes:
        found.append(Hook(DECODE_TARGET, _FORWARD, arms.around_forward))
    if exists(MTP_MODULE):
        found.append(Hook(MTP_TARGET, _UNIFIED, arms.around_mtp))
        if _is_there(RAGGED_TARGET):
            found.append(Hook(RAGGED_TARGET, _UNIFIED, arms.around_ragged))
        if DECODE in arms.modes and _is_there(DECODE_FUNC_TARGET):
            found.append(Hook(DECODE_FUNC_TARGET, _ATTENTION, arms.around_decode))
    return found


class _Arm:
    """An arm's wrappers, and the batch that the backend works on while they are called."""

    def __init__(self, arm: str, evidence: Evidence) -> None:
        # Imported now: a kernel that can't be imported must end the server at its start.
        from kernel.ops import mtp_verify_attention

        self._verify = mtp_verify_attention
        self.arm = arm
        self.evidence = evidence
        self.modes = served_modes(arm)
        # The batch being served, if there is one. Up to 0.5.18, draft-extend never comes to these functions.
        self._serving: list[Served] = []

    def around_forward(
        self, original: Call, backend: Any, q: Any, k: Any, v: Any, layer: Any, batch: Any, *args: Any, **kw: Any
    ) -> Any:
        """The backend's forward, for extend or decode: its calls of attention belong to one batch."""
        served = served_batch(self.evidence, batch, self.modes)
        if served is None:
            return original(backend, q, k, v, layer, batch, *args, **kw)
        self._serving.append(served)
        try:
            return original(backend, q, k, v, layer, batch, *args, **kw)
        finally:
            self._serving.pop()
            if not served.calls:
                reason = UPSTREAM if self.arm == UPSTREAM else OTHER_PATH
                served.count_passed(reason, seen(self.evidence, q.device))

    def around_unified(self, original: Call, **call: Any) -> Any:
        """AITER's kernel, for prefill, decode, draft-extend and verify."""
        if not self._attend(call, original):
            return original(**call)
        return None

    def around_mtp(self, original: Call, **call: Any) -> Any:
        """SGLang's own MTP function (from 0.5.19 on), behind its shape gate."""
        if not self._attend(call, _aiter):
            return original(**call)
        return call["out"]

    def around_ragged(self, original: Call, **call: Any) -> bool:
        """Draft-extend, behind the shape gate.  What nobody serves here comes to AITER's kernel."""
        return self._attend_or_say(original, call, call)

    def around_decode(self, original: Call, **call: Any) -> bool:
        """Decode, behind the shape gate: one query token a sequence, whose offsets SGLang leaves out."""
        import torch

        batch = call["seqused_k"].shape[0]
        starts = torch.arange(batch + 1, device=call["q"].device, dtype=torch.int32)
        return self._attend_or_say(original, call, call | {"cu_seqlens_q": starts, "max_seqlen_q": 1})

    def _attend_or_say(self, original: Call, call: dict[str, Any], full: dict[str, Any]) -> bool:
        """``call`` as SGLang made it; ``full`` with what it left out.  True if the output is written."""
        if not self._serving:
            return bool(original(**call))
        gated = self._gated(full)
        if gated.reason is None:
            return self._serve(gated, _aiter)
        done = bool(original(**call))
        if done:
            self._serve(gated, _aiter)  # counts why not
        return done

    def _attend(self, call: dict[str, Any], generic: Call) -> bool:
        """Serve one call of attention, or count why not.

        Args:
            call: as SGLang made it.
            generic: what the generic arm takes in its place.

        Returns:
            Whether the output is written.
        """
        return bool(self._serving) and self._serve(self._gated(call), generic)

    def _serve(self, gated: _Gated, generic: Call) -> bool:
        """Within a batch: serve a call that the gate has seen, or count why not.  True if the output is written."""
        call, served = gated.call, self._serving[-1]
        served.calls += 1
        captured = seen(self.evidence, call["q"].device)
        served.sequences = call["seqused_k"].shape[0]
        if gated.reason is not None:
            served.count_passed(gated.reason, captured)
            return False
        served.count_served(call["max_seqlen_q"], captured, "aiter" if self.arm == "generic" else _body(gated))
        if self.arm == "generic":
            generic(**call)
        else:
            self._verify(**_ours(call))
        return True

    def _gated(self, call: dict[str, Any]) -> _Gated:
        """A call as SGLang made it, before the gate."""
        from kernel.gate import reject_reason

        packed = _packed(call)
        if self.arm == UPSTREAM:
            return _Gated(packed, None, UPSTREAM)
        case = _case(packed)
        reason = reject_reason(case)
        if reason is None and not packed.get("causal", True):
            reason = "not_causal"
        return _Gated(packed, case, reason)


@dataclass(frozen=True)
class _Gated:
    """A call, heads packed, with what the gate saw of it; `reason`: why the arm does not serve it, None if it does."""

    call: dict[str, Any]
    case: Any
    reason: str | None


def _is_there(target: str) -> bool:
    module, _, name = target.rpartition(".")
    return hasattr(pkgutil.resolve_name(module), name)


def _aiter(**call: Any) -> None:
    """AITER's generic kernel for a call of SGLang's MTP functions."""
    unified: Call = pkgutil.resolve_name(AITER_GENERIC)
    unified(**call, causal=True, window_size=(-1, -1), softcap=0.0, q_descale=None)


def packed_heads(cache: Any) -> Any:
    """(pages, 16, heads, 256) with one head where SGLang 0.5.16 shows one as many by stride 0."""
    return cache[:, :, :1] if cache.shape[2] > 1 and cache.stride(2) == 0 else cache


def _packed(call: dict[str, Any]) -> dict[str, Any]:
    return {**call, "k": packed_heads(call["k"]), "v": packed_heads(call["v"])}


def _ours(call: dict[str, Any]) -> dict[str, Any]:
    from kernel.call import Pages

    names = (
        "q", "k", "v", "out", "cu_seqlens_q", "max_seqlen_q", "max_seqlen_k", "softmax_scale", "k_descale", "v_descale",
    )  # fmt: skip
    return {name: call[name] for name in names} | {"kv": Pages(call["seqused_k"], call["block_table"])}


def _body(gated: _Gated) -> str:
    from kernel.ops import chosen_body

    return chosen_body(gated.call["q"], gated.call["k"], gated.call["v"], gated.case)


def _case(call: dict[str, Any]) -> Any:
    return gate_case(
        call["q"],
        call["k"],
        layout="paged",
        window=call.get("window_size", (-1, -1))[0] + 1,
        softcap=call.get("softcap"),
        sinks=call.get("sinks"),
        batch=call["seqused_k"].shape[0],
        max_seqlen_q=call["max_seqlen_q"],
        max_seqlen_k=call["max_seqlen_k"],
    )
