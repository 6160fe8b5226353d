"""What may have changed TPOT, as a table: name, what confirms it, what refutes it, the test, and what would tell.

A newcomer adds a hypothesis with one entry below and a test on hand-made passes. Numbers 1 to 9 are those of the
question that this suite began with: a verify kernel twice as fast, and TPOT up by 5.4 % at concurrency 16, docs/c16.md.

Some of them make the decode step itself longer. What tells these apart is where the excess appears:

    graph bucket   at batch sizes that one side has no graph for (its log, and the sizes captured)
    ragged lengths where lengths differ within a batch, and not where they are equal
    segments       as much at short lengths as at long ones (partial results, written and read), more at larger batches
    kernel         in proportion to length: the KV cache is read more slowly
    host           as much at every length and batch size
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from statistics import fmean

from harness.errors import MtpbenchError
from harness.explain import excess as signatures
from harness.explain.change import SURE, WAITING, Case, Estimate, Excess, Subject, build
from harness.explain.excess import Sign
from harness.metrics.tpot_account import ACCEPTANCE, INTERFERENCE, MIX, PARTS, STALLS, STEP
from harness.stats.decision import FAIL_ERROR, LIMIT, TOLERANCE

# A part that is less than this share of the change does not carry it.
CARRIES = 1 / 3


class State(str, Enum):
    """What the data say of a hypothesis. One launch a side has no interval, so it makes things likely at most."""

    CONFIRMED = "confirmed"
    LIKELY = "likely"
    UNTESTED = "untested"
    UNLIKELY = "unlikely"
    REFUTED = "refuted"


HELD = (State.CONFIRMED, State.LIKELY)  # it explains something


@dataclass(frozen=True)
class Outcome:
    """The answer of a test: `figures` say why, `explains` how much of Δ log TPOT it accounts for, if confirmed."""

    state: State
    figures: str
    explains: float = math.nan


@dataclass(frozen=True)
class Hypothesis:
    """One thing that may be the cause. `experiment` is the command that would tell."""

    number: int
    cause: str
    name: str
    confirms: str
    refutes: str
    test: Callable[[Case], Outcome]
    experiment: Callable[[Case], str]


@dataclass(frozen=True)
class Tested:
    """A hypothesis and what the data say of it."""

    hypothesis: Hypothesis
    outcome: Outcome


def changed(case: Case) -> bool:
    """Has TPOT changed at all, by more than is worth a word? Two-sided, at the error rate of verdicts.

    A part may be certain where the whole is not, since the others are noisy: it makes the change certain when it is as
    large as the whole looks, at that error rate shared between all parts.
    """
    # One setting and its own part of the device's account are one question: it needs no share of the error.
    if not case.whole.sure(SURE if governed(case) else FAIL_ERROR):
        return any(_makes_the_change(case.whole, part) for part in case.parts.values())
    low, high = (case.whole.low, case.whole.high) if case.whole.known else (case.whole.mean, case.whole.mean)
    return high > TOLERANCE or low < -TOLERANCE


def _makes_the_change(whole: Estimate, part: Estimate) -> bool:
    sure = part.known and part.sure(FAIL_ERROR / len(PARTS)) and abs(part.mean) > TOLERANCE
    return sure and abs(whole.mean - part.mean) <= abs(part.mean) / 2


def unchanged(case: Case) -> bool:
    """Is it known that TPOT changed by less than the limit of a verdict, rather than not known by how much?"""
    return not changed(case) and case.whole.known and case.whole.low > -LIMIT and case.whole.high < LIMIT


def carried(case: Case, part: Estimate) -> State:
    """Does a part carry the change: at least a third of it, in its direction, beyond its own spread?"""
    if not changed(case):
        settled = part.known and part.low > -TOLERANCE and part.high < TOLERANCE
        return State.REFUTED if settled else State.UNTESTED
    sign, enough = math.copysign(1, case.whole.mean), CARRIES * abs(case.whole.mean)
    if sign * part.mean >= enough and (part.sure() if part.known else True):
        return State.CONFIRMED
    return State.REFUTED if signatures.most(part, sign) < enough else State.UNTESTED


# Beyond these, a part of TPOT in percent is no quantity to think with: nothing loses 160 % of its time.
_LEAST, _MOST = -0.95, 2.0


def sensible(part: float) -> bool:
    """Can a reader make anything of this part of TPOT as a percentage?"""
    return _LEAST < part < _MOST


def percent(estimate: Estimate, case: Case | None = None) -> str:
    """`+3.1 % (+2.0 to +4.2 %)`; of TPOT where a case is given, so that parts add up to the relative change.

    A part too large for that is told as what it multiplies TPOT by: `a factor of 0.3 (0.28 to 0.32)`. Factors of all
    parts multiply up to TPOT's.
    """
    shown = estimate.relative(case.whole.mean) if case else estimate
    if case and not sensible(shown.mean):
        text = f"a factor of {math.exp(estimate.mean):.2g}"
        return f"{text} ({math.exp(estimate.low):.2g} to {math.exp(estimate.high):.2g})" if shown.known else text
    text = f"{100 * shown.mean:+.1f} %"
    return f"{text} ({100 * shown.low:+.1f} to {100 * shown.high:+.1f} %)" if shown.known else text


# A setting → the device's part that it governs.
_GOVERNS = {"server.verify": "target_verify"}


def governed(case: Case) -> str:
    """The device's part that the only setting in which the sides differ governs, where it makes most of the change.

    That such a setting is the cause is certain by construction, as far as the part changed; empty where there is none.
    """
    part = _GOVERNS.get(case.only.fact, "") if case.only else ""
    if part not in case.device or case.between_levels:
        return ""
    sign, mine = math.copysign(1, case.whole.mean), case.device[part]
    busy = sum(one.mean for name, one in case.device.items() if name != WAITING)
    most = sign * mine.mean >= signatures.MOSTLY * max(abs(busy), abs(case.whole.mean))
    return part if most and (mine.sure() if mine.known else True) else ""


def _pair(values: tuple[float | None, float | None], unit: str = "", factor: float = 1.0) -> str:
    base, head = values
    return "unknown" if base is None or head is None else f"{factor * base:.3g} → {factor * head:.3g}{unit}"


# Parts that an account shows directly.


def _interference(case: Case) -> Outcome:
    part = case.parts[INTERFERENCE]
    each = case.mean(lambda seen: seen.account.interference_a_token)
    share = case.mean(lambda seen: seen.account.disturbed / seen.account.gaps)
    figures = (
        f"{percent(part, case)} of TPOT: prefills take {_pair(each, ' ms', 1e3)} of a token on average "
        f"({_pair(share, ' %', 100)} of the steps are disturbed)"
    )
    if not all(seen.account.separable for pair in case.seen for seen in pair):
        return Outcome(State.UNTESTED, f"every step had a prefill in it, so none is undisturbed: {figures}")
    first, rate = case.ratio(lambda seen: seen.ttft), case.ratio(lambda seen: seen.throughput)
    if first and rate:
        figures += f"; TTFT {100 * math.expm1(first.mean):+.1f} %, output {100 * math.expm1(rate.mean):+.1f} %"
    if _lengths_differ(case):
        return Outcome(State.REFUTED, f"the sides got other lengths, which prefills follow: {figures}", part.mean)
    state = carried(case, part)
    if (burst := _burst(case)) is not None and state is State.CONFIRMED:
        figures += f"; in a burst without prefill the step changes by {100 * burst:+.1f} %"
    return Outcome(state, figures, part.mean)


def _burst(case: Case) -> float | None:
    """Relative change of the decode step in a burst of the same concurrency."""
    here = case.head.level
    found = [e for e in case.excess if e.level.burst and e.level.concurrency == here.concurrency and not here.burst]
    return found[0].relative if found else None


def _acceptance(case: Case) -> Outcome:
    part = case.parts[ACCEPTANCE]
    lengths = case.mean(lambda seen: seen.account.accept_length)
    steps = case.mean(lambda seen: seen.account.steps / seen.account.requests)
    if lengths == (1.0, 1.0):
        return Outcome(State.REFUTED, "neither side speculates")
    figures = f"{percent(part, case)} of TPOT: accept length {_pair(lengths)}, {_pair(steps)} verify steps a request"
    return Outcome(carried(case, part), figures, part.mean)


def _batch(case: Case) -> Outcome:
    part = case.parts[MIX]
    sizes = case.mean(lambda seen: seen.account.mean_batch)
    steps = case.mean(lambda seen: seen.account.decode_step)
    figures = f"{percent(part, case)} of TPOT: mean batch {_pair(sizes)}, undisturbed step {_pair(steps, ' ms', 1e3)}"
    if _lengths_differ(case):
        return Outcome(State.REFUTED, f"the sides got other lengths, which batches follow: {figures}", part.mean)
    return Outcome(carried(case, part), figures, part.mean)


def _lengths_differ(case: Case) -> bool:
    return not case.between_levels and signatures.other_lengths(case)


# What makes the decode step itself longer.


def _step(case: Case) -> Outcome | None:
    """Why no test of the step is needed, or possible; None where it did get longer."""
    part = case.parts[STEP]
    state = carried(case, part)
    words = "the decode step does not carry the change" if changed(case) else "no certain change; of the decode step"
    figures = f"{words}: {percent(part, case)} of TPOT"
    if case.between_levels:
        return Outcome(State.UNTESTED, "two levels of one server: ask it of two arms at one level")
    # Less than a third of the change may still be one of its causes, and one that another cancels is no less certain.
    against = changed(case) and part.mean * case.whole.mean < 0
    moved = part.known and part.sure(FAIL_ERROR) and abs(part.mean) >= TOLERANCE / 2 and not against
    return None if state is State.CONFIRMED or moved else Outcome(state, figures, part.mean)


def _graph_bucket(case: Case) -> Outcome:
    if case.between_levels:
        return _graphs_of_levels(case)
    return _step(case) or _by_sign(case, signatures.graph(case))


def _by_sign(case: Case, sign: Sign) -> Outcome:
    """The outcome of a cause that has a sign of its own."""
    state = State.UNTESTED if sign.there is None else State.CONFIRMED if sign.there else State.REFUTED
    return Outcome(state, sign.figures, case.parts[STEP].mean)


def _graphs_of_levels(case: Case) -> Outcome:
    """Between two levels: does the larger one run outside of graphs?"""
    base, head = case.mean(lambda seen: seen.graphs)
    if base is None or head is None:
        return Outcome(State.UNTESTED, "the server's log does not say whether steps ran in a graph")
    figures = f"{100 * base:.0f} → {100 * head:.0f} % of logged steps ran in a graph"
    missing = base - head >= signatures.OTHER_GRAPHS
    return Outcome(State.CONFIRMED if missing else State.REFUTED, figures, case.parts[MIX].mean)


def _ragged(case: Case) -> Outcome:
    if case.between_levels:
        spreads = [seen.account.length_spread for pair in case.seen for seen in pair]
        equal = max(spreads) < signatures.EQUAL_LENGTHS
        figures = f"the longest sequence of a batch exceeds the mean by {100 * max(spreads):.1f} %"
        return Outcome(State.REFUTED if equal else State.UNTESTED, figures)
    if signatures.other_lengths(case):
        # Not only the step: prefill takes more than in proportion to length, and requests that end apart mix batches.
        of_lengths = case.sum_of(STEP, MIX, INTERFERENCE)
        return Outcome(carried(case, of_lengths), signatures.ragged(case).figures, of_lengths.mean)
    return _step(case) or _by_sign(case, signatures.ragged(case))


def _in_the_step(case: Case, wanted: Sequence[tuple[Callable[[Case], Sign], bool]]) -> Outcome:
    """A cause that has no sign of its own: confirmed where all the signs are as wanted, refuted where one is not."""
    if (known := _step(case)) is not None:
        return known
    explains = case.parts[STEP].mean
    for sign in (signatures.graph(case), signatures.ragged(case)):
        if sign.there:
            return Outcome(State.REFUTED, f"another cause makes the step longer: {sign.figures}", explains)
    found = [(look(case), there) for look, there in wanted]
    against = [sign for sign, there in found if sign.there is not None and sign.there != there]
    if against:
        return Outcome(State.REFUTED, "; ".join(sign.figures for sign in against), explains)
    state = State.CONFIRMED if all(sign.there is not None for sign, _ in found) else State.UNTESTED
    return Outcome(state, "; ".join(sign.figures for sign, _ in found), explains)


def _attention(case: Case) -> Sign:
    """Is it verify attention, rather than the host or another part of the device's time? True where nothing says no."""
    on_device = signatures.on_device(case)
    if on_device.there is False or not case.traced:
        return Sign(on_device.there is not False, on_device.figures)
    changes = {name: head - base for name, (base, head) in case.traced.items()}
    share = changes.get("verify_attention", 0.0) / (sum(changes.values()) or math.inf)
    figures = f"verify attention makes {100 * share:.0f} % of what a traced step takes longer on the device"
    return Sign(share >= signatures.MOSTLY, figures)


