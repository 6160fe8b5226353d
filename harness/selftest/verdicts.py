"""Simulated launches with known effects, through the very rule that decides: how often is it right?

Every figure of docs/statistics.md about the A/B comes from here: `mtpbench selftest stats`. Those about series of
nights come from `histories`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from rich import box
from rich.table import Table

from harness.stats.decision import Plan, State, decide
from harness.stats.inference import Floats
from harness.verdict.compare import Verdict

ROWS = 24
SIGMA = 0.015  # relative spread between launches of one server
EFFECT = math.log(1.054)
PRIMARY, SLOW_ROW = 0, 7  # the slow row is not the primary one: the harder case


@dataclass(frozen=True)
class Target:
    """What a line of the table must reach."""

    text: str
    met: Callable[[float], bool]

    @classmethod
    def at_most(cls, limit: float, digits: int = 2) -> Target:
        return cls(f"≤ {limit:.{digits}f}", lambda value: value <= limit)

    @classmethod
    def at_least(cls, limit: float, digits: int = 2) -> Target:
        return cls(f"≥ {limit:.{digits}f}", lambda value: value >= limit)


@dataclass(frozen=True)
class Tally:
    """One measured property: its value, the error of the simulation, and what was asked."""

    case: str
    what: str
    value: float
    error: float  # standard error
    repetitions: int
    target: Target | None = None

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        if self.target.met(self.value):
            return "met"
        near = self.target.met(self.value - 2 * self.error) or self.target.met(self.value + 2 * self.error)
        return "within the error of the simulation" if near else "MISSED"


Noise = Callable[[np.random.Generator, int], Floats]  # pairs → deltas of ROWS rows of an A/A comparison


def _independent(draw: np.random.Generator, pairs: int) -> Floats:
    return draw.normal(0, SIGMA * math.sqrt(2), (pairs, ROWS))


def _correlated(draw: np.random.Generator, pairs: int) -> Floats:
    """All rows share most of what a launch has of its own."""
    common, own = draw.normal(size=(pairs, 1)), draw.normal(size=(pairs, ROWS))
    return np.asarray(SIGMA * math.sqrt(2) * (math.sqrt(0.8) * common + math.sqrt(0.2) * own))


def _unequal(draw: np.random.Generator, pairs: int) -> Floats:
    """Spreads from 0.5 to 4 % between rows that move together."""
    spreads = np.exp(np.linspace(math.log(0.005), math.log(0.04), ROWS))
    return np.asarray(_correlated(draw, pairs) / SIGMA * spreads)


def _heavy(draw: np.random.Generator, pairs: int) -> Floats:
    """Now and then a launch is far off: Student's t with 4 degrees of freedom."""
    return np.asarray(SIGMA * math.sqrt(2) * draw.standard_t(4, (pairs, ROWS)) / math.sqrt(2))


def _drifting(draw: np.random.Generator, pairs: int) -> Floats:
    """The host gets 2 % slower from the first launch to the last, on top of a 3 % effect of the host itself."""
    launches = 2 * pairs
    host = 0.03 + np.linspace(0, 0.02, launches)
    noise = draw.normal(0, SIGMA, (launches, ROWS)) + host[:, None]
    out = np.empty((pairs, ROWS))
    for pair in range(pairs):
        first, second = noise[2 * pair], noise[2 * pair + 1]
        out[pair] = first - second if pair % 2 else second - first  # ABBA: plan.plan_launches
    return out


NOISES: dict[str, Noise] = {
    "independent rows, 1.5 % each": _independent,
    "rows that move together (r = 0.8)": _correlated,
    "the same, spreads of 0.5 to 4 %": _unequal,
    "heavy tails (t with 4 df)": _heavy,
    "a host that drifts by 2 %, ABBA": _drifting,
}


@dataclass(frozen=True)
class Trial:
    """How one simulated A/B ended, and after how many pairs."""

    verdict: Verdict
    pairs: int


