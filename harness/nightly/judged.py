"""A store as it is judged: the one way from runs, events and plans to what is told, for every verb and page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date

from harness.nightly.diary import past_of, renames, seen
from harness.nightly.expected import Expected
from harness.nightly.night import read_nights
from harness.nightly.rulings import Judges
from harness.nightly.series import Series, build, until
from harness.nightly.told import Told, tell
from harness.store.archive import Archive
from harness.store.events import Event, read_events
from harness.verdict.compare import Excuse, never


@dataclass(frozen=True)
class Judged:
    """What is told of each series. `series`: these and those of metrics that are only shown."""

    archive: Archive  # without what is dated after today; what was left out of it is named there
    series: tuple[Series, ...]
    told: tuple[Told, ...]
    events: tuple[Event, ...]
    renamed: Mapping[str, str]


def judge(
    archive: Archive,
    today: date,
    metrics: Sequence[str],
    *,
    shown: Sequence[str] = (),
    excuse: Excuse = never,
    renamed: Mapping[str, str] | None = None,
    scenario: str = "",
) -> Judged:
    """Judges all series of `metrics` as of a day, of one scenario where it is named."""
    events, damaged = read_events(archive.root)
    plans, _ = read_nights(archive.root)
    archive = until(archive, today)
    archive = replace(archive, left_out=(*archive.left_out, *damaged))
    names = {**renames(events), **(renamed or {})}
    runs = [
        run for run in archive.nightly() if not scenario or names.get(run.scenario.name, run.scenario.name) == scenario
    ]
    found = build(runs, tuple(dict.fromkeys([*metrics, *shown])), names)
    series = [replace(one, past=past_of(one, events)) for one in found] if events else found
    told = tell(
        [one for one in series if one.key.row.metric in metrics],
        today, excuse, Judges(archive, events, names), Expected(plans, events, today),
    )  # fmt: skip
    told = [replace(one, seen=seen(one, events)) for one in told] if events else told
    return Judged(archive, tuple(series), tuple(told), tuple(events), names)