def _kernel(case: Case) -> Outcome:
    if part := governed(case):
        assert case.only is not None, "something governs it"
        seconds = case.mean(lambda seen: seen.device.get(part))
        figures = (
            f"{part.replace('_', '-')} {_pair(seconds, ' ms', 1e3)} of a step, {percent(case.device[part], case)} of "
            f"TPOT; {case.only}, the only setting that differs"
        )
        return Outcome(State.CONFIRMED, figures, case.parts[STEP].mean)
    return _in_the_step(case, ((_attention, True), (signatures.with_length, True)))


def _segments(case: Case) -> Outcome:
    signs = ((_attention, True), (signatures.with_length, False), (signatures.with_batch, True))
    return _in_the_step(case, signs)


def _host(case: Case) -> Outcome:
    """Single long steps are a part of the account; a cost of every step is in the step."""
    part = case.parts[STALLS]
    each = case.mean(lambda seen: seen.account.stalls / seen.account.steps)
    count = case.mean(lambda seen: seen.account.stalled / seen.account.gaps)
    figures = (
        f"{percent(part, case)} of TPOT: {_pair(each, ' ms', 1e3)} of a step on average, "
        f"{_pair(count, ' %', 100)} of the steps"
    )
    state = carried(case, part)
    if state is State.CONFIRMED or case.between_levels or _step(case) is not None:
        return Outcome(state, figures, part.mean)
    if signatures.on_device(case).there is not None:
        return _in_the_step(case, ((signatures.on_device, False),))
    return _in_the_step(case, ((signatures.with_length, False), (signatures.with_batch, False)))


