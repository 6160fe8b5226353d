"""How verbs reach a store, in a folder or behind a URL: where runs are read and measured, how they are copied."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.text import Text

from harness.cli.common import default_cache, err, print_error
from harness.errors import StoreError
from harness.store.events import Event, file_of
from harness.store.manifest import seal
from harness.store.remote import Remote, Uploader, Wanted, cache_folder, everything, is_url, mirror, uploader
from harness.store.runs import RunStore, write_below

STORE_HELP = "Folder for results, or the URL of a store: s3://bucket/prefix."
# Where a run is measured that goes to a URL: a job inside a container names a folder that it may leave behind.
SPOOL = Path(os.environ.get("MTPBENCH_SPOOL") or "runs")


def say(line: str) -> None:
    err.print(Text(line, style="yellow"), soft_wrap=True)


def say_left_out(what: Iterable[str]) -> None:
    """What of a store could not be read, or does not count."""
    for text in what:
        say(f"left out: {text}")


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


def put(store: str, name: str, content: bytes) -> None:
    """Writes one small file into a store, under its path below the store. Raises StoreError."""
    if is_url(store):
        Remote(store).put({name: content})
    else:
        write_below(Path(store), name, content)


def append_events(store: str, events: Sequence[Event]) -> None:
    """Writes events down, as one file; nothing where there are none. Raises StoreError."""
    if events:
        put(store, *file_of(events))


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
