"""The command `mtpbench`: wiring only."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from harness import __version__
from harness.cli import ab as cli_verdict
from harness.cli import ci as cli_ci
from harness.cli import doctor as cli_doctor
from harness.cli import explain as cli_explain
from harness.cli import imported as cli_import
from harness.cli import plan as cli_plan
from harness.cli import publish as cli_publish
from harness.cli import scenarios as cli_scenarios
from harness.cli import simulate as cli_simulate
from harness.cli import store as cli_store
from harness.cli import trend as cli_trend
from harness.cli.common import (
    EXIT_INVALID,
    Gpus,
    Image,
    check_format,
    check_same_environment,
    default_cache,
    drive,
    err,
    from_image,
    gpu_ids,
    only_arms,
    out,
    resumable,
    show,
    tell_resume,
    with_prompts,
)
from harness.cli.last_words import last_words
from harness.cli.store import STORE_HELP, deliver, follow, local, local_run, spool
from harness.errors import MissingPackageError, MtpbenchError, ResumeError, ScenarioError
from harness.machine.fingerprint import fingerprint
from harness.machine.telemetry import open_source
from harness.results.report import RENDERERS, build, to_rich
from harness.run.dry_run import describe_run
from harness.run.experiment import Experiment, Outcome
from harness.run.launcher import Options
from harness.run.progress import TerminalUi, print_error
from harness.scenario import yaml_file
from harness.scenario.format import Scenario
from harness.scenario.problems import warnings
from harness.simulator.hardware import load_hardware
from harness.simulator.memory import memory_notes
from harness.store.imported_runs import is_imported
from harness.store.manifest import reseal
from harness.store.runs import RunStore, StoredRun, load_run, with_secrets
from harness.text import markdown_table, terminal_table

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="""Serving benchmark and regression suite for Qwen3.5 on SGLang with MTP speculative decoding.

