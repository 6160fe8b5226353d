"""Two sides at one level, as pairs of launches: what changed by how much, which the hypotheses then judge.

All changes are of the logarithm of TPOT or of a step's seconds, head minus base, one a pair of launches. A launch is
the unit (harness/stats/inference.py), so intervals are t intervals over pairs, of each part by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from harness.errors import MtpbenchError
from harness.explain.launches import LaunchSeen, Seen, observe
from harness.metrics.tpot_account import PARTS, change, second_of_a_step, step_and_mix
from harness.model import LoadLevel
from harness.stats import inference
from harness.stats.decision import CONFIDENCE
from harness.store.ab_record import Side
from harness.verdict.facts import Difference
from harness.verdict.pairs import pair_up

# One launch a side has no interval. Launches of equal servers differ by 1 to 5 %, hardly ever by this.
ONE_LAUNCH = math.log(1.2)
SURE = 0.05  # p of a part, given that the whole has changed

Pair = tuple[LaunchSeen, LaunchSeen]


@dataclass(frozen=True)
class Estimate:
    """The mean of a change over `n` pairs, its interval, and the two-sided p of no change; nan with one pair."""

    mean: float
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan
    n: int = 1

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """Raises ValueError where there is nothing to estimate from."""
        known = [value for value in values if math.isfinite(value)]
        if not known:
            raise ValueError("no values")
        if len(known) == 1:
            return cls(known[0])
        s = inference.spread(np.array(known)[:, None])
        (low,), (high,) = inference.interval(s, CONFIDENCE)
        mirrored = replace(s, mean=-s.mean)
        p = 2 * min(float(inference.p_above_zero(s)[0]), float(inference.p_above_zero(mirrored)[0]))
        return cls(float(s.mean[0]), float(low), float(high), p, len(known))

    @property
    def known(self) -> bool:
        """Is there an interval?"""
        return self.n > 1

    def sure(self, error: float = SURE) -> bool:
        """Is it certain that something changed? With one pair, only a change that launches hardly ever make."""
        return self.p <= error if self.known else abs(self.mean) >= ONE_LAUNCH

    def relative(self, whole: float) -> Estimate:
        """From a part of Δ log TPOT, which changed by `whole`, to a part of its relative change.

        Parts are scaled by (e^Δ - 1) / Δ, so that they still add up. An end x of the interval stands for a change of
        Δ - mean + x, the other parts being what they are, and is scaled by that one's factor: the interval of the
        whole is then exactly the exponentiated one.
        """
        low, high = sorted(x * relative_to_log(whole - self.mean + x) for x in (self.low, self.high))
        return replace(self, mean=self.mean * relative_to_log(whole), low=low, high=high)


def relative_to_log(delta: float) -> float:
    """(e^Δ − 1) / Δ: a relative change by its logarithm."""
    return math.expm1(delta) / delta if abs(delta) > 1e-9 else 1.0


@dataclass(frozen=True)
class Subject:
    """One side of a question: an arm of some runs at a TP and level. `name` is how a reader calls it."""

    side: Side
    label: str  # of the arm, as in `side.arms`
    tp: int
    level: LoadLevel

    @property
    def arm(self) -> str:
        return self.side.arms[self.label]

    @property
    def name(self) -> str:
        where = self.level.label if self.level.open_loop else f"concurrency {self.level.label}"
        return f"{self.arm} at {where}, TP{self.tp}"


@dataclass(frozen=True)
class Excess:
    """How much longer head's decode step is than base's at one level, at equal batch sizes, in seconds a step."""

    level: LoadLevel
    batch: float
    length: float  # mean tokens of a sequence
    spread: float  # longest over mean, less 1, of base
    head_spread: float
    base_step: float
    base_graphs: float | None
    head_graphs: float | None
    values: tuple[float, ...]  # one a pair
    device: tuple[float, ...] | None = None  # the same of device time, where both sides of every pair recorded it

    @property
    def estimate(self) -> Estimate:
        return Estimate.of(self.values)

    @property
    def relative(self) -> float:
        return fmean(self.values) / self.base_step


@dataclass(frozen=True)
class Case:
    """Everything that is known of a change."""

    base: Subject
    head: Subject
    pairs: tuple[Pair, ...]
    whole: Estimate  # of log TPOT
    parts: Mapping[str, Estimate]  # of PARTS; their means add up to that of `whole`
    changes: tuple[Mapping[str, float], ...]  # the same of each pair
    device: Mapping[str, Estimate]  # parts of the decode step, in the same unit; empty unless every pair has them
    traced: Mapping[str, tuple[float, float]]  # device seconds of a traced step, base and head, where both have one
    excess: tuple[Excess, ...]  # at every level that both sides have, this one first; empty between two levels
    differences: tuple[Difference, ...] = ()  # that matter
    only: Difference | None = None  # where the sides differ in one fact alone: it
    floor: float | None = None  # what equal servers' mean of so many pairs stays below in nine of ten cases

    @property
    def seen(self) -> list[tuple[Seen, Seen]]:
        """Base and head of each pair, at the level of the question."""
        return [(base.levels[self.base.level], head.levels[self.head.level]) for base, head in self.pairs]

    @property
    def between_levels(self) -> bool:
        return self.base.level != self.head.level

    def sum_of(self, *names: str) -> Estimate:
        """Several parts as one."""
        return Estimate.of([sum(part[name] for name in names) for part in self.changes])

    def mean(self, of: Callable[[Seen], float | None]) -> tuple[float | None, float | None]:
        """A figure of base and of head: the geometric mean over pairs in which both have it."""
        both = [(of(base), of(head)) for base, head in self.seen]
        kept = [(b, h) for b, h in both if b is not None and h is not None]
        if not kept:
            return None, None
        return _centre([b for b, _ in kept]), _centre([h for _, h in kept])

    def ratio(self, of: Callable[[Seen], float | None]) -> Estimate | None:
        """Change of the logarithm of a figure; None where a side does not have it."""
        logs = [math.log(h / b) for b, h in ((of(b), of(h)) for b, h in self.seen) if b and h and b > 0 and h > 0]
        return Estimate.of(logs) if logs else None


def _centre(values: Sequence[float]) -> float:
    """The geometric mean, as verdicts show it; the plain one of what may be zero or below."""
    return float(np.exp(np.mean(np.log(values)))) if min(values) > 0 else fmean(values)


def build(base: Subject, head: Subject, differences: Sequence[Difference] = ()) -> Case:
    """The case of two subjects. Raises MtpbenchError where a side has nothing to account for, or no usable launch."""
    return of_launches(base, head, _usable(base), _usable(head), differences)


def of_launches(
    base: Subject,
    head: Subject,
    ours: Sequence[LaunchSeen],
    theirs: Sequence[LaunchSeen],
    differences: Sequence[Difference] = (),
) -> Case:
    """The same from what launches showed. Between two levels of one server, a launch is paired with itself."""
    same_server = base.side.runs == head.side.runs and (base.arm, base.tp) == (head.arm, head.tp)
    pairs = [(one, one) for one in ours] if same_server else list(pair_up(ours, theirs).values())
    pairs = [(b, h) for b, h in pairs if base.level in b.levels and head.level in h.levels]
    if not pairs:
        raise MtpbenchError(
            f"no pair of launches has both {base.name} and {head.name}",
            "A pair is the same launch number of one run, or the n-th launch of each side. Measure both sides anew.",
        )
    whole, parts, device = [], [], []
    for b, h in pairs:
        one, other = b.levels[base.level], h.levels[head.level]
        found = change(one.account, other.account, b.curve(base.level), h.curve(head.level))
        whole.append(found.whole)
        parts.append(found.parts)
        device.append(_device_change(one, other))
    return Case(
        base=base,
        head=head,
        pairs=tuple(pairs),
        whole=Estimate.of(whole),
        parts={name: Estimate.of([part[name] for part in parts]) for name in PARTS},
        changes=tuple(parts),
        device=_common(device),
        traced=_both_traced(
            [one.levels.get(base.level) for one in ours], [one.levels.get(head.level) for one in theirs]
        ),
        excess=() if base.level != head.level else _excesses(pairs, base.level),
        differences=tuple(differences),
    )


def _usable(subject: Subject) -> list[LaunchSeen]:
    launches = observe(subject.side, subject.label, subject.tp)
    for one in launches:
        if one.invalid:
            raise MtpbenchError(
                f"launch {one.launch} of {subject.name} is no result: {one.invalid[0]}",
                "Nothing can be explained with it. Measure again, or name a run without it.",
            )
    if not any(subject.level in one.levels for one in launches):
        known = sorted({level.label for one in launches for level in one.levels})
        raise MtpbenchError(
            f"{subject.side.name} holds no completed pass of {subject.name}",
            f"It has: {', '.join(known)}."
            if known
            else "Has it been measured? `mtpbench report RUN` shows what is there.",
        )
    return launches


def _device_change(base: Seen, head: Seen) -> dict[str, float]:
    """Parts of the decode step's change by device times; what they leave over, the device waits for the host."""
    if not base.device or not head.device:
        return {}
    a_second = second_of_a_step(base.account, head.account)
    names = dict.fromkeys([*base.device, *head.device])
    parts = {name: (head.device.get(name, 0.0) - base.device.get(name, 0.0)) * a_second for name in names}
    step = (head.account.decode_step - base.account.decode_step) * a_second
    return {**parts, WAITING: step - sum(parts.values())}


