"""One checked call: tensors, where the KV lies, and what the gate sees of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from kernel.checks import (
    UnsupportedCase,
    attention_case,
    check_paged_lengths,
    check_tensors,
    check_token_lengths,
    device_arch,
)
from kernel.config import Arch
from kernel.gate import AttentionCase, reject_reason

Descale = torch.Tensor | float | None


@dataclass(frozen=True)
class Pages:
    """KV in pages of 16 tokens: caches are (pages, 16, KV heads, 256).

    Attributes:
        seqused_k: (batch,) int32 or int64 KV tokens, the query tokens included.
        block_table: (batch, width) int32 or int64 page numbers; entries past a length are unread.
    """

    seqused_k: torch.Tensor
    block_table: torch.Tensor

    layout: ClassVar[str] = "paged"
    drafts: ClassVar[None] = None

    @property
    def lengths(self) -> torch.Tensor:
        """KV tokens of each sequence."""
        return self.seqused_k

    @property
    def index(self) -> torch.Tensor:
        """Page numbers."""
        return self.block_table

    def check(self, q: torch.Tensor, cu_seqlens_q: torch.Tensor) -> int:
        """The batch size.  Raises ValueError where tensors contradict each other."""
        return check_paged_lengths(cu_seqlens_q, self.seqused_k, self.block_table)


@dataclass(frozen=True)
class TokenSlots:
    """A pool slot for every token: caches are (slots, KV heads, 256).

    The prefix of sequence ``i`` lies in slots ``kv_indices[kv_indptr[i]:kv_indptr[i + 1]]`` and
    its query tokens' K and V, already written, in ``draft_slots`` at the places of ``q``.

    Attributes:
        kv_indptr: (batch + 1,) int32 or int64.
        kv_indices: (prefix tokens,) int32 or int64; entries past ``kv_indptr[-1]`` are unread.
        draft_slots: (tokens,), of ``kv_indices``' dtype.
    """

    kv_indptr: torch.Tensor
    kv_indices: torch.Tensor
    draft_slots: torch.Tensor

    layout: ClassVar[str] = "tokens"

    @property
    def lengths(self) -> torch.Tensor:
        """Offsets of the prefixes."""
        return self.kv_indptr

    @property
    def index(self) -> torch.Tensor:
        """Slots of the prefixes."""
        return self.kv_indices

    @property
    def drafts(self) -> torch.Tensor:
        """Slots of the query tokens."""
        return self.draft_slots

    def check(self, q: torch.Tensor, cu_seqlens_q: torch.Tensor) -> int:
        """The batch size.  Raises ValueError where tensors contradict each other."""
        return check_token_lengths(q, cu_seqlens_q, self.kv_indptr, self.kv_indices, self.draft_slots)


@dataclass(frozen=True)
class Call:
    """A call that was checked, in either layout: token slots are pages of one token.

    Attributes:
        k: (pages, page size, KV heads, 256); ``v`` the same.
        kv: where it lies.
        case: what the gate accepted.
        arch: the device.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    out: torch.Tensor
    kv: Pages | TokenSlots
    cu_seqlens_q: torch.Tensor
    softmax_scale: float
    k_descale: Descale
    v_descale: Descale
    case: AttentionCase
    arch: Arch

    @property
    def kv_heads(self) -> int:
        """KV heads."""
        return int(self.k.shape[2])

    @property
    def group(self) -> int:
        """Query heads a KV head."""
        return int(self.q.shape[1]) // self.kv_heads

    @property
    def tokens(self) -> bool:
        """Whether slots are given for tokens."""
        return self.kv.drafts is not None

    @property
    def interpreted(self) -> bool:
        """Whether Triton's interpreter runs it."""
        return self.q.device.type == "cpu"


def checked_call(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    kv: Pages | TokenSlots,
    *,
    cu_seqlens_q: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float,
    k_descale: Descale,
    v_descale: Descale,
    arch: Arch | None,
) -> Call:
    """The call, for :mod:`kernel.ops`, whose functions say what the arguments are.

    Raises:
        UnsupportedCase: the gate refuses the case.
        ValueError: tensors that contradict each other.
    """
    paged = isinstance(kv, Pages)
    check_tensors(q, k, v, out, cu_seqlens_q, page_dimensions=4 if paged else 3)
    batch = kv.check(q, cu_seqlens_q)
    arch = arch or device_arch(q.device)
    case = attention_case(
        arch.name, q, k, batch=batch, max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k, layout=kv.layout
    )
    reason = reject_reason(case)
    if reason is not None:
        raise UnsupportedCase(reason, case)
    if not paged:
        k, v = k.unsqueeze(1), v.unsqueeze(1)
    return Call(q, k, v, out, kv, cu_seqlens_q, softmax_scale, k_descale, v_descale, case, arch)
