"""Two sides → rows → one verdict, in a sentence. The headline is never better than its worst row."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np

from harness.metrics.definitions import PERCENTILES
from harness.model import LoadLevel
from harness.results.report import machine_of
from harness.stats import inference
from harness.stats.decision import FAIL_ERROR, Margins, Plan, RowDecision, State, decide, pairs_needed
from harness.store.ab_record import Side
from harness.verdict.facts import Difference, Role, differences, facts
from harness.verdict.pairs import (
    DEFAULT_METRICS,
    Group,
    Measured,
    Metric,
    Pairs,
    RowKey,
    measure,
    pair_up,
    primary_name,
    table_of,
)

# Two groups of launches this far apart are two servers, not one with some spread, if chance explains it this seldom.
MODES_APART, MODES_P = math.log(1.05), 0.001
MODES_ERROR = 0.005  # that any row of an A/A comparison is called so


class Verdict(str, Enum):
    """What is said of a row, and of all of them."""

    INVALID = "INVALID"  # a check forbids using the numbers
    INCOMPARABLE = "INCOMPARABLE"  # the sides were measured under different conditions
    FAIL = "FAIL"  # slower
    MISSING = "MISSING"  # base has the row, head does not
    NO_BASELINE = "NO_BASELINE"  # head has the row, base does not
    BIMODAL = "BIMODAL"  # launches of one side fall into two groups
    INCONCLUSIVE = "INCONCLUSIVE"  # more pairs are needed
    PASS = "PASS"  # not slower
    IMPROVED = "IMPROVED"  # faster


EXIT_CODES: dict[Verdict, int] = {
    Verdict.PASS: 0,
    Verdict.FAIL: 1,
    Verdict.INVALID: 2,  # as everywhere in mtpbench
    Verdict.INCONCLUSIVE: 3,
    Verdict.INCOMPARABLE: 4,
    Verdict.NO_BASELINE: 5,
    Verdict.MISSING: 6,
    Verdict.BIMODAL: 7,
    Verdict.IMPROVED: 10,
}
# From the worst to what is fine. IMPROVED is no better than PASS: it only says more.
_SEVERITY = list(Verdict)
_STATES = {
    State.SLOWER: Verdict.FAIL,
    State.FASTER: Verdict.IMPROVED,
    State.NOT_SLOWER: Verdict.PASS,
    State.OPEN: Verdict.INCONCLUSIVE,
}

_MIXED = (
    "INCOMPARABLE: one side is simulated, the other measured: no setting makes them comparable. "
    "`mtpbench simulate --against RUN` shows how far the simulator is off."
)
# Without drafts there is neither: numbers of an arm that drafts alone are no row.
_OF_DRAFTS = ("step_time", "accept_length", "server_accept_length")
# What a scenario may prescribe: then it says nothing of either side.
_PRESCRIBED = ("accept_length", "server_accept_length")
Excuse = Callable[[str, RowKey, float], str | None]  # scenario, row, delta → why its slowdown is accepted
Floors = Mapping[RowKey, tuple[float, int]]  # standard deviation of a delta between equal sides, degrees of freedom


@dataclass(frozen=True)
class Row:
    """One number of both sides. `base` and `head` are geometric means over pairs, in the metric's unit."""

    key: RowKey
    metric: Metric
    verdict: Verdict
    sentence: str
    decision: RowDecision
    base: float | None = None
    head: float | None = None
    primary: bool = False
    margins: Margins = field(default_factory=Margins)
    floor: float | None = None  # what a mean of so many A/A deltas stays below in nine of ten cases, as a delta
    more_pairs: int | None = None
    excused: str = ""

    @property
    def word(self) -> str:
        """The verdict as tables show it: what looks better, but is not certain at this n, is no mere PASS."""
        if self.verdict is Verdict.PASS and self.seems_better:
            return f"{self._better}, not yet proven"
        return self.verdict.value

    @property
    def seems_better(self) -> bool:
        """Does its 90 % interval lie wholly beyond the tolerance, on the good side?"""
        return self.decision.high < -self.margins.tolerance

    @property
    def _better(self) -> str:
        return "faster" if self.metric.timed else "higher" if self.metric.higher_is_better else "lower"

    @property
    def change(self) -> float | None:
        """Relative change of the value, head to base."""
        return self.metric.change(self.decision.mean) if math.isfinite(self.decision.mean) else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of `change`, 90 %."""
        if not math.isfinite(self.decision.low):
            return None
        ends = sorted(self.metric.change(delta) for delta in (self.decision.low, self.decision.high))
        return ends[0], ends[1]


@dataclass(frozen=True)
class Comparison:
    """The answer."""

    verdict: Verdict
    headline: str
    base: str
    head: str
    scenario: str
    pairs: int
    plan: Plan
    rows: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()
    differences: tuple[Difference, ...] = ()
    machine: str = ""  # on which head was measured

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    @property
    def open_rows(self) -> tuple[Row, ...]:
        """Rows of which more pairs would tell more, whatever the headline says."""
        return tuple(row for row in self.rows if row.verdict in (Verdict.INCONCLUSIVE, Verdict.BIMODAL))


def never(_scenario: str, _key: RowKey, _delta: float) -> str | None:
    return None


def compare(
    base: Side,
    head: Side,
    *,
    metrics: Sequence[str] = DEFAULT_METRICS,
    plan: Plan | None = None,
    allowed: Sequence[str] = (),
    floors: Floors | None = None,
    excuse: Excuse = never,
) -> Comparison:
    """Compares two sides. `plan` is that of the looks where there are several; `allowed` the facts meant to differ."""
    scenario = head.scenario.name if head.runs else base.scenario.name if base.runs else ""
    machine = machine_of(head.runs[0]) if head.runs else ""
    blank = Comparison(Verdict.PASS, "", base.name, head.name, scenario, 0, plan or Plan.once(0), machine=machine)
    primary = head.scenario.primary if head.runs else None
    names = list(dict.fromkeys(([primary_name(primary)] if primary else []) + list(metrics)))
    measured_base, measured_head = measure(base, names), measure(head, names)
    if not any(measured_base.launches.values()):
        return replace(blank, verdict=Verdict.NO_BASELINE, headline=_no_baseline(base))
    found = differences_between(base, head, allowed)
    blank = replace(blank, differences=tuple(found))
    against = [d for d in found if d.role is Role.MATTERS]
    kinds = {run.simulated is not None for run in (*base.runs, *head.runs)}
    if len(kinds) > 1:
        return replace(blank, verdict=Verdict.INCOMPARABLE, headline=_MIXED)
    if against:
        return replace(blank, verdict=Verdict.INCOMPARABLE, headline=_incomparable(against))
    level = head.scenario.primary_level if primary else None
    primaries = {(primary_name(primary), level)} if primary and level else set()
    alone, prescribed = _drafting_alone(base, head), _prescribed(base, head)
    rows, pairs, plan = _rows(
        measured_base, measured_head, names, alone, prescribed, primaries, plan, floors or {}, scenario, excuse
    )
    verdict, headline = _headline(rows, pairs)
    left_out = [name for name in names if name.startswith(_OF_DRAFTS)]
    notes = [
        f"{arm}: only {side} drafts, so {' and '.join(Metric.of(name).label for name in left_out)} are not compared."
        for arm, side in alone.items()
        if left_out
    ]
    notes += [
        f"{arm}: its accept length is set to {lengths} by the scenario, so it is not compared."
        for arm, lengths in prescribed.items()
        if any(name.startswith(_PRESCRIBED) for name in names)
    ]
    notes += _notes(base, head, rows, found)
    if kinds == {True}:
        headline = headline.replace(f"{verdict.value}:", f"{verdict.value} (SIMULATED, NOT MEASURED):", 1)
    return replace(
        blank, verdict=verdict, headline=headline, rows=tuple(rows), pairs=pairs, plan=plan, notes=tuple(notes)
    )


def differences_between(base: Side, head: Side, allowed: Sequence[str]) -> list[Difference]:
    """Of every run of both sides to the first of base, for each arm that both have."""
    found: dict[str, Difference] = {}
    for label in sorted({*base.arms} & {*head.arms}):
        first = next((run for run in base.runs if base.arms[label] in run.scenario.arms), None)
        if first is None:
            continue
        names = [*allowed, "server", "packages"] if base.arms[label] != head.arms[label] and " → " in label else allowed
        reference = facts(first, base.arms[label])
        for side in (base, head):
            for run in side.runs:
                if side.arms[label] in run.scenario.arms and not (run is first and side is base):
                    for difference in differences(reference, facts(run, side.arms[label]), names):
                        found.setdefault(difference.fact, difference)
    return sorted(found.values(), key=lambda d: (d.role is not Role.MATTERS, d.fact))


def _drafting_alone(base: Side, head: Side) -> dict[str, str]:
    """Label of an arm → the side that drafts, where the other, by its settings, does not. Dead drafts are no such."""
    out = {}
    for label in sorted({*base.arms} & {*head.arms}):
        declared = [
            {run.scenario.arm(arm).speculative for run in side.runs if (arm := side.arms[label]) in run.scenario.arms}
            for side in (base, head)
        ]
        if declared in ([{True}, {False}], [{False}, {True}]):
            out[label] = "base" if declared[0] == {True} else "head"
    return out


def _prescribed(base: Side, head: Side) -> dict[str, str]:
    """Label of an arm → the accept length that both sides' settings prescribe (simulated acceptance)."""
    out = {}
    for label in sorted({*base.arms} & {*head.arms}):
        values = [
            {
                run.scenario.arm(arm).set_accept_length
                for run in side.runs
                if (arm := side.arms[label]) in run.scenario.arms
            }
            for side in (base, head)
        ]
        found = values[0] | values[1]
        if found and None not in found:
            out[label] = " and ".join(f"{value:g}" for value in sorted(v for v in found if v is not None))
    return out


