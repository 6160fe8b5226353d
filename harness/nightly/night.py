"""A night as a whole: what it was told to measure, how each of its steps ended, and what is therefore missing.

STORE/nights/<day>-<job>.json is written before anything is measured, so a night that dies at once is missed too, and
again at its end. A night is red for a step that failed, for a row that was told and has no result, or for what the
trend says, whichever is worst: a store of good nights can't make a bad one look right.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

from harness.errors import MtpbenchError, StoreError
from harness.metrics.definitions import PassView
from harness.model import LoadLevel, Pass
from harness.results.lines import launch_value
from harness.scenario.format import Scenario
from harness.store.archive import Archive
from harness.store.events import Event
from harness.store.runs import NIGHTS, StoredRun, read_json, utc_now
from harness.text import escape
from harness.verdict.compare import EXIT_CODES, Verdict
from harness.verdict.pairs import primary_name

NIGHT_VERSION = 1  # 1: first
ANY = "any host"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")
_WORDS = {code: verdict for verdict, code in EXIT_CODES.items()}

# What a step may exit with and still have done its work; docs/exit-codes.md. The trend's own word is the night's.
_DONE: dict[str, frozenset[int]] = {
    "aa": frozenset(EXIT_CODES[word] for word in Verdict) - {EXIT_CODES[Verdict.INVALID]},
    "sentinel": frozenset({0, 1}),  # 1: a host is in quarantine, whose rows are missing below
    "missing": frozenset({0, 1}),  # 1: what the plan lacks, whose rows are missing below
    "trend": frozenset(EXIT_CODES.values()) - {EXIT_CODES[Verdict.INVALID]},
    "upstream": frozenset({0, 1}),  # 1: something upstream changed, which is no fault of this night
}


@dataclass(frozen=True)
class Place:
    """One row of a night: a scenario's arm at one TP and load."""

    scenario: str
    arm: str
    tp: int
    level: LoadLevel

    def __str__(self) -> str:
        return f"{self.arm}, TP{self.tp}, at {self.level.label}"


@dataclass(frozen=True)
class Night:
    """`begun_at`: UTC, ISO 8601. `steps`: exit codes by name, in order; empty until the night has ended. `host`: whose
    runs count; of a night spread over jobs it is ANY, as nobody knows beforehand where each lands."""

    day: date
    job: str
    host: str
    begun_at: str
    expected: tuple[Place, ...]
    steps: Mapping[str, int]
    every: int = 1  # days until the job that it belongs to runs again

    @property
    def file(self) -> str:
        """Its path below the store."""
        return f"{NIGHTS}/{self.day}-{self.job}.json"

    def to_bytes(self) -> bytes:
        document = {
            "night_version": NIGHT_VERSION,
            "day": str(self.day),
            "job": self.job,
            "host": self.host,
            "begun_at": self.begun_at,
            "every": self.every,
            "expected": [asdict(place) for place in self.expected],
            "steps": dict(self.steps),
        }
        return (json.dumps(document, indent=1) + "\n").encode()

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Night:
        if data["night_version"] != NIGHT_VERSION:
            raise ValueError(f"night version {data['night_version']}; this mtpbench reads {NIGHT_VERSION}")
        begun = datetime.fromisoformat(str(data["begun_at"]).replace("Z", "+00:00"))
        if begun.tzinfo is None:
            raise ValueError("begun_at has no time zone")
        places = tuple(
            Place(str(one["scenario"]), str(one["arm"]), int(one["tp"]), LoadLevel(**one["level"]))
            for one in data["expected"]
        )
        steps = {str(name): int(code) for name, code in data["steps"].items()}
        job = str(data["job"])
        if not _NAME.fullmatch(job):
            raise ValueError(f"{job!r} is no name of a job")
        every = int(data.get("every", 1))
        if every < 1:
            raise ValueError(f"it runs every {every} days")
        return cls(date.fromisoformat(data["day"]), job, str(data["host"]), begun.isoformat(), places, steps, every)


