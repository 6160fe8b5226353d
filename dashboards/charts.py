"""Charts: of one run on its own page, and those of the site. The only place that imports altair.

A site has thousands of charts and few kinds. Each kind's specification is made once, with named data sets and tokens
(`__UNIT__`) in place of what differs; assets/site.js puts that in where a chart comes into view.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import altair as alt
import pandas as pd

from harness.explain.answer import Explanation
from harness.results.lines import Line


@dataclass(frozen=True)
class Panel:
    """One chart: a metric over load."""

    title: str
    name: str
    scale: float
    unit: str


PANELS = (
    Panel("Time per output token (TPOT), median", "tpot_p50", 1e3, "ms"),
    Panel("Time to first token (TTFT), median", "ttft_p50", 1e3, "ms"),
    Panel("Output throughput", "output_throughput", 1, "tokens/s"),
    Panel("Accept length, mean", "accept_length_mean", 1, "tokens a step"),
    Panel("Device time of all forward passes, an output token", "device_time_per_token", 1e3, "ms"),
)

# Okabe and Ito's palette: distinct for colour-blind readers, on light and on dark.
_COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]
_EVENT, _ODD = "#8c959f", "#CC3311"


def colours(arms: Sequence[str]) -> dict[str, str]:
    """Each arm's colour: the same in every chart of a page."""
    return {arm: _COLOURS[n % len(_COLOURS)] for n, arm in enumerate(arms)}


def frame(lines: Sequence[Line], names: Sequence[str]) -> pd.DataFrame:
    """One row a line, the columns that charts use; units as stored."""
    several = len({line.tp for line in lines}) > 1
    return pd.DataFrame(
        [
            {
                "series": f"{line.arm}, TP{line.tp}" if several else line.arm,
                "load": line.level.value,
                **{name: line.get(name) for name in names},
                **{f"{name}_low": v.low for name in names if (v := line.values.get(name))},
                **{f"{name}_high": v.high for name in names if (v := line.values.get(name))},
            }
            for line in lines
        ]
    )


def panels(lines: Sequence[Line]) -> list[tuple[str, dict[str, Any]]]:
    """(title, Vega-Lite specification) of each panel that has data, a chart for each prompt length where several are
    swept. Factors are for `explain`, not for curves."""
    lines = [line for line in lines if not line.level.factor]
    if not lines:
        return []
    lengths = sorted({line.level.input_tokens for line in lines})
    colour = _colour(lines)
    kinds: list[tuple[str, str, Callable[..., Any]]] = [
        (panel.title, panel.name, functools.partial(_over_load, panel=panel)) for panel in PANELS
    ]
    kinds.append(("Throughput against interactivity", "interactivity", _frontier))
    charts = []
    for title, name, draw in kinds:
        for length in lengths:
            some = [line for line in lines if line.level.input_tokens == length]
            if any(line.get(name) is not None for line in some):
                caption = f"{title}: {length} tokens in" if len(lengths) > 1 else title
                charts.append((caption, draw(some, colour=colour).to_dict()))
    return charts


def _over_load(lines: Sequence[Line], panel: Panel, colour: alt.Color) -> Any:
    data = frame(lines, [panel.name]).dropna(subset=[panel.name])
    for suffix in ("", "_low", "_high"):
        data[panel.name + suffix] = data[panel.name + suffix] * panel.scale
    open_loop = lines[0].level.open_loop
    levels = sorted({line.level.value for line in lines})
    x = alt.X(
        "load:Q",
        title="requests a second" if open_loop else "concurrency",
        scale=alt.Scale(type="linear" if open_loop else "log", base=2, nice=False),
        axis=alt.Axis(values=levels, format="~g"),
    )
    y = alt.Y(f"{panel.name}:Q", title=panel.unit, scale=alt.Scale(zero=True))
    tooltip = [
        alt.Tooltip("series:N", title="arm"),
        alt.Tooltip("load:Q", title="load"),
        alt.Tooltip(f"{panel.name}:Q", title=panel.unit, format=".4~g"),
    ]
    base = alt.Chart(data).encode(x=x, color=colour)
    line = base.mark_line(point=alt.OverlayMarkDef(size=60)).encode(y=y, tooltip=tooltip)
    spread = base.mark_rule(strokeWidth=2, opacity=0.6).encode(
        y=alt.Y(f"{panel.name}_low:Q", title=panel.unit), y2=f"{panel.name}_high:Q"
    )
    return alt.layer(spread, line).properties(width="container", height=230)


