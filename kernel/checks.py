"""What the public calls check before they launch, and what they know of the device."""

from __future__ import annotations

import functools
from typing import Any

import torch

from kernel.config import Arch
from kernel.gate import AttentionCase


class UnsupportedCase(ValueError):
    """The gate refuses the call; ``reason`` is its code."""

    def __init__(self, reason: str, case: AttentionCase) -> None:
        super().__init__(f"{reason}: the kernel does not serve {case}; use another backend")
        self.reason = reason


@functools.cache
def device_arch(device: torch.device) -> Arch:
    """ISA name and number of compute units of a CUDA or HIP device.

    Raises:
        ValueError: ``device`` is not a GPU.
    """
    if device.type != "cuda":
        raise ValueError(f"tensors are on {device}; pass arch= to run under Triton's interpreter")
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip:
        name = str(properties.gcnArchName).split(":", 1)[0]
    else:
        name = f"sm_{properties.major}{properties.minor}"
    return Arch(name, int(properties.multi_processor_count))


def check_tensors(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    page_dimensions: int,
) -> None:
    """Refuse tensors whose shapes, strides or devices contradict each other.

    Raises:
        ValueError: says which and why.
    """
    if q.ndim != 3 or out.shape != q.shape:
        raise ValueError(f"q and out must be (tokens, heads, 256): {q.shape} and {out.shape}")
    if out.dtype != q.dtype:
        raise ValueError(f"out must have q's dtype {q.dtype}, got {out.dtype}")
    if k.ndim != page_dimensions or v.shape != k.shape or v.dtype != k.dtype:
        raise ValueError(f"caches must be {page_dimensions}-dimensional twins: {k.shape}, {v.shape}")
    if k.shape[-1] != q.shape[2]:
        raise ValueError(f"head sizes of q and cache differ: {q.shape[2]} and {k.shape[-1]}")
    if cu_seqlens_q.ndim != 1 or cu_seqlens_q.shape[0] < 2:
        raise ValueError(f"cu_seqlens_q must be (batch + 1,), got {tuple(cu_seqlens_q.shape)}")
    for name, tensor in (("q", q), ("k", k), ("v", v), ("out", out)):
        if tensor.stride(-1) != 1:
            raise ValueError(f"last dimension of {name} must be contiguous")
        if tensor.device != q.device:
            raise ValueError(f"{name} is on {tensor.device}, q on {q.device}")


def check_lengths(*tensors: torch.Tensor) -> None:
    """Refuse lengths and indices that are neither int32 nor int64, or not contiguous.

    Raises:
        ValueError: says why.
    """
    for tensor in tensors:
        if tensor.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"lengths and indices must be int32 or int64, got {tensor.dtype}")
        if tensor.ndim == 1 and tensor.stride(0) != 1:
            raise ValueError("lengths and indices must be contiguous")


def check_paged_lengths(cu_seqlens_q: torch.Tensor, seqused_k: torch.Tensor, block_table: torch.Tensor) -> int:
    """The batch size, once the three agree on it.

    Raises:
        ValueError: they do not, or one has the wrong dtype or layout.
    """
    check_lengths(cu_seqlens_q, seqused_k, block_table)
    batch = seqused_k.shape[0]
    if block_table.ndim != 2 or block_table.shape[0] != batch or block_table.stride(1) != 1:
        raise ValueError(f"block_table must be (batch, width) in rows, got {block_table.shape}")
    if cu_seqlens_q.shape != (batch + 1,):
        raise ValueError(f"cu_seqlens_q must be ({batch + 1},), got {tuple(cu_seqlens_q.shape)}")
    return batch


def check_token_lengths(
    q: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    draft_slots: torch.Tensor,
) -> int:
    """The batch size of a call over token slots, once the tensors agree on it.

    Raises:
        ValueError: they do not, or one has the wrong dtype or layout.
    """
    check_lengths(cu_seqlens_q, kv_indptr, kv_indices, draft_slots)
    batch = kv_indptr.shape[0] - 1
    if cu_seqlens_q.shape != (batch + 1,):
        raise ValueError(f"cu_seqlens_q must be ({batch + 1},), got {tuple(cu_seqlens_q.shape)}")
    if draft_slots.dtype != kv_indices.dtype:
        raise ValueError(f"draft_slots must have kv_indices' dtype {kv_indices.dtype}")
    if draft_slots.shape[0] < q.shape[0]:
        raise ValueError(f"{q.shape[0]} query tokens but {draft_slots.shape[0]} draft slots")
    return batch


def attention_case(arch: str, q: torch.Tensor, k: torch.Tensor, **rest: Any) -> AttentionCase:
    """What the gate sees of tensors; ``rest`` are the fields that they do not show."""
    return AttentionCase(
        arch=arch,
        query_heads=q.shape[1],
        kv_heads=k.shape[-2],
        head_size=q.shape[2],
        page_size=1 if rest.get("layout") == "tokens" else k.shape[1],
        q_dtype=str(q.dtype).removeprefix("torch."),
        kv_dtype=str(k.dtype).removeprefix("torch."),
        **rest,
    )


def split_descale(descale: torch.Tensor | float | None) -> tuple[float, torch.Tensor | None]:
    """A descale as a host number and a device pointer; one of the two is neutral."""
    if descale is None:
        return 1.0, None
    if not isinstance(descale, torch.Tensor):
        return float(descale), None
    one = all(size == 1 or stride == 0 for size, stride in zip(descale.shape, descale.stride(), strict=True))
    if descale.dtype != torch.float32 or not one:
        raise ValueError("a descale tensor must be fp32 and hold one number (per-tensor scales)")
    return 1.0, descale
