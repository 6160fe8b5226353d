"""What the pages' charts read: small scripts that register data, since pages opened from a file may not fetch."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from typing import Any

from dashboards.charts import colours
from dashboards.markup import script_json, slug
from dashboards.site import ScenarioView, Site, long_label, recent, shown_unit
from harness.model import LoadLevel
from harness.nightly.report import history
from harness.nightly.series import GAP_DAYS, Series, night_of
from harness.nightly.told import Told
from harness.results.lines import Line
from harness.stats import inference
from harness.store.runs import StoredRun
from harness.verdict.facts import Role, facts, role_of
from harness.verdict.pairs import Metric

_DIGITS = 5  # of a value: a thousandth of a percent is beyond any clock here


def put(key: str, value: object) -> str:
    """A script that registers a value."""
    return f"mtpbench.put({script_json(key)},{script_json(value)});\n"


def metrics_meta(site: Site) -> dict[str, Any]:
    """Label, unit as shown and direction of each metric."""
    out = {}
    for name in site.shown:
        metric = Metric.of(name)
        out[name] = {
            "label": metric.label,
            "label_long": long_label(metric),
            "unit": shown_unit(metric)[1],
            "higher": metric.higher_is_better,
        }
    return out


def scenario_nights(view: ScenarioView) -> str:
    """The days that all charts of a scenario share, and what changed on them."""
    return put(
        f"nights:{view.file}",
        {
            "days": [str(day) for day in view.days],
            "gap": GAP_DAYS,
            "events": [{"day": str(event.day), "words": event.words} for event in view.events],
        },
    )


def scenario_metric(site: Site, view: ScenarioView, name: str) -> str:
    """All series of one metric."""
    metric = Metric.of(name)
    factor, unit = shown_unit(metric)
    colour = colours(view.arms)
    told = {one.series.key: one for one in view.told}
    why = {one.run.path: one.run.quarantine for one in view.runs}
    quarantined = [
        {
            "arm": one.key.row.arm,
            "tp": one.key.row.tp,
            "level": one.key.row.level.label,
            "day": str(night.day),
            "value": _short(night.value * factor),
            "why": why[night.run.path],
        }
        for one in view.quarantined
        if one.key.row.metric == name
        for night in one.nights
    ]
    series = [
        _series(site, one, told.get(one.key), view.days[0], factor, colour)
        for one in view.series
        if one.key.row.metric == name
    ]
    return put(f"nights:{view.file}:{name}", {"unit": unit, "series": series, "quarantined": quarantined})


def _series(
    site: Site, one: Series, told: Told | None, start: date, factor: float, colour: Mapping[str, str]
) -> dict[str, Any]:
    row, by_day = one.key.row, {night.day: night for night in one.nights}
    first, last = one.nights[0].day, one.nights[-1].day
    span = [first + timedelta(n) for n in range((last - first).days + 1)]
    return {
        "arm": row.arm,
        "colour": colour.get(row.arm, "#888888"),
        "tp": row.tp,
        "level": row.level.label,
        "host": one.key.host,
        "first": (first - start).days,
        "values": [_short(by_day[day].value * factor) if day in by_day else None for day in span],
        "bands": _bands(site, one, told, factor),
        "changes": _changes(one, told, factor),
    }


def _changes(one: Series, told: Told | None, factor: float) -> list[dict[str, Any]]:
    """Changes that stand or are open; withdrawn ones are in the page's list only."""
    if told is None:
        return []
    excused = f"; {told.excused}" if told.excused else ""
    return [
        {
            "day": str(one.nights[change.start].day),
            "value": _short(one.nights[change.start].value * factor),
            "words": words + (excused if one.nights[change.start].day == told.since else ""),
        }
        for change, words in zip(told.changes, history(told), strict=True)
        if not change.withdrawn
    ]


def _bands(
    site: Site, one: Series, told: Told | None, factor: float
) -> list[tuple[str, str, float | None, float | None]]:
    """(first night, last night, low, high): where nine of ten nights lie between two changes if nothing changes.

    An A/A delta is the difference of two launches, so one launch has half its variance; a night is the mean of some.
    """
    floor = site.floors.get((one.key.host, one.key.scenario), {}).get(one.key.row)
    if floor is None:
        return []
    sd, df = floor
    stretches = told.reading.stretches if told else ()
    spans = [(max(0, part.start), part.stop) for part in stretches if part.stop > 0] or [(0, len(one.nights))]
    off = set(told.reading.excursions) if told else set()
    out = []
    for start, stop in spans:
        nights = [night for n, night in enumerate(one.nights[start:stop], start) if n not in off]
        if not nights:
            continue
        launches = round(sum(night.launches for night in nights) / len(nights))
        reach = inference.half_width(sd / math.sqrt(2), df, max(1, launches))
        middle = math.exp(sum(math.log(night.value) for night in nights) / len(nights)) * factor
        low, high = _short(middle * math.exp(-reach)), _short(middle * math.exp(reach))
        out.append((str(nights[0].day), str(nights[-1].day), low, high))
    return out


