"""Is a host still as steady as it was? Its nightly A/A runs say so; one that is not is put in quarantine.

A quarantined host goes on measuring: its runs are stored, marked by `quarantine.json`, and judge nothing. An A/A run
drifts when equal servers differ by the rule of the A/B, when they spread wider than they used to, or when their level
left that of earlier nights though no software changed. What was said of a night stays beside it as `sentinel.json`: a
host is released by so many clean nights in a row, or by a person, from whom on its level is judged anew.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from functools import cached_property
from typing import Any

import numpy as np

from harness.errors import MtpbenchError, StoreError
from harness.nightly.series import night_of
from harness.stats import inference
from harness.stats.decision import TOLERANCE
from harness.stats.series import History, read
from harness.store.ab_record import Session, sides
from harness.store.archive import Archive
from harness.store.manifest import SENTINEL_FILE
from harness.store.runs import QUARANTINE_FILE, StoredRun, read_json, utc_now
from harness.verdict.aa_floor import Floors, aa_deltas, pooled_deltas
from harness.verdict.compare import Verdict, compare
from harness.verdict.facts import facts, fingerprint_class
from harness.verdict.pairs import RowKey, measure, primary_name

CLEAN_NIGHTS = 3  # in a row that end a quarantine
# A night that is wrongly called a drift costs CLEAN_NIGHTS: at 1 % a test, three of a hundred nights were.
SURE = 0.001
SENTINEL_VERSION = 1  # 1: first
_LEVEL_METRIC = "tpot_p50"  # where a scenario declares no primary endpoint


@dataclass(frozen=True)
class Mark:
    """What was said of a host on the night of one A/A run. Neither clean nor drifting: the A/A itself was no result."""

    run: str
    created_at: str
    day: date
    host: str
    scenario: str
    drift: tuple[str, ...] = ()
    clean: bool = True
    baseline: int = 0  # earlier nights with which its level was compared
    released: Mapping[str, str] | None = None  # {"at", "why"}: by hand, after this night

    def to_json(self) -> dict[str, Any]:
        values = asdict(self) | {"day": str(self.day)}
        return {"sentinel_version": SENTINEL_VERSION, **values}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Mark:
        values = {key: value for key, value in data.items() if key != "sentinel_version"}
        return cls(**values | {"day": date.fromisoformat(values["day"]), "drift": tuple(values["drift"])})


@dataclass(frozen=True)
class Period:
    """A host in quarantine: from the A/A run that drifted until the one that ended it; `until` empty: still."""

    host: str
    since: str
    reason: str
    until: str = ""
    clean: int = 0  # nights in a row so far

    def holds(self, created_at: str) -> bool:
        return self.since <= created_at and (not self.until or created_at < self.until)


Written = dict[str, dict[str, Any]]  # path below the store → what a file is to hold


@dataclass(frozen=True)
class _Night:
    """An A/A run, and what is computed of it once, however many later nights are compared with it."""

    run: StoredRun
    session: Session
    mark: Mark

    @cached_property
    def deltas(self) -> dict[RowKey, list[float]]:
        return aa_deltas(self.run, self.session)

    @cached_property
    def levels(self) -> dict[tuple[RowKey, str], float]:
        return _levels(self.run, self.session)


def judge(archive: Archive) -> tuple[list[Mark], Written]:
    """A mark for every A/A run in order of time, and those that are new; what was said before stays said."""
    seen: list[_Night] = []
    new: Written = {}
    for run, session in _aa_runs(archive):
        night = _Night(run, session, _stored(run) or _blank(run))
        if not (run.path / SENTINEL_FILE).is_file():
            night = _judged(night, seen)
            new[f"{run.path.name}/{SENTINEL_FILE}"] = night.mark.to_json()
        seen.append(night)
    return [night.mark for night in seen], new


def periods(marks: Iterable[Mark], nights: int = CLEAN_NIGHTS) -> list[Period]:
    """Every quarantine, host by host. A night with several A/A runs is clean if none of them drifts."""
    out: list[Period] = []
    for host, of_host in _grouped(marks, lambda mark: mark.host).items():
        current: Period | None = None
        for of_night in _grouped(of_host, lambda mark: str(mark.day)).values():
            drifting = next((mark for mark in of_night if mark.drift), None)
            if drifting is not None:
                reason = "; ".join(drifting.drift)
                current = replace(current, clean=0) if current else Period(host, drifting.created_at, reason)
            elif current is not None and all(mark.clean for mark in of_night):
                current = replace(current, clean=current.clean + 1)
                if current.clean >= nights:
                    out.append(replace(current, until=of_night[-1].created_at))
                    current = None
            released = next((mark.released for mark in of_night if mark.released), None)
            if current is not None and released:
                out.append(replace(current, until=released["at"]))
                current = None
        if current is not None:
            out.append(current)
    return out


def quarantined(archive: Archive, found: Sequence[Period]) -> Written:
    """The marks of runs that were made on a host in quarantine and have none yet."""
    out: Written = {}
    for kept in archive.kept:
        run = kept.run
        host, file = str(run.environment.get("host")), run.path / QUARANTINE_FILE
        period = next((p for p in found if p.host == host and p.holds(run.created_at)), None)
        if period is not None and not file.is_file():
            out[f"{run.path.name}/{QUARANTINE_FILE}"] = {"reason": period.reason, "since": period.since}
    return out


def release(archive: Archive, marks: Sequence[Mark], found: Sequence[Period], host: str, why: str) -> Written:
    """Ends a host's quarantine by hand; its marked runs judge again. Raises MtpbenchError where there is none."""
    period = next((p for p in found if p.host == host and not p.until), None)
    if period is None:
        open_ones = ", ".join(p.host for p in found if not p.until) or "no host"
        raise MtpbenchError(f"{host} is not in quarantine", f"In quarantine: {open_ones}.")
    said = {"at": utc_now(), "why": why}
    last = [mark for mark in marks if mark.host == host][-1]
    out: Written = {f"{last.run}/{SENTINEL_FILE}": replace(last, released=said).to_json()}
    for kept in archive.kept:
        run, file = kept.run, kept.run.path / QUARANTINE_FILE
        if str(run.environment.get("host")) == host and period.holds(run.created_at):
            before = read_json(file) if file.is_file() else {"reason": period.reason, "since": period.since}
            out[f"{run.path.name}/{QUARANTINE_FILE}"] = {**before, "released": said}
    return out