def _frontier(lines: Sequence[Line], colour: alt.Color) -> Any:
    per_gpu = any(line.get("output_throughput_per_gpu") for line in lines)
    name = "output_throughput_per_gpu" if per_gpu else "output_throughput"
    data = frame(lines, ["interactivity", name]).dropna(subset=["interactivity", name])
    x = alt.X("interactivity:Q", title="interactivity (1 / median TPOT), tokens/s for one user")
    y = alt.Y(f"{name}:Q", title="tokens/s a GPU" if per_gpu else "tokens/s")
    order = alt.Order("load:Q")
    base = alt.Chart(data).encode(x=x, y=y, color=colour)
    line = base.mark_line(point=alt.OverlayMarkDef(size=60)).encode(
        order=order,
        tooltip=[
            alt.Tooltip("series:N", title="arm"),
            alt.Tooltip("load:Q", title="load"),
            alt.Tooltip("interactivity:Q", format=".4~g"),
            alt.Tooltip(f"{name}:Q", format=".4~g"),
        ],
    )
    labels = base.mark_text(dy=-10).encode(text="load:Q")
    return alt.layer(line, labels).properties(width="container", height=280)


def _colour(lines: Sequence[Line]) -> alt.Color:
    """The same colour for an arm in every chart, also where another arm has no value."""
    series = list(dict.fromkeys(frame(lines, [])["series"]))
    scale = alt.Scale(domain=series, range=[_COLOURS[n % len(_COLOURS)] for n in range(len(series))])
    return alt.Color("series:N", title=None, scale=scale, legend=alt.Legend(orient="top"))


@dataclass(frozen=True)
class Bar:
    """A row of a comparison; numbers are percent for the worse: above zero is slower, whichever way is better."""

    label: str
    change: float
    low: float
    high: float
    floor: float | None
    verdict: str


def forest(bars: Sequence[Bar], dark: bool) -> dict[str, Any]:
    """Each row's change with its 90 % interval, over what equal servers differ by; a Vega-Lite specification."""
    ink, soft, line, paper = ("#e6edf3", "#9198a1", "#3d444d", "#0d1117") if dark else _LIGHT
    data = pd.DataFrame([bar.__dict__ for bar in bars])
    data["floor"] = data["floor"].astype("float64")
    data["floor_low"] = -data["floor"]
    y = alt.Y("label:N", sort=[bar.label for bar in bars], title=None, axis=alt.Axis(labelLimit=340, grid=False))
    verdicts = alt.Scale(domain=list(_VERDICTS), range=[_VERDICTS[verdict][dark] for verdict in _VERDICTS])
    present = [verdict for verdict in _VERDICTS if any(bar.verdict == verdict for bar in bars)]
    legend = alt.Legend(orient="bottom", title=None, values=present)
    colour = alt.Color("verdict:N", scale=verdicts, legend=legend)
    base = alt.Chart(data).encode(y=y)
    grey = "; grey: what equal servers differ by" if data["floor"].notna().any() else ""
    title = f"worse by, % (90 % interval; dashed: the 2 % that a FAIL must exceed{grey})"
    x = alt.X("low:Q", title=title, axis=alt.Axis(format="+~g"))
    floor = base.mark_bar(color=soft, opacity=0.3, height=11).encode(x=alt.X("floor_low:Q", title=title), x2="floor:Q")
    span = base.mark_rule(strokeWidth=3).encode(x=x, x2="high:Q", color=colour)
    point = base.mark_point(filled=True, size=70, opacity=1).encode(x=alt.X("change:Q", title=title), color=colour)
    zero = alt.Chart(pd.DataFrame({"at": [0.0]})).mark_rule(color=ink).encode(x="at:Q")
    limit = alt.Chart(pd.DataFrame({"at": [2.0]})).mark_rule(color=ink, strokeDash=[4, 3]).encode(x="at:Q")
    chart = alt.layer(floor, zero, limit, span, point).properties(width=480, height=alt.Step(22), background=paper)
    axis = {"labelColor": ink, "titleColor": soft, "gridColor": line, "domainColor": line, "tickColor": line}
    styled = chart.configure_view(stroke=None).configure_axis(**axis, titleFontWeight="normal")
    return dict(styled.configure_legend(labelColor=ink).to_dict())