def recent_points(site: Site, view: ScenarioView) -> dict[str, Any]:
    """The last nights as one run: `values` are [mean, low, high, nights, nights] for each metric."""
    told = {one.series.key: one for one in view.told}
    found: dict[tuple[int, LoadLevel, str], dict[str, list[Any]]] = {}
    for name in site.shown:
        metric = Metric.of(name)
        factor, _ = shown_unit(metric)
        for one in view.current(name):
            row, now = one.key.row, recent(one, told.get(one.key))
            numbers = [_short(value * factor) for value in (now.value, now.low, now.high)]
            found.setdefault((row.tp, row.level, row.arm), {})[name] = [*numbers, now.nights, now.nights]
    return _points(site.shown, view.arms, found)


def run_data(site: Site, run: StoredRun, lines: Sequence[Line]) -> dict[str, Any]:
    """A run for its own charts and for comparing: `values` are [median, lowest, highest launch, samples, launches]."""
    found: dict[tuple[int, LoadLevel, str], dict[str, list[Any]]] = {}
    for line in lines:
        values = found.setdefault((line.tp, line.level, line.arm), {})
        for name in site.shown:
            value = line.values.get(name)
            if value is not None:
                factor, _ = shown_unit(Metric.of(name))
                numbers = [_short(number * factor) for number in (value.value, value.low, value.high)]
                values[name] = [*numbers, value.n, value.launches]
    report = site.reports[run.id]
    return {
        "id": run.id,
        "file": slug(run.path.name),
        "scenario": run.scenario.name,
        "headline": report.headline,
        "quarantine": run.quarantine,
        "facts": _facts(run),
        **_points(site.shown, tuple(run.scenario.arms), found),
    }


def _points(
    names: Sequence[str], arms: Sequence[str], found: Mapping[tuple[int, LoadLevel, str], Mapping[str, list[Any]]]
) -> dict[str, Any]:
    colour = colours(arms)
    return {
        "metrics": names,
        "several": len({tp for tp, _, _ in found}) > 1,
        "lines": [
            {
                "arm": arm,
                "tp": tp,
                "label": level.label,
                "load": level.value,
                "open": level.open_loop,
                "input": level.input_tokens,
                "factor": level.factor,
                "colour": colour.get(arm, "#888888"),
                "values": [values.get(name) for name in names],
            }
            for (tp, level, arm), values in found.items()
        ],
    }


def _facts(run: StoredRun) -> dict[str, tuple[str, str]]:
    """Each recorded fact and whether a difference in it forbids comparing; each arm's own server settings by name."""
    out: dict[str, tuple[str, str]] = {}
    for arm in run.scenario.arms:
        for fact, value in facts(run, arm).items():
            role = role_of(fact)
            if role is not Role.IGNORED:
                own = fact.startswith(("server.", "packages."))
                out[f"{arm}: {fact}" if own else fact] = (_plain(value), role.value)
    return _common(out, list(run.scenario.arms))


def _common(found: Mapping[str, tuple[str, str]], arms: Sequence[str]) -> dict[str, tuple[str, str]]:
    """What all arms that record it share is said once: one that never started records no packages."""
    out = {name: value for name, value in found.items() if ": " not in name}
    for name, value in found.items():
        arm, colon, fact = name.partition(": ")
        if colon:
            same = all(found.get(f"{other}: {fact}", value) == value for other in arms)
            out[fact if same else f"{arm}: {fact}"] = value
    return out


def _plain(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def runs_index(site: Site) -> str:
    """Every run, newest first: what compare.html may load."""
    return put(
        "runs",
        [
            {
                "file": slug(one.run.path.name),
                "id": one.run.id,
                "scenario": one.run.scenario.name,
                "host": str(one.run.environment.get("host", "")),
                "created": one.run.created_at,
            }
            for one in reversed(site.archive.kept)
        ],
    )


def nights_csv(view: ScenarioView) -> str:
    """A line a night, host, arm and load, a column a metric; values in seconds and tokens."""
    names = tuple(dict.fromkeys(one.key.row.metric for one in view.series))
    table: dict[tuple[object, ...], dict[str, object]] = {}
    for one in view.series:
        row = one.key.row
        for night in one.nights:
            place = (night.day, one.key.host, row.arm, row.tp, row.level.label, night.commit[:12])
            table.setdefault(place, {})[row.metric] = _short(night.value)
    head: Sequence[object] = ("night", "host", "arm", "tp", "load", "commit", *names)
    return to_csv(
        [head, *([*place, *(of.get(name) for name in names)] for place, of in sorted(table.items(), key=str))]
    )


def lines_csv(lines: Sequence[Line]) -> str:
    """A run's lines, a column a metric: medians over launches, in seconds and tokens. rows.parquet has each pass."""
    names = tuple(dict.fromkeys(name for line in lines for name in line.values))
    out: list[Sequence[object]] = [("arm", "tp", "load", "requests", "failed", *names)]
    for line in lines:
        values = (line.get(name) for name in names)
        shown = [_short(value) if value is not None else None for value in values]
        out.append((line.arm, line.tp, line.level.label, line.requests, line.failed, *shown))
    return to_csv(out)


def to_csv(lines: Iterable[Sequence[object]]) -> str:
    """Cells that a spreadsheet would run as a formula are prefixed."""
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    for line in lines:
        writer.writerow([f"'{cell}" if isinstance(cell, str) and cell[:1] in "=+-@\t" else cell for cell in line])
    return sink.getvalue()


def day_of(run: StoredRun) -> date:
    return night_of(run)[0]


def _short(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