Start with `mtpbench run scenarios/quickstart.yaml`: it needs no GPU.
Exit codes: 0 all good, 2 the result (or the input) is invalid, 70 a bug of mtpbench, 130 interrupted; those of each
verb are in docs/exit-codes.md.""",
)
selftest = typer.Typer(no_args_is_help=True, help="Checks of mtpbench itself, as tables.")
app.add_typer(selftest, name="selftest")
cli_verdict.register(app)
cli_explain.register(app, selftest)
cli_trend.register(app, selftest)
cli_publish.register(app, selftest)
cli_simulate.register(app)


@app.command()
def run(
    scenario: Annotated[
        Path | None, typer.Argument(metavar="SCENARIO", help="A scenario file; not with --resume.")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print every command, environment and request count; start nothing."),
    ] = False,
    store: Annotated[str, typer.Option(help=STORE_HELP)] = "runs",
    resume: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Go on with an interrupted run: the folder it printed."),
    ] = None,
    gpus: Gpus = "",
    image: Image = "",
    arm: Annotated[
        list[str] | None, typer.Option("--arm", help="Only this arm; may be repeated. Default: all.")
    ] = None,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop at the first server that fails.")] = False,
    page: Annotated[
        bool, typer.Option("--page/--no-page", help="Write report.html at the end; `mtpbench report` can do it later.")
    ] = True,
) -> None:
    """Measure: start the scenario's servers, drive the load, save, report.

    Results are saved after each pass. Ctrl-C ends the servers and keeps what is finished; a second one kills. With the
    URL of a store, the run is measured into ./runs and copied there.
    """
    ids = gpu_ids(gpus)
    if (scenario is None) == (resume is None):
        raise MtpbenchError("give either a scenario file or --resume RUN", "mtpbench run scenarios/quickstart.yaml")
    if scenario is not None and dry_run:
        out.print(Text(describe_run(from_image(yaml_file.load(scenario), image), ids, default_cache())), soft_wrap=True)
        return
    source = open_source()
    environment = fingerprint(source)
    folder, remote = spool(store)
    opened, loaded = _open(scenario, resume, folder, environment, image, arm)
    follower = follow(opened, remote)
    for warning in warnings(loaded):
        err.print(Text(f"note: {warning}", style="yellow"), soft_wrap=True)
    out.print(Text(f"results: {opened.path}"), soft_wrap=True)
    try:
        with resumable("run", opened.path):
            with TerminalUi(out) as ui:
                options = Options(default_cache(), ids, fail_fast)
                experiment = Experiment(loaded, opened, options, source, ui)
                outcome = drive(experiment.run, experiment.launcher, lambda: tell_resume("run", opened.path))
            valid = _finish(opened, outcome, page)
            if not deliver(opened.path, follower) or not valid:
                raise typer.Exit(EXIT_INVALID)
    finally:
        opened.close()


def _chosen(file: Path, image: str, arms: list[str] | None) -> Scenario:
    return only_arms(from_image(yaml_file.load(file), image), arms or [])


def _open(
    scenario: Path | None,
    resume: Path | None,
    root: Path,
    environment: dict[str, Any],
    image: str,
    arms: list[str] | None,
) -> tuple[RunStore, Scenario]:
    if scenario is not None:
        loaded = _chosen(scenario, image, arms)
        text = scenario.read_text(encoding="utf-8")
        return RunStore.create(root, loaded, text, with_prompts(environment, loaded)), loaded
    assert resume is not None, "checked by run"
    before = load_run(resume)
    if before.simulated:
        raise ResumeError(f"{resume} is simulated: there is nothing to measure", "mtpbench simulate makes it anew.")
    check_same_environment(before, with_prompts(environment, before.scenario))
    whole = with_secrets(before.scenario, os.environ)
    return RunStore.resume(resume), whole


def _finish(store: RunStore, outcome: Outcome, with_page: bool) -> bool:
    """Everything derived: rows, page, table. Raw results are safe by now. Is the result valid?"""
    stored = load_run(store.path)
    from harness.store.rows import parquet

    rows = store.write_rows(parquet(stored))
    page = _write_page(store, stored) if with_page else None
    report = build(stored)
    out.print(to_rich(report))
    out.print(Text(f"rows: {rows}"), soft_wrap=True)
    if page:
        out.print(Text(f"page: {page}"), soft_wrap=True)
    for _, error in outcome.failures:
        print_error(err, error, error.hint, error.log_path, ())
    return report.valid


def _write_page(store: RunStore, stored: StoredRun) -> Path | None:
    try:
        from dashboards.run_page import render
    except ImportError as error:
        err.print(Text(f"no report.html: {error}. pip install altair vl-convert-python", style="yellow"))
        return None
    page = store.write_text("report.html", render(stored, default_cache()))
    reseal(store.path, page)
    return page


@app.command()
def report(
    run_name: Annotated[str, typer.Argument(metavar="RUN", help="The folder of a run, or its URL.")],
    output: Annotated[str, typer.Option("--format", help="table, markdown, json or html.")] = "table",
    results_as: Annotated[
        str, typer.Option("--results-as", metavar="TOOL", help="Write result files as this tool does: sglang.")
    ] = "",
    folder: Annotated[
        Path, typer.Option("--output", metavar="FOLDER", help="With --results-as: where they go.")
    ] = Path("results"),
) -> None:
    """Print a run's table again, as Markdown, as JSON, or write its report.html anew."""
    run_path = local_run(run_name)
    if results_as:
        cli_scenarios.write_results(load_run(run_path), results_as, folder)
        return
    if is_imported(run_path):
        if not cli_import.show_report(run_path, output, out):
            raise typer.Exit(EXIT_INVALID)
        return
    check_format(output, RENDERERS, "html")
    stored = load_run(run_path)
    if output == "html":
        page = _write_page(RunStore(run_path), stored)
        if page is None:
            raise typer.Exit(EXIT_INVALID)
        out.print(Text(str(page)), soft_wrap=True)
    else:
        show(build(stored), output, to_rich, RENDERERS)


