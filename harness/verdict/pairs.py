"""Stored runs → the two sides of a comparison → tables of deltas, a row for each (metric, arm, TP, level)."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from harness.checks.same_answers import check_outputs
from harness.errors import MtpbenchError
from harness.metrics.definitions import PASS_METRICS, REQUEST_METRICS, PassView
from harness.model import LoadLevel
from harness.results.lines import known_values, launch_value
from harness.scenario.format import Primary
from harness.stats.inference import Floats
from harness.store.ab_record import Side
from harness.store.runs import StoredRun, load_run

# TPOT = step time / accept length, exactly: testing both parts as well says where a change comes from, and catches
# two that cancel (sglang #40598: more verify work; vllm #26191: fewer drafts accepted).
DEFAULT_METRICS = ("tpot_p50", "ttft_p50", "output_throughput", "step_time_p50", "accept_length_mean")

# An A/B asks the device too, where it is timed: what the host costs is not in it, so it repeats where TPOT does not.
AB_METRICS = (*DEFAULT_METRICS, "device_time_per_token")

# An absolute change below this is no change, in the metric's own unit: what the client itself may be off by at the
# median (docs/client.md), for latencies near it.
FLOORS = {"ttft": 1e-3, "e2e": 1e-3, "tpot": 20e-6, "itl": 20e-6, "step_gap": 0.1e-3, "step_time": 0.1e-3}


@dataclass(frozen=True)
class Metric:
    """A compared number: `tpot_p50`."""

    name: str
    label: str
    unit: str
    higher_is_better: bool
    floor: float

    @classmethod
    @functools.cache  # of a few dozen names, asked for with every night of a year
    def of(cls, name: str) -> Metric:
        """Raises MtpbenchError with the known names."""
        if name not in known_values():
            raise MtpbenchError(f"{name!r} is no metric", f"One of: {', '.join(known_values())}")
        if name in PASS_METRICS:
            one = PASS_METRICS[name]
            return cls(name, one.label, one.unit, one.higher_is_better, FLOORS.get(name, 0.0))
        stem, _, how = name.rpartition("_")
        many = REQUEST_METRICS[stem]
        label = many.label if how in ("p50", "mean") else f"{many.label} {how}"
        return cls(name, label, many.unit, many.higher_is_better, FLOORS.get(stem, 0.0))

    @property
    def timed(self) -> bool:
        """Is it a time, which gets faster or slower?"""
        return self.unit in ("s", "s/token")

    def shown(self, value: float) -> str:
        """With its unit; times in milliseconds."""
        if self.timed:
            return f"{1e3 * value:.4g} m{self.unit}"
        return f"{value:.4g} {self.unit}"

    def delta(self, base: float, head: float) -> float:
        """The logarithm of a ratio, above zero when head is worse, whichever direction is better."""
        ratio = math.log(head / base)
        return -ratio if self.higher_is_better else ratio

    def change(self, delta: float) -> float:
        """A delta as the relative change of the value itself: 0.0526 is +5.4 % of a latency, -5.1 % of a rate."""
        return math.expm1(-delta if self.higher_is_better else delta)


@dataclass(frozen=True)
class RowKey:
    """One number of a scenario."""

    metric: str
    arm: str
    tp: int
    level: LoadLevel

    def __str__(self) -> str:
        place = f"{self.level.label}" if self.level.open_loop else f"concurrency {self.level.label}"
        return f"{Metric.of(self.metric).label} at {place} (TP{self.tp}, {self.arm})"


def primary_name(primary: Primary) -> str:
    """The name under which values are kept: tpot and 50 → tpot_p50."""
    return primary.metric if primary.metric in PASS_METRICS else f"{primary.metric}_p{primary.percentile}"


@dataclass(frozen=True)
class Launched:
    """What one launch gave: values by metric, and what forbids their use."""

    run: str
    launch: int
    values: dict[str, float | None]
    invalid: tuple[str, ...]


Group = tuple[str, int, LoadLevel]  # label of the arm, TP, level


@dataclass(frozen=True)
class Measured:
    """A side's launches in order, for each (arm, TP, level), and the passes that never completed."""

    launches: dict[Group, list[Launched]] = field(default_factory=dict)
    failed: dict[Group, list[str]] = field(default_factory=dict)


