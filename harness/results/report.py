"""A run as a table for the terminal, as Markdown or JSON. Pure: a run in, text out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from harness.checks.passes import SIMULATED
from harness.engines.registry import ENGINES
from harness.results.lines import Line, Value, crossing, summarise
from harness.scenario.problems import warnings
from harness.store.runs import StoredRun
from harness.text import escape, markdown_table, terminal_table
from harness.units import format_duration


@dataclass(frozen=True)
class Column:
    """A column of the table: what it shows of a line, against what, and which direction is better."""

    title: str
    name: str
    scale: float
    digits: int
    ratio: bool | None = None  # show the ratio to the baseline; True: higher is better


_DEVICE = "device_time_per_token"
COLUMNS = (
    Column("in flight", "achieved_concurrency", 1, 1),
    Column("sent/s", "arrival_rate", 1, 1),
    Column("TTFT ms", "ttft_p50", 1e3, 1),
    Column("TPOT ms", "tpot_p50", 1e3, 2, ratio=False),
    Column("step ms", "step_time_p50", 1e3, 2),
    Column("device ms", _DEVICE, 1e3, 3, ratio=False),
    Column("accept length", "accept_length_mean", 1, 2),
    Column("output tok/s", "output_throughput", 1, 1, ratio=True),
    Column("tok/s /GPU", "output_throughput_per_gpu", 1, 1),
)
_LEGEND = (
    "TTFT, TPOT and step are medians over the n requests of the steady state; in flight and output are means over "
    "it; ratio is to {baseline}."
)
_DEVICE_LEGEND = (
    "device is the time of all forward passes on a GPU, prefill included, for each output token of the pass."
)


@dataclass(frozen=True)
class Report:
    """Everything that a reader gets, in the order in which it is read."""

    headline: str
    valid: bool
    run: str
    question: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    conclusions: tuple[str, ...]
    notes: tuple[str, ...]
    environment: str
    lines: tuple[Line, ...]


def build(run: StoredRun) -> Report:
    """The report of a run, finished or not."""
    lines = summarise(run)
    shown = [c for c in COLUMNS if any(c.name in line.values for line in lines)]
    if all(line.tp == 1 for line in lines):
        shown = [c for c in shown if c.name != "output_throughput_per_gpu"]  # the same as the output
    base = {(line.tp, line.level): line for line in lines if line.arm == run.scenario.baseline_arm}
    headers = ["TP", "rate" if lines[0].level.open_loop else "conc.", "arm", "n"]
    for column in shown:
        headers.append(column.title)
        if column.ratio is not None and len(run.scenario.arms) > 1:
            headers.append("ratio")
    rows = [_row(line, base[line.tp, line.level], shown, len(run.scenario.arms) > 1) for line in lines]
    valid, headline = _headline(run, lines)
    if run.simulated:
        headline = f"SIMULATED, NOT MEASURED. {headline}"
    return Report(
        headline=headline,
        valid=valid,
        run=run.id,
        question=run.scenario.question,
        columns=tuple(headers),
        rows=tuple(rows),
        conclusions=tuple(_conclusions(run, lines)),
        notes=(*_legend(run, shown), *_notes(run, lines)),
        environment=_environment(run),
        lines=tuple(lines),
    )


def _legend(run: StoredRun, shown: list[Column]) -> list[str]:
    device = [_DEVICE_LEGEND] if any(column.name == _DEVICE for column in shown) else []
    return [_LEGEND.format(baseline=run.scenario.baseline_arm), *device]


def _headline(run: StoredRun, lines: list[Line]) -> tuple[bool, str]:
    """The worst thing first: a result can never look better than its worst line."""
    wrong = next((f for launch in run.launches for f in launch.findings if f.invalid), None)
    if wrong:
        return False, f"INVALID: {wrong.message}"
    if run.quarantine:
        return False, f"INVALID: its host was in quarantine ({run.quarantine}); the numbers are kept and judge nothing"
    failed = sum(line.failed for line in lines)
    total = sum(line.requests for line in lines)
    planned = run.scenario.launches * run.scenario.passes * len(lines)
    if run.failed or len(run.passes) < planned:
        reason = f": {run.failed[-1].status}" if run.failed else ""
        what = f"INCOMPLETE: {len(run.passes)} of {planned} passes are complete{reason}"
        return False, f"{what}; {failed} requests failed" if failed else what
    if failed:
        return False, f"INVALID: {failed} of {total} requests failed; only the others are counted"
    invalid = next((f for line in lines for f in line.findings if f.invalid), None)
    if invalid:
        return False, f"INVALID: {invalid.message}"
    return True, f"OK: all {total} requests succeeded in {planned} passes"


def _row(line: Line, base: Line, columns: list[Column], ratios: bool) -> tuple[str, ...]:
    tpot = line.values.get("tpot_p50")
    cells = [str(line.tp), line.level.label, line.arm, str(tpot.n) if tpot else "0"]
    for column in columns:
        value = line.values.get(column.name)
        cells.append(_number(value, column) if value else "–")
        if column.ratio is not None and ratios:
            other = base.get(column.name)
            same = line.arm == base.arm or not value or not other
            cells.append("" if same or not value or not other else f"{value.value / other:.2f}×")
    return tuple(cells)


def _number(value: Value, column: Column) -> str:
    text = f"{value.value * column.scale:.{column.digits}f}"
    if value.launches > 1:
        low, high = value.low * column.scale, value.high * column.scale
        text += f" [{low:.{column.digits}f}–{high:.{column.digits}f}]"
    return text


def _conclusions(run: StoredRun, lines: list[Line]) -> list[str]:
    out = []
    for tp in run.scenario.tp:
        for arm in run.scenario.arms:
            if arm == run.scenario.baseline_arm:
                continue
            for label, name, higher in (
                ("TPOT", "tpot_p50", False),
                ("output", "output_throughput", True),
                ("device time", _DEVICE, False),
            ):
                if name == _DEVICE and not any(name in line.values for line in lines):
                    continue
                for length in run.scenario.workload.input_lengths or [0]:
                    own = [line for line in lines if not line.level.factor]
                    of_length = [line for line in own if line.level.input_tokens == length]
                    sentence = crossing(of_length, run.scenario, arm, tp, name, higher)
                    place = f"TP{tp}, {length} in," if length else f"TP{tp}"
                    out.append(f"{place} {label}: {arm} is {sentence}.")
    return out


def _notes(run: StoredRun, lines: list[Line]) -> list[str]:
    """What was found, kind by kind: what is said of one line is said of no other."""
    places: dict[tuple[str, str], list[str]] = {}
    for line in lines:
        for finding in line.findings:
            if finding.code == SIMULATED.code:  # of the whole run, see below
                continue
            tp = f" TP{line.tp}" if len(run.scenario.tp) > 1 else ""
            places.setdefault((finding.code, finding.message), []).append(f"{line.arm}{tp} at {line.level.label}")
    order = list(dict.fromkeys(code for code, _ in places))
    notes = [
        f"{', '.join(dict.fromkeys(where))}: {message}"
        for (_, message), where in sorted(places.items(), key=lambda item: order.index(item[0][0]))
    ]
    if run.simulated:
        notes.insert(0, _simulated(run.simulated))
        return [*notes, *warnings(run.scenario)]
    arms = run.scenario.resolved_arms()
    untested = [a.name for a in arms if not ENGINES[a.server.engine].meaningful_output(a.server)]
    if any(arm.server.engine == "scripted" for arm in arms):
        notes.append("The server is SCRIPTED: these numbers are its script's, no model ran.")
    if untested:
        notes.append(f"Dummy weights or simulated acceptance in {', '.join(untested)}: text was not checked.")
    return [*notes, *warnings(run.scenario)]


def _simulated(made: dict[str, Any]) -> str:
    injected = ", ".join(
        f"{name} = {one['size']:g}" + (f" in {', '.join(one['arms'])}" if one.get("arms") else "")
        for name, one in made["injected"].items()
    )
    worse = f", injected: {injected}" if injected else ""
    return f"{SIMULATED.message}: {made['hardware']['name']}, seed {made['seed']}{worse}."


def machine_of(run: StoredRun) -> str:
    """Host, and what of it was used: `node-7, 2 of 8 × AMD Instinct MI355X`."""
    environment = run.environment
    if run.simulated:
        return f"simulated {run.simulated['hardware']['name']}, mtpbench {run.simulated['mtpbench']}"
    gpus = environment.get("gpus") or []
    used = len({gpu for launch in run.launches for gpu in launch.gpus})
    cores = f"{environment.get('cores', '?')} CPU core{'' if environment.get('cores') == 1 else 's'}"
    if environment.get("host_cores"):
        cores += f" of {environment['host_cores']}"
    what = f"{used} of {len(gpus)} × {gpus[0]['name']}" if gpus and used else cores
    return f"{environment.get('host', 'unknown host')}, {what}"


def _environment(run: StoredRun) -> str:
    parts = [machine_of(run)]
    if run.simulated:
        return parts[0]
    parts += sorted({f"{k} {v}" for launch in run.launches for k, v in launch.packages.items() if k in _NAMED})
    ready = [launch.ready_seconds for launch in run.launches if launch.ready_seconds]
    if ready:
        parts.append(f"servers ready after {format_duration(min(ready))} to {format_duration(max(ready))}")
    return ", ".join(parts)


_NAMED = ("sglang", "torch", "triton", "aiter", "amd-aiter", "xllamacpp")


def to_rich(report: Report) -> RenderableType:
    """For the terminal."""
    table = terminal_table(report.columns, ("arm",), report.question)
    previous = None
    for row in report.rows:
        if previous is not None and row[:2] != previous:
            table.add_section()
        previous = row[:2]
        table.add_row(*(Text(cell) for cell in row))
    parts: list[RenderableType] = [Text(report.headline, style="bold green" if report.valid else "bold red")]
    parts += [table, *(Text(sentence, style="bold") for sentence in report.conclusions)]
    parts += [Text(f"note: {note}", style="yellow") for note in report.notes]
    parts.append(Text(f"{report.run}  ({report.environment})", style="dim"))
    return Group(*parts)


def to_markdown(report: Report) -> str:
    """For a comment or a README; every name is escaped."""
    out = [f"**{escape(report.headline)}**", "", escape(report.question), ""]
    out += markdown_table(report.columns, report.rows, ("arm",), escape)
    out += ["", *(f"- {escape(sentence)}" for sentence in report.conclusions)]
    out += [f"- note: {escape(note)}" for note in report.notes]
    out += ["", f"<sub>{escape(report.run)} ({escape(report.environment)})</sub>", ""]
    return "\n".join(out)


def to_json(report: Report) -> str:
    """For programs: values in seconds and tokens, not rounded."""

    def line(entry: Line) -> dict[str, Any]:
        return {
            "arm": entry.arm,
            "tp": entry.tp,
            "concurrency": entry.level.concurrency or None,
            "rate": entry.level.rate or None,
            "input_tokens": entry.level.input_tokens or None,
            "factor": entry.level.factor or None,
            "requests": entry.requests,
            "failed": entry.failed,
            "complete": entry.complete,
            "findings": [{"code": f.code, "message": f.message, "invalid": f.invalid} for f in entry.findings],
            "values": {
                name: {
                    "value": v.value,
                    "low": v.low,
                    "high": v.high,
                    "launches": v.launches,
                    "n": v.n,
                }
                for name, v in entry.values.items()
            },
        }

    document = {
        "run": report.run,
        "headline": report.headline,
        "valid": report.valid,
        "question": report.question,
        "conclusions": report.conclusions,
        "notes": report.notes,
        "environment": report.environment,
        "lines": [line(entry) for entry in report.lines],
    }
    return json.dumps(document, indent=1)


RENDERERS: dict[str, Callable[[Report], str]] = {"markdown": to_markdown, "json": to_json}
