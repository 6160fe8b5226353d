"""One model of a series of nights: levels, excursions, steps, drifts, spread. docs/statistics.md describes it.

Every word, number and page about a series is read from it; `mtpbench selftest series` measures how often it is right.

`read` goes through the nights once, in order, and knows on each night what was known that night: what it says of a
past night is what it said then. All rows of a scenario on a host are read together, since the false discovery rate is
one of all rows of a night. Values are logarithms, above is worse. No input or output: who stores and shows what is
found are `harness.nightly` and the pages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta

import numpy as np
from numpy.typing import NDArray

from harness.stats import inference
from harness.stats.decision import TOLERANCE
from harness.stats.inference import Floats
from harness.stats.levels import MIN_SPREAD, Level, effective, inliers, level_of, median, middle_of, middles, own_spread
from harness.stats.shapes import MIN_DRIFT, shape_of

MIN_BASELINE = 8  # nights before anything is said: with fewer, a spread is a guess
# After a change the spread is known, so that a slowdown that is fixed within a week is seen to be gone.
MIN_NEW_LEVEL = 3
WINDOW = 60  # nights of baseline at most: older ones say little about today's host
RECENT = 21  # splits looked at
SMALL_FROM = 6  # nights that confirm a change of less than the tolerance: good and bad weeks are of that size
HELD = 8  # nights that a faster level must hold to become the reference
NOW = 30  # nights that say where a series is
# The false discovery rate over the rows of a night. Found by simulation (mtpbench selftest series): what meets the
# targets for false alerts with the least delay.
ALERT_RATE, CONFIRM_RATE = 4e-3, 1e-3
_REST_P = 0.05  # of what is left of a change without its two worst nights
_BACK = 2.5  # standard errors from the slow level at which three nights have left it
_LAST = 7  # nights that are compared with the first ones to find a drift
_FIRST = 20  # at most, of those
_SWING_NIGHTS, _SWING_RATIO, _SWING_P = 14, 2.0, 1e-4
_MANY_EXCURSIONS = 0.2  # of the last NOW nights
_EFFECT = math.log(1.054)  # the change that a series must be able to show within RESOLVED_IN nights


@dataclass(frozen=True)
class Ruling:
    """What somebody outside says of a change: an A/B, or a person. `closes`: it is no slowdown of the software."""

    closes: bool
    why: str


@dataclass(frozen=True)
class Change:
    """A change of level. Nights are indices into the series; `delta` is a logarithm, above zero worse.

    `delta` is the level after against the level before, as both are known on the last night.
    """

    start: int  # the first night of the new level, or of the drift
    alerted: int  # the night on which it was seen
    delta: float
    p: float
    drift: bool = False
    slope: float = 0.0  # of a drift, a night
    confirmed: int | None = None  # the night on which it was sure
    ended: int | None = None  # the night on which it was seen to be undone
    ruling: Ruling | None = None

    @property
    def worse(self) -> bool:
        return self.delta > 0

    @property
    def withdrawn(self) -> bool:
        """Was it an alert that later nights did not bear out?"""
        return self.confirmed is None and self.ended is not None

    @property
    def closed(self) -> bool:
        return self.ruling is not None and self.ruling.closes

    @property
    def open(self) -> bool:
        """Is it an alert that waits for more nights, or for an A/B?"""
        return self.confirmed is None and self.ended is None and not self.closed


@dataclass(frozen=True)
class Stretch:
    """Nights `start` to before `stop`, and their level; of a drift, where it has come to."""

    start: int
    stop: int
    level: Level
    drift: bool = False


@dataclass(frozen=True)
class Standing:
    """A slowdown that is there: since which night, by how much against the reference, with its 90 % interval."""

    since: int
    delta: float
    low: float
    high: float
    drift: bool = False
    past: int | None = None  # it began in this level of the past, not in a stored night


@dataclass(frozen=True)
class Reading:
    """All that is known of a series after its last night."""

    changes: tuple[Change, ...] = ()
    excursions: tuple[int, ...] = ()
    stretches: tuple[Stretch, ...] = ()
    reference: Level | None = None
    standing: Standing | None = None
    swing: str = ""  # why its spread allows no judgement

    @property
    def now(self) -> Level | None:
        return self.stretches[-1].level if self.stretches else None

    @property
    def alert(self) -> Change | None:
        """The alert that is open."""
        return next((change for change in reversed(self.changes) if change.open), None)


# First night of the level before, first night since, is it for the worse? → what somebody outside says of it.
Rule = Callable[[int, int, bool], "Ruling | None"]


def _nobody(_before: int, _start: int, _worse: bool) -> Ruling | None:
    return None


@dataclass(frozen=True)
class Earlier:
    """A level of nights that are no longer stored. `closed`: why the change that led to it is no slowdown."""

    level: Level
    closed: str = ""


@dataclass(frozen=True)
class History:
    """What is read. `past`: levels of nights that are no longer stored, oldest first; they stand before night 0."""

    days: Sequence[date]
    values: Sequence[float]
    tolerance: float = TOLERANCE  # a smaller change is none
    rule: Rule = field(default=_nobody)
    past: Sequence[Earlier] = ()

    @classmethod
    def of(cls, values: Sequence[float], first: date = date(2026, 1, 1)) -> History:
        """One value a day."""
        return cls([first + timedelta(n) for n in range(len(values))], values)


def read(rows: Sequence[History]) -> list[Reading]:
    """Reads the rows of one scenario on one host together, night by night."""
    watched = [_Watched(row) for row in rows]
    nights: dict[date, list[tuple[_Watched, int]]] = {}
    for one, row in zip(watched, rows, strict=True):
        for number, day in enumerate(row.days):
            nights.setdefault(day, []).append((one, number))
    for _, tonight in sorted(nights.items()):
        looks = [one.look(number) for one, number in tonight]
        alert_p = _adjusted([look.alert_p for look in looks], ALERT_RATE)
        confirm_p = _adjusted([look.confirm_p for look in looks], CONFIRM_RATE)
        for (one, number), look, alert, confirm in zip(tonight, looks, alert_p, confirm_p, strict=True):
            one.settle(number, look, alert < ALERT_RATE, confirm < CONFIRM_RATE)
    return [one.reading() for one in watched]


def _adjusted(p: list[float], rate: float) -> list[float]:
    if min(p) >= rate:
        return p  # adjusted ones are no smaller
    return [float(value) for value in inference.false_discovery(p)]


@dataclass(frozen=True)
class _Candidate:
    start: int
    delta: float
    p: float
    drift: bool = False
    slope: float = 0.0
    before: float = math.nan  # the level from which a drift started


@dataclass(frozen=True)
class _Look:
    """What a night suggests. Where nothing is suggested, p is 1."""

    alert: _Candidate | None = None
    confirm: _Candidate | None = None

    @property
    def alert_p(self) -> float:
        return self.alert.p if self.alert else 1.0

    @property
    def confirm_p(self) -> float:
        return self.confirm.p if self.confirm else 1.0


_NOTHING = _Look()


class _Watched:
    """One row while its nights come in."""

    def __init__(self, row: History) -> None:
        # A level of the past stands for its nights: so many values with its mean and spread, before night 0.
        past = [_as_nights(one.level) for one in row.past]
        self.shift = sum(len(values) for values in past)
        self.past_starts = [sum(len(values) for values in past[:n]) for n in range(len(past))]
        self.y = np.concatenate([*past, np.asarray(row.values, dtype=np.float64)])
        self.rule, self.tolerance = row.rule, row.tolerance
        self.least_step = row.tolerance / 2
        self.done: list[Change] = []
        self.pending: Change | None = None
        self.lone: set[int] = set()
        self.start = 0  # of the present stretch
        self.drifting = False
        self.stretches: list[Stretch] = []  # that have ended
        self.before: Level | None = None  # level of the last one that has
        self.fit: Level | None = None  # of the present stretch, without its last nights
        self.last = -1
        self.nights: list[int] = []  # of the present stretch, without excursions
        self.fit_age = 0
        self.first: tuple[int, float] = (0, 0.0)  # size and median of the stretch's first nights
        self._take_in(past, [one.closed for one in row.past])

    def _take_in(self, past: Sequence[Floats], closed: Sequence[str]) -> None:
        start = 0
        for number, values in enumerate(past):
            if number:
                delta = float(values.mean() - past[number - 1].mean())
                self._close_stretch(start)
                ruling = Ruling(True, closed[number]) if closed[number] else None
                self.done.append(Change(start, start, delta, 0.0, confirmed=start, ruling=ruling))
            start += len(values)
        self.last = start - 1
        self._renew()

    def _renew(self) -> None:
        """After a stretch has begun, or nights were found to be excursions."""
        self.nights = [i for i in range(self.start, self.last + 1) if i not in self.lone]
        self.fit, self.first = None, (0, 0.0)

    # --- one night -------------------------------------------------------------------------------------------------

    def look(self, number: int) -> _Look:
        """What tonight suggests; `settle` decides once all rows were looked at."""
        self.last = tonight = number + self.shift
        self.nights.append(tonight)
        if self.pending is not None and self._back_from_alert(tonight):
            self._withdraw(tonight, excursion=True)
        nights = self.nights
        least = MIN_BASELINE if self.before is None else MIN_NEW_LEVEL
        if len(nights) <= least or (self._like_the_others(nights) and not self.drifting):
            return _NOTHING
        if (found := self._back_at_reference(nights)) is not None:
            return _Look(confirm=found)
        if self.drifting:
            return self._look_at_drift(nights)
        x = self.y[nights]
        most = min(RECENT, len(x) - least)
        # The last three nights may be those of a change: they say nothing of the level before it.
        body = x[-(WINDOW + 3) : max(least, len(x) - 3)]
        self.fit, kept = level_of(body, self.before)
        self.fit_age = 0
        steps = self._steps(nights, x, most, body, kept)
        drift = self._drift(nights, x) if len(x) >= 2 * MIN_DRIFT else None
        return _Look(steps.alert, self._shaped(nights, x, steps.confirm, drift))

    def _like_the_others(self, nights: list[int]) -> bool:
        """A cheap glance that spares most nights the long look: nothing near the level of an alert."""
        if self.fit is None or self.pending is not None or self.fit_age > 4 or len(nights) < RECENT:
            return False
        self.fit_age += 1
        y, fit = self.y, self.fit
        for k in (1, 2, 3, 5, 8, 13, RECENT):
            mean = float(y[nights[-k:]].sum()) / k
            if abs(mean - fit.mean) > 2.5 * fit.sd / math.sqrt(k):
                return False
        count = min(_FIRST, max(MIN_BASELINE, len(nights) // 3))
        if self.first[0] != count:
            self.first = count, (median(y[nights[:count]]))
        return abs(float(y[nights[-_LAST:]].mean()) - self.first[1]) < self.tolerance / 2

    def _steps(self, nights: list[int], x: Floats, most: int, body: Floats, kept: NDArray[np.bool_]) -> _Look:
        """The likeliest split of the nights, for an alert and for a confirmed change."""
        assert self.fit is not None
        fit = self.fit
        tail = x[::-1][:most]
        # A first glance with medians, which are cheap to keep: most nights end here.
        k = np.arange(1, most + 1)
        means = np.cumsum(tail) / k
        if np.all(np.abs(means - fit.mean) < 2 * fit.sd / np.sqrt(k)):
            return _NOTHING
        where = middles(tail, fit.sd)
        count_before, mean_before = self._before(x, body, kept, most)
        delta = where - mean_before
        n_before, n = effective(np.maximum(count_before, 1.0), fit.r), effective(k, fit.r)
        likely = np.flatnonzero(np.abs(delta) > 2.5 * fit.sd * np.sqrt(1 / n_before + 1 / n))
        if not len(likely):
            return _NOTHING
        wide = np.full(most, fit.sd)
        for i in likely.tolist():  # nights that swing do not agree on a new level
            wide[i] = max(fit.sd, own_spread(tail[: i + 1]))
        p = inference.two_sided_p(delta / np.sqrt(fit.sd**2 / n_before + wide**2 / n), fit.df)
        size = np.abs(delta)
        # A change starts with a night of the new level.
        p = np.where((tail - mean_before) * np.sign(delta) < size / 2, 1.0, p)
        alert_p = np.where(size < np.where(k < 3, self.tolerance, self.least_step), 1.0, p)
        enough = k >= np.where(size < self.tolerance, SMALL_FROM, 3)
        confirm_p = np.where((size < self.least_step) | ~enough, 1.0, p)
        confirm_p = np.where(confirm_p < CONFIRM_RATE, confirm_p, 1.0)
        for i in np.flatnonzero(confirm_p < 1).tolist():
            known = float(mean_before[i]), float(delta[i]), float(n_before[i])
            if i < 2 or not self._without_two_worst(tail[: i + 1], *known):
                confirm_p[i] = 1.0
        return _Look(_best(alert_p, delta, nights, ALERT_RATE), _best(confirm_p, delta, nights, CONFIRM_RATE))

    def _before(self, x: Floats, body: Floats, kept: NDArray[np.bool_], most: int) -> tuple[Floats, Floats]:
        """(nights, mean) of what lies before each split, without excursions."""
        sums = np.concatenate([[0.0], np.cumsum(np.where(kept, body, 0.0))])
        counts = np.concatenate([[0.0], np.cumsum(kept, dtype=np.float64)])
        end = np.minimum(len(body), len(body) + (len(x) - len(body)) - np.arange(1, most + 1))
        begin = len(x) - (len(x) - len(body)) - len(body)  # 0: the body's first night
        held = counts[end] - counts[begin]
        return held, np.where(held > 0, (sums[end] - sums[begin]) / np.maximum(held, 1.0), self._fit_mean())

    def _fit_mean(self) -> float:
        assert self.fit is not None
        return self.fit.mean

    def _without_two_worst(self, tail: Floats, before: float, delta: float, n_before: float) -> bool:
        """Does a change stand without its two most extreme nights, which could be an excursion?"""
        assert self.fit is not None
        sign = 1.0 if delta > 0 else -1.0
        rest = np.sort(sign * (tail - before))[:-2]
        shift = middle_of(rest, self.fit.sd)
        half = abs(delta) / 2
        # Is it only the last two nights that are off? Then something has just begun, and will be sure in time.
        newest, older = sign * (tail[:2].mean() - before), sign * (middle_of(tail[2:], self.fit.sd) - before)
        if older < newest / 2:
            return False
        n = float(effective(np.asarray([len(rest)]), self.fit.r)[0])
        se = self.fit.sd * math.sqrt(1 / n_before + 1 / n)
        p = float(inference.two_sided_p(np.asarray([shift / se]), self.fit.df)[0])
        return shift >= max(half, self.least_step / 2) and p < _REST_P

    def _drift(self, nights: list[int], x: Floats) -> _Candidate | None:
        """The last nights against the first ones of the stretch, a reference that does not move along."""
        first = x[: min(_FIRST, max(MIN_BASELINE, len(x) // 3))]
        last = x[-_LAST:]
        size = median(last) - median(first)
        if abs(size) < 0.75 * self.tolerance:
            return None
        recent = x[-2 * WINDOW :]
        shape = shape_of(recent)
        night = np.arange(len(recent))
        line = shape.before + (
            shape.slope * np.maximum(0, night - shape.start) if shape.drift else shape.size * (night >= shape.start)
        )
        rest, _ = level_of(recent - line)
        a, b = first[inliers(first)], last[inliers(last)]
        n_a, n_b = effective(np.array([len(a), len(b)], dtype=np.float64), rest.r)
        delta = float(b.mean() - a.mean())
        se = rest.sd * math.sqrt(1 / n_a + 1 / n_b)
        p = float(inference.two_sided_p(np.asarray([delta / se]), rest.df)[0])
        return _Candidate(nights[0], delta, p) if p < CONFIRM_RATE else None

    def _shaped(
        self, nights: list[int], x: Floats, step: _Candidate | None, drift: _Candidate | None
    ) -> _Candidate | None:
        """What was found, told as what it is: a step or a drift."""
        if (step is None and drift is None) or len(x) < MIN_DRIFT + 2:
            return step
        recent = nights[-2 * WINDOW :]
        shape = shape_of(self.y[recent])
        p = min(one.p for one in (step, drift) if one is not None)
        if shape.drift:
            if abs(shape.size) < self.tolerance or (step is not None and self.last - step.start < MIN_DRIFT - 1):
                return step if step is not None and self.last - step.start < MIN_DRIFT - 1 else None
            return _Candidate(recent[shape.start], shape.size, p, True, shape.slope, shape.before)
        if step is None and abs(shape.size) >= self.least_step and len(recent) - shape.start >= 3:
            tail = self.y[recent[shape.start :]]
            if self.fit is not None and self._without_two_worst(tail, shape.before, shape.size, float(shape.start)):
                return _Candidate(recent[shape.start], shape.size, p)
        return step

    def _look_at_drift(self, nights: list[int]) -> _Look:
        """Has a drift come to an end? Its last nights leave its line; what stands then is a level again."""
        if len(nights) < MIN_DRIFT + _LAST:
            return _NOTHING
        past, tail = nights[:-_LAST], self.y[nights[-_LAST:]]
        night = np.asarray(past, dtype=np.float64)
        kept = inliers(self.y[past] - np.poly1d(np.polyfit(night, self.y[past], 1))(night))
        slope, start = np.polyfit(night[kept], self.y[past][kept], 1)
        level, _ = level_of(self.y[past] - (start + slope * night), self.before)
        off = tail - (start + slope * np.asarray(nights[-_LAST:], dtype=np.float64))
        away = middle_of(off, level.sd)
        n, n_past = effective(np.array([_LAST, len(night)], dtype=np.float64), level.r)
        reach = float(np.mean(nights[-_LAST:])) - float(night.mean())
        # The line itself is uncertain, the more the further it is drawn out.
        se = level.sd * math.sqrt(1 / n + (1 + reach**2 / float(np.var(night))) / n_past)
        p = float(inference.two_sided_p(np.asarray([away / se]), level.df)[0])
        return _Look(confirm=_Candidate(nights[-_LAST], away, p)) if p < CONFIRM_RATE else _NOTHING

    def _back_at_reference(self, nights: list[int]) -> _Candidate | None:
        """Are the last three nights at the reference again, and too far from the present level for chance?"""
        if not self.stretches or len(nights) < MIN_NEW_LEVEL + 3:
            return None
        reference, since, _ = _reference(self._chain(), self.done, self.least_step)
        if since is None:
            return None
        last, rest = self.y[nights[-3:]], self.y[nights[:-3]]
        now = middle_of(rest[-_LAST:], reference.sd) if self.drifting else level_of(rest, self.before)[0].mean
        if np.any(np.abs(last - reference.mean) > np.abs(last - now)):
            return None
        n_now, n = effective(np.array([min(len(rest), NOW), 3], dtype=np.float64), reference.r)
        sd = (self.before or reference).sd
        away = now - float(last.mean())
        se = sd * math.sqrt(1 / n_now + 1 / n)
        return _Candidate(nights[-3], -away, 0.0) if away > _BACK * se else None

    # --- what is decided -------------------------------------------------------------------------------------------

    def settle(self, number: int, look: _Look, alerted: bool, sure: bool) -> None:
        """Takes in what tonight suggested, as far as it holds over all rows."""
        tonight = number + self.shift
        if look.confirm is not None and sure:
            self._confirm(look.confirm, tonight)
        elif look.alert is not None and (alerted or (self.pending is not None and look.alert_p < ALERT_RATE)):
            self._alert(look.alert, tonight)
        elif self.pending is not None:
            self._withdraw(tonight, excursion=False)

    def _alert(self, found: _Candidate, tonight: int) -> None:
        known = self.pending
        if known is not None and (known.delta > 0) != (found.delta > 0):
            self._withdraw(tonight, excursion=False)
            known = None
        change = Change(found.start, known.alerted if known else tonight, found.delta, found.p)
        ruling = self.rule(self.start - self.shift, found.start - self.shift, found.delta > 0)
        if ruling is None:
            self.pending = change
            return
        self.pending = None
        self._begin(replace(change, ruling=ruling, confirmed=None if ruling.closes else tonight), tonight)

    def _confirm(self, found: _Candidate, tonight: int) -> None:
        if self.drifting and found.p > 0 and abs(found.delta) < self.tolerance:
            self._close_stretch(found.start)  # it has come to rest, which is no change of its own
            return
        known = self.pending if self.pending is not None and self.pending.worse == (found.delta > 0) else None
        self.pending = None
        if (merged := self._as_one_drift(found)) is not None:
            self.drifting = True
            self.done[-1] = merged
            self._renew()
            return
        change = Change(
            found.start, known.alerted if known else tonight, found.delta, found.p, found.drift, found.slope, tonight
        )
        ruling = self.rule(self.start - self.shift, found.start - self.shift, found.delta > 0)
        self._begin(replace(change, ruling=ruling), tonight, found)

    def _as_one_drift(self, found: _Candidate) -> Change | None:
        """Was the change with which the present stretch began the beginning of a drift? Then it is told as that."""
        if not self.done or not self.stretches or found.p == 0:
            return None
        earlier, base = self.done[-1], self.stretches[-1]
        if (earlier.confirmed is None or earlier.closed or earlier.start != self.start
                or base.drift or earlier.worse != (found.delta > 0)):  # fmt: skip
            return None
        nights = [i for i in range(base.start, self.start) if i not in self.lone][-WINDOW:] + self.nights
        cuts = [self.start] if found.drift else [self.start, found.start]
        shape = shape_of(self.y[nights], [nights.index(cut) for cut in cuts if cut in nights])
        if not shape.drift or abs(shape.size) < self.tolerance:
            return None
        start = max(nights[shape.start], base.start + 1)
        before, _ = level_of(self.y[[i for i in nights if i < start] or nights[:1]], self.before)
        before = replace(before, mean=shape.before)
        self.stretches[-1] = replace(base, stop=start, level=before)
        self.before, self.start = before, start
        return replace(earlier, start=start, delta=shape.size, drift=True, slope=shape.slope)

    def _begin(self, change: Change, _tonight: int, found: _Candidate | None = None) -> None:
        """The present stretch ends where a change starts."""
        self._close_stretch(change.start)
        if found is not None and found.drift and self.before is not None:
            # Where a drift began is best known from its line; the few nights before it say little.
            self.before = replace(self.before, mean=found.before)
            if self.stretches:
                self.stretches[-1] = replace(self.stretches[-1], level=self.before)
        self.drifting = change.drift
        self.done.append(change)

    def _close_stretch(self, start: int) -> None:
        nights = [i for i in range(self.start, start) if i not in self.lone]
        if nights:
            level, _ = level_of(self.y[nights[-WINDOW:]], self.before)
            level = self._at_its_end(nights, level) if self.drifting else level
        else:
            level = self.fit or Level(float(self.y[start]), 0.0, 1, 1.0)
        self.stretches.append(Stretch(self.start, start, level, self.drifting))
        self.before, self.start, self.drifting = level, start, False
        self._renew()

    def _at_its_end(self, nights: list[int], level: Level) -> Level:
        """Where a drift has come to."""
        spread = (self.before or level).sd
        last = self.y[nights[-_LAST:]]
        # The middle of the last nights lies half of them back on the line.
        slope = float(np.polyfit(np.arange(len(nights)), self.y[nights], 1)[0]) if len(nights) >= MIN_DRIFT else 0.0
        mean = middle_of(last - slope * (np.arange(len(last)) - (len(last) - 1)), spread)
        return replace(level, mean=mean, sd=spread, n=len(last))

    def _back_from_alert(self, tonight: int) -> bool:
        """Is tonight nearer the old level than the new one, after at most two nights of it?"""
        assert self.pending is not None
        alert = self.pending
        if tonight - alert.start > 2 or self.fit is None:
            return False
        old = self.fit.mean
        return bool(abs(self.y[tonight] - old) < abs(self.y[tonight] - old - alert.delta))

    def _withdraw(self, tonight: int, excursion: bool) -> None:
        assert self.pending is not None
        self.done.append(replace(self.pending, ended=tonight))
        if excursion:
            self.lone.update(range(self.pending.start, tonight))
            fit = self.fit
            self._renew()
            self.fit = fit
        self.pending = None

    # --- what is said ----------------------------------------------------------------------------------------------

    def _chain(self) -> list[Stretch]:
        """All stretches, the present one with its level as of tonight."""
        nights = self.nights
        if not nights:
            return list(self.stretches)
        level, _ = level_of(self.y[nights[-NOW:]], self.before)
        if self.drifting:
            level = self._at_its_end(nights, level)
        return [*self.stretches, Stretch(self.start, self.last + 1, level, self.drifting)]

    def reading(self) -> Reading:
        """All that is known after the last night, with nights counted from the first that is stored."""
        if self.last < 0:
            return Reading()
        chain = self._chain()
        reference, since, ended = _reference(chain, self.done, self.least_step)
        by_start = {stretch.start: n for n, stretch in enumerate(chain)}
        changes = []
        for change in self.done:
            n = by_start.get(change.start)
            if n and (change.confirmed is not None or change.closed):
                change = replace(change, delta=chain[n].level.mean - chain[n - 1].level.mean)
            changes.append(self._outward(replace(change, ended=ended.get(change.start, change.ended))))
        if self.pending is not None:
            changes.append(self._outward(self.pending))
        standing = None
        if since is not None:
            now = chain[-1].level
            delta, reach = now.mean - reference.mean, 1.645 * math.hypot(now.se, reference.se)
            drift = any(c.drift for c in self.done if c.start >= since and c.start not in ended)
            past = next((n for n, at in enumerate(self.past_starts) if at == since), None)
            standing = Standing(max(0, since - self.shift), delta, delta - reach, delta + reach, drift, past)
        off = sorted(i - self.shift for i in self._excursions(chain) if i >= self.shift)
        shown = tuple(replace(one, start=one.start - self.shift, stop=one.stop - self.shift) for one in chain)
        return Reading(tuple(changes), tuple(off), shown, reference, standing, self._swing(chain, off))

    def _outward(self, change: Change) -> Change:
        def night(i: int | None) -> int | None:
            return None if i is None else max(0, i - self.shift)

        return replace(change, start=night(change.start) or 0, alerted=night(change.alerted) or 0,
                       confirmed=night(change.confirmed), ended=night(change.ended))  # fmt: skip

    def _excursions(self, chain: Sequence[Stretch]) -> set[int]:
        out = set(self.lone)
        for stretch in chain:
            nights = [i for i in range(stretch.start, stretch.stop) if i not in self.lone]
            if nights and not stretch.drift:
                off = np.abs(self.y[nights] - stretch.level.mean) > 4.5 * stretch.level.sd
                out.update(np.asarray(nights)[off].tolist())
        pending = set(range(self.pending.start, self.last + 1)) if self.pending else set()
        return out - pending

    def _swing(self, chain: Sequence[Stretch], off: Sequence[int]) -> str:
        """Why the spread of the last nights allows no judgement; empty where it does."""
        now = chain[-1].level
        span = min(NOW, self.last + 1 - self.shift)
        recent = [i for i in off if i + self.shift > self.last - NOW]
        if span >= 2 * MIN_BASELINE and len(recent) > _MANY_EXCURSIONS * span:
            wide = _percent(float(np.std(self.y[self.last + 1 - span : self.last + 1], ddof=1)))
            return f"{len(recent)} of its last {span} nights are far off its level; all of these spread by {wide}"
        rest = np.concatenate([self._rest(stretch) for stretch in chain if not stretch.drift] or [np.empty(0)])
        if len(rest) >= 2 * _SWING_NIGHTS:
            new, old = rest[-_SWING_NIGHTS:], rest[-WINDOW - _SWING_NIGHTS : -_SWING_NIGHTS]
            old = old[inliers(old)]
            sd_new, sd_old = own_spread(new), max(float(np.std(old, ddof=1)), MIN_SPREAD)
            p = inference.wider_p(sd_new, len(new) - 1, sd_old, len(old) - 1)
            if sd_new > max(_SWING_RATIO * sd_old, self.tolerance / 2) and p < _SWING_P:
                return f"its nights spread by {_percent(sd_new)}, {_percent(sd_old)} before"
        if len(self.nights) < MIN_BASELINE or chain[-1].drift:
            return ""
        n, n_before = effective(np.array([8.0, max(MIN_BASELINE, now.n)]), now.r)
        se = now.sd * math.sqrt(1 / n + 1 / n_before)
        if inference.two_sided_p(np.asarray([_EFFECT / se]), now.df)[0] > CONFIRM_RATE:
            wide = _percent(now.sd)
            return f"its nights spread by {wide}, so that a change of 5.4 % would not be seen within 8 nights"
        return ""

    def _rest(self, stretch: Stretch) -> Floats:
        nights = [i for i in range(stretch.start, stretch.stop) if i not in self.lone]
        return np.asarray(self.y[nights] - stretch.level.mean)


def _percent(spread: float) -> str:
    return f"{100 * math.expm1(spread):.1f} %"


def _best(p: Floats, delta: Floats, nights: list[int], rate: float) -> _Candidate | None:
    best = int(np.argmin(p))
    if p[best] >= rate:
        return None
    return _Candidate(nights[-1 - best], float(delta[best]), float(p[best]))


def _reference(
    chain: Sequence[Stretch], done: Sequence[Change], least: float
) -> tuple[Level, int | None, dict[int, int]]:
    """(the reference, start of the slowdown that stands, start of a change → night on which it was undone).

    The level before a slowdown stays the reference until it is reached again, or until a ruling closes the slowdown.
    A faster level becomes the reference once it has held for HELD nights; one that is lost before is undone itself.
    """
    sure = {change.start: change for change in done if change.confirmed is not None or change.closed}
    reference, since = chain[0].level, None
    ended: dict[int, int] = {}
    open_ones: list[int] = []
    for number, stretch in enumerate(chain[1:], 1):
        change = sure.get(stretch.start)
        if change is not None and change.closed:
            reference, since, open_ones = stretch.level, None, []
            continue
        night = change.confirmed if change is not None and change.confirmed is not None else stretch.start
        if abs(stretch.level.mean - reference.mean) < least or (
            open_ones and since is not None and stretch.level.mean < reference.mean
        ):
            ended |= dict.fromkeys(open_ones, night)
            open_ones, since = [], None
        elif change is not None:
            open_ones.append(stretch.start)
        if stretch.level.mean - reference.mean >= least:
            since = stretch.start if since is None else since
        else:
            since = None
            held = sum(one.stop - one.start for one in chain[number : number + 1])
            if stretch.level.mean < reference.mean and held >= HELD:
                reference, open_ones = stretch.level, []
    return reference, since, ended


def _as_nights(level: Level) -> Floats:
    """So many values of this mean and spread."""
    n = max(MIN_BASELINE, min(level.n, WINDOW))
    wave = np.resize([1.0, -1.0, -1.0, 1.0], n)
    wave = wave - wave.mean()
    return np.asarray(level.mean + level.sd * wave / max(float(wave.std(ddof=1)), 1e-9))