@dataclass(frozen=True)
class Trouble:
    """Something that makes a night red."""

    word: Verdict
    sentence: str
    details: tuple[str, ...] = ()
    scenario: str = ""  # empty: of the whole night


def worst(one: Verdict, other: Verdict) -> Verdict:
    """The worse of two words."""
    return min(one, other, key=list(Verdict).index)


def begin(scenarios: Iterable[Scenario], job: str, host: str, every: int = 1, begun_at: str = "") -> Night:
    """A night that is about to measure these, or has since `begun_at`; its job runs every so many days."""
    expected = tuple(
        Place(scenario.name, arm, tp, level)
        for scenario in scenarios
        for tp in scenario.tp
        for arm in scenario.arms
        for level in scenario.levels()
    )
    begun = begun_at or utc_now()
    day = datetime.fromisoformat(begun.replace("Z", "+00:00")).astimezone(timezone.utc).date()
    return Night(day, job_name(job), host, begun, expected, {}, every)


def job_name(job: str) -> str:
    """A job's name as a file's."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", job).strip("-.")[:80] or "night"


def unknown(job: str, host: str, steps: Mapping[str, int]) -> Night:
    """A night that the store does not know, as it could not be noted: its steps alone judge it."""
    return Night(datetime.now(timezone.utc).date(), job, host, utc_now(), (), dict(steps))


def read_nights(root: Path) -> tuple[list[Night], list[str]]:
    """All nights of a store in order of time, and what could not be read."""
    found, left_out = [], []
    for path in sorted((root / NIGHTS).glob("*.json")):
        try:
            found.append(Night.from_json(read_json(path)))
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError, StoreError) as error:
            left_out.append(f"{path} is damaged: {error!r}. Remove it.")
    return sorted(found, key=lambda night: night.begun_at), left_out


def last_nights(nights: Sequence[Night], events: Sequence[Event] = ()) -> list[Night]:
    """The last night of each host, less what somebody has retired since."""
    last = {night.host: night for night in nights}.values()
    return [known for night in last if (known := _less_retired(night, events)) is not None]


def _less_retired(night: Night, events: Sequence[Event]) -> Night | None:
    """None where the host itself is retired."""
    retired = [
        event.series
        for event in events
        if event.kind == "retired"
        and event.series.get("host", night.host) == night.host
        and str(event.facts.get("since", event.at[:10])) >= str(night.day)
    ]
    if any(set(of) == {"host"} for of in retired):
        return None

    def is_retired(place: Place) -> bool:
        known = {"scenario": place.scenario, "arm": place.arm, "tp": place.tp, "level": place.level.label}
        return any(all(known.get(name, value) == value for name, value in of.items()) and "metric" not in of
                   for of in retired)  # fmt: skip

    return replace(night, expected=tuple(place for place in night.expected if not is_retired(place)))


def troubles(night: Night, archive: Archive) -> list[Trouble]:
    """Why a night is red, the worst first; empty where all that it was told is there."""
    found = [_failed(name, code) for name, code in night.steps.items() if not _did(name, code)]
    missing: dict[str, list[str]] = {}
    for place, why in _missing(night, archive):
        missing.setdefault(place.scenario, []).append(f"{place}: {why}")
    expected = {name: sum(place.scenario == name for place in night.expected) for name in missing}
    for scenario, rows in missing.items():
        part = "" if len(rows) == expected[scenario] else f"in {len(rows)} of {expected[scenario]} rows "
        what = f"{part}nothing"
        sentence = f"{scenario}: {what} that counts was measured in the night of {night.day} on {night.host}"
        found.append(Trouble(Verdict.MISSING, f"{sentence} ({rows[0]}).", tuple(rows), scenario))
    return sorted(found, key=lambda one: list(Verdict).index(one.word))


def _did(step: str, code: int) -> bool:
    return code in _DONE.get(step, frozenset({0}))


def _failed(step: str, code: int) -> Trouble:
    why = {70: ", a bug of mtpbench", 130: ", interrupted", 137: ", killed", 143: ", terminated"}.get(code, "")
    return Trouble(Verdict.INVALID, f"The step {step} failed (exit code {code}{why}): see {step}.log.")


def _missing(night: Night, archive: Archive) -> list[tuple[Place, str]]:
    """(row, why it has no result) of everything that the night was told and did not bring."""
    begun = datetime.fromisoformat(night.begun_at)
    runs = [
        one.run
        for one in archive.kept
        if one.nightly and night.host in (ANY, str(one.run.environment.get("host"))) and _moment(one.run) >= begun
    ]
    good: set[tuple[str, str, int, LoadLevel]] = set()
    why: dict[tuple[str, str, int, LoadLevel], str] = {}
    for run in runs:
        wrong = {
            (launch.arm, launch.tp, launch.launch): finding.message
            for launch in run.launches
            for finding in launch.findings
            if finding.invalid
        }
        for source in run.passes:
            key = source.record.key
            place = (run.scenario.name, key.arm, key.tp, key.level)
            reason = next((f.message for f in source.record.findings if f.invalid), "")
            reason = run.quarantine or wrong.get((key.arm, key.tp, key.launch), "") or reason or _no_value(run, source)
            if reason:
                why[place] = reason
            else:
                good.add(place)
        for record in run.failed:
            why.setdefault((run.scenario.name, record.key.arm, record.key.tp, record.key.level), record.status)
    out = []
    for one in night.expected:
        place = (one.scenario, one.arm, one.tp, one.level)
        if place not in good:
            out.append((one, why.get(place, "no run has it")))
    return out


def _no_value(run: StoredRun, source: Pass) -> str:
    """Why a complete pass says nothing of what its scenario is about: it can't be told, or is not a number."""
    name = primary_name(run.scenario.primary) if run.scenario.primary else "output_throughput"
    value = launch_value(name, [PassView.of(source, run.scenario.slo)])
    if value is None:
        return f"it has no value of {name}"
    return "" if value > 0 and math.isfinite(value) else f"it measured {value:g} as {name}"


