"""The statistics, against values worked by hand or by another library, and the rule against its own promises."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special
from scipy import stats as scipy_stats

from harness.selftest.verdicts import NOISES, ab_table
from harness.stats import inference
from harness.stats.decision import FAIL_ERROR, LIMIT, PASS_ERROR, TOLERANCE, Margins, Plan, State, decide, pairs_needed


def deltas(pairs: int, rows: int, seed: int = 1, sd: float = 0.0212) -> np.ndarray:  # type: ignore[type-arg]
    return np.random.default_rng(seed).normal(0, sd, (pairs, rows))


def test_a_single_row_is_the_paired_t_test() -> None:
    """With nothing to borrow from, p and interval are those of scipy's paired t test on logarithms."""
    base = np.array([10.0, 10.2, 9.9, 10.1, 10.3])
    head = np.array([10.5, 10.6, 10.5, 10.7, 10.8])
    table = np.log(head / base)[:, None]
    s = inference.spread(table)
    reference = scipy_stats.ttest_rel(np.log(head), np.log(base), alternative="greater")
    assert inference.p_above_zero(s)[0] == pytest.approx(reference.pvalue, rel=1e-9)
    two_sided = scipy_stats.ttest_rel(np.log(head), np.log(base)).confidence_interval(0.90)
    low, high = inference.interval(s)
    assert (low[0], high[0]) == pytest.approx((two_sided.low, two_sided.high))
    assert s.df[0] == 4


def test_shrinkage_by_hand() -> None:
    """Four rows of three pairs. Variances 1, 4, 4, 16 (in units of 1e-4), so z = ln s² + c with c common, and its
    variance is that of ln(1), ln(4), ln(4), ln(16): ln(4)² × 2/3."""
    variances = np.array([1.0, 4.0, 4.0, 16.0]) * 1e-4
    d0, common = inference.prior_variance(variances, np.full(4, 2.0))
    # trigamma(1) = π²/6 of it is chance; the rest is trigamma(d0/2).
    beyond = math.log(4) ** 2 * 2 / 3 - math.pi**2 / 6
    assert beyond < 0
    assert math.isinf(d0)
    assert common == pytest.approx(6.25e-4)  # the mean

    wider = np.array([1.0, 16.0, 16.0, 256.0]) * 1e-4
    d0, common = inference.prior_variance(wider, np.full(4, 2.0))
    beyond = math.log(16) ** 2 * 2 / 3 - math.pi**2 / 6
    assert special.polygamma(1, d0 / 2) == pytest.approx(beyond)
    # mean z = ln(16e-4) - digamma(1) + ln(1); digamma(1) = -Euler's constant
    expected = math.exp(math.log(16e-4) + 0.5772156649 + special.digamma(d0 / 2) - math.log(d0 / 2))
    assert common == pytest.approx(expected)


def test_equal_variances_are_pooled_and_unequal_ones_kept() -> None:
    table = deltas(200, 12)
    pooled = inference.spread(table)
    assert np.ptp(pooled.sd) < 0.1 * np.mean(pooled.sd)
    table[:, 0] *= 20
    apart = inference.spread(table)
    assert apart.sd[0] == pytest.approx(np.std(table[:, 0], ddof=1), rel=0.05)


def test_rows_that_are_one_number_are_worth_one_row() -> None:
    one = deltas(6, 1)
    assert inference.effective_rows(np.repeat(one, 24, axis=1)) == pytest.approx(1.0)
    same = inference.spread(np.repeat(one, 24, axis=1))
    assert same.df[0] == pytest.approx(5.0)
    assert 3 < inference.effective_rows(deltas(6, 24)) <= 5  # at most pairs - 1: the safe side


def test_a_noisy_row_does_not_borrow_the_certainty_of_the_others() -> None:
    """One row of 24 three times as wide: its interval must hold the truth as often as any other's."""
    draw, inside, n = np.random.default_rng(6), 0, 1000
    for _ in range(n):
        table = draw.normal(0, 0.0212, (6, 24))
        table[:, 23] *= 3
        low, high = inference.interval(inference.spread(table))
        inside += low[23] <= 0 <= high[23]
    assert 0.86 <= inside / n <= 0.94  # 0.74 where it borrows


