"""What stored A/Bs and people say of a change in a series. Only an A/B of its host, arm, row and commits does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date

from harness.nightly import images
from harness.nightly.series import Night, Series, new_name
from harness.stats.series import Rule, Ruling
from harness.store.ab_record import Party, Session, sides
from harness.store.archive import Archive, Kept
from harness.store.events import Event
from harness.verdict.compare import Comparison, Verdict, compare

Rulings = Callable[[Series], Rule]
_NEAR_DAYS = 3  # between the night that a person named and the one that is found to be the first


def nobody(_series: Series) -> Rule:
    """No A/B, no person."""
    return lambda _before, _start, _worse: None


class Judges:
    """The A/Bs of a store and the events that people wrote: call it with a series to have its rule."""

    def __init__(
        self, archive: Archive, events: Sequence[Event] = (), renamed: Mapping[str, str] | None = None
    ) -> None:
        self._names = dict(renamed or {})
        self._closings = [event for event in events if event.kind == "closed" and "night" in event.facts]
        self._sessions = [one for one in reversed(archive.kept) if _decided(one)]
        self._compared: dict[str, Comparison] = {}

    def __call__(self, series: Series) -> Rule:
        here = [one for one in self._sessions if str(one.run.environment.get("host")) == series.key.host]
        closings = [event for event in self._closings if fits(event.series, series)]
        if not here and not closings:
            return nobody(series)

        def rule(before: int, start: int, worse: bool) -> Ruling | None:
            nights = series.nights
            first = nights[max(0, start)].day
            for event in closings if worse else ():
                if abs((date.fromisoformat(event.facts["night"]) - first).days) <= _NEAR_DAYS:
                    return Ruling(True, f"{event.by} closed it on {event.at[:10]}: {event.why}")
            old, new = nights[max(0, before) : max(0, start)], nights[max(0, start) :]
            return self._of_sessions(series, old, new, worse, here)

        return rule

    def _of_sessions(
        self, series: Series, before: Sequence[Night], since: Sequence[Night], worse: bool, here: Sequence[Kept]
    ) -> Ruling | None:
        old, new = ({what for night in some for what in (clean(night.commit), images.side(night))} - {""}
                    for some in (before, since))  # fmt: skip
        for one in here:
            session = one.session
            assert session is not None
            base, head = _side(session.base), _side(session.head)
            if base == head or base not in old or head not in new - old:
                continue
            verdict = self._verdict(one, session, series)
            if verdict is (Verdict.FAIL if worse else Verdict.IMPROVED):
                return Ruling(False, f"the A/B {one.run.id} says {verdict.value}")
            if worse and verdict in (Verdict.PASS, Verdict.IMPROVED):
                host, what = series.key.host, "image" if session.head.kind == "image" else "commit"
                return Ruling(
                    True, f"the A/B {one.run.id} says {verdict.value}, so the host {host} did, not the {what}"
                )
        return None

    def _verdict(self, one: Kept, session: Session, series: Series) -> Verdict | None:
        """Of the series' own row; None where the A/B does not have it."""
        row = series.key.row
        labels = {label: new_name(one.run.scenario.name, label, self._names) for label in session.arms}
        if row.metric not in session.metrics or (series.key.scenario, row.arm) not in labels.values():
            return None
        key = str(one.run.path)
        if key not in self._compared:
            base, head = sides(one.run, session, session.finished_pairs)
            self._compared[key] = compare(base, head, metrics=session.metrics, plan=session.plan,
                                          allowed=session.allowed)  # fmt: skip
        for found in self._compared[key].rows:
            place = (found.key.metric, found.key.tp, found.key.level)
            name = labels.get(found.key.arm)
            if place == (row.metric, row.tp, row.level) and name == (series.key.scenario, row.arm):
                return found.verdict
        return None


def _decided(one: Kept) -> bool:
    session = one.session
    if session is None or session.kind != "ab" or not session.verdict or one.run.quarantine:
        return False
    return bool(_side(session.base) and _side(session.head))


def _side(party: Party) -> str:
    """What a side of an A/B is known by in a night's record: its commit, or its image."""
    return party.ref if party.kind == "image" else clean(party.commit)


def clean(commit: str) -> str:
    """A commit without the mark of changes that were not committed."""
    return commit.removesuffix("-dirty")


def named(series: Series) -> dict[str, object]:
    """What names a series in an event."""
    key = series.key
    level = key.row.level
    return {
        "host": key.host, "scenario": key.scenario, "arm": key.row.arm, "tp": key.row.tp, "level": level.label,
        "metric": key.row.metric,
    }  # fmt: skip


def fits(what: Mapping[str, object], series: Series) -> bool:
    """Does an event speak of a series? What it leaves out means any."""
    known = {name: {value} for name, value in named(series).items()}
    known["scenario"] |= {night.run.scenario.name for night in series.nights}  # by any of its names
    known["arm"] |= {night.arm for night in series.nights}
    return all(value in known.get(name, ()) for name, value in what.items())
