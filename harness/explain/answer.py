"""Why did TPOT change? Two subjects in; out come the account, the hypotheses and one sentence that names the cause."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from harness.errors import MtpbenchError
from harness.explain.change import WAITING, Case, Estimate, Subject, build
from harness.explain.hypotheses import HYPOTHESES, State, Tested, changed, equal_servers, more_pairs, scale, unchanged
from harness.explain.launches import Seen
from harness.explain.sentences import LABELS, in_direction, notes, sentence
from harness.metrics.tpot_account import ACCEPTANCE, INTERFERENCE, MIX, PARTS, STALLS, STEP, Account, logarithmic_mean
from harness.stats import inference
from harness.verdict.compare import Floors, differences_between
from harness.verdict.facts import Difference, Role
from harness.verdict.pairs import RowKey

NOISE = "noise"


@dataclass(frozen=True)
class Row:
    """A line of the account. `base` and `head` are in `unit`; `change` is the part of TPOT's relative change."""

    name: str
    label: str
    unit: str
    base: float
    head: float
    change: Estimate


@dataclass(frozen=True)
class Explanation:
    """The answer. `cause` is None where the data do not tell; `next` is the command that would tell most."""

    case: Case
    cause: str | None
    sentence: str
    tpot: Row
    rows: tuple[Row, ...]  # their changes add up to that of `tpot`
    device: tuple[Row, ...]  # divide the decode step, both of its lines; empty where no device times are there
    traced: tuple[Row, ...]  # divide what the device does in it; empty where no step was traced
    tested: tuple[Tested, ...]
    next: str
    next_why: str
    notes: tuple[str, ...] = ()


# What a line shows of each side: seconds of a step, but for the accept length.
_FIGURES: dict[str, Callable[[Account], float]] = {
    ACCEPTANCE: lambda a: a.accept_length,
    STEP: lambda a: a.decode_step,
    MIX: lambda a: a.mean_batch,
    INTERFERENCE: lambda a: a.interference / a.steps,
    STALLS: lambda a: a.stalls / a.steps,
}
_UNITS = {ACCEPTANCE: "tokens/step", MIX: "sequences"}


def explain(base: Subject, head: Subject, *, floors: Floors | None = None, allowed: Sequence[str] = ()) -> Explanation:
    """The whole answer. Raises MtpbenchError where a side has nothing usable."""
    if (base.side.runs, base.arm, base.tp, base.level) == (head.side.runs, head.arm, head.tp, head.level):
        raise MtpbenchError("both sides are the same launches", "Name two arms, two runs, or two levels.")
    found = [] if base.side.runs == head.side.runs and base.arm == head.arm else _differences(base, head, allowed)
    case = build(base, head, [d for d in found if d.role is Role.MATTERS])
    return judge(replace(case, floor=_floor(floors or {}, case)))


def judge(case: Case) -> Explanation:
    """A case with its hypotheses tested and the cause named."""
    tested = tuple(Tested(one, one.test(case)) for one in HYPOTHESES)
    cause = _cause(case, tested)
    tpot, rows, device = account_rows(case)
    command, why = _next(case, cause, tested)
    return Explanation(
        case=case,
        cause=cause,
        sentence=sentence(case, cause, tested),
        tpot=tpot,
        rows=rows,
        device=device,
        traced=traced_rows(case),
        tested=tested,
        next=command,
        next_why=why,
        notes=tuple(notes(case)),
    )


def _differences(base: Subject, head: Subject, allowed: Sequence[str]) -> list[Difference]:
    """Facts in which the sides differ; server and packages may where two arms are compared."""
    arms = base.arm != head.arm
    label = "subject"
    sides = [replace(one.side, arms={label: one.arm}) for one in (base, head)]
    return differences_between(sides[0], sides[1], [*allowed, *(("server", "packages") if arms else ())])


def _floor(floors: Floors, case: Case) -> float | None:
    """What a mean of so many A/A deltas of TPOT stays below in nine of ten cases."""
    known = floors.get(RowKey("tpot_p50", case.head.label, case.head.tp, case.head.level))
    return inference.half_width(known[0], known[1], case.whole.n) if known and known[1] >= 1 else None


