"""The verbs over a whole store, and how other verbs reach one behind a URL. Registered from app.py."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from harness.cli.common import default_cache, err, out
from harness.errors import MtpbenchError, StoreError
from harness.run.progress import print_error
from harness.store.manifest import reseal, seal
from harness.store.remote import Remote, Uploader, Wanted, cache_folder, everything, is_url, mirror, push, uploader
from harness.store.rows import parquet
from harness.store.runs import RunStore, load_run
from harness.store.verify import Checked, verify, verify_remote

STORE_HELP = "Folder for results, or the URL of a store: s3://bucket/prefix."
SPOOL = Path("runs")  # where a run is measured that goes to a URL

store_app = typer.Typer(no_args_is_help=True, help="A store as a whole: copy runs to and from it, check its files.")


def say(line: str) -> None:
    err.print(Text(line, style="yellow"), soft_wrap=True)


def local(store: str, wanted: Wanted = everything) -> Path:
    """The folder of a store; for a URL, of its mirror here, which is brought up to date."""
    if not is_url(store):
        return Path(store)
    return mirror(Remote(store), cache_folder(default_cache(), store), say, wanted=wanted, prune=True)


def local_run(run: str) -> Path:
    """The folder of a run; one behind a URL is fetched. Raises StoreError where it is not there."""
    if not is_url(run):
        return Path(run)
    url, _, name = run.rstrip("/").rpartition("/")
    folder = mirror(Remote(url), cache_folder(default_cache(), url), say, only=name) / name
    if not folder.is_dir():
        raise StoreError(f"{url} has no finished run {name}", f"mtpbench list {url}")
    return folder


def spool(store: str) -> tuple[Path, Remote | None]:
    """Where a run is measured, and where it is copied to."""
    return (SPOOL, Remote(store)) if is_url(store) else (Path(store), None)


def follow(store: RunStore, remote: Remote | None) -> Uploader | None:
    """Has each finished pass of a run copied, if it goes to a URL."""
    return uploader(remote, store, say) if remote else None


def deliver(run: Path, follower: Uploader | None) -> bool:
    """Seals a finished run and copies the rest of it. A failure is told, and leaves the run where it is."""
    try:
        seal(run)
        if follower is None:
            return True
        files = follower.finish(run)
    except StoreError as error:
        print_error(err, error, error.hint, None, ())
        return False
    err.print(Text(f"copied: {follower.remote.url}/{run.name} ({files} files)"), soft_wrap=True)
    return True


@store_app.command(name="push")
def push_runs(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")],
    url: Annotated[str, typer.Argument(metavar="URL", help="Such as s3://bucket/prefix.")],
) -> None:
    """Copy runs to a store behind a URL. The same run again changes nothing; an unfinished one is copied as it is."""
    remote = _remote(url)
    for run in runs:
        files = push(run, remote, say)
        out.print(Text(f"{remote.url}/{run.absolute().name}: {files} files"), soft_wrap=True)


@store_app.command()
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


@store_app.command(name="verify")
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


@store_app.command()
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