def measure(side: Side, metrics: Iterable[str]) -> Measured:
    """Every launch of a side. Launches of several runs follow each other as the runs do."""
    names, out = tuple(metrics), Measured()
    labels = {arm: label for label, arm in side.arms.items()}
    for run in side.runs:
        wrong = _wrong_launches(run)
        views: dict[tuple[Group, int], list[PassView]] = {}
        for source in run.passes:
            key = source.record.key
            if key.arm in labels:
                group = (labels[key.arm], key.tp, key.level)
                views.setdefault((group, key.launch), []).append(PassView.of(source, run.scenario.slo))
        for arm, tp, launch in wrong:  # refused before it was measured, perhaps: still one that counts
            for level in run.scenario.levels() if arm in labels else []:
                views.setdefault(((labels[arm], tp, level), launch), [])
        for group, launch in sorted(views, key=lambda item: item[1]):
            found = views[group, launch]
            invalid = list(wrong.get((side.arms[group[0]], group[1], launch), ()))
            invalid += [f.message for view in found for f in view.source.record.findings if f.invalid]
            invalid += [f"its host was in quarantine ({run.quarantine})"] if run.quarantine else []
            values = {name: launch_value(name, found) for name in names}
            out.launches.setdefault(group, []).append(Launched(run.id, launch, values, tuple(dict.fromkeys(invalid))))
        for record in run.failed:
            if record.key.arm in labels:
                group = (labels[record.key.arm], record.key.tp, record.key.level)
                out.failed.setdefault(group, []).append(record.status)
    return out


def _wrong_launches(run: StoredRun) -> dict[tuple[str, int, int], list[str]]:
    """(arm, TP, launch) → why it served something else than was asked for: its evidence, or its answers."""
    of_outputs = check_outputs(run.scenario, run.launches)
    out: dict[tuple[str, int, int], list[str]] = {}
    for launch in run.launches:
        messages = [f.message for f in (*launch.findings, *of_outputs.get(launch.slug, ())) if f.invalid]
        if messages:
            out.setdefault((launch.arm, launch.tp, launch.launch), []).extend(messages)
    return out


Pairs = dict[int, tuple[Launched, Launched]]  # by number


class FromLaunch(Protocol):
    """Anything that one launch of a run gave."""

    @property
    def run(self) -> str: ...
    @property
    def launch(self) -> int: ...


Of = TypeVar("Of", bound=FromLaunch)


def pair_up(base: Sequence[Of], head: Sequence[Of]) -> dict[int, tuple[Of, Of]]:
    """The n-th launch of one side with the n-th of the other.

    Launches of one run are paired by their number, so that one that is missing does not shift the others.
    """
    if len({one.run for one in (*base, *head)}) == 1:
        theirs = {one.launch: one for one in head}
        return {one.launch: (one, theirs[one.launch]) for one in base if one.launch in theirs}
    return dict(enumerate(zip(base, head, strict=False)))


def table_of(rows: Sequence[tuple[Metric, Pairs]]) -> Floats:
    """The deltas of all rows, (pairs, rows): NaN where a side has no value above zero."""
    numbers = sorted({number for _, pairs in rows for number in pairs})
    out = np.full((len(numbers), len(rows)), np.nan)
    for column, (metric, pairs) in enumerate(rows):
        for line, number in enumerate(numbers):
            if number in pairs:
                base, head = (side.values.get(metric.name) for side in pairs[number])
                if base and head and base > 0 and head > 0:
                    out[line, column] = metric.delta(base, head)
    return out


def runs_of(arguments: Sequence[str], name: str) -> Side:
    """`RUN` or `RUN@ARM` each → a side. Raises MtpbenchError where arms are named of some runs only."""
    split = [argument.rpartition("@") if "@" in Path(argument).name else (argument, "", "") for argument in arguments]
    runs = tuple(load_run(Path(path)) for path, _, _ in split)
    arms = {arm for _, _, arm in split}
    if arms == {""}:
        return Side(name, runs, {arm: arm for run in runs for arm in run.scenario.arms})
    if len(arms) > 1:
        raise MtpbenchError(f"one arm a side, not {', '.join(sorted(arms)) or 'several'}", "Name it for every run.")
    [arm] = arms
    for run in runs:
        if arm not in run.scenario.arms:
            raise MtpbenchError(f"{run.path} has no arm {arm!r}", f"It has: {', '.join(run.scenario.arms)}")
    return Side(name, runs, {arm: arm})


def one_label(base: Side, head: Side) -> tuple[Side, Side]:
    """Two sides that are one arm each, of different names: their row is called after both."""
    if len(base.arms) == len(head.arms) == 1 and set(base.arms) != set(head.arms):
        [b], [h] = base.arms.values(), head.arms.values()
        label = f"{b} → {h}"
        return Side(base.name, base.runs, {label: b}), Side(head.name, head.runs, {label: h})
    return base, head