def _moment(run: StoredRun) -> datetime:
    """When a run was begun; the beginning of time where its record does not say it in a way that can be read."""
    try:
        moment = datetime.fromisoformat(run.created_at.replace("Z", "+00:00"))
    except ValueError:
        return datetime.min.replace(tzinfo=timezone.utc)
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)


def with_steps(night: Night, steps: Mapping[str, int]) -> Night:
    return replace(night, steps=dict(steps))


def word_of(found: Sequence[Trouble], steps: Mapping[str, int]) -> tuple[Verdict, str]:
    """The night's word and its first sentence: of its troubles, or of its trend where nothing is worse."""
    of_trend = _WORDS.get(steps.get("trend", 0), Verdict.INVALID)
    order = list(Verdict)
    if found and order.index(found[0].word) <= order.index(of_trend):
        return found[0].word, found[0].sentence
    return of_trend, "see the trend." if of_trend is not Verdict.PASS else "every step did its work."


def summary(night: Night, found: Sequence[Trouble]) -> str:
    """The night in Markdown, for the page of the job that ran it."""
    word, sentence = word_of(found, night.steps)
    out = [f"**{word.value}: {escape(sentence)}**", "", f"Night of {night.day} on {escape(night.host)}.", ""]
    for one in found:
        out.append(f"- {one.word.value}: {escape(one.sentence)}")
        out += [f"  - {escape(detail)}" for detail in one.details[:20]]
    out += ["", "| step | exit code | |", "|---|---:|---|"]
    for name, code in night.steps.items():
        out.append(f"| {escape(name)} | {code} | {'' if _did(name, code) else 'FAILED'} |")
    return "\n".join(out) + "\n"


def read_steps(path: Path) -> dict[str, int]:
    """A file of `NAME CODE` lines, as ci/nightly.sh writes it. Raises MtpbenchError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return {name: int(code) for name, code in (line.rsplit(" ", 1) for line in lines if line.strip())}
    except (OSError, UnicodeDecodeError, ValueError) as error:
        hint = "A line for each step: its name and its exit code."
        raise MtpbenchError(f"{path} can't be read: {error}", hint) from error