_LIGHT = ("#1b1f24", "#59636e", "#d1d9e0", "#ffffff")
_VERDICTS = {  # verdict → colour on a light and on a dark page
    "FAIL": ("#b3261e", "#ff7b72"),
    "IMPROVED": ("#1a7f37", "#56d364"),
    "PASS": ("#0072B2", "#56B4E9"),
    "INCONCLUSIVE": ("#9a6700", "#E69F00"),
    "BIMODAL": ("#8250df", "#CC79A7"),
}


@functools.cache  # altair checks each against its schema, which takes seconds
def site_specs() -> dict[str, dict[str, Any]]:
    """Specifications of the site's charts, by kind; what their data sets hold is said in each."""
    kinds = {"nights": _nights(), "load": _load("log"), "load_open": _load("linear"), "frontier": _points()}
    return {name: chart.to_dict() for name, chart in kinds.items()}


def vega_lite_version(schema: str) -> str:
    """The version that altair writes into specifications: …/vega-lite/v6.1.0.json → 6.1"""
    return ".".join(schema.rsplit("/v", 1)[-1].split(".")[:2])


def _as_given() -> alt.Color:
    return alt.Color("colour:N", scale=None, legend=None)


def _nights() -> Any:
    """A value over nights: `nights` (t, day, value, shown, arm, colour, part), `bands` (t, low, high: what equal
    servers differ by), `events` (t, day, words: what changed in the environment), `marks` (changes: t, value, words)
    and `odd` (nights in quarantine)."""
    x = alt.X(
        "t:T",
        title=None,
        scale=alt.Scale(type="utc", domain=["__FROM__", "__TO__"]),
        axis=alt.Axis(format="%-d %b", labelOverlap=True, tickCount=4, grid=False),
    )
    y = alt.Y("value:Q", title="__UNIT__", scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=4))

    def layer(name: str) -> alt.Chart:
        return alt.Chart(alt.NamedData(name)).encode(x=x)

    band = (
        layer("bands")
        .mark_area(opacity=0.1, aria=False)
        .encode(
            y=alt.Y("low:Q", title="__UNIT__", scale=alt.Scale(zero=False)),
            y2="high:Q",
            color=_as_given(),
            detail="part:N",
        )
    )
    events = (
        layer("events")
        .mark_rule(color=_EVENT, strokeDash=[3, 3], strokeWidth=1.5)
        .encode(tooltip=[alt.Tooltip("day:N", title="night"), alt.Tooltip("words:N", title="changed")])
    )
    night = [
        alt.Tooltip("day:N", title="night"),
        alt.Tooltip("arm:N"),
        alt.Tooltip("shown:N", title="value"),
    ]
    line = layer("nights").mark_line(strokeWidth=1.2, aria=False).encode(y=y, color=_as_given(), detail="part:N")
    dots = (
        layer("nights")
        .mark_circle(size=14, opacity=0.6, aria=False)
        .encode(y=y, color=_as_given(), tooltip=[*night, alt.Tooltip("host:N")])
    )
    odd = (
        layer("odd")
        .mark_text(text="✕", fontSize=12, color=_ODD)
        .encode(y=y, tooltip=[*night, alt.Tooltip("why:N", title="quarantined")])
    )
    marks = (
        layer("marks")
        .mark_point(shape="triangle-up", size=110, filled=True, stroke="white", strokeWidth=1, yOffset=9, opacity=1)
        .encode(y=y, color=_as_given(), tooltip=[*night, alt.Tooltip("words:N", title="change")])
    )
    return alt.layer(band, events, line, dots, odd, marks).properties(width="container", height=150)