def _padded_context(case: Case) -> Outcome:
    """The same head with another --context-length and the same prompts: kernels derive their splits from it."""
    if (known := _step(case)) is not None:
        return known
    other = _sibling(case.head, "context-length")
    if other is None:
        return Outcome(State.UNTESTED, "no arm differs from head in context-length alone")
    found = build(case.head, other)
    step = found.parts[STEP]
    explains = case.parts[STEP].mean
    figures = f"with {other.arm} in place of {case.head.arm} the step changes by {percent(step, found)} of TPOT"
    if abs(step.mean) >= CARRIES * abs(explains) and step.sure():
        return Outcome(State.CONFIRMED, figures, explains)
    most = max(abs(step.low), abs(step.high)) if step.known else abs(step.mean)
    return Outcome(State.REFUTED if most < CARRIES * abs(explains) else State.UNTESTED, figures, explains)


def _sibling(subject: Subject, flag: str) -> Subject | None:
    """An arm of the same runs that differs from this one in one server flag alone."""
    scenario = subject.side.scenario

    def split(arm: str) -> tuple[object, object]:
        """(the flag's value, all other settings)."""
        data = scenario.arm(arm).server.model_dump()
        flags = data.get("flags", {})
        others = {key: value for key, value in flags.items() if key != flag}
        return flags.get(flag), {**data, "flags": others}

    value, rest = split(subject.arm)
    for name in scenario.arms:
        if split(name)[0] != value and split(name)[1] == rest:
            side = replace(subject.side, arms={name: name})
            candidate = replace(subject, side=side, label=name)
            try:
                build(candidate, candidate)
            except MtpbenchError:  # it was not measured at this level
                continue
            return candidate
    return None


