"""What the verbs share that compare: their options, the rows that are excused, and how a verdict is shown."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from harness.cli.common import err, show
from harness.cli.store import STORE_HELP, local_run
from harness.errors import MtpbenchError
from harness.store.remote import is_url
from harness.store.runs import AB_FILE
from harness.verdict import report as verdict_report
from harness.verdict.accepted import load as load_ledger
from harness.verdict.compare import EXIT_CODES, Comparison, Excuse
from harness.verdict.pairs import AB_METRICS, Metric
from harness.verdict.pr_comment import to_comment

RENDERERS = {"markdown": to_comment, "json": verdict_report.to_json}
EXIT_HELP = "Exit codes: " + ", ".join(f"{code} {verdict.value}" for verdict, code in EXIT_CODES.items())
EXIT_HELP += ", 70 a bug of mtpbench, 130 interrupted. A wrong call or a server that fails also exits with 2."

Format = Annotated[str, typer.Option("--format", help="table, markdown or json.")]
Metrics = Annotated[
    list[str] | None,
    typer.Option("--metric", help=f"Compare this number; may be repeated. Default: {', '.join(AB_METRICS)}."),
]
Allow = Annotated[
    list[str] | None,
    typer.Option("--allow", help="A fact that is meant to differ, such as packages or server; may be repeated."),
]
Store = Annotated[str, typer.Option(help=f"{STORE_HELP} A/A runs in it give the floor.")]
LedgerFile = Annotated[Path, typer.Option(help="Accepted slowdowns.")]
WhyFile = Annotated[
    Path | None,
    typer.Option("--why", metavar="FILE", help="With markdown: the cause, of `mtpbench explain --format json`."),
]
PictureUrl = Annotated[
    str,
    typer.Option(metavar="URL", help="With markdown: where `mtpbench ci comment` put URL-light.png and URL-dark.png."),
]
THEMES = ("light", "dark")


def check_metrics(names: Sequence[str]) -> None:
    """Raises MtpbenchError for a name that is no metric's, with those that are."""
    for name in names:
        Metric.of(name)


def is_ab(_run: str, files: frozenset[str]) -> bool:
    """Of a store behind a URL, all that floors need."""
    return AB_FILE in files


def here(run: str) -> str:
    """A run of the command line, fetched if it is a URL; what follows an @ in its name is an arm."""
    if not is_url(run):
        return run
    path, at, arm = run.rpartition("@") if "@" in run.rpartition("/")[2] else (run, "", "")
    return f"{local_run(path)}{at}{arm}"


Today = Annotated[str, typer.Option(help="The day of the question, such as 2026-11-30. Default: today, UTC.")]


def day_of(text: str) -> date:
    """A day as a person writes it; today, in UTC, when empty."""
    try:
        return date.fromisoformat(text) if text else datetime.now(timezone.utc).date()
    except ValueError as error:
        raise MtpbenchError(f"--today {text!r} is no day", "Write it as 2026-11-30.") from error


def excuse_of(file: Path, today: date | None = None) -> Excuse:
    """Looks rows up in the ledger, and says which of its entries have lapsed."""
    day = today or day_of("")
    known = load_ledger(file)
    for entry in known.lapsed(day):
        what = f"{file}: {entry.scenario} {entry.metric} ({entry.owner}) expired on {entry.expires}"
        err.print(Text(f"note: {what}: remove or renew it", style="yellow"), soft_wrap=True)
    return functools.partial(known.excuse, today=day)


def show_verdict(comparison: Comparison, output: str) -> None:
    """Prints a comparison and ends with its exit code."""
    show(comparison, output, verdict_report.to_rich, RENDERERS)
    if comparison.exit_code:
        raise typer.Exit(comparison.exit_code)
