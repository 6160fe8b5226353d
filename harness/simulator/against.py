"""Predicted against measured: the simulator run on the scenario of a stored run, line by line.

Acceptance is an input here, taken from the run as measured; times are what is predicted. Launch-to-launch noise is off.
Where SGLang's device timer was on, its forward passes are compared as well: they know nothing of the host.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from harness.errors import MtpbenchError
from harness.metrics.definitions import PassView, distribution
from harness.metrics.tpot_account import engine_steps
from harness.model import LoadLevel, Pass, PassKey
from harness.results.lines import Line, summarise
from harness.scenario.format import Scenario
from harness.scenario.launch_plan import plan_launches
from harness.simulator.causes import Injection
from harness.simulator.hardware import Hardware
from harness.simulator.simulate import AcceptLength, SimulatedLaunch
from harness.store.runs import StoredRun
from harness.text import markdown_table, terminal_table

TARGET = 0.10  # of the median absolute error of TPOT
_QUIET = {"noise": Injection(0.0)}


@dataclass(frozen=True)
class Prediction:
    """A line of the measured run and what the simulator says. Seconds; medians over the steady state's requests."""

    arm: str
    tp: int
    load: str
    input_tokens: int | None
    fitted: bool
    accept_length: float | None
    tpot: float
    predicted_tpot: float
    ttft: float
    predicted_ttft: float

    @property
    def tpot_error(self) -> float:
        return self.predicted_tpot / self.tpot - 1

    @property
    def ttft_error(self) -> float:
        return self.predicted_ttft / self.ttft - 1


@dataclass(frozen=True)
class DeviceRow:
    """Device seconds of one kind of forward pass: of a prompt for `extend`, else of a decode step."""

    arm: str
    tp: int
    load: str
    input_tokens: int | None
    forward: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class Against:
    """All lines of a run that have a measured value."""

    run: str
    machine: str
    rows: tuple[Prediction, ...]
    device: tuple[DeviceRow, ...] = ()

    def device_error(self, forward: str) -> float | None:
        """Median of |predicted / measured - 1| of one kind of forward pass. None: it was not timed."""
        errors = [abs(row.error) for row in self.device if row.forward == forward]
        return median(errors) if errors else None

    def error(self, which: str, fitted: bool | None = None) -> float | None:
        """Median of |predicted / measured - 1| of `tpot` or `ttft`, over such rows only. None: there is none."""
        errors = [abs(getattr(row, f"{which}_error")) for row in self.rows if fitted in (None, row.fitted)]
        return median(errors) if errors else None


def against(run: StoredRun, hardware: Hardware, seed: int = 1) -> Against:
    """Simulates what a stored run measured. Raises MtpbenchError for a simulated run, or another machine's."""
    if run.simulated:
        raise MtpbenchError(f"{run.id} is simulated itself", "Give the folder of a measured run.")
    rows, device = [], []
    for row, of_device in _rows(run, hardware, seed):
        rows.append(row)
        device += of_device
    if not rows:
        raise MtpbenchError(f"{run.id} holds no complete pass to compare with")
    return Against(run.id, hardware.name, tuple(rows), tuple(device))


def _rows(run: StoredRun, hardware: Hardware, seed: int) -> Iterator[tuple[Prediction, list[DeviceRow]]]:
    plans = {(plan.arm.name, plan.tp): plan for plan in plan_launches(run.scenario) if plan.launch == 0}
    for line in summarise(run):
        tpot, ttft, accepted = line.get("tpot_p50"), line.get("ttft_p50"), line.get("accept_length_mean")
        if tpot is None or ttft is None:
            continue
        given = AcceptLength(accepted, 0.0) if accepted else None
        served = any(
            evidence.get("serves_draft_extend")
            for record in run.launches
            if (record.arm, record.tp) == (line.arm, line.tp)
            for evidence in record.evidence
        )
        plan = plans[line.arm, line.tp]
        launch = SimulatedLaunch(run.scenario, hardware, plan, seed, _QUIET, given, serves_draft_extend=served)
        simulated = launch.run(PassKey(0, line.arm, line.tp, line.level, 0), 100.0)
        view = PassView.of(simulated)
        predicted_tpot, predicted_ttft = (distribution(name, view).percentiles[50] for name in ("tpot", "ttft"))
        if predicted_tpot is not None and predicted_ttft is not None:
            row = Prediction(
                arm=line.arm,
                tp=line.tp,
                load=line.level.load,
                input_tokens=line.level.input_tokens or run.scenario.workload.max_input,
                fitted=_fitted(line, run.scenario, hardware),
                accept_length=accepted,
                tpot=tpot,
                predicted_tpot=predicted_tpot,
                ttft=ttft,
                predicted_ttft=predicted_ttft,
            )
            measured = [
                one
                for one in run.passes
                if (one.record.key.arm, one.record.key.tp, one.record.key.level) == (line.arm, line.tp, line.level)
            ]
            yield row, _device_rows(row, measured, simulated)


def _device_rows(row: Prediction, measured: Sequence[Pass], simulated: Pass) -> list[DeviceRow]:
    """Forward passes that both know, each as the mean over the measured passes."""
    theirs = [device_seconds(one) for one in measured]
    ours = device_seconds(simulated)
    known = [name for name in ours if theirs and all(name in one for one in theirs)]
    return [
        DeviceRow(row.arm, row.tp, row.load, row.input_tokens, name, fmean(one[name] for one in theirs), ours[name])
        for name in known
    ]


