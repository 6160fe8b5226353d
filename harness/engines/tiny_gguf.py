"""A tiny Qwen3.5 (hybrid gated delta net, full attention, MTP head) with real, tunable draft acceptance.

The weights are random, with one trick: `lm_head[successor(t)] = embedding[t]`, and the branches that write
to the residual stream are small. So the next token is (almost always) a fixed permutation of the last one,
and greedy text is deterministic. The MTP projection is the identity plus noise; the noise sets how often a
drafted token is the right one. Shapes, and thus the work of a step, are a real Qwen3.5's in small.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float32]


@dataclass(frozen=True)
class TinyConfig:
    """Sizes. 36M parameters with these; every fourth layer is full attention, as in Qwen3.5."""

    layers: int = 12
    hidden: int = 512
    ffn: int = 1024
    vocab: int = 2048
    heads: int = 8
    kv_heads: int = 1
    head_size: int = 64
    state_size: int = 64
    key_heads: int = 4
    value_heads: int = 8
    full_attention_interval: int = 4
    context: int = 32768
    branch_scale: float = 0.1  # of everything that writes to the residual stream
    draft_noise: float = 5.0  # 83 / 69 / 59 % of the drafts at positions 1 / 2 / 3 are right
    seed: int = 0

    @property
    def inner(self) -> int:
        return self.state_size * self.value_heads

    @property
    def conv(self) -> int:
        return 2 * self.key_heads * self.state_size + self.inner


DEFAULT = TinyConfig()


def cache_path(cache_dir: Path, config: TinyConfig = DEFAULT) -> Path:
    """Where the model lies: named after this file's content and the sizes, so that a change makes a new one."""
    source = Path(__file__).read_bytes() + repr(config).encode()
    return cache_dir / f"tiny-qwen3.5-mtp-{hashlib.sha256(source).hexdigest()[:12]}.gguf"


def cached(cache_dir: Path, config: TinyConfig = DEFAULT) -> Path:
    """The model's path; makes it (2 s) where it isn't there yet. Safe with several processes at once."""
    path = cache_path(cache_dir, config)
    if not path.exists():
        cache_dir.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.partial")
        write(partial, config)
        partial.replace(path)
    return path


