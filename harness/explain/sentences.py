"""What an explanation says in words: the sentence that names the cause, and notes on what it rests on."""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.explain.change import WAITING, Case
from harness.explain.hypotheses import CARRIES, HELD, State, Tested, changed, governed, percent, unchanged
from harness.explain.shares import Share
from harness.metrics.tpot_account import ACCEPTANCE, INTERFERENCE, MIX, STALLS, STEP
from harness.stats.decision import FAIL_ERROR

LABELS = {
    ACCEPTANCE: "accept length",
    STEP: "decode step, at equal batch sizes",
    MIX: "decode step, by other batch sizes",
    INTERFERENCE: "prefill interference",
    STALLS: "other stalls",
}
CAUSES = {
    "prefill_interference": "prefill interference",
    "acceptance_drift": "drafts accepted differently",
    "slower_kernel": "the verify kernel",
    "segment_overhead": "segment and reduction traffic of the verify kernel",
    "missing_graph_bucket": "the graph that this batch size runs in",
    "ragged_lengths": "lengths that differ within a batch",
    "host_stall": "host stalls",
    "larger_batch": "the larger batch",
    "noise": "noise",
}


def in_direction(case: Case) -> list[tuple[str, float]]:
    """(part, how much of the change it makes), above zero where it goes the same way."""
    sign = math.copysign(1, case.whole.mean)
    return [(name, sign * part.mean) for name, part in case.parts.items()]


def sentence(case: Case, cause: str | None, tested: Sequence[Tested], found: Sequence[Share] = ()) -> str:
    """By how much TPOT changed, and why, or what the data do not tell."""
    what = _what(case)
    if case.differences:
        named = "; ".join(str(difference) for difference in case.differences[:2])
        return f"{what}, but the sides were measured under different conditions ({named}): no cause can be named."
    if not changed(case):
        return f"{what}: {_cancelling(case, found) if found else _unchanged(case)}."
    largest, _ = max(in_direction(case), key=lambda item: item[1])
    part = f"{LABELS[largest]} makes {percent(case.parts[largest], case)}{_on_device(case, largest)}"
    part += _then(case, largest)
    against = _against(case)
    once = "" if case.whole.known else " One launch a side: there is no interval, only the size of the change."
    if cause is None:
        open_ones = ", ".join(t.hypothesis.name for t in tested if t.outcome.state is State.UNTESTED)
        return f"{what}: {part}, and the data do not tell why (untested: {open_ones or 'nothing'}){against}.{once}"
    likely = "" if case.whole.known else "Likely "
    sign = math.copysign(1, case.whole.mean)
    several = [one for one in found if sign * one.change.mean > 0]
    if len(several) > 1:
        return f"{what}. {likely}Causes: {_named(case, several)}{against}.{once}"
    word = "Likely cause" if likely else "Cause"
    if governed(case):
        figures = next(t.outcome.figures for t in tested if t.hypothesis.cause == cause and t.outcome.state in HELD)
        return f"{what}. {word}: {CAUSES[cause]}: {figures}; {part}{against}.{once}"
    return f"{what}. {word}: {CAUSES[cause]}; {part}{against}.{once}"


def _named(case: Case, found: Sequence[Share]) -> str:
    return " and ".join(
        f"{CAUSES[one.cause] if one.cause else LABELS[one.part]} ({percent(one.change, case)})" for one in found
    )


def _cancelling(case: Case, found: Sequence[Share]) -> str:
    """Causes that go against each other, so that TPOT shows neither."""
    worse = [one for one in found if one.change.mean > 0]
    better = [one for one in found if one.change.mean < 0]
    return f"causes that cancel: {_named(case, worse)} against {_named(case, better)}"


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
    others = [name for name, value in in_direction(case) if name != largest and value >= CARRIES * abs(case.whole.mean)]
    named = " and ".join(f"{LABELS[name]} {percent(case.parts[name], case)}" for name in others)
    return f", {named}" if named else ""


def _what(case: Case) -> str:
    """`TPOT of mtp-in-tree at concurrency 16, TP1 is 5.4 % above that of mtp-generic (…)`."""
    change = case.whole.relative(case.whole.mean)
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
    known = {LABELS[name]: part for name, part in case.parts.items()}
    known |= {f"the device's {name.replace('_', ' ')}": part for name, part in case.device.items() if name != WAITING}
    sure = [(label, part) for label, part in known.items() if part.p <= FAIL_ERROR and abs(part.mean) >= _WORTH_A_WORD]
    named = " and ".join(f"{label} ({percent(part, case)} of TPOT)" for label, part in sure)
    return f"; certain is a change of {named}" if named else ""


_WORTH_A_WORD = 0.005  # of TPOT


def _against(case: Case) -> str:
    """Parts that went the other way, where they are large."""
    others = [(name, value) for name, value in in_direction(case) if value < -0.1 * abs(case.whole.mean)]
    named = " and ".join(f"{LABELS[name]} ({percent(case.parts[name], case)})" for name, _ in others)
    return f", against {named}" if named else ""


def notes(case: Case) -> list[str]:
    """What a reader must know of the figures."""
    found = []
    base, head = case.mean(lambda seen: seen.tpot)
    median = case.ratio(lambda seen: seen.tpot)
    if base and head and median:
        found.append(
            f"the account is of the pooled TPOT, all tokens of all requests; the median over requests goes from "
            f"{1e3 * base:.3g} to {1e3 * head:.3g} ms, {100 * math.expm1(median.mean):+.1f} %."
        )
    if not all(seen.account.separable for pair in case.seen for seen in pair):
        found.append("a request waited for its first token in every step: prefill and decode can't be told apart.")
    ids = {run.id for run in case.base.side.runs} != {run.id for run in case.head.side.runs}
    if ids:
        found.append("launches of the two sides were not interleaved: a host that drifted counts as a change.")
    if not case.device:
        found.append(
            "not every launch recorded device times, so the decode step is not divided further: "
            "SGLANG_ENABLE_METRICS_DEVICE_TIMER=1 in the server's environment."
        )
    return found
