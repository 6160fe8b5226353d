"""Numbers → numbers: is it slower, by how much, and how sure is that? The only place that imports scipy.

Everywhere below, a *delta* is the logarithm of a ratio of two launches of one pair, signed so that above zero is
worse: log(head / base) where lower is better, log(base / head) where higher is. Tables of deltas have the shape
(pairs, rows), NaN where a pair has no value for a row. Logarithms are natural: 0.0526 is 5.4 %.

The unit is a launch. Requests of one launch share everything that varies from launch to launch (memory layout,
clocks, compiled code), so a test over requests calls two launches of the same server different most of the time
(Kalibera and Jones 2013, doi 10.1145/2464157.2464160).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # its modules are loaded on first use, which keeps every command's start short
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# With fewer rows, what the others' spread says of one row is no better than a guess.
MIN_ROWS_TO_SHRINK = 4
# No clock here is finer than this share of what it measures: a spread of zero is an accident.
MIN_SD = 1e-5


@dataclass(frozen=True)
class Spread:
    """Mean of each row's deltas with its standard error and degrees of freedom; arrays over rows."""

    n: NDArray[np.int64]
    mean: Floats
    sd: Floats  # of one delta, after shrinkage
    df: Floats

    @property
    def se(self) -> Floats:
        """Standard error of the mean."""
        return np.asarray(self.sd / np.sqrt(self.n))


def spread(deltas: Floats) -> Spread:
    """Mean and spread of each row of a table of deltas; at least two values a row.

    A spread known from five deltas is itself uncertain by a third, and paying for that with Student's t costs more
    pairs than the effect itself. The rows of one comparison were measured by the same launches, so their spreads are
    alike, and each row's variance is drawn towards the common one: the moderated t of Smyth 2004 (doi
    10.2202/1544-6115.1027, limma's), with degrees of freedom d + d0, where d0 is estimated from how much the rows'
    variances differ beyond chance. As in limma, they never exceed those of the pooled variance. Unlike genes on a
    chip, our rows are few and correlated (TPOT and throughput of one launch are nearly one number), so rows are
    counted by `effective_rows`, both there and in how much chance alone makes variances differ.

    A row that is noisier than the others must not borrow their certainty. So d0 and the common variance come from
    winsorised variances, and a row whose own variance is the less likely among equal ones, the less it borrows: the
    robust hyperparameters of Phipson et al. 2016 (doi 10.1214/16-AOAS920), with a share of d0 that falls to none.
    """
    table = np.asarray(deltas, dtype=np.float64)
    n = np.sum(np.isfinite(table), axis=0)
    if table.size == 0 or np.any(n < 2):
        raise ValueError("every row needs two deltas to have a spread")
    mean = np.nanmean(table, axis=0)
    variance = own_variance(table)
    d = n - 1.0
    if table.shape[1] < MIN_ROWS_TO_SHRINK:
        return Spread(n, mean, np.sqrt(variance), d)
    rows = effective_rows(table)
    d0, common = prior_variance(variance, d, rows)
    alike = np.minimum(1.0, scipy.special.fdtrc(d, min(d0, _INFINITE), variance / common) / BORROWS_ALL_FROM)
    borrowed = np.minimum(d0, MOST_BORROWED * d) * alike
    pooled_df = float(np.mean(d)) * rows
    shrunk = (borrowed * common + d * variance) / (borrowed + d)
    return Spread(n, mean, np.sqrt(shrunk), np.maximum(np.minimum(d + borrowed, pooled_df), d))


# A row borrows in full where at least this share of equal rows would have as large a variance, and at most so many
# times its own degrees of freedom: that all rows are equal can't be known from a few pairs.
BORROWS_ALL_FROM, MOST_BORROWED = 0.5, 5.0
_INFINITE = 1e6  # degrees of freedom


def own_variance(table: Floats) -> Floats:
    """Each row's variance, with nothing borrowed."""
    return np.asarray(np.maximum(np.nanvar(table, axis=0, ddof=1), MIN_SD**2))


