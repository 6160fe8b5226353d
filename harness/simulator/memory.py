"""What of a GPU's memory a server's weights, state and KV cache take, and how many requests of a load fit at once.

Read in SGLang 0.5.23 (kv_cache_configurator.py): `mem-fraction-static` of the memory is for weights and pools. With the
radix cache off, the linear layers' state is reserved for `max-running-requests` + 1 slots, and with speculation once
more for every drafted token of each; what is left is KV cache. Activations and graphs live outside that fraction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.engines.sglang_settings import SglangSettings
from harness.errors import MtpbenchError
from harness.scenario.format import Scenario
from harness.simulator.shapes import ModelShape, model_of

_GIB = 2**30
_DEFAULT_FRACTION = 0.8  # SGLang derives it where none is set: assumed
_CONVOLUTION = 3  # numbers a channel that a gated delta net's convolution of width 4 keeps
_BF16 = 2
_FP8_KV = ("fp8_e4m3", "fp8_e5m2")


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU of `tp`. `tokens`: how many tokens the KV cache holds; below 1, the server does not start."""

    tp: int
    budget: float
    weights: float
    state: float
    kv_per_token: float

    @property
    def tokens(self) -> int:
        return int((self.budget - self.weights - self.state) / self.kv_per_token)

    def fits(self, request_tokens: int) -> int:
        """Requests of so many tokens that are in the cache together."""
        return max(0, self.tokens) // request_tokens

    def sentence(self, largest: int, request_tokens: int) -> str:
        """For a person: what is taken, and whether the largest level waits for memory."""
        at_once = self.fits(request_tokens)
        text = (
            f"TP{self.tp}, a GPU, GiB: {self.budget / _GIB:.0f} for weights {self.weights / _GIB:.0f}, "
            f"state {self.state / _GIB:.1f}, KV {max(0, self.tokens) * self.kv_per_token / _GIB:.1f} "
            f"({max(0, self.tokens)} tokens)"
        )
        if self.tokens < 1:
            return f"{text}: it will not start. Raise mem-fraction-static or lower max-running-requests."
        if at_once < largest:
            return f"{text}: concurrency {largest} QUEUES, {at_once} requests of {request_tokens} tokens fit at once"
        return f"{text}: all {largest} requests of {request_tokens} tokens fit"


def estimate(settings: SglangSettings, tp: int, slots: int, memory_gib: float) -> Memory:
    """The memory of one server. Raises MtpbenchError for a model whose dimensions are not known.

    Args:
        slots: what `$max_concurrency` stands for.
        memory_gib: of one GPU, as ROCm and CUDA count it.
    """
    shape = model_of(settings)
    flags: dict[str, Any] = {k: slots if v == "$max_concurrency" else v for k, v in settings.flags.items()}
    drafts = settings.speculation is not None
    fraction = float(flags.get("mem-fraction-static") or _DEFAULT_FRACTION)
    running = int(flags.get("max-running-requests") or slots)
    per_request = _state(shape, flags) / tp
    copies = 1 + (settings.speculation.draft_tokens if settings.speculation else 0)
    kv_bytes = 1 if flags.get("kv-cache-dtype") in _FP8_KV else 2
    kv_heads = max(1, shape.kv_heads // tp)
    return Memory(
        tp=tp,
        budget=fraction * memory_gib * _GIB,
        weights=_weights(shape, drafts) / tp,
        state=(running + 1) * copies * per_request,
        kv_per_token=(shape.full_layers + int(drafts)) * 2 * kv_heads * shape.head_size * kv_bytes,
    )


def _weights(shape: ModelShape, drafts: bool) -> float:
    """All experts, not those that a token touches; the embedding and the head are bf16 whatever the rest is. The draft
    model is one full-attention layer and a projection of two hidden states; it shares embedding and head."""
    experts = shape.mlp_weights * (shape.experts + shape.shared_experts)
    layers = shape.dense_weights(shape.full_layers, shape.linear_layers) + shape.layers * experts
    if drafts:
        layers += shape.dense_weights(1, 0) + experts + 2 * shape.hidden * shape.hidden
    return layers * shape.bytes_per_weight + 2 * shape.head_weights * _BF16


def _state(shape: ModelShape, flags: dict[str, Any]) -> float:
    """Bytes of one request's state over all ranks: the recurrent state, and the convolution's last inputs in bf16."""
    recurrent = shape.state_bytes_per_sequence()
    if flags.get("mamba-ssm-dtype") in ("bfloat16", "float16"):
        recurrent *= 2 / shape.state_bytes
    channels = (2 * shape.linear_key_heads + shape.linear_value_heads) * 128
    return recurrent + shape.linear_layers * channels * _CONVOLUTION * _BF16


def memory_notes(scenario: Scenario, memory_gib: float) -> list[str]:
    """A sentence for each TP: of the arm that has the least room. Empty for models whose dimensions are not known."""
    tokens = scenario.max_context
    if tokens is None:
        return []
    largest = max((level.concurrency for level in scenario.levels()), default=0)
    out = []
    for tp in scenario.tp:
        found = []
        for arm in scenario.resolved_arms():
            if not isinstance(arm.server, SglangSettings):
                return []
            try:
                found.append((estimate(arm.server, tp, scenario.max_slots, memory_gib), arm.name))
            except MtpbenchError:
                return []
        memory, name = min(found, key=lambda one: one[0].tokens)
        out.append(f"memory of {name}, {memory.sentence(largest, tokens)}")
    return out