def trial(noise: Noise, effect: float, plan: Plan, draw: np.random.Generator) -> Trial:
    """One A/B: pairs are added until the rule is sure, as `mtpbench ab` does."""
    table = noise(draw, plan.looks[-1])
    table[:, SLOW_ROW] += effect
    for pairs in plan.looks:
        states = {row.state for row in decide(table[:pairs], plan, primary=(PRIMARY,))}
        if State.SLOWER in states:
            return Trial(Verdict.FAIL, pairs)
        if State.OPEN not in states:
            return Trial(Verdict.IMPROVED if State.FASTER in states else Verdict.PASS, pairs)
    return Trial(Verdict.INCONCLUSIVE, plan.looks[-1])


def trials(noise: Noise, effect: float, plan: Plan, repetitions: int, seed: int) -> list[Trial]:
    draw = np.random.default_rng(seed)
    return [trial(noise, effect, plan, draw) for _ in range(repetitions)]


def _share(case: str, verdict: Verdict, done: list[Trial], target: Target | None = None) -> Tally:
    share = sum(one.verdict is verdict for one in done) / len(done)
    error = math.sqrt(max(share * (1 - share), 1 / len(done)) / len(done))
    return Tally(case, verdict.value, share, error, len(done), target)


def ab_table(repetitions: int, seed: int = 1, noises: Sequence[str] = tuple(NOISES)) -> list[Tally]:
    """False positives, power and pairs of the A/B rule: up to 10 pairs, 24 rows."""
    plan, lines = Plan.sequential(), list[Tally]()
    for name in noises:
        noise = NOISES[name]
        done = trials(noise, 0.0, plan, repetitions, seed)
        lines.append(_share(f"A/A, {name}", Verdict.FAIL, done, Target.at_most(0.01)))
        if noise is _independent:
            lines.append(_share(f"A/A, {name}", Verdict.PASS, done))
    for name in noises:
        noise = NOISES[name]
        done = trials(noise, EFFECT, plan, repetitions // 4, seed + 1)
        asked = noise is _independent
        case = f"+5.4 % in one row, {name}"
        lines.append(_share(case, Verdict.FAIL, done, Target.at_least(0.90) if asked else None))
        pairs = [one.pairs for one in done]
        spread = float(np.std(pairs)) / math.sqrt(len(pairs))
        target = Target.at_most(6.0, 1) if asked else None
        lines.append(Tally(case, "mean number of pairs", float(np.mean(pairs)), spread, len(pairs), target))
    for percent in (2, 3, 4):
        done = trials(_independent, math.log1p(percent / 100), plan, repetitions // 4, seed + 2)
        case = f"+{percent} % in one row, independent rows"
        lines.append(_share(case, Verdict.FAIL, done))
        lines.append(_share(case, Verdict.PASS, done, Target.at_most(0.05) if percent >= 3 else None))
    return lines


def everything(repetitions: int, seed: int = 1) -> list[Tally]:
    """The whole table."""
    return ab_table(repetitions, seed)


_HEADERS = ("case", "what", "value", "± s.e.", "n", "target", "")


def _cells(line: Tally) -> tuple[str, ...]:
    digits = 2 if line.value >= 2 else 4
    value, error = f"{line.value:.{digits}f}", f"{line.error:.{digits}f}"
    return (
        line.case,
        line.what,
        value,
        error,
        str(line.repetitions),
        line.target.text if line.target else "",
        line.verdict,
    )


def to_rich(lines: list[Tally]) -> Table:
    """For the terminal."""
    table = Table(title="the rules on simulated launches", box=box.SIMPLE_HEAD)
    for title in _HEADERS:
        table.add_column(title, justify="left" if title in ("case", "what", "") else "right")
    for line in lines:
        table.add_row(*_cells(line), style="bold red" if line.verdict == "MISSED" else None)
    return table


def to_markdown(lines: list[Tally]) -> str:
    """For docs/statistics.md."""
    out = ["| " + " | ".join(_HEADERS) + " |", "|---|---|---:|---:|---:|---|---|"]
    out += ["| " + " | ".join(_cells(line)) + " |" for line in lines]
    return "\n".join(out) + "\n"
