"""What arrived, when: the body of one answer, kept small while the load runs and read after it.

A stream of 8000 tokens is 8000 pieces of some 300 bytes. As Python objects they cost 370 bytes each; here they are
joined to blocks and compressed (servers repeat nearly everything in each event), and cost about 28: 8 for the stamp,
4 for the length, the rest for the bytes themselves (docs/client.md).
"""

from __future__ import annotations

import asyncio
import zlib
from array import array
from collections import deque
from collections.abc import Iterator

# A block takes about 80 µs to compress; the larger, the more its events have in common.
BLOCK_BYTES = 16 * 1024
_LEVEL, _WINDOW_BITS, _MEMORY_LEVEL = 1, -12, 5  # the fastest; raw deflate; a small window is quicker to set up


class Compactor:
    """Compresses full blocks, one in each round of the event loop, so that no stamp waits for more than one.

    Streams that began together fill their blocks together: at once, 1000 of them would keep the loop for 80 ms.
    """

    def __init__(self) -> None:
        self._full: deque[Recording] = deque()

    def put(self, recording: Recording) -> None:
        """`recording` has a full block."""
        if not self._full:
            asyncio.get_running_loop().call_soon(self._step)
        self._full.append(recording)

    def _step(self) -> None:
        self._full.popleft().compact()
        if self._full:
            asyncio.get_running_loop().call_soon(self._step)


class Recording:
    """Pieces of bytes with their arrival times, in order. Without a compactor it compresses full blocks at once."""

    __slots__ = ("_blocks", "_compactor", "_held", "_lengths", "_pieces", "_queued", "_stamps", "size")

    def __init__(self, compactor: Compactor | None = None) -> None:
        self._compactor = compactor
        self._queued = False
        self._stamps = array("d")
        self._lengths = array("I")
        self._pieces: list[bytes] = []  # not yet compressed
        self._held = 0
        self._blocks: list[bytes] = []
        self.size = 0  # bytes in all, uncompressed

    def add(self, t: float, piece: bytes) -> None:
        """`piece` arrived at `t`, in seconds of the caller's clock."""
        length = len(piece)
        self._stamps.append(t)
        self._lengths.append(length)
        self._pieces.append(piece)
        self.size += length
        self._held += length
        if self._held >= BLOCK_BYTES and not self._queued:
            if self._compactor is None:
                self.compact()
            else:
                self._queued = True
                self._compactor.put(self)

    def compact(self) -> None:
        """Compresses what is not yet."""
        squeeze = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW_BITS, _MEMORY_LEVEL)
        self._blocks.append(squeeze.compress(b"".join(self._pieces)) + squeeze.flush())
        self._pieces = []
        self._held = 0
        self._queued = False

    @property
    def stored(self) -> int:
        """Bytes of memory that it holds, without what Python adds for its few objects."""
        return sum(map(len, self._blocks)) + self._held + len(self._stamps) * (8 + 4)

    def head(self, count: int) -> bytes:
        """The first bytes."""
        out = b""
        for _, piece in self.pieces():
            out += piece[: count - len(out)]
            if len(out) >= count:
                break
        return out

    def pieces(self) -> Iterator[tuple[float, bytes]]:
        """Everything that was added, one block in memory at a time."""
        number = 0
        for block in self._blocks:
            data = zlib.decompress(block, _WINDOW_BITS)
            start = 0
            while start < len(data):
                end = start + self._lengths[number]
                yield self._stamps[number], data[start:end]
                start = end
                number += 1
        yield from zip(self._stamps[number:], self._pieces, strict=True)
