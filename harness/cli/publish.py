"""The verb that makes the dashboard, and its self-tests."""

from __future__ import annotations

import contextlib
import gc
import tempfile
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from harness.cli.common import default_cache, err, out
from harness.cli.comparing import LedgerFile, Metrics, Today, day_of
from harness.cli.group import verbs_of_a_file
from harness.cli.store import local, say_left_out
from harness.cli.trend import Renamed, renaming
from harness.selftest.year import LAST_NIGHT, NIGHTS, write_year
from harness.store.archive import read_archive
from harness.store.runs import utc_now
from harness.verdict.accepted import FILE
from harness.verdict.accepted import load as load_ledger
from harness.verdict.pairs import DEFAULT_METRICS, Metric

verbs = verbs_of_a_file()
selftests = verbs_of_a_file()


@verbs.command()
def publish(
    store: Annotated[str, typer.Argument(metavar="STORE", help="Folder with stored runs, or a store's URL.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="Folder for the site: new, or an older site.")],
    metric: Metrics = None,
    renamed: Renamed = None,
    today: Today = "",
    ledger: LedgerFile = Path(FILE),
) -> None:
    """Write the dashboard: a static site that says whether anything is wrong tonight, and shows why.

    Open OUT/index.html as a file, or put OUT on any web server, such as GitHub Pages: it asks no other one. The
    verdicts are those of `mtpbench trend`, whose exit code is for automation; this exits with 0 once the site is there.
    """
    names, day, accepted = dict(renaming(text) for text in renamed or []), day_of(today), load_ledger(ledger)
    judged = tuple(Metric.of(name).name for name in metric or DEFAULT_METRICS)
    from dashboards.publish import check_target, write_site
    from dashboards.site import gather

    check_target(target)

    with _keeping_everything(), _Telling() as telling:
        archive = read_archive(local(store), lambda done, total, what: telling.watch("reading runs", done, total))
        site = gather(archive, day, utc_now(), accepted, judged, renamed=names, say=telling.say)
        size = write_site(site, target, default_cache(), telling.watch)
    say_left_out(site.archive.left_out)
    out.print(Text(f"{target / 'index.html'}: {len(archive.kept)} runs, {size / 1e6:.1f} MB"), soft_wrap=True)


@selftests.command()
def year(
    target: Annotated[Path, typer.Argument(metavar="OUT", help="A new folder for the simulated store.")],
    seed: Annotated[int, typer.Option(help="Same seed, same numbers.")] = 1,
    nights: Annotated[int, typer.Option(min=1, help="How many, up to the last one.")] = NIGHTS,
    last: Annotated[str, typer.Option(help="The last night.")] = str(LAST_NIGHT),
) -> None:
    """Simulate a year of nights with injected changes: a store to try `publish` and `trend` on, nothing measured."""
    with _Telling() as telling:
        made = write_year(target, seed, nights, day_of(last), lambda done, total: telling.watch("nights", done, total))
    out.print(Text(f"{target}: {made.runs} simulated runs; nothing was measured"), soft_wrap=True)
    day = date.fromordinal(made.last.toordinal() + 1)
    out.print(Text(f"next: mtpbench publish {target} site --today {day} --ledger {made.ledger}"), soft_wrap=True)


@selftests.command()
def dashboard(
    nights: Annotated[int, typer.Option(min=1, help="Simulated nights.")] = NIGHTS,
    keep: Annotated[Path | None, typer.Option(metavar="DIR", help="Leave store and site in this new folder.")] = None,
) -> None:
    """Publish a simulated year in a temporary folder and measure it: time, size, and how soon the overview is drawn."""
    from dashboards.check import check_dashboard

    table = Table("what", "measured", "limit", "")
    missed = False
    with tempfile.TemporaryDirectory() as folder, _keeping_everything(), _Telling() as telling:
        for line in check_dashboard(keep or Path(folder), nights, default_cache(), telling.say):
            word = {None: "", True: "met", False: "MISSED"}[line.met]
            table.add_row(line.what, line.value, line.limit, word)
            missed = missed or line.met is False
    out.print(table)
    if missed:
        raise typer.Exit(1)


@contextlib.contextmanager
def _keeping_everything() -> Iterator[None]:
    """All that is read is shown, so it lives to the end: looking for garbage among it takes a sixth of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class _Telling:
    """Progress on standard error: a bar where there is a terminal, a line for each stage elsewhere."""

    def __init__(self) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            console=err, transient=True, disable=not err.is_terminal,
        )  # fmt: skip
        self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> _Telling:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, what: str) -> None:
        """A stage whose length is not known."""
        self._bar.reset(self._task, description=what, total=None)
        if not err.is_terminal:
            err.print(Text(what), soft_wrap=True)

    def watch(self, what: str, done: int, total: int) -> None:
        """So many are done, of so many."""
        if done == 0:
            self.say(what)
        self._bar.update(self._task, completed=done + 1, total=total)
