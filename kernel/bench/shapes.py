"""The shapes that are timed: plain numbers, no torch."""

from __future__ import annotations

from dataclasses import dataclass

HEAD = 256
PAGE = 16
QUERY_LENGTH = 4


@dataclass(frozen=True)
class Shape:
    """One verify step of one attention layer.

    Attributes:
        lengths: KV tokens of each sequence, its query tokens included.
        kv_heads: KV heads; query heads are 16 times as many.
        context_length: tokens a row of the block table covers, as an engine pads it.
    """

    lengths: tuple[int, ...]
    kv_heads: int = 1
    context_length: int = 131072

    @property
    def name(self) -> str:
        """``16x8192`` or ``16x1000-70000``, with ``/h2`` for two KV heads."""
        low, high = min(self.lengths), max(self.lengths)
        span = str(low) if low == high else f"{low}-{high}"
        return f"{len(self.lengths)}x{span}" + (f"/h{self.kv_heads}" if self.kv_heads > 1 else "")

    @property
    def kv_bytes(self) -> int:
        """Bytes of K and V that must be read at least once."""
        return sum(self.lengths) * self.kv_heads * HEAD * 2

    @property
    def matrix_flops(self) -> int:
        """Floating-point operations of both products, all rows of the tile counted."""
        return sum(self.lengths) * self.kv_heads * 16 * QUERY_LENGTH * HEAD * 4


def uniform(batch: int, length: int, kv_heads: int = 1) -> Shape:
    """``batch`` sequences of ``length`` tokens."""
    return Shape((length,) * batch, kv_heads)


def spread(batch: int, low: int, high: int, kv_heads: int = 1) -> Shape:
    """Lengths at equal steps from ``low`` to ``high``."""
    step = (high - low) / max(batch - 1, 1)
    return Shape(tuple(round(low + step * place) for place in range(batch)), kv_heads)


FAMILIES: dict[str, tuple[Shape, ...]] = {
    # The shapes that targets are stated for.
    "targets": (
        uniform(1, 8192),
        uniform(1, 70000),
        uniform(4, 70000),
        uniform(16, 1024),
        uniform(16, 8192),
        uniform(16, 70000),
        uniform(64, 8192),
        uniform(64, 32768),
        spread(16, 1000, 70000),
        uniform(16, 35500),  # the same total as the spread above
    ),
    # Concurrency 16 and its neighbours: wave tails, context length and spread of lengths.
    "c16": (
        *(uniform(batch, 8192) for batch in (14, 15, 16, 17, 18)),
        *(uniform(16, length) for length in (1024, 8192, 32768, 70000)),
        spread(16, 1000, 70000),
        uniform(16, 8192, kv_heads=2),
    ),
    "grid": tuple(
        uniform(batch, length, kv_heads)
        for kv_heads in (1, 2)
        for batch in (1, 4, 16, 32, 64)
        for length in (1024, 8192, 32768, 131072)
    ),
}
