"""The rule that decides, after so many pairs of launches, whether each row is slower, faster or at least not slower.

A row is SLOWER when both hold: that it is slower at all is certain to FAIL_ERROR for the whole family of rows and
looks, and the 90 % interval of how much lies above the tolerance (+2 %). FASTER is the mirror image. It is NOT SLOWER
when a bound that a slowdown of the limit (+3 %) would exceed with PASS_ERROR lies below that limit. Otherwise it is
OPEN: more pairs are needed.

Looking after each pair and stopping at will multiplies errors (at .05 after every pair from 3 to 12, an A/A pair is
called different in 18 %). So every look spends a part of the error, alpha spending (Lan and DeMets 1983, doi
10.1093/biomet/70.3.659), and a row must reach its look's part after Holm's correction over rows. Parts add up to
FAIL_ERROR, so by the union bound the whole can't err more often, however looks and rows depend on each other. The
part of PASS_ERROR is spent at two looks, most of it at the last: clearing 24 rows needs nearly all pairs
anyway. It needs no correction over rows: for a wrong PASS every row has to be cleared, the slow one too.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from harness.stats import inference
from harness.stats.inference import Floats

FAIL_ERROR = 0.01  # that any row of an A/A comparison is called slower, over all looks
PASS_ERROR = 0.05  # that a comparison with a row that is slower by the limit or more is passed
TOLERANCE = math.log(1.02)  # what must be exceeded to fail
LIMIT = math.log(1.03)  # what must be excluded to pass
CONFIDENCE = 0.90  # of the intervals shown
# The primary endpoint was named before looking, so it need not share with all others: it has a fifth of the error.
PRIMARY_SHARE = 0.2
FIRST_LOOK, PAIRS = 4, 10
# At six pairs the smallest p of sign flips is 1/64; below, they can't contradict anything.
SIGN_FLIP_FROM, SIGN_FLIP_P = 6, 0.05
_MIDDLE_LOOK, _MIDDLE_PASS_SHARE = 0.6, 0.2
FAR = 200  # more pairs than anybody would measure


class State(str, Enum):
    """What is known of a row."""

    SLOWER = "slower"
    FASTER = "faster"
    NOT_SLOWER = "not slower"
    OPEN = "open"


@dataclass(frozen=True)
class Plan:
    """At how many pairs the table is looked at; fixed before the first."""

    looks: tuple[int, ...]

    @classmethod
    def sequential(cls, pairs: int = PAIRS, first: int = FIRST_LOOK) -> Plan:
        """After each pair from `first` on, up to the budget."""
        return cls(tuple(range(min(first, pairs), pairs + 1)))

    @classmethod
    def once(cls, pairs: int) -> Plan:
        """For what is stored already: one look at all of it."""
        return cls((pairs,))

    def fail_error(self, look: int) -> float:
        """The part of FAIL_ERROR spent at this look; 0 where none was planned."""
        return FAIL_ERROR / len(self.looks) if look in self.looks else 0.0

    def pass_error(self, look: int) -> float:
        last = self.looks[-1]
        middle = max(self.looks[0], round(_MIDDLE_LOOK * last))
        if look not in (last, middle):
            return 0.0
        if middle == last:
            return PASS_ERROR
        return PASS_ERROR * (_MIDDLE_PASS_SHARE if look == middle else 1 - _MIDDLE_PASS_SHARE)


@dataclass(frozen=True)
class RowDecision:
    """One row at one look. `mean`, `low`, `high` are deltas, above zero worse; p-values are for the whole family."""

    state: State
    n: int
    mean: float = math.nan
    low: float = math.nan
    high: float = math.nan
    sd: float = math.nan
    df: float = math.nan
    p_slower: float = 1.0
    p_faster: float = 1.0
    left_out: int = 0  # pairs that were off


@dataclass(frozen=True)
class Margins:
    """A row's tolerance and limit as deltas: wider where they would be less than the clock can tell."""

    tolerance: float = TOLERANCE
    limit: float = LIMIT

    @classmethod
    def of(cls, base: float, floor: float) -> Margins:
        """For a base value and the absolute change below which nothing is called a change, in the same unit."""
        least = math.log1p(floor / base)
        return cls(max(TOLERANCE, least), max(LIMIT, 1.5 * least))


