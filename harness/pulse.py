"""Could the load generator keep up? How late its event loops ran, and how busy its processes were."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from harness.window import Window

PERIOD_S = 0.02
_TIMER_RESOLUTION_S = 1e-3  # of uvloop's timers: lateness within it is not the loop's
LATE_S = 1e-3  # what counts as a late stamp


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


class Health(NamedTuple):
    """The load generator over a window.

    `lag_p99`: 99th percentile of how late an event loop ran, in seconds: what it adds, at worst, to a time stamp.
    `late_share`: share of the looks that came more than LATE_S late. `busiest`: CPU of the busiest load process, in
    cores. None where nothing was looked at.
    """

    lag_p99: float | None
    late_share: float | None
    busiest: float | None


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


def health(pulses: Sequence[Sequence[Beat]], window: Window | None) -> Health:
    """`pulses` has the beats of each load process. The start of all slots at once, before the window, is late by its
    nature and is not counted."""
    inside = [[beat for beat in beats if window is None or window.holds(beat.t)] for beats in pulses]
    late = sorted(beat.late for beats in inside for beat in beats)
    busy = [(b[-1].cpu - b[0].cpu) / (b[-1].t - b[0].t) for b in inside if len(b) > 1]
    if not late:
        return Health(None, None, None)
    share = sum(value > LATE_S for value in late) / len(late)
    return Health(late[int(0.99 * (len(late) - 1))], share, max(busy, default=None))
