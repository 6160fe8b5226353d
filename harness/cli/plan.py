"""The verbs around a night: what each job measures, what is missing, whether this place can measure, who is told."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from harness.cli.common import NeedGpu, check_format, err, out
from harness.cli.group import verbs_of_a_file
from harness.cli.store import local, put, say_left_out
from harness.errors import MtpbenchError
from harness.machine.inside import Inside, inspect_image
from harness.nightly.blocks import ASSUMED, SIMULATED, Cost, CostOf, Plan, make_plan, missing, stored_costs
from harness.nightly.notices import STATE_FILE, after_a_night, on_watch, send, state_of
from harness.scenario import yaml_file
from harness.scenario.format import Scenario
from harness.simulator.hardware import load_hardware
from harness.simulator.simulate import simulate_run
from harness.store.archive import read_archive
from harness.store.remote import Remote, is_url
from harness.store.runs import StoredRun, utc_now, write_atomically
from harness.text import escape
from harness.units import parse_duration

_READY_SHARE = 0.3  # of what a server may take to become ready: what it takes where nothing is stored
_MACHINES = {"amd": "mi355x.yaml", "nvidia": "h200.yaml"}
_WEBHOOK = "MTPBENCH_WEBHOOK"


verbs = verbs_of_a_file()


@verbs.command()
def plan(
    scenarios: Annotated[list[Path], typer.Argument(metavar="SCENARIO...", help="What the night measures.")],
    store: Annotated[str, typer.Option(help="Whose launches say how long each takes: a folder or a URL.")] = "runs",
    limit: Annotated[str, typer.Option(help="What a job may measure for, such as 210min.")] = "210min",
    assume: Annotated[str, typer.Option(help="Of a launch that is neither stored nor can be simulated.")] = "30min",
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the plan here, for `ci missing`.")] = None,
    output_format: Annotated[
        str, typer.Option("--format", help="table, json or matrix (of GitHub Actions: strategy.matrix).")
    ] = "table",
) -> None:
    """Cut a night into jobs that each fit a time limit: a scenario with some of its arms.

    A launch takes what its last stored ones took; else what the simulator says; else --assume. The table says which.
    """
    check_format(output_format, ("json", "matrix"))
    loaded = [(str(path), yaml_file.load(path)) for path in scenarios]
    cost = cost_of(store, Path(scenarios[0]).parent / "hardware", parse_duration(assume))
    made = make_plan(loaded, cost, parse_duration(limit), utc_now())
    text = json.dumps(made.to_json(), indent=1) + "\n"
    if output is not None:
        write_atomically(output, text.encode())
    if output_format == "json":
        sys.stdout.write(text)
    elif output_format == "matrix":
        sys.stdout.write(json.dumps(_matrix(made)) + "\n")
    else:
        out.print(_table(made))


def read_plan(file: Path) -> Plan:
    """What `mtpbench ci plan --output FILE` wrote. Raises MtpbenchError."""
    try:
        return Plan.from_json(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise MtpbenchError(f"{file} can't be read: {error}", "mtpbench ci plan --output FILE") from error


def cost_of(store: str, machines: Path, assumed: float) -> CostOf:
    """What a launch takes: as stored, else as the simulator says with a file of `machines`, else as assumed."""
    stored, guessed = stored_costs(_runs(store)), _guess(machines, assumed)

    def cost(scenario: Scenario, arm: str, tp: int) -> Cost:
        return stored.get((scenario.name, arm, tp)) or guessed(scenario, arm, tp)

    return cost


def _runs(store: str) -> list[StoredRun]:
    """What a store holds; a folder that is not there yet holds nothing."""
    if not is_url(store) and not Path(store).is_dir():
        return []
    archive = read_archive(local(store))
    say_left_out(archive.left_out)
    return [one.run for one in archive.kept if one.nightly]


def _guess(machines: Path, assumed: float) -> CostOf:
    """What a launch takes that was never measured: the simulator's passes, warm-ups included, and a start."""

    def cost(scenario: Scenario, arm: str, tp: int) -> Cost:
        server = scenario.server
        machine = machines / _MACHINES.get(str(getattr(server, "gpu_vendor", "")), "none")
        if not machine.is_file():
            return Cost(assumed, ASSUMED)
        one = scenario.model_copy(update={"tp": [tp], "launches": 1})
        try:
            passes = simulate_run(one, load_hardware(machine), arms=[arm])
        except MtpbenchError:  # a model whose dimensions it does not know
            return Cost(assumed, ASSUMED)
        seconds = _READY_SHARE * server.ready_timeout
        for simulated in passes:
            arrival = scenario.arrival_of(simulated.record.key.level)
            level = simulated.record.key.level
            share = 1 + arrival.warmups(level) / max(1, arrival.requests(level))
            seconds += share * (simulated.record.t_end - simulated.record.t_start)
        return Cost(seconds, SIMULATED)

    return cost