def test_launches_that_are_off_are_left_out() -> None:
    table = deltas(8, 24)
    table[2] += 0.26  # a launch of head, all of its rows
    table[5] -= 0.26
    kept = inference.without_outliers(table)
    assert (kept.pairs, kept.values) == ((2, 5), 0)
    assert np.all(np.isnan(kept.table[[2, 5]]))
    assert not np.any(np.isnan(kept.table[[0, 1, 3, 4, 6, 7]]))
    # Three that are off the same way may be what a bistable server does.
    table[5] += 0.52
    table[7] += 0.26
    assert inference.without_outliers(table).pairs == ()
    # In one row only.
    one = deltas(10, 6)
    one[4, 2] += 0.5
    assert inference.without_outliers(one).values == 1
    assert np.isnan(inference.without_outliers(one).table[4, 2])
    assert inference.without_outliers(deltas(3, 6)).pairs == ()


def test_generalised_esd_by_hand() -> None:
    """Nine values around 0 and one at 10: ratio (10 - mean) / sd = 2.846, limit 2.29 at n = 10 and 5 % (Grubbs)."""
    values = np.array([0.1, -0.1, 0.2, -0.2, 0.0, 0.1, -0.1, 0.15, -0.15, 10.0])[:, None]
    assert inference.extreme_values(values, 1, 0.05)[:, 0].tolist() == [False] * 9 + [True]
    # Two that mask each other are found together.
    two = np.concatenate([values, [[10.1]]])
    assert inference.extreme_values(two, 3, 0.05)[:, 0].tolist() == [False] * 9 + [True, True]
    assert not inference.extreme_values(values[:9], 3, 0.05).any()


def test_an_outlier_launch_does_not_hide_a_slowdown() -> None:
    table = deltas(8, 24, seed=11, sd=0.015)
    table[:, 7] += math.log(1.054)
    table[3] -= 0.26
    [row] = [row for row in decide(table, Plan.once(8)) if row.state is State.SLOWER]
    assert (row.n, row.left_out) == (7, 1)


def test_what_both_sides_share_is_no_second_group() -> None:
    draw = np.random.default_rng(2)
    load = np.array([0, 0.18, 0, 0, 0.18, 0.18, 0, 0, 0.18, 0])
    base, head = (load + draw.normal(0, 0.015, 10) for _ in range(2))
    assert (inference.two_groups(base) or pytest.fail("ten values")).p < 1e-3
    assert (inference.two_groups(inference.without_shared(base, head)) or pytest.fail("ten values")).p > 1e-2
    alone = inference.without_shared(base, draw.normal(0, 0.015, 10))
    assert alone == pytest.approx(base)


def test_gaps_and_constant_rows() -> None:
    table = deltas(6, 5)
    table[2, 0] = np.nan
    table[:, 1] = 0.0
    s = inference.spread(table)
    assert list(s.n) == [5, 6, 6, 6, 6]
    assert np.all(np.isfinite(s.sd))
    assert np.all(s.sd > 0)
    with pytest.raises(ValueError, match="two deltas"):
        inference.spread(np.full((3, 2), np.nan))


def closed_bonferroni(p: list[float]) -> list[float]:
    """Holm's p-values by what they mean: a hypothesis is rejected if Bonferroni rejects every set that contains it."""
    sets = [chosen for size in range(1, len(p) + 1) for chosen in itertools.combinations(range(len(p)), size)]
    worst = {chosen: min(1.0, len(chosen) * min(p[i] for i in chosen)) for chosen in sets}
    return [max(value for chosen, value in worst.items() if i in chosen) for i in range(len(p))]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=7))
@settings(max_examples=50, deadline=None)
def test_holm_is_the_closure_of_bonferroni(p: list[float]) -> None:
    assert inference.holm(p) == pytest.approx(closed_bonferroni(p))


def test_holm_by_hand() -> None:
    """4 × 0.01, then 3 × 0.02 and 2 × 0.04, never less than the one before; ties share; at most 1."""
    assert inference.holm([0.04, 0.01, 0.02, 0.9]) == pytest.approx([0.08, 0.04, 0.06, 0.9])
    assert inference.holm([0.03, 0.02, 0.03]) == pytest.approx([0.06, 0.06, 0.06])
    assert inference.holm([0.6, 0.7]) == pytest.approx([1.0, 1.0])


def test_sign_flips() -> None:
    assert inference.sign_flip_p(np.array([0.01, 0.02, 0.03, 0.04, 0.05, 0.06])) == 1 / 64
    assert inference.sign_flip_p(np.full(10, 0.05) + np.arange(10) * 1e-3) == 1 / 1024
    assert inference.sign_flip_p(np.array([0.05])) == 1.0


