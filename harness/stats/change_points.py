"""A series of nights → when it changed. A cheap scan proposes, a t test of scipy's decides (inference.shift_p).

Every night, each split of the series into "before" and "the last one to seven nights" is looked at. A split is
proposed when the two means differ by more than the tolerance of the A/B rule (2 %); it becomes an alert when a t test
says so, on the very night, and is withdrawn when a later night no longer bears it out. It is a confirmed change only
when it stands without its worst night: a lone bad night never is, however bad. When the night after an alert is back
at the old level, the alert's night also leaves the baseline, which it would widen.

Nights are not independent: a host has good weeks. The lag-1 autocorrelation r of the baseline reduces the number of
nights on both sides to n / (1 + 2 sum (1 - j/n) r^j), which is the exact variance of a mean under AR(1) noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from harness.stats import inference
from harness.stats.decision import TOLERANCE
from harness.stats.inference import Floats

WINDOW = 60  # nights of baseline at most: older ones say little about today's host
MIN_BASELINE = 8  # with fewer, one night's t would have to exceed 5
# After a confirmed change: a slowdown that is fixed within a week must be seen to be gone, or it stays for ever, since
# a level of both kinds of nights is too wide to differ from anything.
MIN_NEW_LEVEL = 3
RECENT = 7  # splits looked at
# Found by simulation (mtpbench selftest stats): what meets the targets for false alerts with the least delay.
ALERT_P, CONFIRM_P = 0.004, 0.002
MAX_AUTOCORRELATION = 0.8


@dataclass(frozen=True)
class Change:
    """A change of level. Nights are indices into the series; `delta` is a logarithm, above zero worse."""

    start: int  # the first night of the new level
    alerted: int  # the night on which it was seen
    delta: float
    p: float
    confirmed: int | None = None  # the night on which it was sure
    withdrawn: bool = False  # the next night was back

    @property
    def worse(self) -> bool:
        return self.delta > 0


def changes(nights: Sequence[float]) -> list[Change]:
    """All changes of a series of nightly log values, in order, as they would have been told night by night."""
    values = np.asarray(nights, dtype=np.float64)
    done: list[Change] = []
    start, lone = 0, set[int]()
    pending: Change | None = None
    for tonight in range(len(values)):
        segment = [i for i in range(start, tonight + 1) if i not in lone]
        if pending is not None and _back(values, segment, pending):
            done.append(replace(pending, withdrawn=True))
            lone.add(pending.start)
            segment.remove(pending.start)
            pending = None
        found = _look(values, segment, MIN_NEW_LEVEL if start else MIN_BASELINE)
        if pending is not None and (found is None or found.worse != pending.worse):
            done.append(replace(pending, withdrawn=True))
            pending = None
        if found is None:
            continue
        if pending is not None:
            found = replace(found, alerted=pending.alerted)
        if found.confirmed is None:
            pending = found
            continue
        done.append(found)
        pending, start, lone = None, found.start, set()
    return [*done, pending] if pending is not None else done


def _look(values: Floats, segment: list[int], least: int) -> Change | None:
    """The likeliest change within the last nights of a segment, if any is likely; `least` nights are before it."""
    x = values[segment[-(WINDOW + RECENT) :]]
    most = min(RECENT, len(x) - least)
    if most < 1:
        return None
    k = np.arange(1, most + 1)
    ends = len(x) - k
    sums, squares = np.cumsum(x), np.cumsum(x**2)
    mean_before = sums[ends - 1] / ends
    mean = (sums[-1] - sums[ends - 1]) / k
    if np.all(np.abs(mean - mean_before) < TOLERANCE):
        return None
    var_before = np.maximum((squares[ends - 1] - ends * mean_before**2) / (ends - 1), inference.MIN_SD**2)
    var = np.maximum((squares[-1] - squares[ends - 1] - k * mean**2) / np.maximum(k - 1, 1), 0.0)
    r = autocorrelation(x[: ends[-1]])
    n_before, n = effective(ends, r), effective(k, r)
    p = inference.shift_p(mean_before, np.sqrt(var_before), n_before, mean, np.sqrt(var), n)
    p = np.where(np.abs(mean - mean_before) < TOLERANCE, 1.0, p)
    best = int(np.argmin(p))
    if p[best] >= ALERT_P:
        return None
    since = x[ends[best] :]
    delta, tonight = float(mean[best] - mean_before[best]), segment[-1]
    change = Change(segment[-int(k[best])], tonight, delta, float(p[best]))
    sure = len(since) > 1 and _without_worst(
        since, delta, float(mean_before[best]), math.sqrt(var_before[best]), float(n_before[best]), r
    )
    return replace(change, confirmed=tonight) if sure else change


def _without_worst(since: Floats, delta: float, before: float, sd: float, n_before: float, r: float) -> bool:
    """Does a change stand when its most extreme night is left out?"""
    kept = np.delete(since, np.argmax(since) if delta > 0 else np.argmin(since))
    shift = float(np.mean(kept)) - before
    if shift * delta <= 0 or abs(shift) < TOLERANCE:
        return False
    own = float(np.std(kept, ddof=1)) if len(kept) > 1 else 0.0
    n = effective(np.asarray([len(kept)]), r)
    one = np.asarray
    return bool(
        inference.shift_p(one([before]), one([sd]), one([n_before]), one([before + shift]), one([own]), n)[0]
        < CONFIRM_P
    )


def _back(values: Floats, segment: list[int], pending: Change) -> bool:
    """Is tonight nearer the old level than the new one, after an alert of a single night?"""
    if pending.start != segment[-2]:
        return False
    before = segment[:-2][-WINDOW:]
    level = float(np.mean(values[before]))
    tonight = float(values[segment[-1]])
    return abs(tonight - level) < abs(tonight - level - pending.delta)


def autocorrelation(x: Floats) -> float:
    """Lag-1 autocorrelation, at least 0: that nights alternate is nothing to rely on."""
    centred = x - np.mean(x)
    total = float(np.sum(centred**2))
    if len(x) < 4 or total <= 0:
        return 0.0
    # A sample's autocorrelation is too low by about (1 + 4 r) / n (Kendall 1954).
    r = float(np.sum(centred[1:] * centred[:-1])) / total
    return min(MAX_AUTOCORRELATION, max(0.0, r + (1 + 4 * r) / len(x) if r > 0 else r))


def effective(nights: NDArray[np.int64] | Floats, r: float) -> Floats:
    """How many independent nights a mean over n nights is worth under AR(1) noise."""
    n = np.asarray(nights, dtype=np.float64)
    if r <= 0:
        return n
    # 1 + 2 sum over j of (1 - j/n) r^j, summed up: half a year of nights is looked at in a blink.
    factor = (1 + r) / (1 - r) - 2 * r * (1 - r**n) / (n * (1 - r) ** 2)
    return np.asarray(n / factor)
