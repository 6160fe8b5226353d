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

from harness.selftest.launch_noise import DISTURBED, INDEPENDENT, NOISES, ROWS, Noise, sides
from harness.stats import inference
from harness.stats.decision import CONFIDENCE, Plan, State, decide
from harness.verdict.compare import MODES_ERROR, Verdict, modes_of

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


@dataclass(frozen=True)
class Trial:
    """How one simulated A/B ended, and after how many pairs."""

    verdict: Verdict
    pairs: int


def trial(noise: Noise, effect: float, plan: Plan, draw: np.random.Generator) -> Trial:
    """One A/B: pairs are added until the rule is sure, as `mtpbench ab` does."""
    base, head = sides(noise(draw, 2 * plan.looks[-1]))
    table = head - base
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
    """False positives, coverage, bistability, power and pairs of the A/B rule: up to 10 pairs, 24 rows."""
    plan, lines = Plan.sequential(), list[Tally]()
    for name in noises:
        done = trials(NOISES[name], 0.0, plan, repetitions, seed)
        lines.append(_share(f"A/A, {name}", Verdict.FAIL, done, Target.at_most(0.01)))
        if name == INDEPENDENT:
            lines.append(_share(f"A/A, {name}", Verdict.PASS, done))
    for name in noises:
        lines += coverage(name, repetitions, seed + 3)
    for name in noises:
        lines.append(bistable(name, max(1, repetitions // 2), seed + 4))
    for name in noises:
        done = trials(NOISES[name], EFFECT, plan, max(1, repetitions // 4), seed + 1)
        asked = name == INDEPENDENT
        case = f"+5.4 % in one row, {name}"
        target = Target.at_least(0.90) if asked else Target.at_least(0.85) if name in DISTURBED else None
        lines.append(_share(case, Verdict.FAIL, done, target))
        pairs = [one.pairs for one in done]
        spread = float(np.std(pairs)) / math.sqrt(len(pairs))
        lines.append(
            Tally(case, "mean number of pairs", float(np.mean(pairs)), spread, len(pairs),
                  Target.at_most(6.0, 1) if asked else None)
        )  # fmt: skip
    for percent in (2, 3, 4) if INDEPENDENT in noises else ():
        done = trials(NOISES[INDEPENDENT], math.log1p(percent / 100), plan, max(1, repetitions // 4), seed + 2)
        case = f"+{percent} % in one row, independent rows"
        lines.append(_share(case, Verdict.FAIL, done))
        lines.append(_share(case, Verdict.PASS, done, Target.at_most(0.05) if percent >= 3 else None))
    return lines


def coverage(name: str, repetitions: int, seed: int) -> list[Tally]:
    """How often the 90 % interval of the least and of the most covered row holds the truth, after six pairs."""
    draw, inside, n = np.random.default_rng(seed), np.zeros(ROWS), np.zeros(ROWS)
    for _ in range(repetitions):
        base, head = sides(NOISES[name](draw, 12))
        s = inference.spread(inference.without_outliers(head - base).table)
        low, high = inference.interval(s, CONFIDENCE)
        inside += (low <= 0) & (high >= 0)
        n += 1
    shares = inside / n
    # Of the most extreme of so many rows, which lies 1.6 times as far off as a single one.
    error = 1.6 * math.sqrt(CONFIDENCE * (1 - CONFIDENCE) / repetitions)
    case = f"A/A, {name}"
    return [
        Tally(case, "coverage, least of any row", float(shares.min()), error, repetitions, Target.at_least(0.88)),
        Tally(case, "coverage, most of any row", float(shares.max()), error, repetitions, Target.at_most(0.92)),
    ]


def bistable(name: str, repetitions: int, seed: int) -> Tally:
    """How often a comparison of equal servers, after ten pairs, has a row that is called bistable."""
    draw, hits = np.random.default_rng(seed), 0
    for _ in range(repetitions):
        base, head = sides(NOISES[name](draw, 20))
        kept = np.setdiff1d(np.arange(len(base)), inference.without_outliers(head - base).pairs)
        base, head = base[kept], head[kept]
        hits += any(
            modes_of(ours[:, row].tolist(), theirs[:, row].tolist(), ROWS)
            for row in range(ROWS)
            for ours, theirs in ((base, head), (head, base))
        )
    return _rate(f"A/A, {name}", Verdict.BIMODAL.value, hits, repetitions, Target.at_most(MODES_ERROR, 3))


def _rate(case: str, what: str, hits: int, n: int, target: Target | None) -> Tally:
    share = hits / n
    return Tally(case, what, share, math.sqrt(max(share * (1 - share), 1 / n) / n), n, target)


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
