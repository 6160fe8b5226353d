"""Seconds of a decode (or verify) step and of a prefill chunk on one machine, part by part.

A roofline: weights at the rate of memory or products at the rate of the matrix units, whichever is slower; attention
from attention.py; all-reduce for several ranks; small kernels as a time a layer. The scheduler's own work runs beside
the device's (overlap scheduling), so a step is as long as the longer of the two, and what is left is the host gap.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.engines.sglang_settings import SglangSettings, version_of
from harness.simulator import attention
from harness.simulator.attention import Call, Floats, Ints
from harness.simulator.causes import Effects
from harness.simulator.hardware import AttentionKernel, Hardware
from harness.simulator.shapes import ModelShape, model_of

# Parts of a step; `draft` is the draft model's decode passes, `draft_extend` its pass over the verified tokens.
STEP_PARTS = ("verify_attention", "draft", "draft_extend", "gemm", "all_reduce", "other", "host_gap")
DEFAULT_CONTEXT = 262144  # of Qwen3.5, where the scenario sets none
_UNLIMITED = 1 << 30
_LARGEST_GRAPH = 256  # where the scenario sets none: assumed, SGLang derives it from the memory
_ACTIVATION = 2  # bytes of a bf16 number
_MODE = "speculative-attention-mode"
_FIRST_ASSEMBLY, _ASSEMBLY_SWITCH = (0, 5, 20), "SGLANG_ASM_VERIFY_ATTN"
# Backends with which SGLang captures no graph of draft-extend (0.5.16 to 0.5.22).
_EAGER_DRAFT_EXTEND = ("fa3",)


@dataclass(frozen=True)
class Serving:
    """What of a server's settings the simulator needs."""

    speculative: bool
    draft_steps: int
    draft_tokens: int
    padded_context: int
    chunk: int
    max_running: int
    max_total_tokens: float
    graphs: tuple[int, ...]
    prefill_backend: str = ""
    draft_prefill_backend: str = ""
    draft_backend: str = ""  # of all the draft model's passes; empty: the same as the model's own

    @classmethod
    def of(
        cls, settings: SglangSettings, hardware: Hardware, max_slots: int, max_context: int, effects: Effects
    ) -> Serving:
        flags: dict[str, Any] = {
            name: {"$max_concurrency": max_slots, "$max_context": max_context}.get(str(value), value)
            for name, value in settings.flags.items()
        }
        largest = int(flags.get("cuda-graph-max-bs-decode") or flags.get("cuda-graph-max-bs") or _LARGEST_GRAPH)
        sizes = () if flags.get("disable-cuda-graph") else graph_sizes(settings.speculation is not None, largest)
        named = flags.get("cuda-graph-bs-decode") or flags.get("cuda-graph-bs")
        if isinstance(named, list):
            sizes = tuple(sorted(int(size) for size in named))
        base = str(flags.get("attention-backend") or "")
        prefill = str(flags.get("prefill-attention-backend") or base)
        decode = str(flags.get("decode-attention-backend") or base)
        drafting = str(flags.get("speculative-draft-attention-backend") or "")
        missing = effects.missing_graph_bucket or float("inf")
        spec = settings.speculation
        chunk = int(flags.get("chunked-prefill-size") or hardware.chunked_prefill)
        return cls(
            speculative=spec is not None,
            draft_steps=spec.steps if spec else 0,
            draft_tokens=spec.draft_tokens if spec else 1,
            padded_context=int(flags.get("context-length") or DEFAULT_CONTEXT),
            chunk=chunk if chunk > 0 else _UNLIMITED,  # SGLang: -1 is one chunk, however long
            max_running=int(flags.get("max-running-requests") or _UNLIMITED),
            max_total_tokens=float(flags.get("max-total-tokens") or "inf"),
            graphs=tuple(size for size in sizes if size < missing),
            prefill_backend=prefill,
            # SGLang: the backend of draft-extend serves the draft model's prefill, too.
            draft_prefill_backend=drafting or (decode if flags.get(_MODE) == "decode" else prefill),
            draft_backend=drafting,
        )

    def padded(self, batch: int) -> int | None:
        """The graph that a batch runs in, by its size; None: none is large enough, it runs eagerly."""
        place = bisect_left(self.graphs, batch)
        return self.graphs[place] if place < len(self.graphs) else None


def graph_sizes(speculative: bool, largest: int) -> tuple[int, ...]:
    """Batch sizes of which SGLang 0.5.16 captures graphs (`_generate_decode_cuda_graph_batch_sizes`)."""
    if speculative:
        every = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8), *range(272, largest + 1, 16)]
    else:
        every = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, largest + 1, 32)]
    return tuple(sorted({*(size for size in every if size <= largest), largest}))


@dataclass(frozen=True)
class _Fixed:
    """What a step of so many sequences costs whatever their lengths, in seconds; of drafts all but attention."""

    gemm: float
    all_reduce: float
    small: float
    draft: float
    draft_extend: float


@dataclass(frozen=True)
class _Passes:
    """Passes of the draft model in a step: who serves attention, tokens a sequence, how many."""

    kernel: AttentionKernel
    query_tokens: int
    times: int


