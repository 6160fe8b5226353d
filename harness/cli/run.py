"""`mtpbench run`: a scenario is measured into a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from harness.cli.common import EXIT_INVALID, Gpus, Image, default_cache, err, gpu_ids, out, print_error
from harness.cli.group import verbs_of_a_file
from harness.cli.measuring import Asked, begin, go_on
from harness.cli.overrides import from_image, only_arms
from harness.cli.report import write_page
from harness.cli.store import STORE_HELP
from harness.errors import MtpbenchError
from harness.results.report import build, to_rich
from harness.run.dry_run import describe_run
from harness.run.experiment import Outcome
from harness.run.progress import TerminalUi
from harness.scenario import yaml_file
from harness.scenario.problems import warnings
from harness.store.rows import parquet
from harness.store.runs import RunStore, load_run

verbs = verbs_of_a_file()


@verbs.command(name="run")
def run_command(
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
    asked = Asked("run", scenario, resume, store, gpu_ids(gpus), image)
    if (scenario is None) == (resume is None):
        raise MtpbenchError("give either a scenario file or --resume RUN", "mtpbench run scenarios/quickstart.yaml")
    loaded = from_image(yaml_file.load(scenario), image) if scenario else None
    if loaded and dry_run:
        out.print(Text(describe_run(loaded, asked.gpus, default_cache())), soft_wrap=True)
        return
    with begin(asked, only_arms(loaded, arm or [])) if loaded else go_on(asked) as run:
        for warning in warnings(run.scenario):
            err.print(Text(f"note: {warning}", style="yellow"), soft_wrap=True)
        out.print(Text(f"results: {run.path}"), soft_wrap=True)
        with run.resumable():
            with TerminalUi(out) as ui:
                outcome = run.drive(ui, fail_fast=fail_fast)
            valid = _finish(run.store, outcome, page)
            if not run.deliver() or not valid:
                raise typer.Exit(EXIT_INVALID)


def _finish(store: RunStore, outcome: Outcome, with_page: bool) -> bool:
    """Everything derived: rows, page, table. Raw results are safe by now. Is the result valid?"""
    stored = load_run(store.path)
    rows = store.write_rows(parquet(stored))
    report = build(stored)
    page = write_page(store, stored, report) if with_page else None
    out.print(to_rich(report))
    out.print(Text(f"rows: {rows}"), soft_wrap=True)
    if page:
        out.print(Text(f"page: {page}"), soft_wrap=True)
    for _, error in outcome.failures:
        print_error(err, error, error.hint, error.log_path, ())
    return report.valid
