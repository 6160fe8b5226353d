"""Looks at a load process while it works: how late its event loop comes to it, and how much CPU it uses."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import NamedTuple

PERIOD_S = 0.02
_TIMER_RESOLUTION_S = 1e-3  # of uvloop's timers: lateness within it is not the loop's


class Beat(NamedTuple):
    """One look at a load process: when, how late its event loop came to it, and the CPU seconds it had used by then."""

    t: float
    late: float
    cpu: float


class Cost(NamedTuple):
    """What a load process used for one pass: CPU seconds until the last answer, and for decoding after it; and its
    largest memory so far, in bytes."""

    load_s: float
    decode_s: float
    peak_bytes: int


def peak_memory() -> int:
    """Of this process since its start, in bytes."""
    if sys.platform == "win32":
        return 0
    import resource

    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024


async def beat(beats: list[Beat]) -> None:
    """Looks at this process until it is cancelled."""
    while True:
        before = time.monotonic()
        await asyncio.sleep(PERIOD_S)
        now = time.monotonic()
        beats.append(Beat(now, max(0.0, now - before - PERIOD_S - _TIMER_RESOLUTION_S), time.process_time()))