def _caches(case: Case) -> Outcome:
    known = _step(case)
    return known or Outcome(State.UNTESTED, "needs the device's cache counters, which no server records")


def _wave_tail(case: Case) -> Outcome:
    """A bump of the excess at this batch size among its neighbours, in this sweep or in a factor's."""
    if (known := _step(case)) is not None:
        return known
    explains = case.parts[STEP].mean
    here, near = _neighbours(case)
    if here is None:
        return Outcome(State.UNTESTED, "fewer than three batch sizes near this one, on both sides of it", explains)
    around = [fmean(e.values[n] / e.base_step for e in near) for n in range(len(here.values))]
    bump = Estimate.of([mine / here.base_step - other for mine, other in zip(here.values, around, strict=True)])
    sign, half = math.copysign(1, here.relative), abs(here.relative) / 2
    figures = f"the step's change at a batch of {here.batch:.0f} exceeds that of its neighbours by {percent(bump)}"
    if sign * bump.mean >= half and (bump.sure() or not bump.known):
        return Outcome(State.CONFIRMED, figures, explains)
    return Outcome(State.REFUTED if signatures.most(bump, sign) < half else State.UNTESTED, figures, explains)


_NEAR = 0.3  # of the load


def _neighbours(case: Case) -> tuple[Excess | None, list[Excess]]:
    """The load of the question in a sweep with at least three loads near it, on both sides, and these."""
    load = case.head.level.concurrency
    groups: dict[tuple[str, bool, int], list[Excess]] = {}
    for e in case.excess:
        if len(e.values) == len(case.pairs):
            groups.setdefault((e.level.factor, e.level.burst, e.level.input_tokens), []).append(e)
    for group in groups.values():
        here = next((e for e in group if e.level.concurrency == load), None)
        near = [e for e in group if e is not here and abs(e.level.concurrency - load) <= _NEAR * load]
        below = sum(e.level.concurrency < load for e in near)
        if here is not None and len(near) >= 3 and 0 < below < len(near):
            return here, near
    return None, []


