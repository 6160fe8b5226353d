"""`mtpbench run`: a scenario is measured into a store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from harness.cli.common import EXIT_INVALID, Gpus, Image, default_cache, err, gpu_ids, out, print_error
from harness.cli.group import verbs_of_a_file
from harness.cli.measuring import check_same_environment, drive, resumable, tell_resume, with_prompts
from harness.cli.overrides import from_image, only_arms
from harness.cli.report import write_page
from harness.cli.store import STORE_HELP, deliver, follow, spool
from harness.errors import MtpbenchError, ResumeError
from harness.machine.fingerprint import fingerprint
from harness.machine.telemetry import open_source
from harness.results.report import build, to_rich
from harness.run.dry_run import describe_run
from harness.run.experiment import Experiment, Outcome
from harness.run.launcher import Options
from harness.run.progress import TerminalUi
from harness.scenario import yaml_file
from harness.scenario.format import Scenario
from harness.scenario.problems import warnings
from harness.store.rows import parquet
from harness.store.runs import RunStore, load_run, with_secrets

verbs = verbs_of_a_file()


@verbs.command()
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
    rows = store.write_rows(parquet(stored))
    page = write_page(store, stored) if with_page else None
    report = build(stored)
    out.print(to_rich(report))
    out.print(Text(f"rows: {rows}"), soft_wrap=True)
    if page:
        out.print(Text(f"page: {page}"), soft_wrap=True)
    for _, error in outcome.failures:
        print_error(err, error, error.hint, error.log_path, ())
    return report.valid
