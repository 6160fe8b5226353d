"""A tiny Qwen3.5 for SGLang, made where SGLang is installed: for smoke tests and for measuring without a checkpoint.

    python -m harness.engines.tiny_qwen35 KIND OUT

KIND is a key of KINDS. Those with weights have real, tunable draft acceptance, by the same trick as tiny_gguf.py:
`lm_head[successor(t)] = embedding[t]`, small branches, and an MTP projection that is the identity plus noise.

- `dense-16-1`: 16 query heads on one KV head, the shape of 397B at TP2; eight layers, made and started fastest.
- `dense-32-2`: the shape of 397B at TP1, or two times 16/1 at TP2.
- `deep-16-1`, `deep-32-2`: as deep and as wide as Qwen3.5-0.8B (24 layers, hidden size 1024), for what depends on how
  much of the work the one draft layer is: there it stands beside six layers of full attention (397B: 15), in the
  dense ones beside two.
- `moe-32-2`: a configuration and a tokeniser only; start it with dummy weights.
- `wide-122b`, `wide-397b`: the same for models as wide as Qwen3.5-122B-A10B and 397B-A17B with as many layers as fit on
  one card of 141 GB in bf16 (20 of 48, 8 of 60), their vocabulary included. A device paces them, not a host. 397B's has
  TP1's 32 query heads on 2 KV heads; `wide-397b-16-1` has what one GPU of TP2 sees, 16 on 1.

Needs tokenizers, and for weights torch, transformers and safetensors: all come with SGLang.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import shutil
from pathlib import Path
from typing import Any

VOCAB = 16384
CONTEXT = 262144
_SPECIAL = [
    "<|im_end|>",
    "<|endoftext|>",
    "<|im_start|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
_FIRST_SPECIAL = VOCAB - len(_SPECIAL)

# Acceptance falls from 1 to 0 around noise = sqrt(hidden) / 4, which is 8 at hidden size 1024. At 6, one H200 accepts
# about as many drafts as published for Qwen3.5 (3.3 to 3.4 tokens a step with three drafts); at 7, 2.55.
_DRAFT_NOISE = 6.0
_LAYERS = 8  # that the two scales below are for; what deeper models write adds up to as much
_BRANCH_SCALE = 0.05
# Text must not depend on rounding, and log-probabilities must show a broken attention kernel. So full attention
# writes about as much as the embedding holds, is sharpened until a few keys of each head decide, and the head's
# logits are small enough that the successor, though always first, is far from certain. On a CPU, 40 to 100 tokens
# of prompt: a kernel that drops the last page moves log-probabilities by 0.15 to 0.2 in the mean, one that lets
# drafts see later drafts by 0.04 to 0.09, and bf16 logits by 0.008.
_ATTENTION_SCALE = 0.6
_QUERY_NORM = 2.0  # the norm multiplies by 1 + this
_HEAD_SCALE = 0.12


def _dense(layers: int, intermediate: int, query_heads: int, kv_heads: int) -> dict[str, Any]:
    return {
        "architecture": "Qwen3_5ForConditionalGeneration",
        "type": "qwen3_5",
        "weights": True,
        "text": {
            "hidden_size": 1024,
            "intermediate_size": intermediate,
            "num_hidden_layers": layers,
            "num_attention_heads": query_heads,
            "num_key_value_heads": kv_heads,
        },
    }


def _wide(hidden: int, layers: int, experts: int, active: int, query_heads: int, kv_heads: int) -> dict[str, Any]:
    return {
        "architecture": "Qwen3_5MoeForConditionalGeneration",
        "type": "qwen3_5_moe",
        "weights": False,
        "text": {
            "vocab_size": 248320,
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": query_heads,
            "num_key_value_heads": kv_heads,
            "linear_num_value_heads": 64,
            "num_experts": experts,
            "num_experts_per_tok": active,
            "moe_intermediate_size": 1024,
            "shared_expert_intermediate_size": 1024,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "router_aux_loss_coef": 0.001,
        },
    }


KINDS: dict[str, dict[str, Any]] = {
    "dense-16-1": _dense(_LAYERS, 3072, 16, 1),
    "dense-32-2": _dense(_LAYERS, 3072, 32, 2),
    "deep-16-1": _dense(24, 3584, 16, 1),
    "deep-32-2": _dense(24, 3584, 32, 2),
    "moe-32-2": {
        "architecture": "Qwen3_5MoeForConditionalGeneration",
        "type": "qwen3_5_moe",
        "weights": False,
        "text": {
            "hidden_size": 2048,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 2,
            "num_experts": 64,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "router_aux_loss_coef": 0.001,
        },
    },
    "wide-122b": _wide(3072, 20, 256, 8, 32, 2),
    "wide-397b": _wide(4096, 8, 512, 10, 32, 2),
    "wide-397b-16-1": _wide(4096, 8, 512, 10, 16, 1),
}


def folder(cache_dir: Path, kind: str) -> Path:
    """Where a model lies, named after this file's content."""
    return cache_dir / f"tiny-qwen3.5-{kind}-{hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]}"


