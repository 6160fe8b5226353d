"""What happened to the series of a store, one line for each event, in ROOT/events/<time>-<digest>.jsonl.

A file is written once and never again; an event that turned out wrong is followed by another one. So what was said
stays said: a slowdown keeps the name of its first event, however many nights are uploaded late.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harness.store.runs import EVENTS, utc_now, write_below

EVENT_VERSION = 1  # 1: first
KINDS = ("alert", "confirmed", "drift", "undone", "closed", "moved", "retired", "renamed", "summary")


@dataclass(frozen=True)
class Event:
    """One thing that happened, and was written down at `at` (UTC, ISO 8601).

    `series` holds what names it (host, scenario, arm, TP, load, metric; what is left out means any), `facts` what
    there is to know: nights, sizes as fractions of the value, levels in the metric's unit.
    """

    kind: str
    series: Mapping[str, Any]
    at: str = ""
    by: str = ""  # an A/B run, or a person
    why: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_line(self) -> str:
        return json.dumps({"event_version": EVENT_VERSION, **asdict(self)}, sort_keys=True)

    @classmethod
    def from_line(cls, line: str) -> Event:
        """Raises ValueError, KeyError or TypeError for what is no event."""
        data = json.loads(line)
        if data["event_version"] != EVENT_VERSION:
            raise ValueError(f"event version {data['event_version']}; this mtpbench reads {EVENT_VERSION}")
        if data["kind"] not in KINDS or not isinstance(data["series"], dict) or not isinstance(data["facts"], dict):
            raise ValueError(f"{data['kind']!r} is no event")
        texts = {name: str(data[name]) for name in ("kind", "at", "by", "why")}
        return cls(**texts, series=data["series"], facts=data["facts"])


def file_of(events: Sequence[Event], now: str = "") -> tuple[str, bytes]:
    """(path below the store, content) of a new file with these events; they get the time where they have none."""
    at = now or utc_now()
    lines = [Event(e.kind, e.series, e.at or at, e.by, e.why, e.facts).to_line() for e in events]
    content = ("\n".join(lines) + "\n").encode()
    stamp = at[:19].translate(str.maketrans("", "", "-:"))
    return f"{EVENTS}/{stamp}Z-{hashlib.sha256(content).hexdigest()[:8]}.jsonl", content


def append(root: Path, events: Sequence[Event], now: str = "") -> Path | None:
    """Writes events into a store in a folder. Raises StoreError."""
    if not events:
        return None
    return write_below(root, *file_of(events, now))


def read_events(root: Path) -> tuple[list[Event], list[str]]:
    """All events of a store in order of time, and what could not be read."""
    found: list[Event] = []
    left_out = []
    for path in sorted((root / EVENTS).glob("*.jsonl")):
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            found += [Event.from_line(line) for line in lines if line.strip()]
        except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
            left_out.append(f"{path} is damaged: {error!r}. Move it away: what it says is forgotten then.")
    return sorted(found, key=lambda event: event.at), left_out
