"""Lets a few requests out at a time, so that sending many at once delays no time stamp.

Where hundreds of answers end together, as in lockstep, hundreds of requests want to go: 50 µs of work each. Between two
of them the event loop looks at its sockets, so that what arrives meanwhile is stamped when it arrives.
"""

from __future__ import annotations

import asyncio
from collections import deque

_WIDTH = 2  # that pass before the loop looks again


class Turnstile:
    """Of one event loop. First come, first served."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._free = _WIDTH

    async def __call__(self) -> None:
        """Returns when it is one's turn, mostly at once."""
        loop = asyncio.get_running_loop()
        if self._free == _WIDTH:
            loop.call_soon(self._turn, loop)
        if self._free:
            self._free -= 1
            return
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Once in each round of the loop while somebody passes."""
        self._free = _WIDTH
        while self._waiting and self._free:
            turn = self._waiting.popleft()
            if not turn.done():  # not cancelled
                turn.set_result(None)
                self._free -= 1
        if self._free < _WIDTH:
            loop.call_soon(self._turn, loop)