def config(kind: str) -> dict[str, Any]:
    """config.json: Qwen3.5's hybrid of three gated-delta-net layers and one of full attention, head size 256."""
    spec = KINDS[kind]
    layers = spec["text"]["num_hidden_layers"]
    layer_types = ["full_attention" if (n + 1) % 4 == 0 else "linear_attention" for n in range(layers)]
    text = {
        "model_type": f"{spec['type']}_text",
        "vocab_size": VOCAB,
        "head_dim": 256,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "attn_output_gate": True,
        "full_attention_interval": 4,
        "layer_types": layer_types,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "mtp_num_hidden_layers": 1,
        "mamba_ssm_dtype": "float32",
        "dtype": "bfloat16",
        "eos_token_id": _id("<|im_end|>"),
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
            "rope_type": "default",
            "rope_theta": 10000000,
            "partial_rotary_factor": 0.25,
        },
        "tie_word_embeddings": False,
    }
    vision = {
        "model_type": spec["type"],
        "depth": 2,
        "hidden_size": 256,
        "hidden_act": "gelu_pytorch_tanh",
        "intermediate_size": 512,
        "num_heads": 4,
        "in_channels": 3,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": spec["text"]["hidden_size"],
        "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [],
    }
    return {
        "architectures": [spec["architecture"]],
        "model_type": spec["type"],
        "image_token_id": _id("<|image_pad|>"),
        "video_token_id": _id("<|video_pad|>"),
        "vision_start_token_id": _id("<|vision_start|>"),
        "vision_end_token_id": _id("<|vision_end|>"),
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "text_config": {**text, **spec["text"]},
        "vision_config": vision,
    }


def write(kind: str, out: Path) -> None:
    """The model's folder, whole or not at all."""
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    _write_json(partial / "config.json", config(kind))
    _write_tokenizer(partial)
    _write_processors(partial)
    if KINDS[kind]["weights"]:
        _write_weights(partial)
    _write_json(partial / "made_by.json", {"kind": kind, "python": platform.python_version()})
    partial.replace(out)


