"""`known-regressions.yaml`: slowdowns that somebody has accepted, by how much and until when.

An entry excuses a row up to its bound and its date; past either, the row fails again.
"""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError

from harness.errors import Problem, ScenarioError
from harness.fields import Name, Strict, no_truth_value
from harness.results.lines import known_values
from harness.scenario.yaml_file import problems_of, read_yaml
from harness.verdict.pairs import Metric, RowKey

FILE = "known-regressions.yaml"
# A bound above this would excuse a server that is broken.
MOST_ACCEPTED = 0.5


def _bound(value: object) -> object:
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?%", value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is not a bound: write a percentage, such as 6%")
    bound = float(match[1]) / 100
    if not 0 < bound <= MOST_ACCEPTED:
        raise ValueError(
            f"{value} is no bound: from above 0 to {100 * MOST_ACCEPTED:g} %. What is slower by more is no slowdown "
            "to live with: mend it, or take the scenario out"
        )
    return bound


def _metric(value: object) -> object:
    if value not in known_values():
        raise ValueError(f"{value!r} is no metric; such as tpot_p50, ttft_p50, output_throughput")
    return value


class Entry(Strict):
    """One accepted slowdown."""

    scenario: Name
    """The scenario's name."""

    metric: Annotated[str, BeforeValidator(_metric)]
    """Such as tpot_p50."""

    bound: Annotated[float, BeforeValidator(_bound)]
    """The most that is accepted, against the base or the level before: 6%."""

    owner: Annotated[str, Field(min_length=1)]
    """Who looks after it."""

    reason: Annotated[str, Field(min_length=8)]
    """Why it is accepted."""

    expires: Annotated[date, Field(strict=False)]
    """The last day on which it is."""

    arm: str | None = None
    """Only this arm. Default: every."""

    tp: int | None = None
    """Only at this TP."""

    level: float | None = None
    """Only at this concurrency or rate."""

    def fits(self, scenario: str, key: RowKey) -> bool:
        return (
            self.scenario == scenario
            and self.metric == key.metric
            and self.arm in (None, key.arm)
            and self.tp in (None, key.tp)
            and self.level in (None, key.level.value)
        )


class Ledger(Strict):
    """The file."""

    version: Annotated[Literal[1], BeforeValidator(no_truth_value)]
    """Of the file format: 1."""

    regressions: list[Entry] = []
    """Accepted slowdowns."""

    owners: dict[str, str] = {}
    """Who looks after a scenario's regressions, by its name; `*` for every other."""

    def excuse(self, scenario: str, key: RowKey, delta: float, today: date) -> str | None:
        """Why a slowdown is accepted; None where no entry fits, or the one that does is past its bound or date.

        A bound is of the change as it is shown, in its direction: 35 % of a throughput is what it may fall by.
        """
        shown = abs(Metric.of(key.metric).change(delta))
        for entry in self.regressions:
            if entry.fits(scenario, key) and today <= entry.expires and (delta <= 0 or shown <= entry.bound):
                return f"known, up to {100 * entry.bound:g} % until {entry.expires}, {entry.owner}: {entry.reason}"
        return None

    def owner(self, scenario: str, key: RowKey) -> str:
        """Who looks after a row: of an entry that names it, lapsed or not, else of its scenario; may be empty."""
        named = [entry.owner for entry in self.regressions if entry.fits(scenario, key)]
        return named[0] if named else self.owners.get(scenario, self.owners.get("*", ""))

    def lapsed(self, today: date) -> list[Entry]:
        """Entries past their date: to be removed or renewed."""
        return [entry for entry in self.regressions if today > entry.expires]


def _wrong(problems: list[Problem]) -> ScenarioError:
    error = ScenarioError(problems)
    error.hint = "docs/statistics.md shows an entry."
    return error


def load(path: Path) -> Ledger:
    """Reads a ledger; an absent file is an empty one. Raises ScenarioError with file, line and key."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Ledger(version=1)
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong([Problem(str(path), 0, "", f"can't be read: {error}")]) from error
    value, lines = read_yaml(text, str(path))
    if not isinstance(value, dict):
        raise _wrong([Problem(str(path), 1, "", "a ledger is a mapping: version, regressions")])
    try:
        return Ledger.model_validate(value)
    except ValidationError as error:
        raise _wrong(problems_of(error, str(path), lines, _allowed)) from error


def _allowed(key: tuple[Any, ...]) -> list[str]:
    return sorted(Entry.model_fields if key[:1] == ("regressions",) else Ledger.model_fields)
