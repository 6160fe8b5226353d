"""What the nights of one stretch of a series scatter around, and how wide: robust against nights that are off.

Values are logarithms. Nights are not independent, since a host has good weeks: under AR(1) noise with the lag-1
autocorrelation r, a mean over n nights is worth n / (1 + 2 sum (1 - j/n) r^j) of them, which is its exact variance.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.stats.inference import Floats

OFF = 4.5  # spreads from the median: beyond it a night is an excursion. Of normal nights 7 in a million are
MIN_SPREAD = 1e-3  # no host repeats itself better over days; a smaller one is an accident of few nights
MAX_AUTOCORRELATION = 0.8
# What is assumed of the autocorrelation while few nights are known, and how many nights that is worth: a sample's
# own estimate has a standard error of 1 / sqrt(n), and one that is too low by chance makes false alarms.
PRIOR_AUTOCORRELATION, PRIOR_NIGHTS = 0.3, 15
_MAD = 1.4826  # median absolute deviation of a normal distribution → its standard deviation


@dataclass(frozen=True)
class Level:
    """A stretch of nights: mean and spread of one night, over `n` nights that are no excursions."""

    mean: float
    sd: float
    n: int
    df: float  # with which the spread is known
    r: float = 0.0  # autocorrelation

    @property
    def se(self) -> float:
        """Standard error of the mean."""
        return self.sd / math.sqrt(float(effective(np.asarray([max(1, self.n)]), self.r)[0]))


def median(x: Floats) -> float:
    """As numpy's, which spends ten times as long on so few values."""
    ordered, n = np.sort(x), len(x)
    return float(ordered[(n - 1) // 2] + ordered[n // 2]) / 2


def own_spread(x: Floats) -> float:
    """A robust spread of a few nights around their own median; 0 for fewer than three."""
    return _MAD * median(np.abs(x - median(x))) if len(x) > 2 else 0.0


def inliers(x: Floats, least_spread: float = MIN_SPREAD) -> NDArray[np.bool_]:
    """Which nights are no excursions: within OFF robust spreads of the median."""
    away = np.abs(x - median(x))
    # The median of few deviations is too small: by about a fifth for eight of them.
    spread = max(_MAD * median(away) * (1 + 1.5 / len(x)), least_spread)
    return np.asarray(away <= OFF * spread)


def level_of(x: Floats, before: Level | None = None) -> tuple[Level, NDArray[np.bool_]]:
    """The level of a stretch and its nights that count. `before`: a stretch whose spread this one shares."""
    kept = inliers(x, max(MIN_SPREAD, before.sd if before is not None and len(x) < 2 * OFF else 0.0))
    values = x[kept]
    n = len(values)
    mean = float(values.mean())
    rest = np.where(kept, x - mean, np.nan)
    squares, df = float(np.nansum(rest**2)), n - 1.0
    if before is not None:
        weight = min(before.df, 30.0)
        squares, df = squares + weight * before.sd**2, df + weight
    sd = max(MIN_SPREAD, math.sqrt(squares / df) if df > 0 else 0.0)
    r = autocorrelation(rest, before.r if before is not None else PRIOR_AUTOCORRELATION)
    return Level(mean, sd, n, max(1.0, df * (1 - r * r) / (1 + r * r)), r), kept


def autocorrelation(rest: Floats, prior: float = PRIOR_AUTOCORRELATION) -> float:
    """Lag-1 autocorrelation of deviations from a mean, NaN for nights left out, drawn towards a prior; at least 0."""
    known = np.isfinite(rest)
    n, total = int(known.sum()), float(np.nansum(rest**2))
    r = float(np.nansum(rest[1:] * rest[:-1])) / total if n > 3 and total > 0 else 0.0
    # A sample's autocorrelation is too low by about (1 + 4 r) / n (Kendall 1954).
    r += (1 + 4 * r) / n if n > 3 else 0.0
    return min(MAX_AUTOCORRELATION, max(0.0, (n * r + PRIOR_NIGHTS * prior) / (n + PRIOR_NIGHTS)))


def effective(nights: NDArray[np.int64] | Floats, r: float) -> Floats:
    """How many independent nights a mean over n nights is worth under AR(1) noise."""
    n = np.asarray(nights, dtype=np.float64)
    if r <= 0:
        return n
    # 1 + 2 sum over j of (1 - j/n) r^j, summed up: half a year of nights is looked at in a blink.
    factor = (1 + r) / (1 - r) - 2 * r * (1 - r**n) / (n * (1 - r) ** 2)
    return np.asarray(n / factor)


def middle_of(x: Floats, spread: float) -> float:
    """Where a few nights lie: their mean, each counted as at most three spreads from their median."""
    if len(x) < 3:
        return float(x.mean())
    middle = median(x)
    return middle + float(np.clip(x - middle, -3 * spread, 3 * spread).sum()) / len(x)


def middles(x: Floats, spread: float) -> Floats:
    """`middle_of` the first 1, 2, … of some nights."""
    ordered: list[float] = []
    out, values = [], x.tolist()
    for n, value in enumerate(values, 1):
        bisect.insort(ordered, value)
        if n < 3:
            out.append(sum(ordered) / n)
            continue
        middle = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
        low, high = middle - 3 * spread, middle + 3 * spread
        out.append(sum(min(max(one, low), high) for one in ordered) / n)
    return np.asarray(out)


def agreeing(values: Floats, limit: float = 0.02) -> NDArray[np.bool_]:
    """Which launches of a night agree, where it was measured again because some were off; logarithms.

    Those further from the median than `limit` and OFF robust spreads are left out, if two thirds of them stay.
    """
    away = np.abs(values - median(values))
    kept = away <= max(limit, OFF * _MAD * median(away))
    return kept if kept.sum() >= 2 * len(values) / 3 else np.ones(len(values), dtype=np.bool_)