def _noise(case: Case) -> Outcome:
    whole = f"TPOT {percent(case.whole, case)}, {case.whole.n} pairs"
    floor = f"; equal servers differ by ±{100 * math.expm1(case.floor):.1f} %" if case.floor is not None else ""
    if case.differences:
        named = "; ".join(str(difference) for difference in case.differences[:2])
        return Outcome(State.CONFIRMED, f"the sides were measured under different conditions: {named}", case.whole.mean)
    if not case.whole.known:
        state = State.REFUTED if changed(case) else State.UNTESTED
        return Outcome(state, f"{whole}: one launch a side has no interval{floor}")
    figures = f"{whole}, p {case.whole.p:.2g}{floor}"
    if unchanged(case) or (case.floor is not None and abs(case.whole.mean) < case.floor):
        return Outcome(State.CONFIRMED, figures, case.whole.mean)
    return Outcome(State.REFUTED if changed(case) else State.UNTESTED, figures, case.whole.mean)


# Commands that would tell.


def _factors(case: Case) -> str:
    """The scenario that changes one factor at a time on this run's engine and machine; else its own once more."""
    server = case.head.side.scenario.arm(case.head.arm).server
    vendor = getattr(server, "gpu_vendor", "") if server.engine == "sglang" else ""
    file = {"nvidia": "h200-c16", "amd": "c16-tpot"}.get(vendor)
    return f"mtpbench run scenarios/{file}.yaml" if file else again(case)


def again(case: Case) -> str:
    """More launches of what was measured: its scenario once more, to be named beside the first run."""
    return f"mtpbench run {_file(case)}"


def more_pairs(case: Case) -> str:
    """An A/B of the two sides, where they can be started anew and are two."""
    base, head = (_ref(one) for one in (case.base, case.head))
    if not base or not head or base == head or _one_server(case):
        return again(case)
    return f"mtpbench ab {_file(case)} --base {base} --head {head}"


def equal_servers(case: Case) -> str:
    if _engine(case.head) == _ATTACHED:  # there is no second one
        return again(case)
    return f"mtpbench aa {_file(case)} --arm {_as_written(case.head)}"