def decide(
    deltas: Floats, plan: Plan, *, margins: Sequence[Margins] | None = None, primary: Collection[int] = ()
) -> list[RowDecision]:
    """Every row of a table of deltas (pairs, rows), at the look after its last pair; `primary` are indices of rows."""
    pairs, rows = deltas.shape
    given = np.sum(np.isfinite(deltas), axis=0)
    deltas = inference.without_outliers(deltas).table
    counts = np.sum(np.isfinite(deltas), axis=0)
    known = np.flatnonzero(counts >= 2)
    out = [RowDecision(State.OPEN, int(n)) for n in counts]
    if not len(known):
        return out
    s = inference.spread(deltas[:, known])
    low, high = inference.interval(s, CONFIDENCE)
    named = np.isin(known, list(primary))
    # Rows without values still count: Holm over what was planned, not over what happened to be there.
    unseen = rows - len(known)
    worse, better = _by_itself(deltas[:, known]), _by_itself(-deltas[:, known])
    slower = _family(inference.p_above_zero(s), named, unseen)
    faster = _family(inference.p_above_zero(inference.Spread(s.n, -s.mean, s.sd, s.df)), named, unseen)
    fail_error, pass_error = plan.fail_error(pairs), plan.pass_error(pairs)
    bound = inference.upper_bound(s, pass_error) if pass_error else np.full(len(known), math.inf)
    for i, row in enumerate(known.tolist()):
        margin = margins[row] if margins else Margins()
        state = State.OPEN
        if slower[i] <= fail_error and low[i] > margin.tolerance and worse[i] and _backed(deltas[:, row]):
            state = State.SLOWER
        elif faster[i] <= fail_error and high[i] < -margin.tolerance and better[i] and _backed(-deltas[:, row]):
            state = State.FASTER
        elif bound[i] < margin.limit:
            state = State.NOT_SLOWER
        out[row] = RowDecision(
            state,
            int(s.n[i]),
            float(s.mean[i]),
            float(low[i]),
            float(high[i]),
            float(s.sd[i]),
            float(s.df[i]),
            float(slower[i]),
            float(faster[i]),
            int(given[row] - counts[row]),
        )
    return out


# Found by simulation (mtpbench selftest stats): what a row must show with its own spread alone, so that one that is
# noisier than the others does not fail on their certainty.
_OWN_P = 0.0015


def _by_itself(deltas: Floats) -> NDArray[np.bool_]:
    """Which rows are worse by their own spread too; where nothing is borrowed, the t test has said that already."""
    if deltas.shape[1] < inference.MIN_ROWS_TO_SHRINK:
        return np.ones(deltas.shape[1], dtype=np.bool_)
    return np.asarray(inference.own_p_above_zero(deltas) <= _OWN_P)


def _family(p: Floats, named: NDArray[np.bool_], unseen: int) -> Floats:
    """p-values for the family: Holm over rows, with a part of the error set aside for the primary ones."""
    if named.all() or not named.any():
        return _holm(p, unseen)
    out = np.empty_like(p)
    out[named] = inference.holm(p[named]) / PRIMARY_SHARE
    out[~named] = _holm(p[~named], unseen) / (1 - PRIMARY_SHARE)
    return np.minimum(1.0, out)


def _holm(p: Floats, unseen: int) -> Floats:
    return inference.holm(np.concatenate([p, np.ones(unseen)]))[: len(p)]


def _backed(deltas: Floats) -> bool:
    """Do sign flips, which assume no distribution, allow the verdict? One wild pair alone does not make one."""
    values = deltas[np.isfinite(deltas)]
    return len(values) < SIGN_FLIP_FROM or inference.sign_flip_p(values) <= SIGN_FLIP_P


def pairs_needed(row: RowDecision, rows: int, margin: Margins, plan: Plan) -> int | None:
    """How many more pairs settle a row in four cases of five, if it really is as it looks now; None if too many.

    A row whose delta lies between tolerance and limit, or near one of them, may need hundreds.
    """
    if row.n < 2 or not math.isfinite(row.mean):
        return None
    effect, df_a_pair = abs(row.mean), row.df / (row.n - 1)
    level = FAIL_ERROR / len(plan.looks) / rows
    candidates = range(row.n + 1, FAR + 1)
    found = bisect.bisect_left(candidates, True, key=lambda n: settles(effect, row.sd, df_a_pair, n, level, margin))
    return candidates[found] - row.n if found < len(candidates) else None


def settles(effect: float, sd: float, df_a_pair: float, n: int, level: float, margin: Margins) -> bool:
    """Is a row with this true delta called slower, or cleared, by n pairs with 80 % power?"""
    if effect > margin.tolerance and inference.detectable(sd, df_a_pair, n, level, margin.tolerance) <= effect:
        return True
    # The bound lies below the limit: the same computation, seen from the limit downwards.
    return effect < margin.limit and inference.detectable(sd, df_a_pair, n, PASS_ERROR, 0.0) <= margin.limit - effect