def _rows(
    base: Measured,
    head: Measured,
    names: Sequence[str],
    alone: Mapping[str, str],
    prescribed: Collection[str],
    primaries: set[tuple[str, LoadLevel]],
    plan: Plan | None,
    floors: Floors,
    scenario: str,
    excuse: Excuse,
) -> tuple[list[Row], int, Plan]:
    """Every row that a side has: those that can be tested are decided together, the others say why not."""
    ready: list[tuple[RowKey, Metric, Pairs]] = []
    others: list[Row] = []
    groups = list(dict.fromkeys([*base.launches, *head.launches, *base.failed, *head.failed]))
    for group in sorted(groups, key=lambda g: (g[1], g[2].value, g[0])):
        pairs = pair_up(base.launches.get(group, []), head.launches.get(group, []))
        for name in names:
            if group[0] in alone and name.startswith(_OF_DRAFTS):
                continue
            key, metric = RowKey(name, *group), Metric.of(name)
            problem = _problem(key, metric, base, head, group)
            if problem is None and group[0] in prescribed and name.startswith(_PRESCRIBED):
                continue
            if problem is None:
                ready.append((key, metric, pairs))
            elif problem[1]:
                others.append(Row(key, metric, problem[0], problem[1], RowDecision(State.OPEN, len(pairs))))
    table = table_of([(metric, pairs) for _, metric, pairs in ready])
    plan = plan or Plan.once(len(table))
    named = [i for i, (key, _, _) in enumerate(ready) if (key.metric, key.level) in primaries]
    means = [_means(metric, pairs) for _, metric, pairs in ready]
    margins = [Margins.of(b, metric.floor) for (b, _), (_, metric, _) in zip(means, ready, strict=True)]
    # Rows that can't be tested still count among those that Holm corrects for.
    padded = np.hstack([table, np.full((len(table), len(others)), np.nan)])
    decided = decide(padded, plan, margins=[*margins, *[Margins()] * len(others)], primary=named)
    numbers = sorted({number for _, _, pairs in ready for number in pairs})
    off = {numbers[position] for position in inference.without_outliers(table).pairs}
    rows = []
    for i, (key, metric, pairs) in enumerate(ready):
        row = Row(
            key, metric, _STATES[decided[i].state], "", decided[i], *means[i], i in named, margins[i],
            _floor(floors.get(key), decided[i].n),
        )  # fmt: skip
        kept = {number: pair for number, pair in pairs.items() if number not in off}
        rows.append(_worded(row, kept, len(padded[0]), plan, scenario, excuse))
    return [*rows, *others], len(table), plan


