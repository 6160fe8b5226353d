"""Where the excess of a longer decode step appears: signs by which its causes are told apart.

Each function looks for one sign in the excess at every level that both sides have, and says True, False, or None where
these levels can't tell. Where both sides recorded device times, growth is that of the device's own time: a step that
waits for the host hides what the device takes longer. Without them, levels that look host-bound are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from harness.explain.change import Case, Estimate, Excess

# Lengths of a batch that differ by less than this share are equal.
EQUAL_LENGTHS = 0.05
# Lengths, or batch sizes, nearer together than this do not tell what grows with them.
APART = 1.5
# An excess grows with a size when it does so faster than this power of it. A kernel's time is a fixed part and one in
# proportion to length, so its power lies between 0 and 1 at short lengths; that of segments or of the host is 0.
POWER = 0.25
# Steps that differ by less than this at different batch sizes are as short as the host lets them be.
HOST_BOUND = 0.03
# Of a step's change: less than this on the device is not the device's.
MOSTLY = 0.5
# Share of the steps that run in another graph: the rest may be batches that are smaller for a while.
OTHER_GRAPHS = 0.5


@dataclass(frozen=True)
class Sign:
    """Whether a sign is there; None where the data can't say."""

    there: bool | None
    figures: str


def graph(case: Case) -> Sign:
    """Does one side run this batch size without a graph, or in a larger one?"""
    here = case.excess[0]
    shares = ""
    if here.base_graphs is not None and here.head_graphs is not None:
        shares = f"{100 * here.base_graphs:.0f} → {100 * here.head_graphs:.0f} % of logged steps ran in a graph"
        if abs(here.head_graphs - here.base_graphs) >= OTHER_GRAPHS:
            return Sign(True, shares)
    batch = round(here.batch)
    base, head = case.pairs[0][0].bucket(batch), case.pairs[0][1].bucket(batch)
    if base is None or head is None:
        return Sign(False, shares) if shares else Sign(None, "neither logs nor servers say which graphs there are")
    sizes = f"a batch of {batch} runs in the graph of {base or 'none'} → {head or 'none'}"
    return Sign(base != head, f"{sizes}; {shares}" if shares else sizes)


def other_lengths(case: Case) -> bool:
    """Did the two sides serve lengths of another spread?"""
    here = case.excess[0]
    return abs(here.head_spread - here.spread) >= EQUAL_LENGTHS


def ragged(case: Case) -> Sign:
    """Does the excess go with the spread of lengths within a batch?"""
    here = case.excess[0]
    if other_lengths(case):
        spreads = f"{100 * here.spread:.0f} → {100 * here.head_spread:.0f} %"
        return Sign(True, f"the longest sequence of a batch exceeds the mean by {spreads}: the sides got other lengths")
    if here.spread < EQUAL_LENGTHS:
        return Sign(False, f"lengths are equal: the longest exceeds the mean by {100 * here.spread:.1f} %")
    equal = [
        other
        for other in _whole(case)[1:]
        if other.spread < EQUAL_LENGTHS
        and other.level.load == here.level.load
        and other.level.burst == here.level.burst
    ]
    if not equal or len(here.values) < len(case.pairs):
        return Sign(None, "no level has equal lengths at this load")
    other = min(equal, key=lambda e: abs(math.log(e.length / here.length)))
    pairs = zip(here.values, other.values, strict=True)
    more = Estimate.of([mine / here.base_step - its / other.base_step for mine, its in pairs])
    sign, half = math.copysign(1, here.relative), abs(here.relative) / 2
    figures = (
        f"the step changes by {100 * here.relative:+.1f} % where lengths differ by {100 * here.spread:.0f} %, by "
        f"{100 * other.relative:+.1f} % where they are equal"
    )
    if sign * more.mean >= half and (more.sure() or not more.known):
        return Sign(True, figures)
    return Sign(False if most(more, sign) < half else None, figures)


def most(estimate: Estimate, sign: float) -> float:
    """The most that an estimate may be in a direction: the end of its interval."""
    return max(sign * estimate.low, sign * estimate.high) if estimate.known else sign * estimate.mean


def on_device(case: Case) -> Sign:
    """Is it the device that takes longer, rather than the host?"""
    here = case.excess[0]
    if here.device is None:
        return Sign(None, "no device times")
    share = sum(here.device) / sum(here.values)
    return Sign(share >= MOSTLY, f"{100 * share:.0f} % of the step's change is device time")


def with_length(case: Case) -> Sign:
    """Does the excess grow with the length of the sequences?"""
    found = [
        (a, b)
        for a, b in _couples(case)
        if a.level.load == b.level.load and b.length >= APART * a.length and a.level.burst == b.level.burst
    ]
    return _grows(case, found, lambda e: e.length, "tokens")


def with_batch(case: Case) -> Sign:
    """Does it grow with the batch?"""
    found = [
        (a, b)
        for a, b in _couples(case)
        if b.batch >= APART * a.batch and abs(math.log(a.length / b.length)) < math.log1p(EQUAL_LENGTHS)
    ]
    return _grows(case, found, lambda e: e.batch, "sequences")


def _whole(case: Case) -> list[Excess]:
    """Levels that every pair has."""
    return [e for e in case.excess if len(e.values) == len(case.pairs)]


def _couples(case: Case) -> Iterator[tuple[Excess, Excess]]:
    """Any two levels whose lengths are as spread as each other's."""
    every = _whole(case)
    for a in every:
        for b in every:
            if a is not b and abs(a.spread - b.spread) < EQUAL_LENGTHS:
                yield a, b


def _grows(case: Case, found: Sequence[tuple[Excess, Excess]], size: Callable[[Excess], float], unit: str) -> Sign:
    """Does the excess grow with a size, at least as POWER of it?"""
    if not found:
        return Sign(None, f"no two levels differ enough in {unit}")
    timed = all(e.device is not None for couple in found for e in couple)
    if not timed:
        found = [(a, b) for a, b in found if not _host_bound(case, a)]
        if not found:
            return Sign(None, f"all levels with fewer {unit} wait for the host")

    def values(e: Excess) -> tuple[float, ...]:
        return e.device if timed and e.device is not None else e.values

    direction = math.copysign(1, sum(sum(values(b)) for _, b in found))
    over = [
        direction * sum(values(a)[n] - values(b)[n] * (size(a) / size(b)) ** POWER for a, b in found)
        for n in range(len(case.pairs))
    ]
    beyond = Estimate.of(over)
    small, large = max(found, key=lambda couple: abs(sum(values(couple[1]))))
    means = [1e3 * sum(values(e)) / len(values(e)) for e in (small, large)]
    figures = (
        f"the {'device takes' if timed else 'step takes'} {means[0]:.3g} ms more at {size(small):.0f} {unit}, "
        f"{means[1]:.3g} ms at {size(large):.0f}"
    )
    if beyond.known and not beyond.sure():
        return Sign(None, f"{figures}: not told apart")
    return Sign(beyond.mean < 0, figures)


def _host_bound(case: Case, one: Excess) -> bool:
    """Is base's step there as short as with another batch size, and shorter nowhere?"""
    least = min(e.base_step for e in case.excess)
    alike = [e for e in case.excess if e.base_step <= least * (1 + HOST_BOUND)]
    return one in alike and max(e.batch for e in alike) >= APART * min(e.batch for e in alike)
