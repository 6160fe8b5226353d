"""Durations and rates: seconds inside, units at the edge.

A scenario writes `12ms`, `2min`, `0.5/s`; a bare number is refused because its unit would be a guess.
"""

from __future__ import annotations

import re

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
DURATION_PATTERN = r"^\d+(\.\d+)?(us|ms|s|min|h)$"
RATE_PATTERN = r"^\d+(\.\d+)?/(s|min|h)$"


def parse_duration(value: object) -> float:
    """`"12ms"` → 0.012 seconds. Raises ValueError that names the allowed units."""
    text = value.strip() if isinstance(value, str) else value
    if not isinstance(text, str) or not re.match(DURATION_PATTERN, text):
        raise ValueError(f"{value!r} is not a duration: write a number and a unit, such as 12ms, 90s, 20min")
    number, unit = re.match(r"([\d.]+)(\D+)", text).groups()  # type: ignore[union-attr]
    return float(number) * _SECONDS[unit]


def parse_rate(value: object) -> float:
    """`"0.5/s"` → 0.5 requests a second. Raises ValueError that names the allowed units."""
    text = value.strip() if isinstance(value, str) else value
    if not isinstance(text, str) or not re.match(RATE_PATTERN, text):
        raise ValueError(f"{value!r} is not a rate: write a number and a unit, such as 0.5/s, 30/min")
    number, unit = text.split("/")
    rate = float(number) / _SECONDS[unit]
    if rate <= 0:
        raise ValueError("a rate must be above zero")
    return rate


def format_duration(seconds: float) -> str:
    """Seconds for a person: `840 us`, `12.3 ms`, `4.20 s`, `3 min 05 s`."""
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"