_TAILS = tuple(f"_p{percentile}" for percentile in PERCENTILES if percentile != 50)


def _problem(key: RowKey, metric: Metric, base: Measured, head: Measured, group: Group) -> tuple[Verdict, str] | None:
    """Why a row can't be tested; an empty sentence where neither side ever had it."""
    ours, theirs = base.launches.get(group, []), head.launches.get(group, [])
    for name, side, measured in (("base", ours, base), ("head", theirs, head)):
        bad = [(one, message) for one in side for message in one.invalid]
        if bad:
            one, message = bad[0]
            return Verdict.INVALID, f"{key}: launch {one.launch} of {name} is no result: {message}."
        for one in side:
            value = one.values[metric.name]
            if value is not None and not (value > 0 and math.isfinite(value)):
                return Verdict.INVALID, f"{key}: {name} measured {value:g} in launch {one.launch}: no ratio to it."
            if value is not None and key.metric.startswith("accept_length") and value <= 1:
                return Verdict.INVALID, f"{key}: {name} drafts tokens and not one was accepted."
        empty = [one.launch for one in side if one.values[metric.name] is None]
        # A tail may lack the samples in one launch; a median or a mean that one launch lacks was not measured there.
        if empty and len(empty) < len(side) and not metric.name.endswith(_TAILS):
            return Verdict.INVALID, f"{key}: {name} has no value in launch {empty[0]}, though it has in others."
        failed = measured.failed.get(group, [])
        if failed:
            return Verdict.INVALID, f"{key}: {len(failed)} passes of {name} did not complete: {failed[0]}."
    have_base = any(one.values[metric.name] is not None for one in ours)
    have_head = any(one.values[metric.name] is not None for one in theirs)
    if have_base and not have_head:
        return Verdict.MISSING, f"{key} is missing: base has it, head does not."
    if have_head and not have_base:
        return Verdict.NO_BASELINE, f"{key} is new: base has no result to compare with."
    return None if have_base else (Verdict.PASS, "")


