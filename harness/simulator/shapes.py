"""What a model weighs and computes, a layer at a time: dense or MoE Qwen3.5 with gated delta nets and full attention.

Every fourth layer is full attention (a gated query: its projection is twice as wide), the others are gated delta
nets, whose state of `linear_value_heads` x 128 x 128 numbers a sequence is read and written each step.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from harness.engines import tiny_qwen35
from harness.engines.sglang_settings import SglangSettings
from harness.errors import MtpbenchError

_WEIGHT_BYTES = {"bf16": 2.0, "fp8": 1.0, "fp4": 0.53125}  # MXFP4: 4 bits and an 8-bit scale for 32 numbers
_LINEAR_HEAD = 128
TINY = "tiny-qwen3.5-"


@dataclass(frozen=True)
class ModelShape:
    """Dimensions of a model; `experts` = 0 is dense with `intermediate` wide layers.

    `accept_length` is the mean number of tokens a verify step yields with three drafts, where it is natural.
    """

    name: str
    layers: int
    hidden: int
    query_heads: int
    kv_heads: int
    linear_key_heads: int
    linear_value_heads: int
    intermediate: int
    vocabulary: int
    weights: str  # "bf16", "fp8" or "fp4"
    accept_length: float
    accept_spread: float  # standard deviation of that mean between requests
    state_bytes: int = 4  # of a number of the linear layers' state
    head_size: int = 256
    experts: int = 0
    experts_per_token: int = 0
    shared_experts: int = 0

    @property
    def full_layers(self) -> int:
        return self.layers // 4

    @property
    def linear_layers(self) -> int:
        return self.layers - self.full_layers

    @property
    def full_attention_weights(self) -> int:
        """Numbers in the projections of a full-attention layer."""
        queries, keys = self.query_heads * self.head_size, self.kv_heads * self.head_size
        return self.hidden * (2 * queries + 2 * keys) + queries * self.hidden

    @property
    def linear_attention_weights(self) -> int:
        """Numbers in the projections of a gated delta net: q, k, v, gate, two scalars a head, output."""
        keys, values = self.linear_key_heads * _LINEAR_HEAD, self.linear_value_heads * _LINEAR_HEAD
        return self.hidden * (2 * keys + 2 * values + 2 * self.linear_value_heads) + values * self.hidden

    @property
    def mlp_weights(self) -> int:
        """Numbers of one MLP, or of one expert."""
        return 3 * self.hidden * self.intermediate

    def state_bytes_per_sequence(self) -> float:
        """Bytes of the linear layers' state of one sequence."""
        return float(self.linear_layers * self.linear_value_heads * _LINEAR_HEAD**2 * self.state_bytes)

    def active_weights(self, full: int, linear: int) -> float:
        """Numbers that each token is multiplied with in so many layers, the head left out."""
        mlp = self.mlp_weights * ((self.experts_per_token + self.shared_experts) if self.experts else 1)
        return full * self.full_attention_weights + linear * self.linear_attention_weights + (full + linear) * mlp

    @property
    def expert_weights_per_token(self) -> int:
        """Numbers of routed and shared experts that a token is multiplied with in a layer; 0 where it is dense."""
        return self.mlp_weights * (self.experts_per_token + self.shared_experts) if self.experts else 0

    def dense_weights(self, full: int, linear: int) -> int:
        """Numbers in so many layers, experts and the head left out."""
        mlp = 0 if self.experts else self.mlp_weights
        return full * self.full_attention_weights + linear * self.linear_attention_weights + (full + linear) * mlp

    def touched_expert_weights(self, layers: int, tokens: float) -> float:
        """Numbers of the experts that `tokens` tokens read: of E with k a token, E (1 - (1 - k/E)^tokens)."""
        if not self.experts:
            return 0.0
        routed: float = self.experts * (1 - (1 - self.experts_per_token / self.experts) ** tokens)
        return layers * self.mlp_weights * (routed + self.shared_experts)

    @property
    def head_weights(self) -> int:
        return self.hidden * self.vocabulary

    @property
    def bytes_per_weight(self) -> float:
        return _WEIGHT_BYTES[self.weights]


# Dimensions: the published configuration (60 layers, 512 experts of which 10 and one shared are active).
# Accept length: published for three drafts, 3.33 without thinking; its spread between requests is assumed.
_QWEN35_397B = ModelShape(
    name="Qwen3.5-397B-A17B",
    layers=60,
    hidden=4096,
    query_heads=32,
    kv_heads=2,
    linear_key_heads=16,
    linear_value_heads=64,
    intermediate=1024,
    vocabulary=248320,
    weights="fp8",
    accept_length=3.33,
    accept_spread=0.15,
    experts=512,
    experts_per_token=10,
    shared_experts=1,
)
# Tiny models: accept length as measured on an H200 (docs/results, f89cac). Its requests differ by 0.11, no more than
# their own draws do.
_TINY_ACCEPT_LENGTH, _TINY_ACCEPT_SPREAD = 3.39, 0.0


def model_of(settings: SglangSettings) -> ModelShape:
    """The model that a server serves. Raises MtpbenchError for one whose dimensions are not known."""
    name = settings.model
    if name.removeprefix(TINY) in tiny_qwen35.KINDS:
        return _tiny(name.removeprefix(TINY))
    if "Qwen3.5-397B-A17B" in name:
        weights = "fp4" if "FP4" in name else "fp8" if "FP8" in name else "bf16"
        state = 2 if settings.env.get("SGLANG_MAMBA_SSM_DTYPE") == "bfloat16" else 4
        layers = _overridden_layers(settings) or _QWEN35_397B.layers
        return replace(_QWEN35_397B, weights=weights, state_bytes=state, layers=layers)
    raise MtpbenchError(
        f"the simulator does not know the dimensions of {name!r}",
        f"It knows Qwen3.5-397B-A17B (FP8, MXFP4) and {', '.join(TINY + kind for kind in tiny_qwen35.KINDS)}.",
    )


def _overridden_layers(settings: SglangSettings) -> int | None:
    text = settings.flags.get("json-model-override-args")
    try:
        return int(json.loads(str(text))["text_config"]["num_hidden_layers"]) if text else None
    except (ValueError, KeyError, TypeError) as error:
        raise MtpbenchError(f"flags.json-model-override-args can't be read: {error!r}") from error


def _tiny(kind: str) -> ModelShape:
    text: dict[str, Any] = tiny_qwen35.config(kind)["text_config"]
    experts = text.get("num_experts", 0)
    return ModelShape(
        name=TINY + kind,
        layers=text["num_hidden_layers"],
        hidden=text["hidden_size"],
        query_heads=text["num_attention_heads"],
        kv_heads=text["num_key_value_heads"],
        linear_key_heads=text["linear_num_key_heads"],
        linear_value_heads=text["linear_num_value_heads"],
        intermediate=text["moe_intermediate_size"] if experts else text["intermediate_size"],
        vocabulary=text["vocab_size"],
        weights="bf16",
        accept_length=_TINY_ACCEPT_LENGTH,
        accept_spread=_TINY_ACCEPT_SPREAD,
        experts=experts,
        experts_per_token=text.get("num_experts_per_tok", 0),
        shared_experts=1 if experts else 0,
    )
