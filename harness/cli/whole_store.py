"""The verbs over a whole store: copy runs to it and from it, look for damage, write rows anew."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from harness.cli.common import err, out
from harness.cli.group import verbs_of_a_file
from harness.cli.store import SPOOL, say
from harness.errors import MtpbenchError, StoreError
from harness.store.manifest import reseal
from harness.store.remote import Remote, is_url, mirror, push
from harness.store.rows import parquet
from harness.store.runs import RunStore, load_run
from harness.store.verify import Checked, verify, verify_remote

verbs = verbs_of_a_file()


@verbs.command(name="push")
def push_runs(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")],
    url: Annotated[str, typer.Argument(metavar="URL", help="Such as s3://bucket/prefix.")],
) -> None:
    """Copy runs to a store behind a URL. The same run again changes nothing; an unfinished one is copied as it is."""
    remote = _remote(url)
    for run in runs:
        files = push(run, remote, say)
        out.print(Text(f"{remote.url}/{run.absolute().name}: {files} files"), soft_wrap=True)


@verbs.command()
def pull(
    url: Annotated[str, typer.Argument(metavar="URL", help="Such as s3://bucket/prefix.")],
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where the runs go: a store in a folder, new or not.")
    ],
    run: Annotated[str, typer.Option(metavar="NAME", help="Only this run.")] = "",
) -> None:
    """Copy every finished run, logs included, into a store in a folder; what is there stays."""
    mirror(_remote(url), folder, say, only=run, skip=None)
    out.print(Text(f"{folder}: {len(list(folder.glob('*/manifest.json')))} runs"), soft_wrap=True)


@verbs.command(name="verify")
def verify_store(
    store: Annotated[str, typer.Argument(metavar="STORE", help="A folder, or a URL.")] = str(SPOOL),
) -> None:
    """Find damaged files: each is compared with its run's manifest and read.

    Exit codes: 0 all is as it was written, 1 something is damaged (a table names it), 2 it could not be checked.
    """
    if not is_url(store) and not Path(store).is_dir():
        raise StoreError(f"{store} is no folder", "mtpbench store verify FOLDER, or a URL such as s3://bucket/prefix")

    def told(run: str) -> None:
        if err.is_terminal:
            err.print(Text(f"  {run}", style="dim"), end="\r")

    checked = verify_remote(Remote(store), told) if is_url(store) else verify(Path(store), told)
    out.print(Text(checked.sentence, style="bold red" if checked.damage else "bold green"))
    if checked.damage:
        out.print(_damage_table(checked))
    if checked.unfinished:
        names = ", ".join(checked.unfinished[:5]) + (", …" if len(checked.unfinished) > 5 else "")
        what = f"{len(checked.unfinished)} without a manifest, unfinished or made by hand: {names}"
        out.print(Text(f"note: {what}", style="yellow"), soft_wrap=True)
    if checked.damage:
        raise typer.Exit(1)


def _damage_table(checked: Checked) -> Table:
    table = Table("run", "file", "what", box=box.SIMPLE_HEAD)
    for one in checked.damage:
        table.add_row(Text(one.run), Text(one.file, overflow="fold"), Text(one.what, overflow="fold"))
    return table


@verbs.command()
def rows(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
) -> None:
    """Write a run's Parquet file anew from its records."""
    path = RunStore(run).write_rows(parquet(load_run(run)))
    reseal(run, path)
    out.print(Text(str(path)), soft_wrap=True)


def _remote(url: str) -> Remote:
    if not is_url(url):
        raise MtpbenchError(f"{url} is no URL", "Such as s3://bucket/prefix; runs in folders are merged by copying.")
    return Remote(url)
