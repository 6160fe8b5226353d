"""Why did TPOT change? Two subjects in; out come the account, the hypotheses and one sentence that names the cause."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, geometric_mean

from harness.errors import MtpbenchError
from harness.explain.change import WAITING, Case, Estimate, Subject, build, relative_to_log
from harness.explain.hypotheses import (
    HELD,
    HYPOTHESES,
    Outcome,
    State,
    Tested,
    changed,
    equal_servers,
    more_pairs,
    unchanged,
)
from harness.explain.launches import Seen
from harness.explain.sentences import LABELS, in_direction, notes, sentence
from harness.explain.shares import DIRECT, Share, shares
from harness.metrics.tpot_account import ACCEPTANCE, INTERFERENCE, MIX, PARTS, STALLS, STEP, second_of_a_step
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
    factor: float = 1.0  # by which the part alone multiplies TPOT


@dataclass(frozen=True)
class Explanation:
    """The answer. `cause` is None where the data do not tell; `next` is the command that would tell most."""

    case: Case
    cause: str | None
    shares: tuple[Share, ...]  # several causes at once, each with its part; the largest first
    sentence: str
    tpot: Row
    rows: tuple[Row, ...]  # their changes add up to that of `tpot`
    device: tuple[Row, ...]  # divide the decode step, both of its lines; empty where no device times are there
    traced: tuple[Row, ...]  # divide what the device does in it; empty where no step was traced
    tested: tuple[Tested, ...]
    next: str
    next_why: str
    notes: tuple[str, ...] = ()


_UNITS = {ACCEPTANCE: "tokens/step", MIX: "sequences", INTERFERENCE: "s/token"}


def explain(base: Subject, head: Subject, *, floors: Floors | None = None, allowed: Sequence[str] = ()) -> Explanation:
    """The whole answer. Raises MtpbenchError where a side has nothing usable."""
    if (base.side.runs, base.arm, base.tp, base.level) == (head.side.runs, head.arm, head.tp, head.level):
        raise MtpbenchError("both sides are the same launches", "Name two arms, two runs, or two levels.")
    found = [] if base.side.runs == head.side.runs and base.arm == head.arm else _differences(base, head, allowed)
    case = build(base, head, [d for d in found if d.role is Role.MATTERS])
    only = found[0] if len(found) == 1 else None
    return judge(replace(case, only=only, floor=_floor(floors or {}, case)))


def judge(case: Case) -> Explanation:
    """A case with its hypotheses tested and the cause named."""
    tested = tuple(Tested(one, _as_sure_as_it_is(one.test(case), case)) for one in HYPOTHESES)
    found = shares(case, tested)
    cause = _cause(case, tested, found)
    tpot, rows, device = account_rows(case)
    command, why = _next(case, cause, tested)
    return Explanation(
        case=case,
        cause=cause,
        shares=found,
        sentence=sentence(case, cause, tested, found),
        tpot=tpot,
        rows=rows,
        device=device,
        traced=traced_rows(case),
        tested=tested,
        next=command,
        next_why=why,
        notes=tuple(notes(case)),
    )


_OF_ONE_LAUNCH = {State.CONFIRMED: State.LIKELY, State.REFUTED: State.UNLIKELY}


def _as_sure_as_it_is(outcome: Outcome, case: Case) -> Outcome:
    """One launch a side confirms nothing, and refutes nothing."""
    if case.whole.known:
        return outcome
    return replace(outcome, state=_OF_ONE_LAUNCH.get(outcome.state, outcome.state))


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
    """(TPOT itself, its parts, the decode step by device times).

    A side's column adds up: TPOT and accept length are geometric means over pairs, whose ratios are those of the
    changes, and every part of TPOT is its mean share of that TPOT.
    """
    whole = case.whole.mean
    base, head = (_Column([seen[n] for seen in case.seen]) for n in (0, 1))

    def row(name: str, label: str, unit: str, shown: Callable[[_Column], float], change: Estimate) -> Row:
        return Row(name, label, unit, shown(base), shown(head), change.relative(whole), math.exp(change.mean))

    tpot = row("tpot", "TPOT", "s", lambda side: side.tpot, case.whole)
    rows = [
        row(name, LABELS[name], _UNITS.get(name, "s"), partial(_Column.figure, part=name), case.parts[name])
        for name in PARTS
    ]
    device = []
    for name, estimate in case.device.items():
        label = "the device waits for the host" if name == WAITING else f"device: {name.replace('_', ' ')}"
        device.append(row(name, label, "s", partial(_Column.device, part=name), estimate))
    return tpot, tuple(rows), tuple(device)


class _Column:
    """What the table shows of one side."""

    def __init__(self, seen: Sequence[Seen]) -> None:
        self.seen = seen
        self.tpot = geometric_mean(one.account.tpot for one in seen)
        self.accept_length = geometric_mean(one.account.accept_length for one in seen)

    def figure(self, part: str) -> float:
        """In the part's unit."""
        if part == ACCEPTANCE:
            return self.accept_length
        if part == MIX:
            return fmean(one.account.mean_batch for one in self.seen)
        if part == INTERFERENCE:
            return self.tpot * fmean(one.account.interference / one.account.seconds for one in self.seen)
        if part == STALLS:
            return self._of_a_step(one.account.stalls / one.account.seconds for one in self.seen)
        return self._of_a_step(one.account.decode / one.account.seconds for one in self.seen)

    def device(self, part: str) -> float:
        """Seconds of a decode step."""

        def share(one: Seen) -> float:
            step = one.account.decode_step
            mine = step - sum(one.device.values()) if part == WAITING else one.device.get(part, 0.0)
            return mine / step * one.account.decode / one.account.seconds

        return self._of_a_step(share(one) for one in self.seen)

    def _of_a_step(self, shares: Iterable[float]) -> float:
        return self.tpot * self.accept_length * fmean(shares)


def traced_rows(case: Case) -> tuple[Row, ...]:
    """The device's parts of a traced step. One number a side: they have no interval."""
    a_second = fmean(second_of_a_step(base.account, head.account) for base, head in case.seen)
    factor = a_second * relative_to_log(case.whole.mean)
    return tuple(
        Row(name, f"traced: {name.replace('_', ' ')}", "s", base, head, Estimate((head - base) * factor))
        for name, (base, head) in case.traced.items()
    )


def _cause(case: Case, tested: Sequence[Tested], found: Sequence[Share]) -> str | None:
    """The confirmed hypothesis that explains most of the change; None where none does."""
    if not changed(case) and found and not case.differences:
        return found[0].cause or None
    if case.differences or not changed(case):
        return NOISE if case.differences or unchanged(case) else None
    sign = math.copysign(1, case.whole.mean)
    good = [
        one
        for one in tested
        if one.outcome.state in HELD and one.hypothesis.cause != NOISE and sign * one.outcome.explains > 0
    ]
    if not good:
        return None

    def rank(one: Tested) -> tuple[float, int]:
        cause = one.hypothesis.cause
        return -sign * one.outcome.explains, DIRECT.index(cause) if cause in DIRECT else -1

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
        first = next((one for one in untested if step == (one.hypothesis.cause in DIRECT)), untested[0])
        one = first.hypothesis
        return one.experiment(case), f"tells whether it is {one.name}: {one.confirms}"
    if cause is not None and not case.head.side.scenario.factors:
        one = by_cause[cause]
        return one.experiment(case), f"confirms it another way: {one.confirms}"
    return more_pairs(case), "more pairs narrow the parts down"
