"""A store as the trend and the pages read it: rows where they are stored, raw records only where they are not.

A year of nights is thousands of passes; reading each one's requests takes hours, reading their rows seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.errors import StoreError
from harness.store.ab_record import Session, load_session
from harness.store.rows import read_rows, with_rows
from harness.store.runs import AB_FILE, StoredRun, load_head, load_run, rows_path

Watch = Callable[[int, int, str], None]  # runs read, runs in all, the one that is read now


@dataclass(frozen=True)
class Kept:
    """A run of a store; `session` where it is an A/B or A/A."""

    run: StoredRun
    session: Session | None = None

    @property
    def nightly(self) -> bool:
        """Is it a night of a trend? One in quarantine is, so that it can be said that it was left out."""
        return self.session is None


@dataclass(frozen=True)
class Archive:
    """All runs of a store in order of time, and what could not be read, each with what to do."""

    root: Path
    kept: tuple[Kept, ...]
    left_out: tuple[str, ...] = ()

    def nightly(self) -> list[StoredRun]:
        """What a trend judges. Simulated runs judge nothing beside measured ones; alone, they show how it would."""
        runs = [one.run for one in self.kept if one.nightly]
        return [run for run in runs if not run.simulated] or runs

    def aa_runs(self, host: str, scenario: str) -> Iterator[tuple[StoredRun, Session]]:
        """A/A runs of one host and scenario: what equal servers differ by."""
        for one in self.kept:
            here = (str(one.run.environment.get("host")), one.run.scenario.name) == (host, scenario)
            if here and one.session is not None and one.session.kind == "aa" and not one.run.quarantine:
                yield one.run, one.session


def _quiet(_done: int, _total: int, _what: str) -> None:
    pass


def read_archive(root: Path, watch: Watch = _quiet) -> Archive:
    """Every run below a folder; one that can't be read is named and passed over."""
    files = sorted(root.glob("*/run.json"))
    kept, left_out = [], []
    for number, file in enumerate(files):
        watch(number, len(files), file.parent.name)
        try:
            kept.append(_read(file.parent))
        except StoreError as error:
            left_out.append(f"{error}. {error.hint}".strip())
    kept.sort(key=lambda one: (one.run.created_at, one.run.id))
    return Archive(root, tuple(kept), tuple(left_out))


def read_run(path: Path) -> StoredRun:
    """One run, its passes with their stored rows where these are there and of today's version."""
    table = read_rows(rows_path(path))
    return load_run(path) if table is None else with_rows(load_head(path), table)


def _read(path: Path) -> Kept:
    session = load_session(path) if (path / AB_FILE).is_file() else None
    return Kept(read_run(path), session)
