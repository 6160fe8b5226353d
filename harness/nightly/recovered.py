"""Which open issues are of slowdowns that are gone: those of a place where everything was measured, and none is slower.

An issue is not closed because a night is missing. A place is a scenario on a host; an issue's body names its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date

FRESH_DAYS = 1  # last night, in any time zone
_MEASURED = ("ok", "alert", "regressed")  # statuses that say where a row's level is
_ENDED = ("moved", "retired")  # judged no more


@dataclass(frozen=True)
class Row:
    """A series: whose it is, what the trend calls it, and its last night."""

    host: str
    scenario: str
    status: str
    last: date


def place_mark(host: str, scenario: str) -> str:
    """A line of an issue's body, invisible, by which its place is known."""
    digest = hashlib.sha256("\0".join((host, scenario)).encode()).hexdigest()
    return f"<!-- mtpbench-place:{digest[:16]} -->"


def measured_places(rows: Iterable[Row], today: date) -> list[str]:
    """Marks of the places that say of every row, last night, where it stands."""
    places: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.status not in _ENDED:
            places.setdefault((row.host, row.scenario), []).append(row)
    return [
        place_mark(*place)
        for place, of_it in places.items()
        if all(row.status in _MEASURED and (today - row.last).days <= FRESH_DAYS for row in of_it)
    ]
