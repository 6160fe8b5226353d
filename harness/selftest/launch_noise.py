"""What launches of equal servers differ by, in many ways: tables of log values, (launches, rows), to put to the rule.

Launches are in the order in which they were measured: a pair is two that follow each other, ABBA.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from harness.stats.inference import Floats

ROWS = 24
SIGMA = 0.015  # relative spread between launches of one server
OFF = math.log(1.3)  # an outlier launch
BUSY = math.log(1.2)  # what a neighbour on the host costs

Noise = Callable[[np.random.Generator, int], Floats]  # launches → log values of ROWS rows


def sides(launches: Floats) -> tuple[Floats, Floats]:
    """(base, head), each (pairs, rows): the order turns in every pair."""
    first, second = launches[0::2], launches[1::2]
    turned = (np.arange(len(first)) % 2 == 1)[:, None]
    return np.where(turned, second, first), np.where(turned, first, second)


def normal(spreads: Callable[[np.random.Generator], Floats | float], together: float = 0.0) -> Noise:
    """Normal rows of these spreads; `together` is the correlation between rows."""

    def made(draw: np.random.Generator, launches: int) -> Floats:
        common, own = draw.normal(size=(launches, 1)), draw.normal(size=(launches, ROWS))
        return np.asarray((math.sqrt(together) * common + math.sqrt(1 - together) * own) * spreads(draw))

    return made


def _equal(_: np.random.Generator) -> float:
    return SIGMA


def _wider(count: int) -> Callable[[np.random.Generator], Floats]:
    """So many rows three times as wide as the others."""
    return lambda _: np.where(np.arange(ROWS) < ROWS - count, SIGMA, 3 * SIGMA)


def _any(draw: np.random.Generator) -> Floats:
    spreads: Floats = np.exp(draw.uniform(math.log(0.0005), math.log(0.06), ROWS))
    return spreads


def _halves(_: np.random.Generator) -> Floats:
    return np.where(np.arange(ROWS) < ROWS // 2, 0.005, 0.03)


def _graded(_: np.random.Generator) -> Floats:
    spreads: Floats = np.exp(np.linspace(math.log(0.005), math.log(0.04), ROWS))
    return spreads


def _heavy(draw: np.random.Generator, launches: int) -> Floats:
    return np.asarray(SIGMA * draw.standard_t(4, (launches, ROWS)) / math.sqrt(2))


def _skewed(draw: np.random.Generator, launches: int) -> Floats:
    """Log-normal with a long tail to the slow side; its spread is SIGMA."""
    x = np.exp(draw.normal(0, 0.8, (launches, ROWS)))
    return np.asarray(SIGMA * x / math.sqrt(math.expm1(0.64) * math.exp(0.64)))


def _drifting(draw: np.random.Generator, launches: int) -> Floats:
    return np.asarray(draw.normal(0, SIGMA, (launches, ROWS)) + np.linspace(0, 0.02, launches)[:, None])


def _ar1(draw: np.random.Generator, launches: int) -> Floats:
    out = draw.normal(0, SIGMA, (launches, ROWS))
    for i in range(1, launches):
        out[i] = 0.5 * out[i - 1] + math.sqrt(0.75) * out[i]
    return out


def _off(draw: np.random.Generator, launches: int) -> Floats:
    off = draw.random((launches, 1)) < 0.05
    return np.asarray(draw.normal(0, SIGMA, (launches, ROWS)) + off * OFF)


def _off_in_a_row(draw: np.random.Generator, launches: int) -> Floats:
    off = draw.random((launches, ROWS)) < 0.05
    return np.asarray(draw.normal(0, SIGMA, (launches, ROWS)) + off * OFF)


def _neighbour(draw: np.random.Generator, launches: int) -> Floats:
    """Comes for four launches on average, and is there a quarter of the time: edges fall into pairs."""
    there = np.empty(launches, dtype=bool)
    there[0] = draw.random() < 0.25
    for i in range(1, launches):
        there[i] = draw.random() > 0.25 if there[i - 1] else draw.random() < 1 / 12
    return np.asarray(draw.normal(0, SIGMA, (launches, ROWS)) + there[:, None] * BUSY)


def _shared(draw: np.random.Generator, launches: int) -> Floats:
    """A neighbour that both launches of a pair meet alike."""
    there = np.repeat(draw.random(launches // 2) < 0.4, 2)
    return np.asarray(draw.normal(0, SIGMA, (launches, ROWS)) + there[:, None] * BUSY)


INDEPENDENT = "independent rows, 1.5 % each"
NOISES: dict[str, Noise] = {
    INDEPENDENT: normal(_equal),
    "rows that move together (r = 0.8)": normal(_equal, 0.8),
    "the same, spreads of 0.5 to 4 %": normal(_graded, 0.8),
    "one row three times as wide": normal(_wider(1)),
    "two rows three times as wide": normal(_wider(2)),
    "four rows three times as wide": normal(_wider(4)),
    "half of the rows 0.5 %, half 3 %": normal(_halves),
    "any spread from 0.05 to 6 %": normal(_any),
    "heavy tails (t with 4 df)": _heavy,
    "log-normal, a long slow tail": _skewed,
    "a host that drifts by 2 %, ABBA": _drifting,
    "launches AR(1), r = 0.5": _ar1,
    "a neighbour for blocks of launches": _neighbour,
    "a neighbour that both of a pair meet": _shared,
    "outlier launches, 5 % of them +30 %": _off,
    "outliers in single rows, 5 % of them +30 %": _off_in_a_row,
}
# Where a power is promised in spite of the noise.
DISTURBED = (
    "a neighbour for blocks of launches",
    "outlier launches, 5 % of them +30 %",
    "outliers in single rows, 5 % of them +30 %",
)
