"""The shapes that are timed: plain numbers, no torch."""

from __future__ import annotations

from dataclasses import dataclass

HEAD = 256
PAGE = 16
QUERY_LENGTH = 4


@dataclass(frozen=True)
class Shape:
    """One step of one attention layer.

    Attributes:
        lengths: KV tokens of each sequence, its query tokens included.
        kv_heads: KV heads.
        group: query heads a KV head.
        queries: query tokens: of every sequence, or repeated over the sequences.
        context_length: tokens a row of the block table covers, as an engine pads it.
    """

    lengths: tuple[int, ...]
    kv_heads: int = 1
    group: int = 16
    queries: tuple[int, ...] = (QUERY_LENGTH,)
    context_length: int = 131072

    @property
    def name(self) -> str:
        """``16x8192`` or ``16x1000-70000``; ``/h2`` for two KV heads, ``/g8`` for 8 query heads each, ``/q1-4``."""
        parts = [f"{len(self.lengths)}x{_span(self.lengths)}"]
        parts += [f"h{self.kv_heads}"] * (self.kv_heads > 1) + [f"g{self.group}"] * (self.group != 16)
        parts += [f"q{_span(self.queries)}"] * (self.queries != (QUERY_LENGTH,))
        return "/".join(parts)

    @property
    def query_lengths(self) -> tuple[int, ...]:
        """Query tokens of each sequence."""
        return tuple(self.queries[place % len(self.queries)] for place in range(len(self.lengths)))

    @property
    def max_query_length(self) -> int:
        """The longest of them."""
        return max(self.query_lengths)

    @property
    def query_heads(self) -> int:
        """Query heads."""
        return self.group * self.kv_heads

    @property
    def kv_bytes(self) -> int:
        """Bytes of K and V that must be read at least once."""
        return sum(self.lengths) * self.kv_heads * HEAD * 2


def _span(numbers: tuple[int, ...]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low}-{high}"


def uniform(batch: int, length: int, kv_heads: int = 1, group: int = 16, queries: tuple[int, ...] = (4,)) -> Shape:
    """``batch`` sequences of ``length`` tokens."""
    return Shape((length,) * batch, kv_heads, group, queries)


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
        uniform(16, 8192, kv_heads=2),
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
    # What else the kernel serves: 8 query heads a KV head, plain decode, draft-extend after an uneven acceptance.
    "modes": (
        *(uniform(batch, length, group=8) for batch, length in ((16, 8192), (16, 70000))),
        *(uniform(batch, length, queries=(1,)) for batch, length in ((16, 8192), (16, 70000))),
        uniform(16, 8192, queries=(1, 2, 3, 4)),
        uniform(16, 8192, group=8, queries=(1, 2, 3, 4)),
    ),
}
# All but the grid, most of which is like another shape: five minutes with all arms.
FAMILIES["all"] = tuple(dict.fromkeys(shape for name in ("targets", "c16", "modes") for shape in FAMILIES[name]))
