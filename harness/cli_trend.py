"""The verbs over many nights, and the check of the rules themselves: wiring only, registered by `harness.cli`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from harness import trend as trends
from harness import trend_report
from harness.cli_common import check_format, err, out, show
from harness.cli_verdict import EXIT_HELP, Format, LedgerFile, Metrics, day_of, excuse_of
from harness.errors import MtpbenchError, StoreError
from harness.ledger import FILE
from harness.pairs import DEFAULT_METRICS
from harness.session import load_session
from harness.store import AB_FILE, StoredRun, load_run
from harness.verdict import EXIT_CODES


def register(app: typer.Typer, selftest: typer.Typer) -> None:
    """Adds the verbs to the command line."""
    app.command(epilog=EXIT_HELP)(trend)
    selftest.command(name="stats")(check_statistics)


def trend(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="Folder with stored runs.")] = Path("runs"),
    metric: Metrics = None,
    scenario: Annotated[str, typer.Option(help="Only this scenario.")] = "",
    renamed: Annotated[
        list[str] | None, typer.Option(metavar="OLD=NEW", help="A scenario that was renamed; may be repeated.")
    ] = None,
    today: Annotated[str, typer.Option(help="The day of the question, such as 2026-11-30. Default: today, UTC.")] = "",
    ledger: LedgerFile = Path(FILE),
    commands: Annotated[
        bool, typer.Option("--commands", help="Print only the paired A/B of each unconfirmed alert, one a line.")
    ] = False,
    output: Format = "table",
) -> None:
    """When did it change? Series over the nightly runs of a store, with alerts and confirmed changes."""
    check_format(output, trend_report.RENDERERS)
    names = dict(_renaming(text) for text in renamed or [])
    wanted = {scenario, *(old for old, new in names.items() if new == scenario)} - {""}
    series = trends.build(_nightly(store, wanted), tuple(metric or DEFAULT_METRICS), names)
    day = day_of(today)
    told = trends.tell(series, day, excuse_of(ledger, day), functools.partial(_confirmed_by, store))
    if commands:
        sys.stdout.writelines(line + "\n" for line in trends.commands(told))
        return
    show(told, output, trend_report.to_rich, trend_report.RENDERERS)
    code = EXIT_CODES[trends.headline(told)[0]]
    if code:
        raise typer.Exit(code)


def check_statistics(
    repetitions: Annotated[int, typer.Option(help="Simulated A/A comparisons of each kind.")] = 600,
    seed: Annotated[int, typer.Option(help="Of the simulation.")] = 1,
    markdown: Annotated[bool, typer.Option("--markdown", help="As it stands in docs/statistics.md.")] = False,
) -> None:
    """Simulate launches with known effects: false positives, power, pairs and nights until they are found."""
    from harness.stats_check import everything, to_markdown, to_rich

    lines = everything(repetitions, seed)
    if markdown:
        sys.stdout.write(to_markdown(lines))
    else:
        out.print(to_rich(lines))
    if any(line.verdict == "MISSED" for line in lines):
        raise typer.Exit(1)


def _nightly(root: Path, scenarios: set[str]) -> Iterator[StoredRun]:
    """Every measured run below a store but A/B runs; one that can't be read is said and passed over."""
    for file in sorted(root.glob("*/run.json")):
        if (file.parent / AB_FILE).is_file():
            continue
        try:
            run = load_run(file.parent)
        except StoreError as error:
            err.print(Text(f"left out: {error}", style="yellow"), soft_wrap=True)
            continue
        if not run.simulated and (not scenarios or run.scenario.name in scenarios):
            yield run


def _confirmed_by(root: Path, scenario: str, base: str, head: str) -> str:
    """The verdict of the last stored A/B of these two commits; empty where there is none."""
    for file in sorted(root.glob(f"*-{scenario}-*/{AB_FILE}"), reverse=True):
        try:
            session = load_session(file.parent)
        except StoreError:
            continue
        if session.verdict and (session.base.commit, session.head.commit) == (base, head):
            return session.verdict
    return ""


def _renaming(text: str) -> tuple[str, str]:
    old, equals, new = text.partition("=")
    if not (old and equals and new):
        raise MtpbenchError(f"--renamed {text!r}: OLD=NEW is needed", "--renamed old-name=new-name")
    return old, new