def _load(scale: Literal["log", "linear"]) -> Any:
    """A metric over load, in a closed or an open loop: `points` (series, colour, dash, load, label, value, low, high
    over launches)."""
    x = alt.X(
        "load:Q",
        title="concurrency" if scale == "log" else "requests a second",
        scale=alt.Scale(type=scale, base=2, nice=False) if scale == "log" else alt.Scale(type=scale, nice=False),
        axis=alt.Axis(values=["__LEVELS__"], format="~g", labelOverlap=True, grid=False),
    )
    y = alt.Y("value:Q", title="__UNIT__", scale=alt.Scale(zero=True))
    dash = alt.StrokeDash("dash:N", scale=alt.Scale(domain=["a", "b"], range=[[1, 0], [5, 3]]), legend=None)
    base = alt.Chart(alt.NamedData("points")).encode(x=x, color=_as_given(), detail="series:N")
    line = base.mark_line(aria=False).encode(y=y, strokeDash=dash)
    dots = base.mark_circle(size=45, opacity=1, aria=False).encode(y=y, tooltip=_of_point("value", "__UNIT__"))
    spread = base.mark_rule(strokeWidth=2, opacity=0.6, aria=False).encode(y=alt.Y("low:Q"), y2="high:Q")
    return alt.layer(spread, line, dots).properties(width="container", height=210)


def _points() -> Any:
    """Throughput against interactivity: `points` (series, colour, load, label, x, xlow, xhigh, y, ylow, yhigh)."""
    x = alt.X("x:Q", title="tokens/s for one user (1 / median TPOT)", scale=alt.Scale(zero=False))
    y = alt.Y("y:Q", title="__UNIT__", scale=alt.Scale(zero=True))
    base = alt.Chart(alt.NamedData("points")).encode(color=_as_given(), detail="series:N")
    line = base.mark_line(aria=False).encode(x=x, y=y, order=alt.Order("load:Q"))
    dots = base.mark_circle(size=45, opacity=1, aria=False).encode(
        x=x,
        y=y,
        tooltip=[*_of_point("y", "__UNIT__"), alt.Tooltip("x:Q", title="tokens/s for one user", format=".4~g")],
    )
    across = base.mark_rule(strokeWidth=2, opacity=0.6, aria=False).encode(x=alt.X("xlow:Q"), x2="xhigh:Q", y=y)
    along = base.mark_rule(strokeWidth=2, opacity=0.6, aria=False).encode(x=x, y=alt.Y("ylow:Q"), y2="yhigh:Q")
    labels = base.mark_text(dy=-11, aria=False).encode(x=x, y=y, text="label:N")
    return alt.layer(across, along, line, dots, labels).properties(width="container", height=260)


def _of_point(field: str, title: str) -> list[alt.Tooltip]:
    return [
        alt.Tooltip("series:N", title="arm"),
        alt.Tooltip("label:N", title="load"),
        alt.Tooltip(f"{field}:Q", title=title, format=".4~g"),
    ]


def account_panels(explanation: Explanation) -> list[tuple[str, dict[str, Any]]]:
    """(title, Vega-Lite specification): how the parts of a change of TPOT add up, and what TPOT consists of."""
    return [
        ("What changed TPOT, part by part", _waterfall(explanation).to_dict()),
        ("What TPOT consists of", _composition(explanation).to_dict()),
    ]


_SHORT = {
    "acceptance": "accept length",
    "step": "decode step",
    "batch": "other batches",
    "interference": "prefill",
    "stalls": "stalls",
}
_SEEN_ON_BOTH = "#7d8590"  # on a light page and on a dark one
_PART_COLOURS = dict(zip([*_SHORT.values(), "TPOT"], [*_COLOURS[:5], "#a8b1bb"], strict=True))