def _id(token: str) -> int:
    return _FIRST_SPECIAL + _SPECIAL.index(token)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def _write_tokenizer(out: Path) -> None:
    """Byte-level BPE trained on the same texts that prompts are cut from, so that they tokenise as real text does."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    from harness.corpus import corpus

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_FIRST_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*corpus("prose"), *corpus("code")], trainer)
    missing = _FIRST_SPECIAL - tokenizer.get_vocab_size()
    tokenizer.add_tokens([f"<|unused{n}|>" for n in range(missing)])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in _SPECIAL])
    tokenizer.save(str(out / "tokenizer.json"))
    _write_json(
        out / "tokenizer_config.json",
        {
            "tokenizer_class": "Qwen2TokenizerFast",
            "backend": "tokenizers",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "extra_special_tokens": _SPECIAL,
            # Without it transformers assumes 1e30, which SGLang's /tokenize can't write as JSON.
            "model_max_length": CONTEXT,
        },
    )
    (out / "chat_template.jinja").write_text(
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        encoding="utf-8",
    )


def _write_processors(out: Path) -> None:
    """SGLang loads Qwen3.5 as a vision-language model and wants its processors, though only text is sent."""
    shared = {
        "processor_class": "Qwen3VLProcessor",
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    image = {"image_processor_type": "Qwen2VLImageProcessorFast", "size": _edges(65536, 16777216)}
    video = {"video_processor_type": "Qwen3VLVideoProcessor", "size": _edges(4096, 25165824)}
    _write_json(out / "preprocessor_config.json", {**image, **shared})
    _write_json(out / "video_preprocessor_config.json", {**video, **shared})


def _edges(shortest: int, longest: int) -> dict[str, int]:
    return {"shortest_edge": shortest, "longest_edge": longest}


def _write_weights(out: Path) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForImageTextToText

    torch.manual_seed(0)
    settings = AutoConfig.from_pretrained(out)
    text = settings.text_config
    model = AutoModelForImageTextToText.from_config(settings, dtype=torch.bfloat16)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    [embed_name] = [name for name in state if name.endswith("embed_tokens.weight")]

    hidden = text.hidden_size
    embedding = torch.randn(VOCAB, hidden)
    embedding *= 0.1 * hidden**0.5 / embedding.norm(dim=1, keepdim=True)
    order = torch.randperm(_FIRST_SPECIAL)  # special tokens are nobody's successor
    successor = torch.arange(VOCAB)
    successor[order] = order.roll(-1)
    head = torch.zeros(VOCAB, hidden)
    head[successor] = embedding
    head[_FIRST_SPECIAL:] = 0
    state[embed_name] = embedding.to(torch.bfloat16)
    state["lm_head.weight"] = (head * _HEAD_SCALE).to(torch.bfloat16)
    share = (_LAYERS / text.num_hidden_layers) ** 0.5  # independent contributions add up as squares
    for name in state:
        if name.endswith("self_attn.o_proj.weight"):
            state[name] = state[name] * (_ATTENTION_SCALE * share)
        elif name.endswith(("out_proj.weight", "down_proj.weight")):
            state[name] = state[name] * (_BRANCH_SCALE * share)
        elif name.endswith("self_attn.q_norm.weight"):
            state[name] = torch.full_like(state[name], _QUERY_NORM)

    # The MTP block is a full-attention layer; its norms multiply by (1 + w), so zeros mean identity.
    layer = text.layer_types.index("full_attention")
    prefix = embed_name.removesuffix("embed_tokens.weight") + f"layers.{layer}."
    for name, tensor in list(state.items()):
        if name.startswith(prefix):
            state["mtp.layers.0." + name.removeprefix(prefix)] = tensor.clone()
    projection = torch.cat([torch.eye(hidden), torch.zeros(hidden, hidden)], dim=1)
    projection += _DRAFT_NOISE * torch.randn(hidden, 2 * hidden) / (2 * hidden) ** 0.5
    state["mtp.fc.weight"] = projection.to(torch.bfloat16)
    for norm in ("norm", "pre_fc_norm_hidden", "pre_fc_norm_embedding"):
        state[f"mtp.{norm}.weight"] = torch.zeros(hidden, dtype=torch.bfloat16)
    tensors = {name: tensor.contiguous() for name, tensor in state.items()}
    save_file(tensors, str(out / "model.safetensors"), metadata={"format": "pt"})
    _write_json(out / "generation_config.json", {"eos_token_id": text.eos_token_id, "do_sample": False})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    if not args.out.exists():
        write(args.kind, args.out)
    print(args.out)


if __name__ == "__main__":
    main()
