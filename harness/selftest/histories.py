"""Random histories of nights with the truth known, and how often what is said of them is right.

A history is a scenario's rows over nights: three launches a night with 0.6 % each, nights that differ by 0.4 %, half of
it shared by all rows. Into it go excursions, a step, a drift, a host that is swapped, gaps and reruns.
`mtpbench selftest series` prints the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta

import numpy as np

from harness.stats.inference import Floats
from harness.stats.levels import agreeing
from harness.stats.series import History, Reading, read

FIRST = date(2026, 1, 1)
NIGHT, LAUNCH, LAUNCHES, ROWS = 0.004, 0.006, 3, 24
STEP, SMALL, DRIFT = math.log(1.054), math.log(1.02), math.log(1.05)
_SWAP = math.log(1.03)  # between two hosts


@dataclass(frozen=True)
class Truth:
    """What was put into row 0: a step or drift of `size` from night `at` on, undone from night `until` on."""

    size: float = 0.0
    at: int = 0
    drift: int = 0  # nights over which it comes; 0: at once
    until: int | None = None
    excursions: tuple[int, ...] = ()

    def effect(self, nights: int) -> Floats:
        """What is added to each night."""
        night = np.arange(nights)
        if self.drift:
            out = self.size * np.clip((night - self.at + 1) / self.drift, 0, 1)
        else:
            out = np.where(night >= self.at, self.size, 0.0)
        return np.where(night >= self.until, 0.0, out) if self.until is not None else out


@dataclass(frozen=True)
class Drawn:
    """One history: for each host the days and values (nights, rows) of logarithms, above is worse; and the truth."""

    hosts: tuple[tuple[tuple[date, ...], Floats], ...]
    truth: Truth

    def rows(self, host: int = 0, nights: int | None = None) -> list[History]:
        days, values = self.hosts[host]
        return [History(days[:nights], row[:nights]) for row in values.T.tolist()]


@dataclass(frozen=True)
class Kind:
    """What a history is drawn with. `noise`: a factor on both spreads; `r`: autocorrelation of nights."""

    nights: int
    rows: int = ROWS
    excursions: int = 3
    noise: float = 1.0
    r: float = 0.0
    swap: bool = False
    gaps: bool = True
    reruns: bool = True
    after: tuple[int, int] | None = None  # ends so many nights after its change began, drawn evenly
    truth: Callable[[np.random.Generator], Truth] = field(default=lambda _draw: Truth())


def draw_history(kind: Kind, draw: np.random.Generator) -> Drawn:
    """A random history of a kind."""
    truth = kind.truth(draw)
    values = _noise(kind, draw)
    values[:, 0] += truth.effect(kind.nights)
    last = truth.at - 2 if truth.size else kind.nights - 2
    taken: set[int] = set()
    for _ in range(int(draw.integers(0, kind.excursions + 1))):
        length, at = int(draw.integers(1, 3)), int(draw.integers(0, max(1, last - 1)))
        if {at - 1, at, at + 1, at + 2} & taken:
            continue  # two next to each other would be a level of their own
        # Of any size: 3 % to threefold, faster as well, in all rows or in the first alone.
        size = math.exp(float(draw.uniform(math.log(0.03), math.log(math.log(3))))) * draw.choice([1.0, 1.0, -1.0])
        values[at : at + length, : kind.rows if draw.random() < 0.7 else 1] += size
        taken |= set(range(at, at + length))
    truth = replace(truth, excursions=tuple(sorted(taken)))
    if kind.after is not None:
        values = values[: truth.at + int(draw.integers(kind.after[0], kind.after[1] + 1))]
    days = [FIRST + timedelta(n) for n in range(len(values))]
    if kind.gaps:
        for at in draw.integers(1, kind.nights, 2).tolist():
            shift = timedelta(int(draw.integers(1, 10)))
            days = [day + (shift if n >= at else timedelta(0)) for n, day in enumerate(days)]
    if not kind.swap:
        return Drawn(((tuple(days), values),), truth)
    at = int(draw.integers(20, kind.nights - 20))
    values[at:] += _SWAP
    return Drawn(((tuple(days[:at]), values[:at]), (tuple(days[at:]), values[at:])), truth)


def _noise(kind: Kind, draw: np.random.Generator) -> Floats:
    """Nights of rows: what nights share, what is a row's own, and the launches; some nights have reruns."""
    shape = (kind.nights, kind.rows)
    own = math.sqrt(0.5) * draw.normal(size=(kind.nights, 1)) + math.sqrt(0.5) * draw.normal(size=shape)
    for night in range(1, kind.nights):
        own[night] = kind.r * own[night - 1] + math.sqrt(1 - kind.r**2) * own[night]
    launches = draw.normal(0, LAUNCH, (*shape, LAUNCHES)).mean(axis=2)
    if kind.reruns:
        night = int(draw.integers(0, kind.nights))
        bad = draw.normal(0.07, LAUNCH, (kind.rows, LAUNCHES))
        good = draw.normal(0, LAUNCH, (kind.rows, 2 * LAUNCHES))
        both = np.concatenate([bad, good], axis=1)
        launches[night] = [row[agreeing(row)].mean() for row in both]
    return np.asarray(kind.noise * (NIGHT * own + launches))


