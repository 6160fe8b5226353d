"""Is it a step or a drift? Both are fitted to the nights of one stretch, and the better fit is believed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.stats.inference import Floats
from harness.stats.levels import inliers

MIN_DRIFT = 10  # nights: a shorter rise is told as a step


@dataclass(frozen=True)
class Shape:
    """The better of the two: a step before night `start`, or a rise from it on with `slope` a night.

    `before` is the level from which it started, `size` how far it is from there now.
    """

    drift: bool
    start: int
    before: float
    size: float
    slope: float


def shape_of(x: Floats, cuts: Sequence[int] = ()) -> Shape:
    """The shape of the change that a stretch of at least 12 nights contains; excursions are left out.

    `cuts`: nights on which steps are thought to be. A rise of one line is then held against all of them together, by
    the Bayesian information criterion, as more steps fit anything better.
    """
    night = np.arange(len(x), dtype=np.float64)
    kept = inliers(x)
    night, values = night[kept], x[kept]
    step, ramp = _step(night, values), _ramp(night, values, len(x))
    if ramp is None:
        return step[1]
    n, tiny = len(values), 1e-12
    of_steps = n * math.log(step[0] + tiny) + 3 * math.log(n)
    if cuts:
        parts = np.split(values, [int(np.searchsorted(night, cut)) for cut in cuts])
        rest = sum(float(np.sum((part - part.mean()) ** 2)) for part in parts if len(part))
        of_steps = min(of_steps, n * math.log(rest + tiny) + (1 + 2 * len(cuts)) * math.log(n))
    return step[1] if of_steps <= n * math.log(ramp[0] + tiny) + 3 * math.log(n) else ramp[1]


def _step(night: Floats, x: Floats) -> tuple[float, Shape]:
    n = len(x)
    before = np.arange(1, n)
    sums = np.cumsum(x)[:-1]
    low, high = sums / before, (x.sum() - sums) / (n - before)
    gain = before * (n - before) / n * (high - low) ** 2
    best = int(np.argmax(gain))
    rest = float(np.sum((x - x.mean()) ** 2) - gain[best])
    size = float(high[best] - low[best])
    return rest, Shape(False, int(night[best + 1]), float(low[best]), size, 0.0)


def _ramp(night: Floats, x: Floats, nights: int) -> tuple[float, Shape] | None:
    """Flat, then a line: least squares for each night on which the line may begin."""
    starts = np.arange(0, nights - MIN_DRIFT + 1, max(1, nights // 40), dtype=np.float64)
    if not len(starts):
        return None
    rise = np.maximum(0.0, night[None, :] - starts[:, None])
    centred = rise - rise.mean(axis=1, keepdims=True)
    moved = x - x.mean()
    squares = np.sum(centred**2, axis=1)
    slopes = centred @ moved / np.where(squares > 0, squares, 1.0)
    best = int(np.argmax(slopes**2 * squares))
    rest = float(np.sum(moved**2) - slopes[best] ** 2 * squares[best])
    slope, start = float(slopes[best]), float(starts[best])
    before = float(x.mean() - slope * rise[best].mean())
    return rest, Shape(True, int(start), before, slope * (nights - 1 - start), slope)