def _has_assembly(settings: SglangSettings) -> bool:
    """Does SGLang verify in assembly by itself? It does from 0.5.20 on; without a version, nothing says so."""
    named = re.match(r"(\d+)\.(\d+)\.(\d+)", version_of(settings))
    new = bool(named) and tuple(map(int, named.groups())) >= _FIRST_ASSEMBLY  # type: ignore[union-attr]
    return new and settings.env.get(_ASSEMBLY_SWITCH, "1") == "1"


class StepModel:
    """Times of one server: a model on `tp` GPUs of a machine."""

    def __init__(
        self,
        hardware: Hardware,
        settings: SglangSettings,
        serving: Serving,
        tp: int,
        effects: Effects,
        serves_draft_extend: bool = True,
    ) -> None:
        """`serves_draft_extend`: the plug-in's arm takes over draft-extend as well, as it does from its second version
        on."""
        self.hardware, self.serving, self.tp, self.effects = hardware, serving, tp, effects
        self.shape: ModelShape = model_of(settings)
        arms = hardware.arms
        assembly = arms.assembly if arms.assembly and _has_assembly(settings) else ""
        verify = {
            None: assembly or arms.unhooked,
            "upstream": assembly or arms.upstream,
            "generic": arms.generic,
            "in-tree": arms.in_tree,
        }
        name = verify[settings.verify] if serving.speculative else arms.decode
        self._verify, self._decode = hardware.kernels[name], hardware.kernels[arms.decode]
        taken = settings.verify in ("generic", "in-tree") and serves_draft_extend
        self._extend = self._verify if taken else hardware.kernels[assembly or arms.draft_extend]
        if own := hardware.draft_backends.get(serving.draft_backend):
            self._decode = self._extend = hardware.kernels[own]
        self._host = hardware.host.speculative if serving.speculative else hardware.host.plain
        self.scheduler = self._host.step + (hardware.host.tensor_parallel if tp > 1 else 0.0)
        """Seconds that the scheduler needs for a step, whatever the batch."""
        if serving.speculative and serving.draft_backend in _EAGER_DRAFT_EXTEND:
            self.scheduler += hardware.host.eager_draft_extend
        self._calls = {q: self._call(q) for q in (1, serving.draft_tokens)}
        self._fixed: dict[int, _Fixed] = {}

    def _call(self, query_tokens: int) -> Call:
        return Call(
            query_tokens=query_tokens,
            query_heads=-(-self.shape.query_heads // self.tp),
            kv_heads=max(1, self.shape.kv_heads // self.tp),
            head_size=self.shape.head_size,
            padded_context=self.serving.padded_context,
        )

    def decode(self, contexts: Ints) -> dict[str, Floats]:
        """Seconds of each step, by part (STEP_PARTS).

        Args:
            contexts: (sequences, steps), tokens that each sequence has before the step.
        """
        batch, q = contexts.shape[0], self.serving.draft_tokens
        graph = self.serving.padded(batch)
        padded = graph or batch
        host, shape = self._host, self.shape
        fixed = self._fixed.get(padded) or self._fix(padded)
        call, lengths = self._calls[q], contexts + q
        one_call = attention.seconds(self._verify, self.hardware, padded, call, lengths)
        one_call = one_call * (1 + self.effects.slower_kernel) + self._extra_segments(padded, call)
        steps = contexts.shape[1]
        parts = {
            "verify_attention": shape.full_layers * one_call,
            "draft": self._draft_attention(self._draft_decode(), padded, contexts) + fixed.draft,
            "draft_extend": self._draft_attention(self._draft_extend(), padded, contexts) + fixed.draft_extend,
            "gemm": np.full(steps, fixed.gemm),
            "all_reduce": np.full(steps, fixed.all_reduce),
            "other": np.full(steps, fixed.small + self._state(batch)),
        }
        device = sum(parts.values())
        scheduler = self.scheduler + host.request * batch
        if graph is None:
            scheduler += self.hardware.host.eager_layer * (shape.layers + self.serving.draft_steps)
        idle = np.maximum(scheduler - device, host.gap + host.gap_request * batch)
        parts["host_gap"] = idle + self.effects.host_stall
        return parts

    def _draft_decode(self) -> _Passes:
        """Passes over one token: the first draft comes from draft-extend."""
        return _Passes(self._decode, 1, max(0, self.serving.draft_steps - 1))

    def _draft_extend(self) -> _Passes:
        """The pass over the verified tokens."""
        return _Passes(self._extend, self.serving.draft_tokens, int(self.serving.speculative))

    def _draft_attention(self, passes: _Passes, padded: int, contexts: Ints) -> Floats:
        if not passes.times:
            return np.zeros(contexts.shape[1])
        call, lengths = self._calls[passes.query_tokens], contexts + passes.query_tokens
        return passes.times * attention.seconds(passes.kernel, self.hardware, padded, call, lengths)

    def _draft_fixed(self, passes: _Passes, padded: int) -> float:
        tokens = padded * passes.query_tokens
        layer = self._gemm(tokens, 1, 0) + self._all_reduce(tokens, 1) + self._small(tokens, 1)
        return passes.times * (layer + self.hardware.draft_pass)

    def _fix(self, padded: int) -> _Fixed:
        shape, tokens = self.shape, padded * self.serving.draft_tokens
        fixed = self._fixed[padded] = _Fixed(
            gemm=self._gemm(tokens, shape.full_layers, shape.linear_layers),
            all_reduce=self._all_reduce(tokens, shape.layers),
            small=self._small(tokens, shape.layers),
            draft=self._draft_fixed(self._draft_decode(), padded),
            draft_extend=self._draft_fixed(self._draft_extend(), padded),
        )
        return fixed

    def _extra_segments(self, padded: int, call: Call) -> float:
        """Seconds of the injected segments' traffic, a call."""
        if not self.effects.segment_overhead:
            return 0.0
        cut = attention.segments("mtp", padded, call, self.hardware.compute_units)
        return self.effects.segment_overhead * cut * padded * call.segment_bytes / self.hardware.bandwidth

    def _gemm(self, tokens: int, full: int, linear: int) -> float:
        """Projections, MLPs and the head of so many layers."""
        shape, hardware = self.shape, self.hardware
        weights = self._stream(shape.dense_weights(full, linear) + shape.head_weights, full + linear, tokens)
        products = 2.0 * tokens * (shape.active_weights(full, linear) + shape.head_weights)
        return max(weights, products / (hardware.matrix_rate(shape.weights) * hardware.decode_gemm)) / self.tp

    def _stream(self, dense: float, layers: int, tokens: int) -> float:
        """Seconds to read dense weights and the experts that the tokens touch."""
        hardware, experts = self.hardware, self.shape.touched_expert_weights(layers, tokens)
        numbers = dense / hardware.weight_stream + experts / hardware.expert_stream
        return numbers * self.shape.bytes_per_weight / hardware.bandwidth

    def _all_reduce(self, tokens: int, layers: int) -> float:
        """Two a layer, on the hidden states: a ring moves 2 (n - 1) / n of the bytes."""
        if self.tp == 1:
            return 0.0
        rule = self.hardware.all_reduce
        moved = 2 * (self.tp - 1) / self.tp * tokens * self.shape.hidden * _ACTIVATION
        return 2 * layers * (rule.latency + moved / (rule.gb_per_s * 1e9))

    def _small(self, tokens: int, layers: int) -> float:
        return layers * (self.hardware.layer + self.hardware.token * tokens)

    def _state(self, batch: int) -> float:
        """The linear layers' state: read once; written once, or after each verified token."""
        touched = 1 + self.serving.draft_tokens
        return touched * batch * self.shape.state_bytes_per_sequence() / self.tp / self.hardware.bandwidth

    def prefill_launch(self) -> float:
        """Seconds that the host needs to launch a prefill chunk."""
        layers = self.shape.layers + int(self.serving.speculative)  # the draft model reads the prompt too
        rule = self.hardware.prefill
        a_layer = rule.launch_expert_layer if self.shape.experts else rule.launch_layer
        return layers * a_layer * (1 + self.effects.prefill_interference)

    def prefill_gap(self) -> float:
        """Seconds between two chunks in which the device waits."""
        return self.hardware.prefill.gap * (1 + self.effects.prefill_interference)

    def prefill(self, chunks: list[tuple[int, int]]) -> float:
        """Device seconds of one prefill batch: (new tokens, tokens before them) of each request."""
        shape, hardware, rule = self.shape, self.hardware, self.hardware.prefill
        tokens = sum(new for new, _ in chunks)
        full, layers = shape.full_layers, shape.layers
        attended = full * self._attention_of_a_layer(chunks, self.serving.prefill_backend)
        if self.serving.speculative:
            full, layers = full + 1, layers + 1
            attended += self._attention_of_a_layer(chunks, self.serving.draft_prefill_backend)
        rate, linear = hardware.matrix_rate(shape.weights), layers - full
        experts = shape.expert_weights_per_token * layers
        dense = shape.active_weights(full, linear) - experts
        products = 2.0 * tokens / rate * (dense / rule.gemm + experts / rule.experts)
        products = max(products, self._stream(shape.dense_weights(full, linear), layers, tokens))
        device = (products + attended) / self.tp + self._all_reduce(tokens, layers)
        return device * (1 + self.effects.prefill_interference)

    def _attention_of_a_layer(self, chunks: list[tuple[int, int]], backend: str) -> float:
        """Seconds of one layer's attention in a prefill batch: two products of 2 x pairs x head size FLOP a head."""
        known = self.hardware.prefill.attention
        rule = known.get(backend) or next(iter(known.values()))
        a_pair = 4.0 * self.shape.query_heads * self.shape.head_size / self.hardware.matrix_rate(rule.products)
        within = a_pair * sum(new * new / 2 for new, _ in chunks) / rule.attention
        return within + a_pair * sum(new * before for new, before in chunks) / rule.prefix