def _matrix(made: Plan) -> dict[str, Any]:
    rows = [
        {
            "name": block.name,
            "scenario": block.file,
            "arms": " ".join(block.arms),
            "gpus": block.gpus,
            "minutes": round(block.seconds / 60),
        }
        for block in made.blocks
    ]
    return {"include": rows}


def _table(made: Plan) -> Table:
    table = Table("job", "arms", "TP", "GPUs", "minutes", "from", box=box.SIMPLE_HEAD)
    for block in made.blocks:
        sizes = "/".join(map(str, block.tp))
        cells = (block.name, ", ".join(block.arms), sizes, str(block.gpus), f"{block.seconds / 60:.0f}", block.basis)
        table.add_row(*map(Text, cells))
    table.caption = f"a job may take {made.limit / 60:.0f} minutes; {len(made.blocks)} jobs"
    return table


@verbs.command(name="missing")
def missing_blocks(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="What `ci plan --output` wrote.")],
    store: Annotated[str, typer.Argument(metavar="STORE", help="A folder, or a store's URL.")] = "runs",
) -> None:
    """What of tonight's plan is not in the store: jobs that died, arms and levels that they did not finish.

    Exit codes: 0 all is there, 1 something is MISSING.
    """
    made = read_plan(plan_file)
    found = missing(made, _runs(store))
    for one in found:
        out.print(Text(str(one), style="bold red"), soft_wrap=True)
    if found:
        raise typer.Exit(1)
    out.print(Text(f"all {len(made.blocks)} jobs of the plan are in the store"), soft_wrap=True)


@verbs.command()
def inside(
    python: Annotated[str, typer.Option(help="The image's interpreter, in which SGLang is.")] = "python3",
    need_gpu: NeedGpu = True,
    markdown: Annotated[bool, typer.Option("--markdown", help="For a step summary.")] = False,
) -> None:
    """Can servers be measured right here, inside an image? What it holds, and everything that is in the way.

    Imports nothing of the image's. Exit codes: 0 yes, 1 no.
    """
    seen = inspect_image(python, need_gpu)
    _show_image(seen, markdown)
    if seen.problems:
        raise typer.Exit(1)


def _show_image(seen: Inside, markdown: bool) -> None:
    if markdown:
        lines = ["| in the image | |", "|---|---|"]
        lines += [f"| {escape(name)} | {escape(value)} |" for name, value in seen.facts.items()]
        lines += ["", *(f"- **{escape(problem)}**" for problem in seen.problems), ""]
        sys.stdout.write("\n".join(lines))
        return
    for name, value in seen.facts.items():
        out.print(Text(f"{name}: {value}"), soft_wrap=True)
    for problem in seen.problems:
        out.print(Text(problem, style="bold red"), soft_wrap=True)


@verbs.command()
def notify(
    store: Annotated[str, typer.Argument(metavar="STORE", help="A folder, or a store's URL: it keeps the state.")],
    word: Annotated[str, typer.Option(help="How the night ended, such as PASS or FAIL.")] = "",
    sentence: Annotated[str, typer.Option(help="What to say beside it.")] = "",
    overdue: Annotated[
        str, typer.Option(metavar="HOURS", help="Instead: tell if no night has ended for so long, such as 30h.")
    ] = "",
) -> None:
    """Tell people through a webhook when the nights' state changes, or when a night did not run.

    The URL of the webhook is in $MTPBENCH_WEBHOOK; Slack's and Lark's are known. Without it, the notice is printed.
    Nothing is sent twice: the store remembers what was told.
    """
    if bool(word) == bool(overdue):
        raise MtpbenchError("give either --word or --overdue", "mtpbench ci notify STORE --word FAIL")
    before = state_of(_read(store, STATE_FILE))
    if word:
        after, told = after_a_night(before, word, sentence, utc_now())
    else:
        kept, told = on_watch(before, utc_now(), timedelta(seconds=parse_duration(overdue)))
        if kept is None:
            err.print(Text(f"{store} knows of no night yet"), soft_wrap=True)
            return
        after = kept
    url = os.environ.get(_WEBHOOK, "")
    if told and url:
        send(url, told)
    put(store, STATE_FILE, after.to_json())  # only once it is told: else nobody ever hears of it
    out.print(Text(told or f"as before: {after.word}"), soft_wrap=True)


def _read(store: str, name: str) -> bytes | None:
    if is_url(store):
        return Remote(store).get([name]).get(name)
    path = Path(store) / name
    return path.read_bytes() if path.is_file() else None
