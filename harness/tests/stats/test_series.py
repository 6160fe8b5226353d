"""The model of a series, on clear cases: nights with 0.4 % of noise and one thing done to them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.selftest.histories import CASES, draw_history
from harness.stats.series import History, Reading, read

UP = math.log(1.054)


def reading(changes: dict[int, float], nights: int = 40, ramp: float = 0.0, seed: int = 3) -> Reading:
    """Nights around 0 with `changes` added on single nights, and `ramp` each night."""
    values = np.random.default_rng(seed).normal(0, 0.004, nights) + ramp * np.arange(nights)
    for night, size in changes.items():
        values[night] += size
    [found] = read([History.of(values.tolist())])
    return found


def since(first: int, nights: int = 40, size: float = UP) -> dict[int, float]:
    return dict.fromkeys(range(first, nights), size)


def test_nothing_is_said_of_quiet_nights() -> None:
    found = reading({})
    assert found.changes == ()
    assert found.standing is None


def test_a_step_is_told_with_its_night_and_size() -> None:
    standing = reading(since(30)).standing
    assert standing is not None
    assert math.expm1(standing.delta) == pytest.approx(0.054, abs=0.01)
    assert not standing.drift


@pytest.mark.parametrize("odd", [math.log(0.51), math.log(0.8), math.log(2), math.log(3)])
def test_one_odd_night_hides_no_step(odd: float) -> None:
    """As seen in use: 30 nights, the fourth of them off, the last three slower."""
    found = reading({3: odd, **since(27, 30)}, nights=30)
    assert found.standing is not None
    assert math.expm1(found.standing.delta) == pytest.approx(0.054, abs=0.01)


@pytest.mark.parametrize("odd", [0.2, -0.2])
def test_two_odd_nights_are_as_if_they_had_not_been(odd: float) -> None:
    found = reading({20: odd, 21: odd, **since(35)})
    assert found.standing is not None
    assert math.expm1(found.standing.delta) == pytest.approx(0.054, abs=0.01)
    assert reading({20: odd, 21: odd}).standing is None


def test_a_slow_drift_is_told_as_one() -> None:
    standing = reading({}, nights=50, ramp=0.001).standing
    assert standing is not None
    assert standing.drift


def test_what_is_undone_is_not_told_for_ever() -> None:
    assert reading({20: 0.2, 21: 0.2, 22: 0.2, 23: 0.2}).standing is None


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_row_of_the_table_draws_what_it_says(case: object) -> None:
    assert isinstance(case, type(CASES[0]))
    drawn = draw_history(case.kind, np.random.default_rng(0))
    assert len(drawn.hosts) == (2 if case.kind.swap else 1)
    for days, values in drawn.hosts:
        assert values.shape == (len(days), case.kind.rows)
        assert list(days) == sorted(set(days))
