"""Which open issues are of slowdowns that are gone: those of a place where everything was measured, and none is slower.

An issue is not closed because a night is missing. A place is a scenario on a host; an issue's body names its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import date

from harness.nightly.told import ENDED, Status, Told

FRESH_DAYS = 1  # last night, in any time zone
_MEASURED = (Status.OK, Status.ALERT, Status.REGRESSED)  # they say where a row's level is


def place_mark(host: str, scenario: str) -> str:
    """A line of an issue's body, invisible, by which its place is known."""
    digest = hashlib.sha256("\0".join((host, scenario)).encode()).hexdigest()
    return f"<!-- mtpbench-place:{digest[:16]} -->"


def measured_places(told: Iterable[Told], today: date) -> list[str]:
    """Marks of the places that say of every row, last night, where it stands."""
    places: dict[tuple[str, str], list[Told]] = {}
    for one in told:
        if one.status not in ENDED:
            places.setdefault((one.series.key.host, one.series.key.scenario), []).append(one)
    return [
        place_mark(*place)
        for place, of_it in places.items()
        if all(one.status in _MEASURED and (today - one.series.nights[-1].day).days <= FRESH_DAYS for one in of_it)
    ]