def _aa_runs(archive: Archive) -> Iterator[tuple[StoredRun, Session]]:
    """Their own quarantine must not hide what they say."""
    for kept in archive.kept:
        if kept.session is not None and kept.session.kind == "aa":
            yield replace(kept.run, quarantine=""), kept.session


def _stored(run: StoredRun) -> Mark | None:
    file = run.path / SENTINEL_FILE
    if not file.is_file():
        return None
    try:
        return Mark.from_json(read_json(file))
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{file} is damaged: {error!r}", "Remove it: the night is judged anew.") from error


def _blank(run: StoredRun) -> Mark:
    return Mark(run.id, run.created_at, night_of(run)[0], str(run.environment.get("host")), run.scenario.name)


def _judged(night: _Night, seen: Sequence[_Night]) -> _Night:
    """A night against the same host and scenario before it, since the last release by hand."""
    mark = night.mark
    before = [one for one in seen if (one.mark.host, one.mark.scenario) == (mark.host, mark.scenario)]
    freed = max((n + 1 for n, one in enumerate(before) if one.mark.released), default=0)
    before = before[freed:]
    base, head = sides(night.run, night.session)
    found = compare(base, head, metrics=night.session.metrics, plan=night.session.plan)
    if found.verdict is Verdict.INVALID:
        return replace(night, mark=replace(mark, clean=False))
    certain = any(min(row.decision.p_slower, row.decision.p_faster) <= SURE for row in found.rows)
    differ = certain and found.verdict in (Verdict.FAIL, Verdict.IMPROVED)
    drift = [f"equal servers differ: {found.headline}"] if differ else []
    steady = pooled_deltas(one.deltas for one in before if one.mark.clean and not one.mark.drift)
    drift += _wider(night.deltas, steady)
    nights, moved = _moved(night, before)
    drift += moved
    return replace(night, mark=replace(mark, drift=tuple(drift), clean=not drift, baseline=nights))


