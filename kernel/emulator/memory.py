"""Global memory: blocks of bytes at 64-bit addresses, with nothing between them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_FIRST = 0x7F00_0000_0000
_GAP = 1 << 16


class AccessError(RuntimeError):
    """A read or write that is not wholly inside one block."""


class Memory:
    """Blocks that arrays were put into; a block's array sees what is written."""

    def __init__(self) -> None:
        self._blocks: list[tuple[int, NDArray[np.uint8]]] = []
        self._next = _FIRST

    def put(self, array: NDArray[Any], before: int = 0) -> int:
        """The address of ``array``, which must be contiguous and is not copied.

        Args:
            array: what the block holds.
            before: unmapped bytes to leave in front, to make addresses far apart.
        """
        if not array.flags.c_contiguous:
            raise ValueError("a block must be contiguous")
        data = array.reshape(-1).view(np.uint8)
        address = self._next + (before + _GAP - 1) // _GAP * _GAP
        self._blocks.append((address, data))
        self._next = address + (data.size // _GAP + 2) * _GAP
        return address

    def _block(self, start: int, end: int) -> tuple[int, NDArray[np.uint8]]:
        for address, data in self._blocks:
            if address <= start and end <= address + data.size:
                return address, data
        raise AccessError(f"access to {start:#x}..{end:#x}, outside all blocks")

    def read(self, address: int, size: int) -> NDArray[np.uint8]:
        """``size`` bytes."""
        base, data = self._block(address, address + size)
        return data[address - base : address - base + size]

    def gather(self, addresses: NDArray[np.uint64], size: int) -> NDArray[np.uint8]:
        """(addresses, size) bytes."""
        low, high = int(addresses.min()), int(addresses.max()) + size
        try:
            base, data = self._block(low, high)
        except AccessError:  # not all in one block, or one of them outside
            return np.stack([self.read(int(address), size) for address in addresses])
        start: NDArray[np.int64] = (addresses - np.uint64(base)).astype(np.int64)
        found: NDArray[np.uint8] = data[start[:, None] + np.arange(size)]
        return found

    def scatter(self, addresses: NDArray[np.uint64], values: NDArray[np.uint8]) -> None:
        """Write a row of ``values`` at each address, in order."""
        size = values.shape[1]
        for address, row in zip(addresses.tolist(), values, strict=True):
            self.read(address, size)[:] = row