def device_seconds(one: Pass) -> dict[str, float]:
    """Device seconds by kind of forward pass, of a prompt for `extend`, else of a decode step.

    Plain `decode` is left out: its timer spans the host's time between two graphs too.
    """
    steps, out = engine_steps(PassView.of(one)), {}
    for forward, seconds in one.record.device_seconds.items():
        if forward != "decode" and seconds > 0:
            count = len(one.requests) if forward == "extend" else steps
            if count > 0:
                out[forward] = seconds / count
    return out


def _fitted(line: Line, scenario: Scenario, hardware: Hardware) -> bool:
    level: LoadLevel = line.level
    return any(
        one.scenario == scenario.name
        and one.model in (None, getattr(scenario.server, "model", None))
        and one.tp == line.tp
        and line.arm in one.arms
        and level.concurrency in one.concurrency
        and (one.input_tokens is None or one.input_tokens == level.input_tokens)
        for one in hardware.fitted_on
    )


def _sentence(result: Against) -> str:
    parts = []
    for which in ("tpot", "ttft"):
        every, new = result.error(which), result.error(which, fitted=False)
        predicted = f", {100 * new:.1f} % over those that nothing was fitted on" if new is not None else ""
        parts.append(f"{which.upper()} is off by {100 * (every or 0):.1f} % in the median of all lines{predicted}")
    timed = [(forward, error) for forward in FORWARDS if (error := result.device_error(forward)) is not None]
    if timed:
        parts.append("on the device " + ", ".join(f"{forward} by {100 * error:.1f} %" for forward, error in timed))
    return "; ".join(parts) + "."


def together(results: Sequence[Against]) -> str:
    """All lines of several runs as one, in a sentence."""
    whole = Against("", results[0].machine, tuple(row for one in results for row in one.rows))
    predicted = sum(not row.fitted for row in whole.rows)
    return f"{len(results)} runs, {len(whole.rows)} lines, {predicted} predicted: {_sentence(whole)}"


def to_rich(result: Against) -> RenderableType:
    """For the terminal."""
    table = terminal_table(HEADERS, _LEFT, f"{result.run} against a SIMULATED {result.machine}")
    for row in result.rows:
        table.add_row(*(Text(cell) for cell in cells(row)))
    parts: list[RenderableType] = [table]
    if result.device:
        parts.append(_device_table(result))
    return Group(*parts, Text(_sentence(result), style="bold"))


def _device_table(result: Against) -> Table:
    title = f"The device's forward passes, ms: measured, SIMULATED {result.machine}, error"
    table = terminal_table(_DEVICE_HEADERS, _LEFT, title)
    for cells_of_row in device_cells(result):
        table.add_row(*(Text(cell) for cell in cells_of_row))
    return table


# SGLang's names for its forward passes; `extend` is prefill, of a whole prompt.
FORWARDS = ("extend", "target_verify", "eagle_draft", "eagle_draft_extend")
_DEVICE_HEADERS = ("TP", "in", "conc.", "arm", *FORWARDS)
_LEFT = ("arm", "")  # columns of text


def device_cells(result: Against) -> list[tuple[str, ...]]:
    """One row of text for each line: `measured simulated error` under each of FORWARDS."""
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for row in result.device:
        where = (str(row.tp), str(row.input_tokens or "–"), row.load, row.arm)
        text = f"{1e3 * row.measured:.2f}  {1e3 * row.predicted:.2f}  {100 * row.error:+.0f} %"
        lines.setdefault(where, {})[row.forward] = text
    return [(*where, *(found.get(forward, "") for forward in FORWARDS)) for where, found in lines.items()]


HEADERS = (
    "TP",
    "in",
    "conc.",
    "arm",
    "accept length",
    "TPOT ms",
    "simulated",
    "error",
    "TTFT ms",
    "simulated",
    "error",
    "",
)


def cells(row: Prediction) -> tuple[str, ...]:
    """A row as text, in the order of HEADERS."""
    return (
        str(row.tp),
        str(row.input_tokens or "–"),
        row.load,
        row.arm,
        f"{row.accept_length:.2f}" if row.accept_length else "–",
        f"{1e3 * row.tpot:.2f}",
        f"{1e3 * row.predicted_tpot:.2f}",
        f"{100 * row.tpot_error:+.0f} %",
        f"{1e3 * row.ttft:.1f}",
        f"{1e3 * row.predicted_ttft:.1f}",
        f"{100 * row.ttft_error:+.0f} %",
        "fitted" if row.fitted else "predicted",
    )


def to_markdown(result: Against) -> str:
    """For a document."""
    out = markdown_table(HEADERS, map(cells, result.rows), _LEFT)
    if result.device:
        out += ["", "The device's forward passes, ms: measured, simulated, error.", ""]
        out += markdown_table(_DEVICE_HEADERS, device_cells(result), _LEFT)
    return "\n".join([*out, "", _sentence(result), ""])


def to_json(result: Against) -> str:
    """For programs."""
    document = {
        "run": result.run,
        "machine": result.machine,
        "simulated": True,
        "tpot_error": {"all": result.error("tpot"), "predicted": result.error("tpot", fitted=False)},
        "ttft_error": {"all": result.error("ttft"), "predicted": result.error("ttft", fitted=False)},
        "device_error": {forward: result.device_error(forward) for forward in FORWARDS},
        "rows": [asdict(row) for row in result.rows],
        "device": [asdict(row) for row in result.device],
    }
    return json.dumps(document, indent=1)


RENDERERS = {"markdown": to_markdown, "json": to_json}