@app.command()
def validate(
    scenarios: Annotated[list[Path], typer.Argument(metavar="SCENARIO...", help="Scenario files.")],
) -> None:
    """Check scenario files: every error with its file, line and key."""
    problems = []
    for path in scenarios:
        try:
            loaded = yaml_file.load(path)
        except ScenarioError as error:
            problems += error.problems
            continue
        sizes = "/".join(f"TP{tp}" for tp in loaded.tp)
        out.print(Text(f"{path}: ok ({loaded.name}, {sizes}, arms: {', '.join(loaded.arms)})"), soft_wrap=True)
        for warning in [*warnings(loaded), *_memory(loaded, path)]:
            out.print(Text(f"  note: {warning}", style="yellow"), soft_wrap=True)
    if problems:
        raise ScenarioError(problems)


def _memory(scenario: Scenario, path: Path) -> list[str]:
    """Does it fit the machine? Only where the file of that machine, beside the scenario, says how much it has."""
    file = path.parent / "hardware" / "mi355x.yaml"
    if getattr(scenario.server, "gpu_vendor", "") != "amd" or not file.is_file():
        return []
    gib = load_hardware(file).memory_gib
    return memory_notes(scenario, gib) if gib else []


@app.command(name="list")
def list_scenarios(
    place: Annotated[
        str, typer.Argument(metavar="FOLDER", help="Folder with scenario files, or with results; or a store's URL.")
    ] = "scenarios",
) -> None:
    """List the scenarios in a folder with their questions, or the runs in a store."""
    folder = local(place)
    if cli_import.holds_runs(folder):
        cli_import.list_runs(folder, out)
        return
    paths = sorted(folder.glob("*.yaml"))
    if not paths:
        raise MtpbenchError(f"no *.yaml in {folder}", "Name the folder: mtpbench list FOLDER")
    table = Table("file", "engine", "arms", "TP", "load", "question")
    broken = []
    for path in paths:
        try:
            loaded = yaml_file.load(path)
        except ScenarioError as error:
            broken += error.problems
            continue
        levels = ", ".join(level.label for level in loaded.levels())
        cells = [
            str(path),
            loaded.server.engine,
            ", ".join(loaded.arms),
            ", ".join(map(str, loaded.tp)),
        ]
        table.add_row(*(Text(cell) for cell in (*cells, levels, loaded.question)))
    out.print(table)
    if broken:
        raise ScenarioError(broken)


@app.command()
def schema() -> None:
    """Print the JSON Schema of scenario files, for editors: every key with its type and meaning."""
    sys.stdout.write(json.dumps(Scenario.model_json_schema(), indent=1) + "\n")


@app.command()
def environment() -> None:
    """Print this machine's fingerprint, as each run records it."""
    sys.stdout.write(json.dumps(fingerprint(open_source()), indent=1) + "\n")