def _waterfall(explanation: Explanation) -> Any:
    """Each part begins where the one before ended; the last bar is the whole. Rules are 90 % intervals."""
    rows: list[dict[str, Any]] = []
    at = 0.0
    for row in (*explanation.rows, explanation.tpot):
        whole = row is explanation.tpot
        start = 0.0 if whole else at
        change = row.change
        at = start + change.mean
        rows.append(
            {
                "part": "TPOT" if whole else _SHORT[row.name],
                "start": 100 * start,
                "end": 100 * at,
                "low": 100 * (start + change.low) if change.known else None,
                "high": 100 * (start + change.high) if change.known else None,
                "change": 100 * change.mean,
                "beside": 100 * max(start, at),
                "text": f"{100 * change.mean:+.1f} %",
            }
        )
    data = pd.DataFrame(rows).astype({"low": "float64", "high": "float64"})
    order = [str(row["part"]) for row in rows]
    y = alt.Y("part:N", title=None, sort=order, axis=alt.Axis(labelLimit=110))
    colour = alt.Color(
        "part:N", legend=None, scale=alt.Scale(domain=order, range=[_PART_COLOURS[name] for name in order])
    )
    base = alt.Chart(data).encode(y=y)
    tooltip = [alt.Tooltip("part:N"), alt.Tooltip("text:N", title="of TPOT")]
    ends = [float(row[key]) for row in rows for key in ("start", "end", "low", "high") if row[key] is not None]
    room = 0.2 * (max(ends) - min(ends))  # for the figure beside the longest bar
    scale = alt.Scale(domain=[min(ends), max(ends) + room], nice=False)
    bars = base.mark_bar(height={"band": 0.6}).encode(
        x=alt.X("start:Q", title="% of base's TPOT", scale=scale), x2="end:Q", color=colour, tooltip=tooltip
    )
    layers = [bars]
    if any(row["low"] is not None for row in rows):
        layers.append(base.mark_rule(strokeWidth=2, color=_SEEN_ON_BOTH).encode(x="low:Q", x2="high:Q"))
        tick = base.mark_tick(thickness=2, height=10, color=_SEEN_ON_BOTH)
        layers += [tick.encode(x=f"{end}:Q") for end in ("low", "high")]
    labels = base.mark_text(align="left", dx=6, dy=-14).encode(x="beside:Q", text="text:N")
    return alt.layer(*layers, labels).properties(width="container", height=44 * len(rows))


def _composition(explanation: Explanation) -> Any:
    """TPOT of both sides, stacked: milliseconds of a token that go to each part. Stalls below zero are not drawn."""
    case = explanation.case
    accepted = {row.name: row for row in explanation.rows}["acceptance"]
    parts = [row for row in explanation.rows if row.name in ("step", "interference", "stalls")]
    if explanation.device:
        parts = [*explanation.device, *parts[1:]]
    rows = []
    for position, row in enumerate(parts):
        label = _SHORT.get(
            row.name, row.label.removeprefix("device: ").replace("the device waits for the host", "host")
        )
        for side, value, length in (("base", row.base, accepted.base), ("head", row.head, accepted.head)):
            name = case.base.name if side == "base" else case.head.name
            a_token = value if row.unit == "s/token" else value / length
            rows.append({"side": side, "name": name, "part": label, "ms": max(0.0, 1e3 * a_token), "n": position})
    data = pd.DataFrame(rows)
    order = list(dict.fromkeys(data["part"]))
    colours = [_COLOURS[n % len(_COLOURS)] for n in range(len(order))]
    chart = alt.Chart(data).mark_bar(height={"band": 0.6})
    return chart.encode(
        y=alt.Y("side:N", title=None, sort=["base", "head"]),
        x=alt.X("sum(ms):Q", title="ms a token"),
        color=alt.Color(
            "part:N",
            title=None,
            scale=alt.Scale(domain=order, range=colours),
            legend=alt.Legend(orient="bottom", columns=2, labelLimit=160),
        ),
        order=alt.Order("n:Q"),
        tooltip=[alt.Tooltip("name:N"), alt.Tooltip("part:N"), alt.Tooltip("sum(ms):Q", title="ms", format=".3~g")],
    ).properties(width="container", height=130)