def _means(metric: Metric, pairs: Pairs) -> tuple[float, float]:
    """Geometric means over the pairs in which both sides have a value."""
    both = [(b.values[metric.name], h.values[metric.name]) for b, h in pairs.values()]
    kept = [(b, h) for b, h in both if b and h]
    if not kept:
        return math.nan, math.nan
    return tuple(float(np.exp(np.mean(np.log(side)))) for side in zip(*kept, strict=True))  # type: ignore[return-value]


def _floor(known: tuple[float, int] | None, n: int) -> float | None:
    """Half the 90 % interval of a mean of n deltas of A/A pairs."""
    if known is None or n < 1 or known[1] < 1:
        return None
    return inference.half_width(known[0], known[1], n)


def _worded(row: Row, pairs: Pairs, rows: int, plan: Plan, scenario: str, excuse: Excuse) -> Row:
    """The row with its sentence; two groups of launches and accepted slowdowns change its verdict."""
    modes = _modes(row, pairs, rows)
    if modes:
        return replace(row, verdict=Verdict.BIMODAL, sentence=modes)
    if row.verdict is Verdict.FAIL:
        reason = excuse(scenario, row.key, row.decision.mean)
        if reason:
            return replace(row, verdict=Verdict.PASS, sentence=f"{_moved(row)}: {reason}.", excused=reason)
    if row.verdict is Verdict.INCONCLUSIVE:
        more = pairs_needed(row.decision, rows, row.margins, plan)
        if row.decision.n < 2:
            need = "at least two pairs are needed to know anything"
        elif more is None:
            need = "it lies so near the tolerance that no number of pairs worth measuring settles it"
        else:
            need = f"about {more} more pairs would settle it"
        return replace(row, sentence=f"{_moved(row)}: {need}.", more_pairs=more)
    return replace(row, sentence=f"{_moved(row)}.")


def _moved(row: Row) -> str:
    """`TPOT at concurrency 16 (TP1, mtp) is 5.4 % slower (90 % interval 3.9 to 6.9 %, 6 pairs)`."""
    change, interval = row.change, row.interval
    if change is None or interval is None:
        return f"{row.key} has {row.decision.n} pairs"
    timed = row.metric.timed
    word = ("slower" if timed else "higher") if change > 0 else ("faster" if timed else "lower")
    low, high = (100 * end for end in interval)
    numbers = f"90 % interval {low:+.1f} to {high:+.1f} %, {row.decision.n} pairs"
    if row.seems_better and row.verdict is not Verdict.IMPROVED:
        return f"{row.key} is {100 * abs(change):.1f} % {word}, not yet proven ({numbers})"
    if row.verdict is Verdict.PASS and not row.excused:
        return f"{row.key} is not {'slower' if timed else 'lower'} ({100 * change:+.1f} %; {numbers})"
    return f"{row.key} is {100 * abs(change):.1f} % {word} ({numbers})"


