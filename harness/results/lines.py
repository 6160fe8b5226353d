"""A run condensed to one line for each (arm, TP, level): what reports and charts show.

The value of a launch is the mean over its passes, the value of a line the median over launches; its range
over launches is shown beside it as soon as there are two. Deciding whether lines differ is not done here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, median

from harness.checks.same_answers import check_outputs
from harness.metrics.definitions import PASS_METRICS, REQUEST_METRICS, PassView, distribution
from harness.model import Finding, LoadLevel
from harness.scenario.format import Scenario
from harness.store.runs import StoredRun

# Less than this between two arms is called equal: without statistics, small differences are not results.
TIE = 0.02
_EQUAL = f"about equal (within {100 * TIE:.0f} %)"


@dataclass(frozen=True)
class Value:
    """A number over launches: `n` samples in all, `low` and `high` over launches."""

    value: float
    low: float
    high: float
    launches: int
    n: int


@dataclass(frozen=True)
class Line:
    """One arm at one TP and load level. `values` is keyed `ttft_p50`, `output_throughput`, …"""

    arm: str
    tp: int
    level: LoadLevel
    values: dict[str, Value]
    requests: int
    failed: int
    findings: tuple[Finding, ...]
    complete: bool

    def get(self, name: str) -> float | None:
        value = self.values.get(name)
        return value.value if value else None


# How a metric is condensed within a pass: its value and the number of samples.
Statistic = Callable[[PassView], tuple[float | None, int]]


def _request_statistic(name: str, percentile: int | None) -> Statistic:
    def value(view: PassView) -> tuple[float | None, int]:
        summary = distribution(name, view)
        chosen = summary.mean if percentile is None else summary.percentiles[percentile]
        return chosen, summary.n

    return value


def _pass_statistic(formula: Callable[[PassView], float | None]) -> Statistic:
    return lambda view: (formula(view), len(view.counted))


# What a line holds: of a request's metric the mean and three percentiles, of a pass's its value.
_OF_REQUESTS = {"mean": None, "p50": 50, "p90": 90, "p99": 99}
_STATISTICS: dict[str, Statistic] = {
    f"{name}_{suffix}": _request_statistic(name, percentile)
    for name in REQUEST_METRICS
    for suffix, percentile in _OF_REQUESTS.items()
} | {metric.name: _pass_statistic(metric.formula) for metric in PASS_METRICS.values()}


def _statistic(name: str, view: PassView) -> tuple[float | None, int]:
    """(value, number of samples) in one pass; of its stored row where its requests were not read."""
    stored = view.source.derived
    if stored is None:
        return _STATISTICS[name](view)
    return stored.get(name), int(stored.get(_SAMPLES[name]) or 0)


# The column of a stored row that counts a value's samples.
_SAMPLES = {name: "counted" if name in PASS_METRICS else f"{name.rpartition('_')[0]}_n" for name in _STATISTICS}


def summarise(run: StoredRun) -> list[Line]:
    """Every line that the scenario plans, in its order; one without a complete pass has no values."""
    views: dict[tuple[str, int, LoadLevel], list[PassView]] = {}
    for source in run.passes:
        key = source.record.key
        views.setdefault((key.arm, key.tp, key.level), []).append(PassView.of(source, run.scenario.slo))
    launched: dict[tuple[str, int], list[Finding]] = {}
    # Compared again with all launches at hand: an arm may have been measured before its reference was.
    of_outputs = check_outputs(run.scenario, run.launches)
    for launch in run.launches:
        found = {*launch.findings, *of_outputs.get(launch.slug, ())}
        launched.setdefault((launch.arm, launch.tp), []).extend(found)
    lines = []
    for tp in run.scenario.tp:
        for level in run.scenario.levels():
            for arm in run.scenario.arms:
                of_launch = launched.get((arm, tp), [])
                lines.append(_line(arm, tp, level, views.get((arm, tp, level), []), of_launch, run.scenario))
    return lines


def _line(
    arm: str, tp: int, level: LoadLevel, views: list[PassView], launched: list[Finding], scenario: Scenario
) -> Line:
    by_launch: dict[int, list[PassView]] = {}
    for view in views:
        by_launch.setdefault(view.source.record.key.launch, []).append(view)
    values = {}
    for name in _STATISTICS:
        launches, samples = [], 0
        for group in by_launch.values():
            results = [_statistic(name, view) for view in group]
            numbers = [number for number, _ in results if number is not None]
            samples += sum(n for _, n in results)
            if numbers:
                launches.append(fmean(numbers))
        if launches:
            values[name] = Value(median(launches), min(launches), max(launches), len(launches), samples)
    of_passes = (finding for view in views for finding in view.source.record.findings)
    found = {(finding.code, finding.message): finding for finding in (*launched, *of_passes)}
    return Line(
        arm=arm,
        tp=tp,
        level=level,
        values=values,
        requests=sum(view.source.sent for view in views),
        failed=sum(view.source.failed for view in views),
        findings=tuple(found.values()),
        complete=len(views) == scenario.launches * scenario.passes,
    )


def crossing(lines: list[Line], scenario: Scenario, arm: str, tp: int, name: str, higher: bool) -> str:
    """Where `arm` wins and loses against the baseline in one metric, as a sentence without its subject."""
    base = {line.level: line for line in lines if line.arm == scenario.baseline_arm and line.tp == tp}
    kinds: dict[str, list[LoadLevel]] = {"better": [], "worse": [], _EQUAL: []}
    for line in lines:
        mine, other = line.get(name), base[line.level].get(name) if line.level in base else None
        if line.arm == arm and line.tp == tp and mine and other:
            gain = mine / other if higher else other / mine
            kind = "better" if gain > 1 + TIE else "worse" if gain < 1 / (1 + TIE) else _EQUAL
            kinds[kind].append(line.level)
    if not any(kinds.values()):
        return f"not comparable with {scenario.baseline_arm}: no level has both"
    every = sorted((level for levels in kinds.values() for level in levels), key=lambda level: level.value)
    parts = [f"{kind} {_where(levels, every)}" for kind, levels in kinds.items() if levels]
    return f"{', '.join(parts)} (against {scenario.baseline_arm})"


def _where(levels: list[LoadLevel], every: list[LoadLevel]) -> str:
    """`at every level measured`, `up to 2`, `from 8 on` or `at 1, 4`."""
    labels = [level.load for level in sorted(levels, key=lambda level: level.value)]
    if len(levels) == len(every):
        return "at every level measured"
    if len(levels) > 1 and set(levels) == set(every[: len(levels)]):
        return f"up to {labels[-1]}"
    if set(levels) == set(every[-len(levels) :]):
        return f"from {labels[0]} on"
    return f"at {', '.join(labels)}"


def launch_value(name: str, views: list[PassView]) -> float | None:
    """What a launch is worth in one metric (keyed as in `Line.values`): the mean over its passes at one level."""
    numbers = [number for view in views if (number := _statistic(name, view)[0]) is not None]
    return fmean(numbers) if numbers else None


def known_values() -> tuple[str, ...]:
    """Every name that `launch_value` and `Line.values` know."""
    return tuple(_STATISTICS)