WAITING = "waiting"


def _both_traced(base: Sequence[Seen | None], head: Sequence[Seen | None]) -> dict[str, tuple[float, float]]:
    """The mean over a side's traced launches; device times repeat to a few percent, so not every launch is traced."""
    sides = [[one.traced for one in side if one is not None and one.traced] for side in (base, head)]
    if not all(sides):
        return {}
    names = sorted({name for side in sides for traced in side for name in traced})
    means = [{name: fmean(traced.get(name, 0.0) for traced in side) for name in names} for side in sides]
    return {name: (means[0][name], means[1][name]) for name in names}


def _common(parts: Sequence[Mapping[str, float]]) -> dict[str, Estimate]:
    if not all(parts):
        return {}
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: Estimate.of([part.get(name, 0.0) for part in parts]) for name in names}


def _excesses(pairs: Sequence[Pair], first: LoadLevel) -> tuple[Excess, ...]:
    levels = {level for b, h in pairs for level in b.levels if level in h.levels}
    order = sorted(levels, key=lambda level: (level != first, level.factor, level.input_tokens, level.value))
    out = []
    for level in order:
        both = [(b, h) for b, h in pairs if level in b.levels and level in h.levels]
        seen = [(b.levels[level], h.levels[level]) for b, h in both]
        values = [
            step_and_mix(b.levels[level].account, h.levels[level].account, b.curve(level), h.curve(level))[0]
            for b, h in both
        ]
        bases = [one.account for one, _ in seen]
        out.append(
            Excess(
                level=level,
                batch=fmean(one.mean_batch for one in bases),
                length=fmean(one.mean_length for one in bases),
                spread=fmean(one.length_spread for one in bases),
                head_spread=fmean(other.account.length_spread for _, other in seen),
                base_step=fmean(one.decode_step for one in bases),
                base_graphs=_share([one.graphs for one, _ in seen]),
                head_graphs=_share([other.graphs for _, other in seen]),
                values=tuple(values),
                device=_device_excess(seen),
            )
        )
    return tuple(out)


def _device_excess(seen: Sequence[tuple[Seen, Seen]]) -> tuple[float, ...] | None:
    """How much longer the device is busy in a decode step."""
    if not all(base.device and head.device for base, head in seen):
        return None
    return tuple(sum(head.device.values()) - sum(base.device.values()) for base, head in seen)


def _share(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