def _modes(row: Row, pairs: Pairs, rows: int) -> str:
    """Says that launches of one side fall into two groups; empty when they don't."""
    both = [tuple(one.values[row.metric.name] for one in pair) for pair in pairs.values()]
    logs = [[math.log(value) for value in pair if value] for pair in both if all(pair)]
    if not logs or row.decision.sd < MODES_APART / 4:
        return ""
    sides = list(zip(*logs, strict=True))
    for number, side in enumerate(("base", "head")):
        groups = modes_of(sides[number], sides[1 - number], rows)
        if groups is not None:
            low, high = (row.metric.shown(math.exp(value)) for value in (groups.low, groups.high))
            return (
                f"{row.key} is bistable: launches of {side} lie near {low} ({groups.n_low}) or near {high} "
                f"({groups.n_high}), so their mean is no result. Find what differs between them."
            )
    return ""


def modes_of(own: Sequence[float], other: Sequence[float], rows: int) -> inference.TwoGroups | None:
    """The two groups into which one side's launches fall, by logarithms; None where they don't.

    Two groups that both sides share pair by pair are the host's doing: they are taken out first. Every row of every
    side is such a test, so each has its share of the error.
    """
    if len(own) < 5 or max(own) - min(own) < MODES_APART:
        return None
    groups = inference.two_groups(inference.without_shared(own, other))
    if groups is None or groups.p > min(MODES_P, MODES_ERROR / (2 * rows)) or groups.high - groups.low < MODES_APART:
        return None
    return groups


def _headline(rows: Sequence[Row], pairs: int) -> tuple[Verdict, str]:
    """The worst row's verdict, but open rows do not hide what is known of the primary endpoint; they are named then."""
    if not rows:
        return Verdict.INVALID, "INVALID: no row has a value on either side."
    worst = min(rows, key=lambda row: _SEVERITY.index(row.verdict)).verdict
    named = [row for row in rows if row.primary]
    told = bool(named) and all(row.verdict in _FINE for row in named)
    if worst in _FINE or (worst is Verdict.INCONCLUSIVE and told):
        return _not_worse(rows, named, pairs)
    named_rows = sorted((row for row in rows if row.verdict is worst), key=_first)
    counts = Counter(row.verdict for row in rows)
    more = f" So are {len(named_rows) - 1} other rows." if worst is Verdict.FAIL and len(named_rows) > 1 else ""
    if worst is not Verdict.FAIL and len(named_rows) > 1:
        more = f" {len(named_rows)} of {len(rows)} rows are {worst.value}."
    also = [f"{n} {verdict.value}" for verdict, n in counts.items() if verdict is not worst]
    tail = f" The other rows: {', '.join(also)}." if also else ""
    return worst, f"{worst.value}: {named_rows[0].sentence}{more}{tail}"


_FINE = (Verdict.PASS, Verdict.IMPROVED)
_NAMED = 3  # rows in a headline


def _not_worse(rows: Sequence[Row], named: Sequence[Row], pairs: int) -> tuple[Verdict, str]:
    """PASS or IMPROVED: of the primary endpoint, else of all rows; then what is open, and what a ledger excuses."""
    open_ones = [row for row in rows if row.verdict is Verdict.INCONCLUSIVE]
    excused = [row for row in rows if row.excused]
    better = [row for row in named or rows if row.verdict is Verdict.IMPROVED]
    verdict = Verdict.IMPROVED if better else Verdict.PASS
    first = next(iter(better or [row for row in named if row.seems_better]), None)
    others = len(rows) - len(open_ones) - (first is not None)
    which = "other " if first is not None or excused else ""
    parts = [first.sentence[:-1]] if first is not None else []
    if open_ones:
        if first is None and named:
            parts.append(min(named, key=lambda row: -row.decision.mean).sentence[:-1])
            others -= 1
        parts.append(f"{others} of the other {len(rows) - 1} rows did not get slower either")
    elif better:
        parts.append(f"none of the other {len(rows) - 1} rows got slower")
    elif excused:
        parts.append(f"no {which}row got slower: {len(rows)} rows, {pairs} pairs")
    else:
        parts.append(
            f"nothing {'else ' if first is not None else ''}got slower by 3 % or more: {len(rows)} rows, {pairs} pairs"
        )
    if excused:
        parts.append(f"accepted: {_listed(excused, _accepted)}")
    sentence = f"{verdict.value}: {'; '.join(parts)}."
    if open_ones:
        sentence += f" Not yet told: {_listed(sorted(open_ones, key=_first), _undecided)}."
    return verdict, sentence


def _listed(rows: Sequence[Row], words: Callable[[Row], str]) -> str:
    more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
    return "; ".join(map(words, rows[:_NAMED])) + more


