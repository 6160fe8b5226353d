"""Could the load generator keep up? How late its event loops ran, and how busy its processes were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from harness.metrics.steady_window import Window

LATE_S = 1e-3  # what counts as a late stamp
Beat = tuple[float, float, float]  # time of a look at a load process, seconds it was late, CPU seconds used by then


class Health(NamedTuple):
    """The load generator over a window.

    `lag_p99`: 99th percentile of how late an event loop ran, in seconds: what it adds, at worst, to a time stamp.
    `late_share`: share of the looks that came more than LATE_S late. `busiest`: CPU of the busiest load process, in
    cores. None where nothing was looked at.
    """

    lag_p99: float | None
    late_share: float | None
    busiest: float | None


def health(pulses: Sequence[Sequence[Beat]], window: Window | None) -> Health:
    """`pulses` has the beats of each load process. The start of all slots at once, before the window, is late by its
    nature and is not counted."""
    inside = [[beat for beat in beats if window is None or window.holds(beat[0])] for beats in pulses]
    late = sorted(beat[1] for beats in inside for beat in beats)
    busy = [(b[-1][2] - b[0][2]) / (b[-1][0] - b[0][0]) for b in inside if len(b) > 1]
    if not late:
        return Health(None, None, None)
    share = sum(value > LATE_S for value in late) / len(late)
    return Health(late[int(0.99 * (len(late) - 1))], share, max(busy, default=None))
