"""A scenario over nights: what changed, small multiples of every metric, and how the arms stand now."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from dashboards.frame import controls, figure, legend, page, word
from dashboards.markup import details, items, text
from dashboards.site import ScenarioView, Site, long_label, recent, shown_number
from dashboards.tables import Column, table
from harness.model import LoadLevel
from harness.nightly.report import history
from harness.nightly.told import ENDED, WRONG, Status, Told
from harness.verdict.pairs import Metric, RowKey

# Columns of the table of the last nights.
_NOW = ("tpot_p50", "ttft_p50", "step_time_p50", "accept_length_mean", "output_throughput")


def scenario_page(site: Site, view: ScenarioView) -> str:
    """scenario/<name>.html"""
    body = f'<p class="soft">Scenario {text(view.name)}</p><h1>{text(view.question)}</h1>'
    if not view.series:
        body += "<p>No night of this scenario has a value that may be used.</p>"
        return page(site, view.name, body + _runs(site, view), depth=1)
    body += _state(site, view)
    body += f'<h2 id="over-nights">Over nights</h2>{controls(relative=True)}{legend(view.arms)}'
    body += f'<p class="soft small">{_SIGNS}</p>'
    first, *others = _ordered(site, view)
    body += f'<section id="{first}">{_multiples(site, view, first)}</section>'
    for name in others:
        judged = "" if name in site.judged else " (shown, not judged)"
        title = f"{long_label(Metric.of(name))}{judged}"
        inside = f'<div id="{name}">{_multiples(site, view, name)}</div>'
        body += details(title, inside)
    body += _changes(view) + _now(site, view) + _runs(site, view)
    file = f"../data/scenario/{view.file}/nights.csv"
    body += f'<h2>Download</h2><p><a href="{text(file)}" download>Every night of every row (CSV)</a></p>'
    return page(site, view.name, body, depth=1, here=f"scenario/{view.file}.html")


def _state(site: Site, view: ScenarioView) -> str:
    wrong = [one for one in view.told if one.status in WRONG]
    counts: dict[str, int] = {}
    for one in view.told:
        counts[one.status.value] = counts.get(one.status.value, 0) + 1
    told = ", ".join(f"{n} {status}" for status, n in counts.items())
    young = [one for one in view.told if one.status is Status.YOUNG]
    if wrong:
        sentence = f"<p>{word(wrong[0].verdict.value)} {text(wrong[0].sentence)}</p>"
    elif young:
        what = f"{len(young)} of {len(view.told)} rows have too few nights to be judged."
        sentence = f"<p>{word(young[0].verdict.value)} {what} {text(young[0].sentence)}</p>"
    else:
        sentence = f"<p>{word('PASS')} No row is wrong.</p>"
    return f'{sentence}<p class="soft">Rows: {text(told)}. <a href="../index.html#wrong">All findings</a></p>'


_SIGNS = (
    "Triangle: a change of level. Dashed line: the environment changed. Shaded: where nine of ten nights lie if "
    "nothing changes (A/A launches). ✕: a night in quarantine, which judges nothing and is drawn at the edge."
)


def _ordered(site: Site, view: ScenarioView) -> list[str]:
    """The primary metric first; only those with values."""
    present = {one.key.row.metric for one in view.series}
    names = [name for name in site.shown if name in present]
    primary = view.primary[0] if view.primary else names[0]
    return sorted(names, key=lambda name: name != primary)


def _multiples(site: Site, view: ScenarioView, name: str) -> str:
    metric = Metric.of(name)
    figures = ""
    for tp, level in view.groups:
        if any((s.key.row.metric, s.key.row.tp, s.key.row.level) == (name, tp, level) for s in view.series):
            figures += nights_figure(view, metric, tp, level)
    known = site.floors.get((str(view.newest.environment.get("host")), view.name))
    hint = "" if known else (
        '<p class="soft small">No A/A launches are stored for this host, so no band is drawn: '
        "<code>mtpbench aa SCENARIO</code> measures it.</p>"
    )  # fmt: skip
    return f'<h3>{text(long_label(metric))}</h3>{hint}<div class="charts">{figures}</div>'


def nights_figure(view: ScenarioView, metric: Metric, tp: int, level: LoadLevel) -> str:
    """One small multiple, with what is told of its rows in words."""
    place = level.label if level.open_loop else f"concurrency {level.label}"
    said = [_brief(one) for one in view.told if _is(one.series.key.row, metric.name, tp, level) and _brief(one)]
    return figure(
        f"{metric.label} at {place}, TP{tp}",
        "; ".join(said) or "no open change",
        spec="nights",
        scenario=view.file,
        metric=metric.name,
        tp=tp,
        level=level.label,
    )


def _is(row: RowKey, metric: str, tp: int, level: LoadLevel) -> bool:
    return (row.metric, row.tp, row.level) == (metric, tp, level)


def _brief(one: Told) -> str:
    """`mtp-in-tree +5.4 % since 2026-11-20, regressed`; empty where nothing is to be said."""
    arm = one.series.key.row.arm
    if one.delta is not None:
        accepted = ", accepted" if one.excused else f", {one.status.value}"
        return f"{arm} {100 * one.series.metric.change(one.delta):+.1f} % since {one.since}{accepted}"
    return f"{arm} {one.status.value} since {one.since}" if one.status in (Status.MISSING, Status.STALE) else ""


def _changes(view: ScenarioView) -> str:
    """Everything that the trend says, and every change of the environment, in words."""
    told = sorted(view.told, key=lambda one: one.status in ENDED)
    columns = [Column("night", "night"), Column("host", "host"), Column("rows", "rows"), Column("change", "change"),
               Column("now", "now")]  # fmt: skip
    events = [{"day": str(event.day), "words": text(event.words)} for event in reversed(view.events)]
    of_events = [Column("day", "night"), Column("words", "what was another than the night before")]
    notes = list(dict.fromkeys(note for one in told for note in one.series.notes))
    return (
        '<h2 id="changes">Changes</h2>'
        f"{table('changes-table', 'Changes of level, confirmed or open', columns, _standing(told))}{_withdrawn(told)}"
        f"<h3>Environment</h3>{table('events-table', 'Changes of the environment', of_events, events)}"
        + (f"<h3>Notes</h3>{items(notes)}" if notes else "")
    )


def _standing(told: Sequence[Told]) -> list[dict[str, str]]:
    """A line for all rows of an arm that changed on one night and are alike now."""
    groups: dict[tuple[date, str, str, Status, str, bool], list[tuple[Told, float, str]]] = {}
    for one in told:
        for change, line in zip(one.changes, history(one), strict=True):
            if not change.withdrawn:
                day, key = one.series.nights[change.start].day, one.series.key
                place = (day, key.host, key.row.arm, one.status, one.excused, change.worse)
                groups.setdefault(place, []).append((one, 100 * one.series.metric.change(change.delta), line))
    out = []
    for (day, host, arm, status, excused, worse), found in groups.items():
        moved = [percent for _, percent, _ in found]
        size = found[0][2].partition(": ")[2] if len(found) == 1 else f"{min(moved):+.1f} to {max(moved):+.1f} %"
        rows = str(found[0][0].series.key.row) if len(found) == 1 else f"{len(found)} rows of {arm}"
        listed = [str(one.series.key.row) for one, _, _ in found]
        out.append({
            "night": str(day), "host": text(host), "change": text(f"{'worse' if worse else 'better'}: {size}"),
            "rows": text(rows) + (details("which", items(listed)) if len(found) > 1 else ""),
            "now": text(f"{status.value}{f': {excused}' if excused else ''}"),
        })  # fmt: skip
    return out


def _withdrawn(told: Sequence[Told]) -> str:
    """Alerts that later nights did not bear out, a line a night: one bad night moves many rows."""
    nights: dict[tuple[str, str], list[float]] = {}
    for one in told:
        for change in one.changes:
            if change.withdrawn:
                place = (str(one.series.nights[change.start].day), one.series.key.host)
                nights.setdefault(place, []).append(100 * one.series.metric.change(change.delta))
    lines = [
        f"{day} on {host}: {len(moved)} rows, {min(moved):+.1f} to {max(moved):+.1f} %"
        for (day, host), moved in sorted(nights.items(), reverse=True)
    ]
    return details(f"Withdrawn alerts on {len(lines)} nights", items(lines)) if lines else ""


def _now(site: Site, view: ScenarioView) -> str:
    file, key = f"data/scenario/{view.file}/recent.js", f"recent:{view.file}"
    lengths = sorted({level.input_tokens for _, level in view.groups if not level.factor})
    per_gpu = any(one.key.row.metric == "output_throughput_per_gpu" for one in view.series)
    throughput = "output_throughput_per_gpu" if per_gpu else "output_throughput"
    figures = ""
    for tp in sorted({tp for tp, _ in view.groups}):
        for length in lengths:
            place = f"TP{tp}" + (f", {length} tokens in" if length else "")
            asks = {"key": key, "file": file, "tp": tp, "input": length}
            figures += figure(
                f"Throughput against interactivity, {place}", "", spec="frontier", metric=throughput, **asks
            )
            for name in ("tpot_p50", "step_time_p50", "accept_length_mean"):
                if any(one.key.row.metric == name for one in view.series):
                    figures += figure(
                        f"{long_label(Metric.of(name))} over load, {place}", "", spec="load", metric=name, **asks
                    )
    return (
        '<h2 id="now">Now</h2><p class="soft">Means over the last nights, seven at most and none from before the last '
        "confirmed change; bars are 90 % t intervals over nights.</p>"
        f'{legend(view.arms)}<div class="charts large">{figures}</div>{now_table(site, view, view.groups)}'
    )


def now_table(site: Site, view: ScenarioView, groups: Sequence[tuple[int, LoadLevel]]) -> str:
    """Every arm at every load: mean and interval of the last nights."""
    told = {one.series.key: one for one in view.told}
    names = [name for name in _NOW if name in site.shown]
    current = {(one.key.row.metric, one.key.row.tp, one.key.row.level, one.key.row.arm): one
               for name in names for one in view.current(name)}  # fmt: skip
    last = max(one.nights[-1].day for one in view.series)
    rows = []
    for tp, level in groups:
        for arm in view.arms:
            cells = {"load": text(f"TP{tp}, {level.label}"), "arm": text(arm)}
            for name in names:
                one = current.get((name, tp, level, arm))
                if one is not None:
                    now = recent(one, told.get(one.key))
                    half = 50 * (now.high - now.low) / now.value
                    spread = f" ± {half:.1f} %" if now.nights > 1 else ""
                    cells[name] = f"{shown_number(now.value, one.metric)}{spread}"
                    day = one.nights[-1].day
                    cells["night"] = str(day) if day == last else f'<strong class="STALE">{day}</strong>'
            if "night" in cells:
                rows.append(cells)
    columns = [Column("load", "load"), Column("arm", "arm")]
    columns += [Column(name, long_label(Metric.of(name)), True) for name in names] + [Column("night", "last night")]
    name = f"now-{view.file}"
    return table(name, "The last nights: mean, and half its 90 % interval", columns, rows, tight=True)


def _runs(site: Site, view: ScenarioView) -> str:
    entries = "".join(
        f'<li><a href="../{text(site.page_of(one.run))}">{text(one.run.id)}</a></li>'
        for one in list(reversed(view.runs))[:14]
    )
    return (
        f"<h2>Last runs</h2><ul>{entries}</ul><p><a href='../runs.html?scenario={text(view.name)}'>All of them</a></p>"
    )