def _ref(subject: Subject) -> str:
    """How `ab` would name a side: an arm, the ref of an A/B of two versions, or the commit of a run; empty: unknown."""
    run, written = subject.side.runs[0], _as_written(subject)
    others = [name for name in run.scenario.arms if name != subject.arm]
    if written != subject.arm and any(name.partition(".")[2] == written for name in others):
        return subject.side.name.partition(" (")[0]  # base.mtp and head.mtp: two versions
    if " → " in subject.label or others:
        return f"arm:{written}"
    commit = str(run.environment.get("commit", "")).removesuffix("-dirty")[:10]
    return commit if _engine(subject) != _ATTACHED else ""


_ATTACHED = "attach"


def _engine(subject: Subject) -> str:
    return subject.side.scenario.arm(subject.arm).server.engine


def _one_server(case: Case) -> bool:
    """Do both sides attach to one and the same server?"""
    servers = [one.side.scenario.arm(one.arm).server for one in (case.base, case.head)]
    return all(one.engine == _ATTACHED for one in servers) and servers[0] == servers[1]


def _file(case: Case) -> str:
    return f"{case.head.side.runs[0].path}/scenario.yaml"


def _as_written(subject: Subject) -> str:
    """The arm's name in the scenario file: the runs of an A/B put the side before it."""
    side, dot, name = subject.arm.partition(".")
    return name if dot and side in ("base", "head") else subject.arm


def _profiler(case: Case) -> str:
    """Cache counters, where the vendor's profiler is the one that we know."""
    if getattr(case.head.side.scenario.arm(case.head.arm).server, "gpu_vendor", "") != "amd":
        return _factors(case)
    return "rocprofv3 --pmc TCC_HIT_sum TCC_MISS_sum --kernel-trace -- python3 -m sglang.launch_server …"


HYPOTHESES: tuple[Hypothesis, ...] = (
    Hypothesis(
        1,
        "prefill_interference",
        "prefill interleaving",
        "prefills in the decoding requests' way cost more, TTFT and throughput improve; gone in a decode-only burst",
        "the step without prefill is longer",
        _interference,
        _factors,
    ),
    Hypothesis(
        2,
        "acceptance_drift",
        "acceptance drift",
        "another number of verify steps a request; gone with simulated acceptance",
        "the accept length is the same",
        _acceptance,
        _factors,
    ),
    Hypothesis(
        3,
        "segment_overhead",
        "segments from the padded context length",
        "the step changes with --context-length at the same prompts",
        "it does not",
        _padded_context,
        _factors,
    ),
    Hypothesis(
        4,
        "segment_overhead",
        "segment and reduction traffic",
        "the step's excess grows with the batch and not with length",
        "it grows with length, or not with the batch",
        _segments,
        _factors,
    ),
    Hypothesis(
        5,
        "slower_kernel",
        "KV bytes read again miss the cache",
        "cache counters",
        "the step is not longer",
        _caches,
        _profiler,
    ),
    Hypothesis(
        6,
        "missing_graph_bucket",
        "graph bucket",
        "this batch size has no graph, or a larger one, on one side",
        "both run it in the same graph",
        _graph_bucket,
        _factors,
    ),
    Hypothesis(
        7,
        "slower_kernel",
        "register pressure and wave tail",
        "the step's excess peaks at this batch size among its neighbours",
        "its neighbours have as much",
        _wave_tail,
        _factors,
    ),
    Hypothesis(
        8,
        "ragged_lengths",
        "ragged lengths",
        "the step's excess goes with the spread of lengths in a batch",
        "lengths are equal, or it is as large where they are",
        _ragged,
        _factors,
    ),
    Hypothesis(
        9,
        "noise",
        "noise or mismatched bases",
        "launches of equal servers differ by as much, or the sides were measured under different conditions",
        "the change exceeds what launches differ by",
        _noise,
        equal_servers,
    ),
    Hypothesis(
        10,
        "slower_kernel",
        "the verify kernel itself",
        "the step's excess grows with length, or only its setting differs and target-verify makes most of the change",
        "it does not, or the step is not longer",
        _kernel,
        _factors,
    ),
    Hypothesis(
        11,
        "host_stall",
        "host stalls",
        "single long steps without any prefill, or a cost that every step has at any length and batch",
        "neither",
        _host,
        _factors,
    ),
    Hypothesis(
        12,
        "larger_batch",
        "a larger batch",
        "steps run with more sequences, and take longer for it",
        "the batch sizes are the same",
        _batch,
        _factors,
    ),
)
