"""Why did TPOT change? Two subjects in; out come the account, the hypotheses and one sentence that names the cause."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from harness import stats
from harness.account import ACCEPTANCE, INTERFERENCE, MIX, PARTS, STALLS, STEP, Account, logarithmic_mean
from harness.case import WAITING, Case, Estimate, Subject, build
from harness.comparable import Difference, Role
from harness.errors import MtpbenchError
from harness.hypotheses import (
    CARRIES,
    HYPOTHESES,
    Hypothesis,
    Outcome,
    State,
    changed,
    equal_servers,
    more_pairs,
    percent,
    scale,
    unchanged,
)
from harness.observed import Seen
from harness.pairs import RowKey
from harness.rule import FAIL_ERROR
from harness.verdict import Floors, differences_between

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
class Tested:
    """A hypothesis and what the data say of it."""

    hypothesis: Hypothesis
    outcome: Outcome


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


_LABELS = {
    ACCEPTANCE: "accept length",
    STEP: "decode step, at equal batch sizes",
    MIX: "decode step, by other batch sizes",
    INTERFERENCE: "prefill interference",
    STALLS: "other stalls",
}
# What a line shows of each side: seconds of a step, but for the accept length.
_FIGURES: dict[str, Callable[[Account], float]] = {
    ACCEPTANCE: lambda a: a.accept_length,
    STEP: lambda a: a.decode_step,
    MIX: lambda a: a.mean_batch,
    INTERFERENCE: lambda a: a.interference / a.steps,
    STALLS: lambda a: a.stalls / a.steps,
}
_UNITS = {ACCEPTANCE: "tokens/step", MIX: "sequences"}
CAUSES = {
    "prefill_interference": "prefill interference",
    "acceptance_drift": "drafts accepted differently",
    "slower_kernel": "the verify kernel",
    "segment_overhead": "segment and reduction traffic of the verify kernel",
    "missing_graph_bucket": "the graph that this batch size runs in",
    "ragged_lengths": "lengths that differ within a batch",
    "host_stall": "host stalls",
    "larger_batch": "the larger batch",
    NOISE: "noise",
}


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
        sentence=_sentence(case, cause, tested),
        tpot=tpot,
        rows=rows,
        device=device,
        traced=traced_rows(case),
        tested=tested,
        next=command,
        next_why=why,
        notes=tuple(_notes(case)),
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
    return stats.half_width(known[0], known[1], case.whole.n) if known and known[1] >= 1 else None


def account_rows(case: Case) -> tuple[Row, tuple[Row, ...], tuple[Row, ...]]:
    """(TPOT itself, its parts, the decode step by device times)."""
    factor = scale(case)
    base, head = _both(case, lambda a: a.tpot)
    tpot = Row("tpot", "TPOT", "s", base, head, case.whole.scaled(factor))
    rows = []
    for name in PARTS:
        base, head = _both(case, _FIGURES[name])
        rows.append(Row(name, _LABELS[name], _UNITS.get(name, "s"), base, head, case.parts[name].scaled(factor)))
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

    largest = max(_in_direction(case), key=lambda item: item[1])
    best = min(good, key=rank)
    # A part that no hypothesis owns may be larger than the best that is confirmed: then the cause is not told.
    return best.hypothesis.cause if sign * best.outcome.explains >= 0.9 * largest[1] else None


def _in_direction(case: Case) -> list[tuple[str, float]]:
    """(part, how much of the change it makes), above zero where it goes the same way."""
    sign = math.copysign(1, case.whole.mean)
    return [(name, sign * part.mean) for name, part in case.parts.items()]


def _sentence(case: Case, cause: str | None, tested: Sequence[Tested]) -> str:
    what = _what(case)
    if case.differences:
        named = "; ".join(str(difference) for difference in case.differences[:2])
        return f"{what}, but the sides were measured under different conditions ({named}): no cause can be named."
    if not changed(case):
        return f"{what}: {_unchanged(case)}."
    largest, _ = max(_in_direction(case), key=lambda item: item[1])
    part = f"{_LABELS[largest]} makes {percent(case.parts[largest], case)}{_on_device(case, largest)}"
    part += _then(case, largest)
    against = _against(case)
    once = "" if case.whole.known else " One launch a side: there is no interval, only the size of the change."
    if cause is None:
        open_ones = ", ".join(t.hypothesis.name for t in tested if t.outcome.state is State.UNTESTED)
        return f"{what}: {part}, and the data do not tell why (untested: {open_ones or 'nothing'}){against}.{once}"
    return f"{what}. Cause: {CAUSES[cause]}; {part}{against}.{once}"


def _on_device(case: Case, largest: str) -> str:
    """Which of the decode step's device times carries most of its change."""
    if largest not in (STEP, MIX) or not case.device:
        return ""
    sign = math.copysign(1, case.parts[largest].mean)
    name, part = max(case.device.items(), key=lambda item: sign * item[1].mean)
    what = "the device waiting for the host" if name == WAITING else f"the device's {name.replace('_', ' ')}"
    return f" ({what} {percent(part, case)})"


