"""`manifest.json`: every file of a finished run with its size and SHA-256, written last.

A run without one is unfinished, or on its way to a store. Marks, which the sentinel may add later, are not in it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from harness.errors import StoreError
from harness.store.runs import QUARANTINE_FILE, read_json, rows_path, write_atomically

MANIFEST_FILE = "manifest.json"
MANIFEST_VERSION = 1  # 1: first
SENTINEL_FILE = "sentinel.json"  # beside an A/A run: what it says of its host, see nightly/quarantine.py
MARKS = (QUARANTINE_FILE, SENTINEL_FILE)
# Never written a second time, so a manifest that is written anew must not bless what happened to them since.
_IMMUTABLE = ("run.json", "passes/", "import.json")


@dataclass(frozen=True)
class Entry:
    """A file as it was when the run was finished."""

    size: int
    sha256: str

    @classmethod
    def of(cls, content: bytes) -> Entry:
        return cls(len(content), hashlib.sha256(content).hexdigest())


@dataclass(frozen=True)
class Manifest:
    """The files of a run, by their path below the store: `RUN/passes/…`, `rows/date=…/run-RUN.parquet`."""

    run: str
    files: Mapping[str, Entry]

    def to_bytes(self) -> bytes:
        files = {name: asdict(entry) for name, entry in sorted(self.files.items())}
        document = {"manifest_version": MANIFEST_VERSION, "run": self.run, "files": files}
        return (json.dumps(document, indent=1) + "\n").encode()

    @classmethod
    def from_json(cls, data: Mapping[str, Any], run: str) -> Manifest:
        """Raises ValueError, also for a path that would lead out of the run."""
        if data["manifest_version"] != MANIFEST_VERSION:
            raise ValueError(f"manifest version {data['manifest_version']}; this mtpbench reads {MANIFEST_VERSION}")
        files = {str(name): Entry(int(e["size"]), str(e["sha256"])) for name, e in data["files"].items()}
        for name in files:
            parts = PurePosixPath(name).parts
            ours = (parts[:1] == (run,) and len(parts) > 1) or name == rows_path(Path(run)).as_posix()
            if ".." in parts or "\\" in name or not ours:
                raise ValueError(f"{name!r} is no file of the run {run}")
        return cls(run, files)


def read_manifest(run: Path) -> Manifest | None:
    """The manifest of a run's folder; None where the run is not finished. Raises StoreError."""
    file = run / MANIFEST_FILE
    if not file.is_file():
        return None
    try:
        return Manifest.from_json(read_json(file), run.name)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{file} is damaged: {error!r}", "Fetch it again, or remove it and push the run.") from error


def seal(run: Path) -> Manifest:
    """Writes the manifest of a finished run; after a resume anew, with the old entries of what can't have changed."""
    before = read_manifest(run)
    known = before.files if before else {}
    files: dict[str, Entry] = {}
    for path in files_of(run):
        name = path.relative_to(run.parent).as_posix()
        own = name.removeprefix(f"{run.name}/")
        fixed = own.startswith(_IMMUTABLE) and not own.startswith("passes/profiles/")
        files[name] = known[name] if fixed and name in known else Entry.of(path.read_bytes())
    manifest = Manifest(run.name, files)
    write_atomically(run / MANIFEST_FILE, manifest.to_bytes())
    return manifest


def reseal(run: Path, written: Path) -> None:
    """Takes a file that was written anew, such as report.html, into the manifest of a finished run."""
    before = read_manifest(run)
    if before is not None:
        name = written.relative_to(run.parent).as_posix()
        files = {**before.files, name: Entry.of(written.read_bytes())}
        write_atomically(run / MANIFEST_FILE, Manifest(run.name, files).to_bytes())


def files_of(run: Path) -> Iterator[Path]:
    """Every file that belongs to a run, its rows included; no marks, locks or halves."""
    for path in sorted(run.rglob("*")):
        ours = str(path.relative_to(run)) not in (MANIFEST_FILE, *MARKS) and not path.name.startswith(".")
        if ours and path.is_file() and not path.is_symlink():
            yield path
    rows = rows_path(run)
    if rows.is_file():
        yield rows