def _wider(tonight: Mapping[RowKey, list[float]], steady: Floors) -> list[str]:
    """The row that spreads the most beyond its floor, if any does: p of all rows together (Bonferroni)."""
    known = {key: values for key, values in tonight.items() if key in steady and len(values) > 1}
    found = []
    for key, values in known.items():
        sd, df = inference.standard_deviation([values])
        p = inference.wider_p(sd, df, *steady[key]) * len(known)
        found.append((p, key, sd))
    worst = min(found, key=lambda item: item[0], default=None)
    if worst is None or worst[0] > SURE:
        return []
    p, key, sd = worst
    return [
        f"{key}: equal servers spread by {100 * math.expm1(sd):.1f} %, "
        f"{100 * math.expm1(steady[key][0]):.1f} % on steady nights (p {p:.2g})"
    ]


def _moved(tonight: _Night, before: Sequence[_Night]) -> tuple[int, list[str]]:
    """Rows whose level left that of earlier nights with the same software, and with how many nights they were compared.

    Any direction counts: a host that got faster is another host, too.
    """
    out, nights = [], 0
    for place, value in tonight.levels.items():
        series = [one.levels[place] for one in before if place in one.levels]
        nights = max(nights, len(series))
        logs = [*series, value]
        [reading] = read([History.of(logs)])
        levels = [stretch.level.mean for stretch in reading.stretches]
        shift = levels[-1] - levels[0] if levels else 0.0
        drifting = len(levels) > 1 and abs(shift) >= TOLERANCE
        alert = reading.alert
        if not drifting and alert is not None and alert.p <= SURE:
            drifting, shift = True, alert.delta
        if drifting:
            key = place[0]
            out.append(f"{key} moved by {100 * math.expm1(shift):+.1f} % against {len(series)} nights before")
    return nights, out


def _levels(run: StoredRun, session: Session) -> dict[tuple[RowKey, str], float]:
    """(row, what ran) → mean log value of all launches of both sides, for the row that decides."""
    scenario = run.scenario
    name = primary_name(scenario.primary) if scenario.primary else _LEVEL_METRIC
    values: dict[tuple[RowKey, str], list[float]] = {}
    for side in sides(run, session):
        for group, launches in measure(side, [name]).launches.items():
            if scenario.primary and group[2] != scenario.primary_level:
                continue
            for one in launches:
                value = one.values[name]
                if value and value > 0 and not one.invalid:
                    place = RowKey(name, *group), _software(run, side.arms[group[0]])
                    values.setdefault(place, []).append(math.log(value))
    return {place: float(np.mean(logs)) for place, logs in values.items()}


def _software(run: StoredRun, arm: str) -> str:
    """All on which a level depends besides the host's condition; this repository only where its kernel serves."""
    known = facts(run, arm)
    kernel = any(launch.verify for launch in run.launches if launch.arm == arm)
    parts = {fact: value for fact, value in known.items() if fact.startswith("packages.")}
    parts |= {"kernel_hash": known.get("kernel_hash")} if kernel else {}
    return f"{fingerprint_class(known)} {json.dumps(parts, sort_keys=True)}"


def _grouped(marks: Iterable[Mark], key: Callable[[Mark], str]) -> dict[str, list[Mark]]:
    out: dict[str, list[Mark]] = {}
    for mark in sorted(marks, key=lambda mark: mark.created_at):
        out.setdefault(key(mark), []).append(mark)
    return out