def _then(case: Case, largest: str) -> str:
    """Further parts that carry the change."""
    others = [
        name for name, value in _in_direction(case) if name != largest and value >= CARRIES * abs(case.whole.mean)
    ]
    named = " and ".join(f"{_LABELS[name]} {percent(case.parts[name], case)}" for name in others)
    return f", {named}" if named else ""


def _what(case: Case) -> str:
    """`TPOT of mtp-in-tree at concurrency 16, TP1 is 5.4 % above that of mtp-generic (…)`."""
    factor = scale(case)
    change = case.whole.scaled(factor)
    word = "above" if change.mean > 0 else "below"
    interval = ""
    if change.known:
        interval = f" (90 % interval {100 * change.low:+.1f} to {100 * change.high:+.1f} %, {change.n} pairs)"
    return f"TPOT of {case.head.name} is {100 * abs(change.mean):.1f} % {word} that of {case.base.name}{interval}"


def _unchanged(case: Case) -> str:
    """Noise, or too little data to call it so; parts that did move are named."""
    if not case.whole.known:
        return "one launch a side can't tell that from noise"
    words = "noise, or nothing" if unchanged(case) else "launches differ too much to tell that from noise"
    return f"{words}{_moved(case)}"


def _moved(case: Case) -> str:
    """Parts that changed for certain although the whole did not."""
    known = {_LABELS[name]: part for name, part in case.parts.items()}
    known |= {f"the device's {name.replace('_', ' ')}": part for name, part in case.device.items() if name != WAITING}
    sure = [(label, part) for label, part in known.items() if part.p <= FAIL_ERROR and abs(part.mean) >= _WORTH_A_WORD]
    named = " and ".join(f"{label} ({percent(part, case)} of TPOT)" for label, part in sure)
    return f"; certain is a change of {named}" if named else ""


_WORTH_A_WORD = 0.005  # of TPOT


def _against(case: Case) -> str:
    """Parts that went the other way, where they are large."""
    others = [(name, value) for name, value in _in_direction(case) if value < -0.1 * abs(case.whole.mean)]
    named = " and ".join(f"{_LABELS[name]} ({percent(case.parts[name], case)})" for name, _ in others)
    return f", against {named}" if named else ""


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
    step = max(_in_direction(case), key=lambda item: item[1])[0] == STEP
    if cause is None and untested:
        first = next((one for one in untested if step == (one.hypothesis.cause in _DIRECT)), untested[0])
        one = first.hypothesis
        return one.experiment(case), f"tells whether it is {one.name}: {one.confirms}"
    if cause is not None and not case.head.side.scenario.factors:
        one = by_cause[cause]
        return one.experiment(case), f"confirms it another way: {one.confirms}"
    return more_pairs(case), "more pairs narrow the parts down"


def _notes(case: Case) -> list[str]:
    notes = []
    base, head = case.mean(lambda seen: seen.tpot)
    median = case.ratio(lambda seen: seen.tpot)
    if base and head and median:
        notes.append(
            f"the account is of the pooled TPOT, all tokens of all requests; the median over requests goes from "
            f"{1e3 * base:.3g} to {1e3 * head:.3g} ms, {100 * math.expm1(median.mean):+.1f} %."
        )
    if not all(seen.account.separable for pair in case.seen for seen in pair):
        notes.append("a request waited for its first token in every step: prefill and decode can't be told apart.")
    ids = {run.id for run in case.base.side.runs} != {run.id for run in case.head.side.runs}
    if ids:
        notes.append("launches of the two sides were not interleaved: a host that drifted counts as a change.")
    if not case.device:
        notes.append(
            "not every launch recorded device times, so the decode step is not divided further: "
            "SGLANG_ENABLE_METRICS_DEVICE_TIMER=1 in the server's environment."
        )
    return notes