def _stepped(size: float, drift: int = 0) -> Callable[[np.random.Generator], Truth]:
    """A change of this size on a night from the 13th to the 53rd."""
    return lambda draw: Truth(size, int(draw.integers(12, 53)), drift)


def _undone(draw: np.random.Generator) -> Truth:
    """3 to 20 % for 3 to 20 nights, then three normal ones."""
    size, nights = float(draw.uniform(math.log(1.03), math.log(1.2))), int(draw.integers(3, 21))
    return Truth(size, 57 - nights, until=57)


@dataclass(frozen=True)
class Case:
    """One row of the table of targets. `hit`: what the figure counts, of a history's readings of each host."""

    name: str
    what: str
    kind: Kind
    hit: Callable[[Drawn, Sequence[Sequence[Reading]]], bool]
    least: float | None = None
    most: float | None = None


def _confirmed_by(after: int) -> Callable[[Drawn, Sequence[Sequence[Reading]]], bool]:
    def hit(drawn: Drawn, readings: Sequence[Sequence[Reading]]) -> bool:
        at = drawn.truth.at
        return (
            any(
                change.worse and change.confirmed is not None and at - 1 <= change.confirmed < at + after
                for change in readings[0][0].changes
            )
            and readings[0][0].standing is not None
        )

    return hit


def _drift_told(_drawn: Drawn, readings: Sequence[Sequence[Reading]]) -> bool:
    standing = readings[0][0].standing
    return standing is not None and standing.drift


def _false_alert(_drawn: Drawn, readings: Sequence[Sequence[Reading]]) -> bool:
    return any(
        change.worse and change.confirmed is not None for host in readings for row in host for change in row.changes
    )


def _still_told(_drawn: Drawn, readings: Sequence[Sequence[Reading]]) -> bool:
    return readings[0][0].standing is not None


def _size_right(drawn: Drawn, readings: Sequence[Sequence[Reading]]) -> bool:
    standing = readings[0][0].standing
    if standing is None:
        return True  # nothing is told: what is not found counts in its own line
    truth = float(drawn.truth.effect(len(drawn.hosts[0][0]))[-1])
    return abs(math.expm1(standing.delta) - math.expm1(truth)) <= 0.01


_NULL = Kind(100, swap=True)
_BY_3, _BY_8 = (Kind(60, truth=_stepped(size), after=(n, n)) for size, n in ((STEP, 3), (SMALL, 8)))
_DRIFTS = Kind(50, truth=lambda _draw: Truth(DRIFT, 0, 50))
_LATE_DRIFTS = Kind(103, truth=_stepped(DRIFT, 50), after=(50, 50))
_SIZES = Kind(75, truth=lambda draw: Truth(float(draw.uniform(SMALL, math.log(1.3))), int(draw.integers(12, 53))),
              after=(3, 21))  # fmt: skip

CASES = (
    Case("+5.4 %, up to three excursions before", "confirmed by night 3", _BY_3, _confirmed_by(3), least=0.95),
    Case("+2 %, the same", "confirmed by night 8", _BY_8, _confirmed_by(8), least=0.80),
    Case("a drift of 5 % over 50 nights, from the first", "told as one by its end", _DRIFTS, _drift_told, least=0.95),
    Case("a drift of 5 % over 50 nights, later", "told as one by its end", _LATE_DRIFTS, _drift_told, least=0.95),
    Case("no change, 24 rows, 100 nights, two hosts", "a confirmed false alert", _NULL, _false_alert, most=0.05),
    Case("the same, AR(1) with r = 0.5", "a confirmed false alert", replace(_NULL, r=0.5), _false_alert, most=0.05),
    Case("undone after 3 to 20 nights", "still told after three normal nights", Kind(60, truth=_undone), _still_told,
         most=0.02),
    Case("+2 to +30 %, after 3 to 21 nights", "size within one point", _SIZES, _size_right, least=0.95),
    Case("a drift of 5 % over 50 nights, later", "size within one point", _LATE_DRIFTS, _size_right, least=0.95),
)  # fmt: skip


def readings_of(drawn: Drawn) -> list[list[Reading]]:
    """What the model says at the end, for each host and row."""
    return [read(drawn.rows(host)) for host in range(len(drawn.hosts))]


def share(case: Case, repetitions: int, seed: int) -> float:
    """How often the case's figure is hit."""
    draw = np.random.default_rng([seed, CASES.index(case)])
    hits = 0
    for _ in range(repetitions):
        drawn = draw_history(case.kind, draw)
        hits += case.hit(drawn, readings_of(drawn))
    return hits / repetitions


def table(repetitions: int, seed: int, say: Callable[[str], None]) -> list[tuple[Case, float, bool]]:
    """(case, figure, target met) of each; `say` hears of each as it is done."""
    out = []
    for case in CASES:
        figure = share(case, repetitions, seed)
        met = figure >= (case.least if case.least is not None else 0.0) and figure <= (
            case.most if case.most is not None else 1.0
        )
        say(f"{case.name}: {figure:.3f}")
        out.append((case, figure, met))
    return out
