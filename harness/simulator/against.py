"""Predicted against measured: the simulator run on the scenario of a stored run, line by line.

Acceptance is an input here, taken from the run as measured; times are what is predicted. Launch-to-launch noise is off.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from statistics import median

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from harness.errors import MtpbenchError
from harness.metrics import PassView, distribution
from harness.model import LoadLevel, PassKey
from harness.plan import plan_launches
from harness.simulator.causes import Injection
from harness.simulator.hardware import Hardware
from harness.simulator.simulate import AcceptLength, SimulatedLaunch
from harness.store import StoredRun
from harness.summary import Line, summarise

TARGET = 0.10  # of the median absolute error of TPOT
_QUIET = {"noise": Injection(0.0)}


@dataclass(frozen=True)
class Row:
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
class Against:
    """All lines of a run that have a measured value."""

    run: str
    machine: str
    rows: tuple[Row, ...]

    def error(self, which: str, fitted: bool | None = None) -> float | None:
        """Median of |predicted / measured - 1| of `tpot` or `ttft`, over such rows only. None: there is none."""
        errors = [abs(getattr(row, f"{which}_error")) for row in self.rows if fitted in (None, row.fitted)]
        return median(errors) if errors else None


def against(run: StoredRun, hardware: Hardware, seed: int = 1) -> Against:
    """Simulates what a stored run measured. Raises MtpbenchError for a simulated run, or another machine's."""
    if run.simulated:
        raise MtpbenchError(f"{run.id} is simulated itself", "Give the folder of a measured run.")
    rows = tuple(_rows(run, hardware, seed))
    if not rows:
        raise MtpbenchError(f"{run.id} holds no complete pass to compare with")
    return Against(run.id, hardware.name, rows)


def _rows(run: StoredRun, hardware: Hardware, seed: int) -> Iterator[Row]:
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
        view = PassView.of(launch.run(PassKey(0, line.arm, line.tp, line.level, 0), 100.0))
        predicted_tpot, predicted_ttft = (distribution(name, view).percentiles[50] for name in ("tpot", "ttft"))
        if predicted_tpot is not None and predicted_ttft is not None:
            yield Row(
                arm=line.arm,
                tp=line.tp,
                load=line.level.load,
                input_tokens=line.level.input_tokens or run.scenario.workload.max_input,
                fitted=_fitted(line, run.scenario.name, hardware),
                accept_length=accepted,
                tpot=tpot,
                predicted_tpot=predicted_tpot,
                ttft=ttft,
                predicted_ttft=predicted_ttft,
            )


def _fitted(line: Line, scenario: str, hardware: Hardware) -> bool:
    level: LoadLevel = line.level
    return any(
        one.scenario == scenario
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
    return "; ".join(parts) + "."


def to_rich(result: Against) -> RenderableType:
    """For the terminal."""
    title = Text(f"{result.run} against a SIMULATED {result.machine}")
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for name in HEADERS:
        table.add_column(name, justify="left" if name in ("arm", "") else "right")
    for row in result.rows:
        table.add_row(*(Text(cell) for cell in cells(row)))
    return Group(table, Text(_sentence(result), style="bold"))


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


def cells(row: Row) -> tuple[str, ...]:
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
    out = ["| " + " | ".join(HEADERS) + " |"]
    out.append("|" + "|".join("---" if name in ("arm", "") else "---:" for name in HEADERS) + "|")
    out += ["| " + " | ".join(cells(row)) + " |" for row in result.rows]
    return "\n".join([*out, "", _sentence(result), ""])


def to_json(result: Against) -> str:
    """For programs."""
    document = {
        "run": result.run,
        "machine": result.machine,
        "simulated": True,
        "tpot_error": {"all": result.error("tpot"), "predicted": result.error("tpot", fitted=False)},
        "ttft_error": {"all": result.error("ttft"), "predicted": result.error("ttft", fitted=False)},
        "rows": [asdict(row) for row in result.rows],
    }
    return json.dumps(document, indent=1)


RENDERERS = {"markdown": to_markdown, "json": to_json}
