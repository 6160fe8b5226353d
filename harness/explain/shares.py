"""Several causes at once: which hypothesis owns each certain part of the change, and how much of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.explain.change import Case, Estimate
from harness.explain.hypotheses import CARRIES, HELD, Tested, changed
from harness.metrics.tpot_account import ACCEPTANCE, INTERFERENCE, MIX, PARTS, STALLS, STEP
from harness.stats.decision import FAIL_ERROR, TOLERANCE

# Of causes that explain the same part, the more direct evidence speaks first.
DIRECT = ("missing_graph_bucket", "ragged_lengths", "segment_overhead", "host_stall", "slower_kernel")
_OWNERS = {
    ACCEPTANCE: "acceptance_drift",
    INTERFERENCE: "prefill_interference",
    MIX: "larger_batch",
    STALLS: "host_stall",
}
# A part that is less than this of Δ log TPOT, or than this share of all that moved, is not worth a name.
_LEAST, _LEAST_SHARE = 0.01, 1 / 8


@dataclass(frozen=True)
class Share:
    """A cause, its part of the account, and how much of Δ log TPOT it makes. `cause` is empty where it is not told."""

    cause: str
    part: str
    change: Estimate


def shares(case: Case, tested: Sequence[Tested]) -> tuple[Share, ...]:
    """The certain parts of a change, the largest first; none where the sides can't be compared.

    Where TPOT itself did not change, parts that cancel are shares too, if they are certain for all parts together.
    """
    if case.differences or case.between_levels:
        return ()
    moved = sum(abs(part.mean) for part in case.parts.values())
    error, least = (FAIL_ERROR, _LEAST) if changed(case) else (FAIL_ERROR / len(PARTS), TOLERANCE)
    least = max(least, _LEAST_SHARE * moved)
    found = [
        Share(_owner(name, tested), name, part)
        for name, part in case.parts.items()
        if abs(part.mean) >= least and (part.sure(error) if part.known else _carries(case, part))
    ]
    if not changed(case) and len({math.copysign(1, one.change.mean) for one in found}) < 2:
        return ()
    return tuple(sorted(found, key=lambda one: -abs(one.change.mean)))


def _carries(case: Case, part: Estimate) -> bool:
    return changed(case) and abs(part.mean) >= CARRIES * abs(case.whole.mean)


def _owner(part: str, tested: Sequence[Tested]) -> str:
    if part != STEP:
        return _OWNERS[part]
    held = {one.hypothesis.cause for one in tested if one.outcome.state in HELD}
    return next((cause for cause in DIRECT if cause in held), "")
