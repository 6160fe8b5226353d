"""Units that tools write, and how they turn into each other: one number must be in one unit on both sides."""

from __future__ import annotations

_TIMES = {
    1.0: ("s", "sec", "secs", "second", "seconds"),
    1e-3: ("ms", "msec", "millisecond", "milliseconds"),
    1e-6: ("us", "µs", "μs", "usec", "microsecond", "microseconds"),
    60.0: ("min", "minute", "minutes"),
    1e-9: ("ns", "nsec", "nanosecond", "nanoseconds"),
}
_SECONDS = {name: seconds for seconds, names in _TIMES.items() for name in names}
_COUNTS = {"tokens": ("tokens", "token", "tok"), "requests": ("requests", "request", "req", "1")}
_COUNTED = {name: what for what, names in _COUNTS.items() for name in names}


def factor(unit: str, into: str) -> float | None:
    """What a value in `unit` is multiplied with to be one in `into`; None where they measure different things."""
    if unit == into:
        return 1.0
    ours, theirs = _known(unit), _known(into)
    return ours[1] / theirs[1] if ours and theirs and ours[0] == theirs[0] else None


def _known(unit: str) -> tuple[str, float] | None:
    """(what it measures, how many of that in seconds)."""
    text = unit.strip().lower()
    if text in _SECONDS:
        return "time", _SECONDS[text]
    what, slash, per = text.partition("/")
    if slash and what in _COUNTED and per in _SECONDS:
        return f"{_COUNTED[what]} per time", 1 / _SECONDS[per]
    return None