def test_power_is_that_of_the_noncentral_t() -> None:
    """One pair-wise t with df 5 at .05: the effect found with 80 % satisfies the definition."""
    effect = inference.detectable(0.02, 1.0, 6, 0.05, tolerance=0.0)
    shift = effect / (0.02 / math.sqrt(6))
    assert scipy_stats.nct.sf(scipy_stats.t.isf(0.05, 5), 5, shift) == pytest.approx(0.8)
    assert inference.detectable(0.02, 1.0, 12, 0.05, 0.0) < effect
    assert inference.detectable(0.02, 1.0, 6, 0.05, 0.05) > effect


def test_two_groups() -> None:
    low, high = np.log(2.9), np.log(3.4)
    noise = np.random.default_rng(1).normal(0, 0.005, 8)
    found = inference.two_groups(noise + np.array([low] * 4 + [high] * 4))
    assert found is not None
    assert (found.n_low, found.n_high) == (4, 4)
    assert found.low == pytest.approx(low, abs=0.01)
    assert found.p < 0.001
    one = inference.two_groups(np.random.default_rng(2).normal(0, 0.02, 8))
    assert one is not None
    assert one.p > 0.01
    assert inference.two_groups([1.0, 2.0, 3.0, 4.0]) is None
    assert inference.two_groups([1.0] * 8) is None


def test_errors_spent_add_up() -> None:
    for plan in (Plan.sequential(), Plan.sequential(6), Plan.sequential(3), Plan.once(7)):
        assert sum(plan.fail_error(n) for n in range(20)) == pytest.approx(FAIL_ERROR)
        assert sum(plan.pass_error(n) for n in range(20)) == pytest.approx(PASS_ERROR)
    assert Plan.sequential().looks == (4, 5, 6, 7, 8, 9, 10)
    assert Plan.sequential(3).looks == (3,)


def states(table: np.ndarray, plan: Plan | None = None) -> list[State]:  # type: ignore[type-arg]
    return [row.state for row in decide(table, plan or Plan.once(len(table)))]


def test_the_rule_on_clear_cases() -> None:
    quiet = deltas(10, 6, sd=0.002)
    assert states(quiet + 0.054) == [State.SLOWER] * 6
    assert states(quiet - 0.054) == [State.FASTER] * 6
    assert states(quiet) == [State.NOT_SLOWER] * 6
    assert states(quiet + 0.003) == [State.NOT_SLOWER] * 6  # significant, and small: one word for it
    loud = deltas(3, 6, sd=0.05)
    assert states(loud - loud.mean(axis=0)) == [State.OPEN] * 6
    assert states(quiet[:5] + 0.054, Plan((4, 6))) == [State.OPEN] * 6  # not a planned look: nothing is said


def test_one_wild_pair_makes_no_verdict() -> None:
    table = deltas(8, 24, sd=0.01)
    table[:, 3] = [0.9, 0.001, -0.001, 0.002, -0.002, 0.001, -0.001, 0.0]
    assert states(table)[3] is not State.SLOWER


def test_the_primary_row_needs_less() -> None:
    table = deltas(5, 24, seed=3)
    table[:, 0] += 0.06 - table[:, 0].mean()
    with_primary = decide(table, Plan.once(5), primary=(0,))[0]
    without = decide(table, Plan.once(5))[0]
    assert with_primary.p_slower < without.p_slower
    assert with_primary.mean == pytest.approx(0.06)


def test_margins_widen_where_the_clock_is_coarse() -> None:
    assert Margins.of(1.0, 0.001) == Margins(TOLERANCE, LIMIT)
    coarse = Margins.of(0.010, 0.001)  # 1 ms of 10 ms
    assert coarse.tolerance == pytest.approx(math.log(1.1))
    assert coarse.limit == pytest.approx(1.5 * math.log(1.1))


def test_pairs_needed() -> None:
    plan = Plan.sequential()
    table = deltas(4, 24, seed=5)
    table -= table.mean(axis=0)
    row, near = decide(table, plan)[0], decide(table + 0.025, plan)[0]
    assert pairs_needed(row, 24, Margins(), plan) in range(1, 100)
    far = pairs_needed(near, 24, Margins(), plan)
    assert far is None or far > 20
    assert pairs_needed(decide(deltas(1, 3), plan)[0], 24, Margins(), plan) is None


def test_reduced_self_test_meets_its_targets() -> None:
    """The table of docs/statistics.md, shorter and with a fixed seed."""
    lines = [line for line in ab_table(60, seed=7, noises=list(NOISES)[:2]) if line.target]
    assert len(lines) >= 6
    assert [line for line in lines if line.verdict == "MISSED"] == []