def account_rows(case: Case) -> tuple[Row, tuple[Row, ...], tuple[Row, ...]]:
    """(TPOT itself, its parts, the decode step by device times)."""
    factor = scale(case)
    base, head = _both(case, lambda a: a.tpot)
    tpot = Row("tpot", "TPOT", "s", base, head, case.whole.scaled(factor))
    rows = []
    for name in PARTS:
        base, head = _both(case, _FIGURES[name])
        rows.append(Row(name, LABELS[name], _UNITS.get(name, "s"), base, head, case.parts[name].scaled(factor)))
    device = []
    for name, estimate in case.device.items():
        sides = zip(*[[_device_seconds(seen, name) for seen in pair] for pair in case.seen], strict=True)
        base, head = (fmean(side) for side in sides)
        label = "the device waits for the host" if name == WAITING else f"device: {name.replace('_', ' ')}"
        device.append(Row(name, label, "s", base, head, estimate.scaled(factor)))
    return tpot, tuple(rows), tuple(device)


def _device_seconds(seen: Seen, part: str) -> float:
    return seen.account.decode_step - sum(seen.device.values()) if part == WAITING else seen.device.get(part, 0.0)


def traced_rows(case: Case) -> tuple[Row, ...]:
    """The device's parts of a traced step. One number a side: they have no interval."""
    mean = fmean(logarithmic_mean(base.account.step, head.account.step) for base, head in case.seen)
    return tuple(
        Row(name, f"traced: {name.replace('_', ' ')}", "s", base, head, Estimate((head - base) / mean * scale(case)))
        for name, (base, head) in case.traced.items()
    )


def _both(case: Case, figure: Callable[[Account], float]) -> tuple[float, float]:
    base, head = case.mean(lambda seen: figure(seen.account))
    assert base is not None
    assert head is not None
    return base, head


# Of causes that explain the same part, the more direct evidence speaks first.
_DIRECT = ("missing_graph_bucket", "ragged_lengths", "segment_overhead", "host_stall", "slower_kernel")


def _cause(case: Case, tested: Sequence[Tested]) -> str | None:
    """The confirmed hypothesis that explains most of the change; None where none does."""
    if case.differences or not changed(case):
        return NOISE if case.differences or unchanged(case) else None
    sign = math.copysign(1, case.whole.mean)
    good = [
        one
        for one in tested
        if one.outcome.state is State.CONFIRMED and one.hypothesis.cause != NOISE and sign * one.outcome.explains > 0
    ]
    if not good:
        return None

    def rank(one: Tested) -> tuple[float, int]:
        cause = one.hypothesis.cause
        return -sign * one.outcome.explains, _DIRECT.index(cause) if cause in _DIRECT else -1

    largest = max(in_direction(case), key=lambda item: item[1])
    best = min(good, key=rank)
    # A part that no hypothesis owns may be larger than the best that is confirmed: then the cause is not told.
    return best.hypothesis.cause if sign * best.outcome.explains >= 0.9 * largest[1] else None


def _next(case: Case, cause: str | None, tested: Sequence[Tested]) -> tuple[str, str]:
    """(command, why) of the experiment that would tell most."""
    by_cause = {one.hypothesis.cause: one.hypothesis for one in reversed(tested)}
    if not case.whole.known or not changed(case):
        if case.between_levels:
            return equal_servers(case), "several launches give the parts an interval"
        if unchanged(case):
            return equal_servers(case), "what equal servers differ by says how small a change can be seen"
        return more_pairs(case), "more pairs of launches make the interval of the change and of its parts smaller"
    untested = [one for one in tested if one.outcome.state is State.UNTESTED]
    step = max(in_direction(case), key=lambda item: item[1])[0] == STEP
    if cause is None and untested:
        first = next((one for one in untested if step == (one.hypothesis.cause in _DIRECT)), untested[0])
        one = first.hypothesis
        return one.experiment(case), f"tells whether it is {one.name}: {one.confirms}"
    if cause is not None and not case.head.side.scenario.factors:
        one = by_cause[cause]
        return one.experiment(case), f"confirms it another way: {one.confirms}"
    return more_pairs(case), "more pairs narrow the parts down"