def _accepted(row: Row) -> str:
    """With the bound of the entry that excuses it: whoever reads the headline alone must see how wide it is."""
    assert row.change is not None, "only a row that got slower is excused"
    return f"{row.key} {100 * row.change:+.1f} % ({row.excused})"


def _undecided(row: Row) -> str:
    if row.change is None or row.interval is None:
        return str(row.key)
    low, high = (100 * end for end in row.interval)
    return f"{row.key} {100 * row.change:+.1f} % ({low:+.1f} to {high:+.1f} %)"


def _first(row: Row) -> tuple[bool, float]:
    """The primary row, then the largest slowdown, then the row that needs the most pairs."""
    size = row.decision.mean if math.isfinite(row.decision.mean) else 0.0
    if row.verdict is Verdict.INCONCLUSIVE:
        size = float(row.more_pairs if row.more_pairs is not None else math.inf)
    return not row.primary, -size


def _no_baseline(base: Side) -> str:
    what = f"{len(base.runs)} runs of {base.name} hold no completed pass" if base.runs else "there are no runs of base"
    return f"NO_BASELINE: {what}: nothing to compare with, so nothing passed. Measure base first."


def _incomparable(against: Sequence[Difference]) -> str:
    shown = "; ".join(str(difference) for difference in against[:3])
    more = f" and {len(against) - 3} more" if len(against) > 3 else ""
    names = sorted({difference.fact.partition(".")[0] for difference in against})
    return (
        f"INCOMPARABLE: the sides were measured under different conditions: {shown}{more}. Measure both under the "
        f"same, or, if this is what you want to compare, add {' '.join(f'--allow {name}' for name in names)}."
    )


def _notes(base: Side, head: Side, rows: Sequence[Row], found: Sequence[Difference]) -> list[str]:
    notes = [f"differs, as meant: {difference}" for difference in found if difference.role is Role.TESTED]
    if {run.id for run in base.runs} != {run.id for run in head.runs}:
        notes.append(
            "launches of the two sides were not interleaved, so a host that drifted between them counts as a change; "
            "`mtpbench ab` measures both in turn."
        )
    off = max((row.decision.left_out for row in rows), default=0)
    if off:
        notes.append(
            f"up to {off} pairs of a row were left out: a launch was off by far more than the others differ. "
            "`mtpbench compare --format json` says of each row how many."
        )
    short = [row for row in rows if 0 < row.decision.n + row.decision.left_out < max(_given(r) for r in rows)]
    if short:
        notes.append(f"{len(short)} rows have fewer pairs than the others, such as {short[0].key}.")
    return notes + _causes(rows)


def _given(row: Row) -> int:
    return row.decision.n + row.decision.left_out


def _causes(rows: Sequence[Row]) -> list[str]:
    """Where a change of TPOT comes from: its delta is that of the step time plus that of the accept length."""
    by_key = {row.key: row for row in rows}
    notes = []
    for row in rows:
        if row.key.metric != "tpot_p50" or row.verdict not in (Verdict.FAIL, Verdict.IMPROVED):
            continue
        step = by_key.get(replace(row.key, metric="step_time_p50"))
        accepted = by_key.get(replace(row.key, metric="accept_length_mean"))
        if step and accepted and step.change is not None and accepted.change is not None:
            notes.append(
                f"{row.key}: its step time changed by {100 * step.change:+.1f} %, its accept length by "
                f"{100 * accepted.change:+.1f} %."
            )
    return notes


def power_sentence(floors: Floors, rows: int, plan: Plan) -> str:
    """What so many pairs can find, from the A/A spread: `6 pairs detect 4.1 % at 80 %`. Empty where it is unknown."""
    known = [floor for floor in floors.values() if floor[1] >= 1]
    if not known:
        return ""
    pairs, level = plan.looks[-1], FAIL_ERROR / len(plan.looks) / max(1, rows)
    # Each row borrows strength from the others: the degrees of freedom of a pair are about those of three rows.
    a_pair = min(3.0, float(max(1, rows)))
    found = sorted(math.expm1(inference.detectable(sd, a_pair, pairs, level, Margins().tolerance)) for sd, _ in known)
    middle, most = found[len(found) // 2], found[-1]
    return (
        f"{pairs} pairs detect {100 * middle:.1f} % at 80 % in the median row, {100 * most:.1f} % in the noisiest "
        "(from the A/A launches stored)."
    )
