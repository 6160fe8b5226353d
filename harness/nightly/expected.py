"""Which rows are due: what a host's nights are told to run, less what somebody has retired."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from harness.nightly.night import Night as Plan
from harness.nightly.night import Place
from harness.nightly.rulings import fits
from harness.nightly.series import Series, night_of
from harness.store.events import Event

STALE_DAYS = 3  # a nightly job may miss a weekend, not more
_USUAL = 3  # nights from which on a row is one of the usual ones, where no plan is known
_GAPS = 8  # looked at to tell how often a scenario runs, where no plan is known


@dataclass(frozen=True)
class Due:
    """Whether a row is due, how often, and why it is not where it isn't."""

    due: bool
    every: int = 1  # days
    why_not: str = ""


class Expected:
    """What is due of each series. `plans`: nights of the store that say what they were told to run."""

    def __init__(self, plans: Sequence[Plan] = (), events: Sequence[Event] = (), today: date = date.max) -> None:
        self._plans = [plan for plan in plans if plan.day <= today and plan.expected]
        self._retired = [event for event in events if event.kind == "retired"]

    def __call__(self, one: Series, siblings: Sequence[Series]) -> Due:
        """`siblings`: every series of this host and scenario, this one included."""
        last = one.nights[-1].day
        for event in self._retired:
            if fits(event.series, one) and date.fromisoformat(event.facts.get("since", event.at[:10])) >= last:
                return Due(False, why_not=f"retired by {event.by} on {event.at[:10]}: {event.why}")
        of_host = [plan for plan in self._plans if plan.host == one.key.host]
        if of_host:
            return self._planned(one, of_host)
        return _usual(one, siblings)

    def _planned(self, one: Series, of_host: Sequence[Plan]) -> Due:
        arm = one.nights[-1].arm
        names = {one.key.scenario, one.nights[-1].run.scenario.name}
        told = [plan for plan in of_host if any(place.scenario in names for place in plan.expected)]
        if not told:
            return Due(False, why_not="no night is told to run it")
        plan, newest = told[-1], of_host[-1]
        places = [Place(name, label, one.key.row.tp, one.key.row.level) for name in names
                  for label in {arm, one.key.row.arm}]  # fmt: skip
        if not any(place in plan.expected for place in places):
            return Due(False, why_not=f"since {plan.day} the nights are no longer told to run it")
        if (newest.day - plan.day).days > plan.every - 1 + STALE_DAYS:
            return Due(False, why_not=f"since {plan.day} the nights are no longer told to run its scenario")
        return Due(True, plan.every)


def _usual(one: Series, siblings: Sequence[Series]) -> Due:
    """Without a plan: what the newest run's scenario lists, of what was there on a few nights."""
    newest = max(night.day for other in siblings for night in other.nights[-1:])
    runs = {id(n.run): n.run for other in siblings for n in other.nights[-1:] if n.day == newest}
    listed = any(
        one.nights[-1].arm in run.scenario.arms and one.key.row.tp in run.scenario.tp
        and one.key.row.level in run.scenario.levels() for run in runs.values() if night_of(run)[0] == newest
    )  # fmt: skip
    if one.nights[-1].day < newest and not listed:
        return Due(False, why_not=f"the scenario no longer asks for it on {newest}")
    if one.nights[-1].day < newest and len(one.nights) < _USUAL:
        return Due(False, why_not=f"it was measured on {len(one.nights)} nights only")
    days = [night.day for night in one.nights]
    gaps = sorted((b - a).days for a, b in itertools.pairwise(days))[-_GAPS:]
    return Due(True, gaps[len(gaps) // 2] if len(gaps) >= _USUAL else 1)