def own_p_above_zero(table: Floats) -> Floats:
    """One-sided p of each row by Student's t with its own spread alone."""
    n = np.sum(np.isfinite(table), axis=0)
    se = np.sqrt(own_variance(table) / n)
    return np.asarray(scipy.special.stdtr(n - 1.0, -np.nanmean(table, axis=0) / se))


def prior_variance(variance: Floats, d: Floats, rows: float = math.inf) -> tuple[float, float]:
    """(d0, common variance) from the rows' variances with d degrees of freedom each: Smyth 2004, section 6.2.

    d0 is infinite when the variances differ no more than chance makes them. Rows that move together are off by
    chance together, so chance explains only (1 - 1/rows) of what it would explain between independent ones. The two
    smallest and the two largest of at least eight are winsorised, so that single rows do not widen or move it all.
    """
    z = np.log(variance) - scipy.special.digamma(d / 2) + np.log(d / 2)
    factor = 1.0
    if len(z) >= _WINSORISED_FROM:
        ordered = np.sort(z)
        z, factor = np.clip(z, ordered[2], ordered[-3]), _WINSORISED
    beyond = float(factor * np.var(z, ddof=1) - (1 - 1 / rows) * np.mean(scipy.special.polygamma(1, d / 2)))
    d0 = 2 * _trigamma_inverse(beyond) if beyond > 0 else math.inf
    shift = scipy.special.digamma(d0 / 2) - math.log(d0 / 2) if math.isfinite(d0) else 0.0
    if math.isinf(d0) and factor == 1.0:
        return d0, float(np.sum(d * variance) / np.sum(d))
    return d0, float(np.exp(np.mean(z) + shift))


# Winsorising makes the variance of the log variances smaller by about a fifth.
_WINSORISED_FROM, _WINSORISED = 8, 1.25


@dataclass(frozen=True)
class Kept:
    """A table without what was off, NaN there: `pairs` in most rows, and so many single `values`."""

    table: Floats
    pairs: tuple[int, ...] = ()
    values: int = 0


# A pair is off where most rows' deltas are so many spreads, and at least so much, from their medians. At most a third
# of the pairs is left out: more are no accident.
PAIR_OFF, PAIR_OFF_BY, MOST_OFF = 5.0, 0.03, 1 / 3
# So many that are all off the same way may be one side's own doing, such as a server that is bistable: they stay.
ONE_SIDED = 3
# A single value is off by a test that holds for any spread, at this error a row.
VALUE_OFF_P, VALUES_FROM = 0.0005, 6


def without_outliers(deltas: Floats) -> Kept:
    """A table of deltas without launches that were off: a neighbour came or went, a clock fell.

    A launch that is off moves all of its rows, so a pair is judged by the median over rows of how far each is from its
    own median: in units of its spread (MAD), and as it is. With one row there is nothing to judge it by. From six pairs
    on, single values are judged too, by the generalised extreme studentised deviate test (Rosner 1983, doi
    10.1080/00401706.1983.10487848), which needs no knowledge of the spread.
    """
    table = np.array(deltas, dtype=np.float64)
    pairs = len(table)
    most = int(MOST_OFF * pairs + 1e-9)
    known = np.sum(np.isfinite(table), axis=0) >= 3
    if pairs < 4 or most < 1 or not np.any(known):
        return Kept(table)
    off: list[int] = []
    if np.sum(known) >= MIN_ROWS_TO_SHRINK:
        deviations = table[:, known] - _medians(table[:, known])
        away = np.abs(deviations)
        unit = np.maximum(1.4826 * _medians(away) * (1 + 1.5 / pairs), MIN_SD)
        with np.errstate(invalid="ignore"):
            far, size = np.nan_to_num(_medians((away / unit).T)), np.nan_to_num(_medians(away.T))
        suspects = np.flatnonzero((far > PAIR_OFF) & (size > PAIR_OFF_BY))
        off = sorted(suspects[np.argsort(-far[suspects])][:most].tolist())
        signs = np.sign(_medians(deviations.T))[off]
        if len(off) >= ONE_SIDED and abs(np.sum(signs)) == len(off):
            off = []
        table[off] = np.nan
    extreme = extreme_values(table, most) if pairs >= VALUES_FROM else np.zeros(table.shape, dtype=np.bool_)
    table[extreme] = np.nan
    return Kept(table, tuple(off), int(np.sum(extreme)))