@selftest.command()
def client(
    streams: Annotated[list[int], typer.Option(help="Concurrent streams; may be repeated.")] = [  # noqa: B006
        *(1, 64, 128, 256, 512, 1024)
    ],
    gap: Annotated[float, typer.Option(min=0.1, help="Milliseconds between the chunks of a stream.")] = 33.0,
    chunk_tokens: Annotated[list[int], typer.Option(help="Tokens a chunk; may be repeated.")] = [1, 4],  # noqa: B006
    tokens: Annotated[int, typer.Option(min=2, help="Output tokens of an answer.")] = 128,
    rounds: Annotated[int, typer.Option(min=3, help="Answers a slot; the first and the last do not count.")] = 4,
    lockstep: Annotated[
        bool | None, typer.Option("--lockstep/--out-of-step", help="All streams send at once, or not. Default: both.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
) -> None:
    """Compare the client's time stamps with what a server wrote down, on this machine (5 minutes on two cores).

    The server is ours, streams on a fixed schedule, has a core of its own and is checked too: see "server late".
    On a machine that does other work besides, `chrt --fifo 10 mtpbench selftest client` keeps that out.
    """
    from harness.selftest.client import HEADERS, LEFT, Case, cells, check_client
    from harness.selftest.truth_server import Schedule

    jitter = gap / 1e3  # as long as a step: streams then start anywhere within one
    cases = [
        Case(count, tokens, rounds, Schedule(0.2, jitter, gap / 1e3, chunk, locked))
        for locked in ([False, True] if lockstep is None else [lockstep])
        for chunk in chunk_tokens
        for count in streams
    ]
    rows = []
    for number, case in enumerate(cases, 1):
        err.print(f"{number} of {len(cases)}: {case.label}", markup=False)
        rows.append(cells(check_client(case)))
    if markdown:
        sys.stdout.write("\n".join(markdown_table(HEADERS, rows, LEFT)) + "\n")
        return
    table = terminal_table(HEADERS, LEFT, "The client against ground truth: errors in ms")
    for row in rows:
        table.add_row(*row)
    out.print(table)


@selftest.command()
def arrivals(
    rate: Annotated[float, typer.Option(min=0.1, help="Requests a second.")] = 50.0,
    requests: Annotated[int, typer.Option(min=10)] = 1000,
    slots: Annotated[int, typer.Option(min=1, help="At most so many in flight.")] = 2048,
    ttft: Annotated[float, typer.Option(min=0.0, help="Seconds to the first token.")] = 2.0,
) -> None:
    """Check an open loop: are requests sent on schedule, and are arrivals Poisson as the server sees them?"""
    from harness.selftest.client import check_arrivals
    from harness.selftest.truth_server import Schedule

    found = check_arrivals(rate, requests, slots, Schedule(ttft, 0.033, 0.033))
    late = [1e3 * float(value) for value in sorted(found.late)]
    out.print(f"sends late: {late[len(late) // 2]:.2f} ms (p50), {late[int(0.99 * (len(late) - 1))]:.2f} ms (p99)")
    out.print(f"earliest: {late[0]:.2f} ms late; most in flight: {found.most_in_flight}; failed: {found.failed}")
    out.print(f"rate: {found.seen_rate:.1f}/s of {found.asked_rate:.1f}/s asked")
    out.print(f"variation of the gaps: {found.seen_variation:.3f}, asked {found.asked_variation:.3f}")


kernel_app = typer.Typer(no_args_is_help=True, help="The in-tree verify-attention kernel: needs the extra `kernel`.")
app.add_typer(kernel_app, name="kernel")
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@kernel_app.command(context_settings=_PASS_ON)
def inspect(context: typer.Context) -> None:
    """Compile every configuration without a GPU: registers, spills, LDS, what a loop costs a KB (--arch gfx950)."""
    _need("triton")
    from kernel.offline import main as offline

    raise typer.Exit(offline(context.args))


@kernel_app.command(context_settings=_PASS_ON)
def bench(context: typer.Context) -> None:
    """Check, then time the kernel and what it is compared with, on this GPU (--shape targets --output FILE)."""
    _need("torch", "triton")
    from kernel.bench.__main__ import main as timed

    raise typer.Exit(timed(context.args))


def _need(*packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise MissingPackageError(package, "The kernel", "kernel")


cli_import.register(app, out)
cli_doctor.register(app, out, err, default_cache)
app.add_typer(cli_store.store_app, name="store")
app.add_typer(cli_scenarios.scenarios_app, name="scenarios")
cli_plan.register(cli_ci.ci_app)
app.add_typer(cli_ci.ci_app, name="ci")


@app.command()
def version() -> None:
    """Print the version."""
    sys.stdout.write(__version__ + "\n")


def main() -> None:
    """Entry point: whatever ends a verb becomes a sentence and an exit code, see docs/exit-codes.md."""
    with last_words():
        app()
