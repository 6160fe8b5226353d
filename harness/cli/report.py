"""`mtpbench report`: what a stored run says, in the terminal, as a file, or as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from harness.cli.common import EXIT_INVALID, check_format, default_cache, err, out, show
from harness.cli.group import verbs_of_a_file
from harness.cli.imported import show_report
from harness.cli.scenarios import write_results
from harness.cli.store import local_run
from harness.results.report import RENDERERS, Report, build, to_rich
from harness.store.imported_runs import is_imported
from harness.store.manifest import reseal
from harness.store.runs import RunStore, StoredRun, load_run

verbs = verbs_of_a_file()


@verbs.command()
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
        write_results(load_run(run_path), results_as, folder)
        return
    if is_imported(run_path):
        if not show_report(run_path, output):
            raise typer.Exit(EXIT_INVALID)
        return
    check_format(output, RENDERERS, "html")
    stored = load_run(run_path)
    document = build(stored)
    if output == "html":
        page = write_page(RunStore(run_path), stored, document)
        if page is None:
            raise typer.Exit(EXIT_INVALID)
        out.print(Text(str(page)), soft_wrap=True)
    else:
        show(document, output, to_rich, RENDERERS)


def write_page(store: RunStore, stored: StoredRun, document: Report) -> Path | None:
    """Writes a run's page into its folder. None where what draws it is not installed, which is told."""
    try:
        from dashboards.run_page import render
    except ImportError as error:
        err.print(Text(f"no report.html: {error}. pip install altair vl-convert-python", style="yellow"))
        return None
    page = store.write_text("report.html", render(stored, document, default_cache()))
    reseal(store.path, page)
    return page