def _medians(table: Floats) -> Floats:
    """Of each column, NaN passed over; numpy's nanmedian takes twenty times as long for so few values."""
    ordered, n = np.sort(table, axis=0), np.sum(np.isfinite(table), axis=0)
    columns = np.arange(table.shape[1])
    return np.asarray(
        (ordered[np.maximum(n - 1, 0) // 2, columns] + ordered[np.minimum(n // 2, len(table) - 1), columns]) / 2
    )


def extreme_values(table: Floats, most: int, error: float = VALUE_OFF_P) -> NDArray[np.bool_]:
    """Which values of each column are outliers among normal ones, by the generalised ESD test; NaN are passed over."""
    x = np.array(table, dtype=np.float64)
    n, columns = np.sum(np.isfinite(x), axis=0), np.arange(x.shape[1])
    rank = np.full(x.shape, most + 1)  # the how-manieth value to be taken away
    significant = np.zeros(x.shape[1], dtype=np.int64)
    for i in range(1, most + 1):
        left = n - i + 1
        enough = left >= 4
        if not np.any(enough):
            break
        # Columns with too few values are not judged; zeros keep the arithmetic quiet.
        values = np.where(enough, x, 0.0)
        mean = np.nanmean(values, axis=0)
        away = np.nan_to_num(np.abs(values - mean), nan=-1.0)
        worst = np.argmax(away, axis=0)
        ratio = away[worst, columns] / np.maximum(np.nanstd(values, axis=0, ddof=1), MIN_SD)
        df = np.maximum(left - 2, 1)
        t = scipy.special.stdtrit(df, 1 - error / (2 * np.maximum(left, 1)))
        limit = (left - 1) * t / np.sqrt((df + t * t) * np.maximum(left, 1))
        significant = np.where(enough & (ratio > limit), i, significant)
        rank[worst, columns] = np.where(enough, i, rank[worst, columns])
        x[worst, columns] = np.nan
    return np.asarray(rank <= significant)


def _trigamma_inverse(x: float) -> float:
    """y with trigamma(y) = x."""
    if x > 1e7:
        return 1 / math.sqrt(x)
    if x < 1e-6:
        return 1 / x
    y = 0.5 + 1 / x  # Newton's method from below, as in limma's trigammaInverse; zeta(2, y) is trigamma(y)
    for _ in range(50):
        value = scipy.special.zeta(2, y)
        step = value * (1 - value / x) / (-2 * scipy.special.zeta(3, y))
        y += step
        if abs(step) < 1e-9 * y:
            break
    return float(y)


def effective_rows(table: Floats) -> float:
    """How many independent rows a table is worth: (sum of eigenvalues)² / sum of their squares, of its correlation.

    This is Satterthwaite's count for the variance that all rows share: 1 when all rows move together. With few pairs
    it is at most pairs - 1, so it errs on the safe side. Pairs with a gap are left out.
    """
    full = table[np.all(np.isfinite(table), axis=1)]
    if len(full) < 3:
        return 1.0
    centred = full - full.mean(axis=0)
    scale = np.sqrt(np.sum(centred**2, axis=0))
    standard = centred / np.where(scale > 0, scale, 1.0)
    gram = standard @ standard.T  # its eigenvalues are those of the correlation matrix
    return float(np.trace(gram) ** 2 / max(np.sum(gram**2), 1e-300))


def p_above_zero(s: Spread) -> Floats:
    """One-sided p of each row: were the true delta zero, how often would its mean be as high?"""
    return np.asarray(scipy.special.stdtr(s.df, -s.mean / s.se))


def interval(s: Spread, confidence: float = 0.90) -> tuple[Floats, Floats]:
    """Two-sided t interval of each row's mean delta."""
    reach = scipy.special.stdtrit(s.df, 0.5 + confidence / 2) * s.se
    return np.asarray(s.mean - reach), np.asarray(s.mean + reach)


def upper_bound(s: Spread, error: float) -> Floats:
    """What each row's true delta exceeds with this probability only."""
    return np.asarray(s.mean + scipy.special.stdtrit(s.df, 1 - error) * s.se)


def holm(p: Sequence[float] | Floats) -> Floats:
    """Adjusted p-values that hold for all rows together: Holm 1979, jstor.org/stable/4615733.

    Arithmetic, not a test; statsmodels would be 65 MB for these lines. Tests hold it against its definition, the
    closed test of Bonferroni's.
    """
    values = np.asarray(p, dtype=np.float64)
    order = np.argsort(values)
    steps = (len(values) - np.arange(len(values))) * values[order]
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(steps))
    return adjusted


def sign_flip_p(deltas: Floats) -> float:
    """One-sided p of one row with no assumption but symmetry: each pair's arms could as well be swapped.

    Its smallest value is 2^-n, so it backs a verdict up, and can't replace the t test.
    """
    values = deltas[np.isfinite(deltas)]
    if len(values) < 2:
        return 1.0
    result = scipy.stats.permutation_test(
        (values,),
        lambda x, axis: np.mean(x, axis=axis),
        permutation_type="samples",
        alternative="greater",
        n_resamples=10_000,
        vectorized=True,
        rng=np.random.default_rng(0),
    )
    return float(result.pvalue)


def standard_deviation(groups: Sequence[Sequence[float]]) -> tuple[float, int]:
    """(sd, degrees of freedom) pooled over groups with means of their own; (nan, 0) when none has two values."""
    spreads = [(float(np.var(group, ddof=1)), len(group) - 1) for group in groups if len(group) > 1]
    df = sum(d for _, d in spreads)
    return (math.sqrt(sum(v * d for v, d in spreads) / df), df) if df else (math.nan, 0)


def wider_p(sd: float, df: float, known_sd: float, known_df: float) -> float:
    """p that a spread as large as `sd` comes from a source with the spread `known_sd`: an F test, one-sided."""
    if min(df, known_df) < 1 or known_sd < MIN_SD:
        return 1.0
    return float(scipy.stats.f.sf((sd / known_sd) ** 2, df, known_df))


def detectable(sd: float, df_a_pair: float, pairs: int, level: float, tolerance: float, power: float = 0.8) -> float:
    """The smallest true delta that is called slower with this power, at one look after so many pairs.

    `sd` is of one delta, `df_a_pair` the degrees of freedom that a pair adds, `level` the one-sided p that a row
    must reach. Both conditions of `rule.decide` must hold: p, and an interval wholly above `tolerance`.
    """
    df, se = df_a_pair * (pairs - 1), sd / math.sqrt(pairs)

    def missed(critical: float) -> float:
        """The noncentrality at which a t with this critical value is reached with the power asked."""
        return float(
            scipy.optimize.brentq(
                lambda x: float(scipy.stats.nct.cdf(critical, df, x)) - (1 - power), 0, critical * 4 + 9
            )
        )

    by_p = missed(float(scipy.special.stdtrit(df, 1 - level))) * se
    by_interval = tolerance + missed(float(scipy.special.stdtrit(df, 0.95))) * se
    return max(by_p, by_interval)


@dataclass(frozen=True)
class TwoGroups:
    """Values that lie in two groups: their means (as given: logarithms), sizes, and the p of one normal group."""

    low: float
    high: float
    n_low: int
    n_high: int
    p: float


def two_groups(values: Sequence[float] | Floats) -> TwoGroups | None:
    """The split of a sample into a low and a high group of at least two that explains most of its variance.

    p is the Monte Carlo probability of as clear a split in a sample from one normal distribution. The share of
    variance between the groups does not depend on place or scale, so one reference serves all samples of a size.
    None for fewer than 5 values, which can always be split well.
    """
    x = np.sort(np.asarray(values, dtype=np.float64))
    if len(x) < 5 or x[-1] - x[0] < MIN_SD:
        return None
    shares, reference = _shares(x, -1), _clearest_splits(len(x))
    cut = 2 + int(np.argmax(shares))
    as_clear = len(reference) - int(np.searchsorted(reference, float(shares.max()), side="left"))
    p = (1 + as_clear) / (1 + len(reference))
    return TwoGroups(float(x[:cut].mean()), float(x[cut:].mean()), cut, len(x) - cut, p)


# So many, since a whole family of rows is tested: their share of the error is below 1e-4.
_REFERENCES = 199_999


@functools.cache
def _clearest_splits(n: int) -> Floats:
    """The clearest split of each of many normal samples of a size, sorted."""
    draws = np.random.default_rng(n)
    parts = [np.max(_shares(draws.normal(size=(size, n)), -1), axis=-1) for size in (100_000, _REFERENCES - 100_000)]
    return np.sort(np.concatenate(parts))


def without_shared(own: Sequence[float] | Floats, other: Sequence[float] | Floats) -> Floats:
    """One side's values of so many pairs without what they share with the other's: the host's load at the time.

    The shared part is the other side's deviation from its mean, by the slope of own on other, at most 1 (both carry the
    same). Sides that hardly go together share nothing: a slope would only add the other's noise.
    """
    x, y = np.asarray(own, dtype=np.float64), np.asarray(other, dtype=np.float64)
    centred, mine = y - y.mean(), x - x.mean()
    together, square = float(np.sum(centred * mine)), float(np.sum(centred**2))
    if together <= SHARED * math.sqrt(square * float(np.sum(mine**2))):
        return x
    return np.asarray(x - min(1.0, together / max(square, MIN_SD**2)) * centred)


SHARED = 0.6  # correlation from which on both sides carry something in common


def _shares(sample: Floats, axis: int) -> Floats:
    """The share of the variance that lies between the groups, for each split of the sorted sample."""
    x = np.sort(np.moveaxis(sample, axis, -1), axis=-1)
    n = x.shape[-1]
    x = x - x.mean(axis=-1, keepdims=True)
    left = np.cumsum(x, axis=-1)[..., 1 : n - 2]  # sums of the first 2 … n-2 values
    count = np.arange(2, n - 1)
    between = left**2 / count + left**2 / (n - count)
    return np.asarray(between / np.sum(x**2, axis=-1, keepdims=True))


def half_width(sd: float, df: int, n: int, confidence: float = 0.90) -> float:
    """Half the interval of a mean of n values whose standard deviation is known with df degrees of freedom."""
    return float(scipy.special.stdtrit(df, 0.5 + confidence / 2)) * sd / math.sqrt(n)


def shift_p(mean_before: Floats, sd_before: Floats, n_before: Floats, mean: Floats, sd: Floats, n: Floats) -> Floats:
    """Two-sided p of a shift between nights before and nights since, by a t test with a common spread.

    Sizes may be effective ones, below the number of nights. One night since has no spread of its own: pass 0.
    """
    return np.asarray(scipy.stats.ttest_ind_from_stats(mean_before, sd_before, n_before, mean, sd, n).pvalue)


def two_sided_p(t: Floats, df: Floats | float) -> Floats:
    """Two-sided p of Student's t."""
    return np.asarray(2 * scipy.special.stdtr(df, -np.abs(t)))


def false_discovery(p: Sequence[float] | Floats) -> Floats:
    """p-values adjusted for the false discovery rate.

    Benjamini and Hochberg 1995, doi 10.1111/j.2517-6161.1995.tb02031.x. It holds for tests that
    depend on each other positively, as rows of one server do.
    """
    return np.asarray(scipy.stats.false_discovery_control(p)) if len(p) else np.empty(0)