def write(path: Path, config: TinyConfig = DEFAULT) -> None:
    """Writes the model as GGUF, matrices in Q8_0."""
    from gguf import GGUFWriter

    writer = GGUFWriter(str(path), "qwen35")
    _metadata(writer, config)
    _tokenizer(writer, config.vocab)
    _Weights(writer, config).write()
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _metadata(w: Any, c: TinyConfig) -> None:
    w.add_type("model")
    w.add_name("tiny Qwen3.5 with MTP, random weights")
    w.add_file_type(7)  # mostly Q8_0
    w.add_block_count(c.layers + 1)  # the last one is the MTP block
    w.add_context_length(c.context)
    w.add_embedding_length(c.hidden)
    w.add_feed_forward_length(c.ffn)
    w.add_head_count(c.heads)
    w.add_head_count_kv(c.kv_heads)
    w.add_key_length(c.head_size)
    w.add_value_length(c.head_size)
    w.add_rope_freq_base(1e7)
    w.add_rope_dimension_count(c.head_size // 4)
    w.add_array("qwen35.rope.dimension_sections", [11, 11, 10, 0])
    w.add_layer_norm_rms_eps(1e-6)
    w.add_uint32("qwen35.nextn_predict_layers", 1)
    w.add_uint32("qwen35.full_attention_interval", c.full_attention_interval)
    recurrent = [not _full_attention(c, i) for i in range(c.layers)]
    w.add_array("qwen35.attention.recurrent_layers", [*recurrent, False])
    for key, value in {
        "conv_kernel": 4,
        "state_size": c.state_size,
        "group_count": c.key_heads,
        "time_step_rank": c.value_heads,
        "inner_size": c.inner,
    }.items():
        w.add_uint32(f"qwen35.ssm.{key}", value)


def _full_attention(c: TinyConfig, layer: int) -> bool:
    return (layer + 1) % c.full_attention_interval == 0


def _tokenizer(w: Any, vocab: int) -> None:
    """Byte-level BPE: 3 special tokens, the 256 bytes, then merges of two letters with or without a space."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [byte for byte in range(256) if byte not in printable]
    characters = [chr(byte) for byte in printable] + [chr(256 + n) for n in range(len(other))]
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *characters]
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    pairs = [(x, y) for x in letters for y in letters]
    pairs += [("\u0120", x + y) for x in letters for y in letters]  # U+0120 stands for a space
    pairs = pairs[: vocab - len(tokens)]
    tokens += [x + y for x, y in pairs]
    tokens += [f"<|unused{n}|>" for n in range(len(tokens), vocab)]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(tokens)
    w.add_token_types([3] * 3 + [1] * (vocab - 3))
    w.add_token_merges([f"{x} {y}" for x, y in pairs])
    w.add_eos_token_id(2)
    w.add_pad_token_id(0)
    w.add_chat_template(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )


class _Weights:
    """Draws and writes the tensors, in llama.cpp's names for the architecture `qwen35`."""

    def __init__(self, writer: Any, config: TinyConfig) -> None:
        import numpy as np

        self.np, self.w, self.c = np, writer, config
        self.random = np.random.default_rng(config.seed)

    def write(self) -> None:
        c = self.c
        self._embeddings()
        for layer in range(c.layers):
            prefix = f"blk.{layer}."
            self._ffn(prefix)
            if _full_attention(c, layer):
                self._attention(prefix)
            else:
                self._delta_net(prefix)
        self._mtp(f"blk.{c.layers}.")

    def _matrix(self, rows: int, columns: int, scale: float = 1.0) -> Array:
        values = self.random.standard_normal((rows, columns), dtype=self.np.float32)
        return values * self.np.float32(scale / columns**0.5)

    def _ones(self, name: str, size: int) -> None:
        self.w.add_tensor(name, self.np.ones(size, self.np.float32))

    def _add(self, name: str, values: Array) -> None:
        from gguf import GGMLQuantizationType, quantize

        kind = GGMLQuantizationType.Q8_0
        dense = self.np.ascontiguousarray(values, dtype=self.np.float32)
        self.w.add_tensor(name, quantize(dense, kind), raw_dtype=kind)

    def _embeddings(self) -> None:
        np, c = self.np, self.c
        embedding = self.random.standard_normal((c.vocab, c.hidden), dtype=np.float32)
        embedding /= np.linalg.norm(embedding, axis=1, keepdims=True) / np.sqrt(c.hidden)
        order = 3 + self.random.permutation(c.vocab - 3)  # special tokens are never a successor
        successor = np.zeros(c.vocab, int)
        successor[order] = np.roll(order, -1)
        successor[:3] = order[:3]
        head = np.zeros((c.vocab, c.hidden), np.float32)
        head[successor] = embedding
        head[:3] = 0
        self._add("token_embd.weight", embedding)
        self._add("output.weight", head / 8)
        self._ones("output_norm.weight", c.hidden)

    def _ffn(self, p: str) -> None:
        c = self.c
        self._add(p + "ffn_gate.weight", self._matrix(c.ffn, c.hidden))
        self._add(p + "ffn_up.weight", self._matrix(c.ffn, c.hidden))
        self._add(p + "ffn_down.weight", self._matrix(c.hidden, c.ffn, c.branch_scale))
        self._ones(p + "attn_norm.weight", c.hidden)
        self._ones(p + "post_attention_norm.weight", c.hidden)

    def _attention(self, p: str) -> None:
        c = self.c
        width = c.heads * c.head_size
        self._add(p + "attn_q.weight", self._matrix(2 * width, c.hidden))  # queries and their gate
        self._add(p + "attn_k.weight", self._matrix(c.kv_heads * c.head_size, c.hidden))
        self._add(p + "attn_v.weight", self._matrix(c.kv_heads * c.head_size, c.hidden))
        self._add(p + "attn_output.weight", self._matrix(c.hidden, width, c.branch_scale))
        self._ones(p + "attn_q_norm.weight", c.head_size)
        self._ones(p + "attn_k_norm.weight", c.head_size)

    def _delta_net(self, p: str) -> None:
        np, c = self.np, self.c
        f32 = np.float32
        self.w.add_tensor(p + "ssm_a", (-self.random.uniform(1, 8, c.value_heads)).astype(f32))
        conv = self.random.standard_normal((c.conv, 4)) * 0.3
        self.w.add_tensor(p + "ssm_conv1d.weight", conv.astype(f32))
        self._ones(p + "ssm_dt.bias", c.value_heads)
        self._add(p + "ssm_alpha.weight", self._matrix(c.value_heads, c.hidden))
        self._add(p + "ssm_beta.weight", self._matrix(c.value_heads, c.hidden))
        self._add(p + "attn_qkv.weight", self._matrix(c.conv, c.hidden))
        self._add(p + "attn_gate.weight", self._matrix(c.inner, c.hidden))
        self._ones(p + "ssm_norm.weight", c.state_size)
        self._add(p + "ssm_out.weight", self._matrix(c.hidden, c.inner, c.branch_scale))

    def _mtp(self, p: str) -> None:
        np, c = self.np, self.c
        self._ffn(p)
        self._attention(p)
        identity = np.concatenate([np.eye(c.hidden), np.zeros((c.hidden, c.hidden))], axis=1)
        noise = self.random.standard_normal((c.hidden, 2 * c.hidden))
        projection = identity + c.draft_noise * noise / np.sqrt(2 * c.hidden)
        self._add(p + "nextn.eh_proj.weight", projection.astype(np.float32))
        for name in ("shared_head_norm", "enorm", "hnorm"):
            self._ones(p + f"nextn.{name}.weight", c.hidden)
