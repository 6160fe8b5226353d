"""May the verify kernel run?  Nothing here imports torch, Triton or an engine.

The answer is a short stable code because runs count the reasons: a renamed code would split a
series in two.  A code means "fall back"; a malformed case is a bug and raises.
"""

from __future__ import annotations

from dataclasses import dataclass

ARCHITECTURES = ("gfx950", "sm_90")
# Query heads a KV head: 16 at TP1 and TP2 of a model with 32 and 2, 8 at TP4, where KV heads are shared by two ranks.
GQA_RATIOS = (16, 8)
HEAD_SIZE = 256
PAGE_SIZE = 16
MAX_QUERY_LENGTH = 4
MAX_BATCH = 512
# Positions within a sequence are 32-bit; offsets into a cache are 64-bit.
MAX_KV_LENGTH = 2**30
LAYOUTS = ("paged", "tokens")


@dataclass(frozen=True)
class AttentionCase:
    """What decides whether and how the kernel runs; ints and strings only.

    Attributes:
        arch: ``gfx950`` (MI350 family) or ``sm_90`` (Hopper); anything else is rejected.
        query_heads: query heads on this rank.
        kv_heads: KV heads on this rank.
        head_size: elements a head.
        page_size: tokens a KV page; 1 for the ``tokens`` layout.
        q_dtype: torch's name of the query dtype, without the ``torch.`` prefix.
        kv_dtype: the same for both caches.
        batch: sequences.
        max_seqlen_q: longest query of the batch, in tokens.
        max_seqlen_k: longest KV length the host knows of; under graphs the padded maximum.
        layout: ``paged`` (block table) or ``tokens`` (one slot index a token).
        sliding_window: window in tokens; 0 for none.
        softcap: 1 if logits are capped.
        sinks: 1 if attention sinks take part.
        tree_width: draft branches a step; 1 is a chain, whose mask is causal.
    """

    arch: str
    query_heads: int
    kv_heads: int
    head_size: int
    page_size: int
    q_dtype: str
    kv_dtype: str
    batch: int
    max_seqlen_q: int
    max_seqlen_k: int
    layout: str = "paged"
    sliding_window: int = 0
    softcap: int = 0
    sinks: int = 0
    tree_width: int = 1

    def __post_init__(self) -> None:
        """Refuse values that no caller can mean.

        Raises:
            ValueError: a count below one, a negative flag or an unknown layout.
        """
        for name in (
            "query_heads",
            "kv_heads",
            "head_size",
            "page_size",
            "batch",
            "max_seqlen_q",
            "max_seqlen_k",
            "tree_width",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("sliding_window", "softcap", "sinks"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.layout not in LAYOUTS:
            raise ValueError(f"layout must be one of {LAYOUTS}, got {self.layout!r}")


def reject_reason(case: AttentionCase) -> str | None:
    """Why the kernel must not serve ``case``, or ``None`` if it may.

    Every code is stable.  Order matters only for cases with several reasons: the first one found
    is counted.
    """
    if case.arch not in ARCHITECTURES:
        return "arch"
    if case.q_dtype != "bfloat16":
        return "q_dtype"
    if case.kv_dtype == "float8_e4m3fnuz":
        # Same bits, half the value: reading FNUZ as FN would be silently wrong.
        return "kv_dtype_fnuz"
    if case.kv_dtype != "float8_e4m3fn":
        return "kv_dtype"
    if case.head_size != HEAD_SIZE:
        return "head_size"
    if case.query_heads not in [ratio * case.kv_heads for ratio in GQA_RATIOS]:
        return "gqa_ratio"
    if case.page_size != (PAGE_SIZE if case.layout == "paged" else 1):
        return "page_size"
    if case.max_seqlen_q > MAX_QUERY_LENGTH:
        return "query_length"
    if case.batch > MAX_BATCH:
        return "batch"
    if case.max_seqlen_k > MAX_KV_LENGTH:
        return "kv_length"
    if case.sliding_window:
        return "sliding_window"
    if case.softcap:
        return "softcap"
    if case.sinks:
        return "sinks"
    if case.tree_width != 1:
        return "tree"
    return None
