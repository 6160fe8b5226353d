"""Results of other tools, as they reported them, and their place on disk: ROOT/imported-<format>-<hash>/import.json.

A run of ours holds raw events, from which every metric is derived. Another tool's file holds numbers that it derived
itself, by its own definitions and mostly over the whole run, ramps included. They are kept under that tool's names and
in its units, never mapped to ours, and never in a run of ours: what a run states about servers, prompts and machines is
mostly unknown here, and unknown stays unknown.

The name comes from the file's content, so that importing it again finds what is there: nothing is ever there twice,
and two imports at once can't both win.
"""

from __future__ import annotations

import errno
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import StoreError
from harness.model import Finding
from harness.store.runs import write_atomically

FILE = "import.json"
IMPORT_VERSION = 1  # 1: first. Raise it when a field changes meaning, and say here what changed.

UNLIMITED = "inf"  # a request rate: everything is sent at once

Scalar = str | int | float | bool


@dataclass(frozen=True)
class Number:
    """One reported number: the key of the tool's file, in the tool's unit."""

    name: str
    value: float
    unit: str
    higher_is_better: bool | None = None  # None: neither


@dataclass(frozen=True)
class Point:
    """One result in a file: one load, offered to one server. None and "" are what the file does not say."""

    where: str  # "line 3", "benchmarks[0]"
    arm: str = ""
    measured_at: str = ""  # as the file writes it
    concurrency: int | None = None
    rate: float | None = None  # requests a second
    requests: int | None = None  # that succeeded
    failed: int | None = None
    settings: dict[str, Scalar] = field(default_factory=dict)
    numbers: tuple[Number, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def load(self) -> str:
        """For a person: how much load was offered."""
        if self.concurrency is not None:
            return str(self.concurrency)
        if self.rate is None and self.settings.get("request_rate") == UNLIMITED:
            return "all at once"
        return f"{self.rate:g}/s" if self.rate is not None else "unknown"

    def get(self, name: str) -> Number | None:
        return next((number for number in self.numbers if number.name == name), None)


@dataclass(frozen=True)
class Origin:
    """Where an imported run comes from. The file itself is not kept: it may hold prompts, outputs and keys."""

    format: str  # a name in IMPORTERS
    tool: str
    tool_version: str  # "" where the file does not say
    file: str  # its name, without folders
    sha256: str
    imported_at: str
    ignored: tuple[str, ...] = ()  # keys of the file that were not taken

    @property
    def left(self) -> str:
        """What was not taken, for a person: the first few names."""
        more = len(self.ignored) - 8
        return ", ".join(self.ignored[:8]) + (f" and {more} more" if more > 0 else "")

    def describe(self) -> str:
        version = self.tool_version or "version unknown"
        return f"{self.tool} ({version}), {self.file}, sha256 {self.sha256[:12]}, imported {self.imported_at}"


@dataclass(frozen=True)
class ImportedRun:
    """A file of another tool. `host` and `labels` are what the person who imported it said, not what it holds."""

    id: str
    origin: Origin
    points: tuple[Point, ...]
    host: str = ""
    labels: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"import_version": IMPORT_VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ImportedRun:
        """The inverse of `to_json`. Raises KeyError, TypeError or ValueError."""
        if data.get("import_version") != IMPORT_VERSION:
            raise ValueError(f"import version {data.get('import_version')}; this mtpbench reads {IMPORT_VERSION}")
        points = [
            Point(
                **{
                    **point,
                    "numbers": tuple(Number(**number) for number in point["numbers"]),
                    "findings": tuple(Finding(**finding) for finding in point["findings"]),
                }
            )
            for point in data["points"]
        ]
        origin = Origin(**{**data["origin"], "ignored": tuple(data["origin"]["ignored"])})
        return cls(data["id"], origin, tuple(points), data["host"], data["labels"])


def run_id(format_name: str, sha256: str) -> str:
    return f"imported-{format_name}-{sha256[:16]}"


def is_imported(path: Path) -> bool:
    return (path / FILE).is_file()


def save(root: Path, run: ImportedRun) -> tuple[Path, bool]:
    """Writes a run, whole or not at all. Returns its folder, and whether it is new.

    Raises StoreError where the same file is there with another arm, host or label: which is right, a person must say.
    """
    folder = root / run.id
    text = json.dumps(run.to_json(), indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    try:
        root.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{run.id}.", dir=root))
        try:
            partial.chmod(0o755)
            write_atomically(partial / FILE, text.encode())
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise StoreError(f"can't write {folder}: {error.strerror}", "Choose another place with --store.") from error
        _same_or_refuse(load(folder), run, folder)
        return folder, False
    return folder, True


def _same_or_refuse(before: ImportedRun, now: ImportedRun, folder: Path) -> None:
    old = [("host", before.host), *sorted(before.labels.items()), *(("arm", p.arm) for p in before.points)]
    new = [("host", now.host), *sorted(now.labels.items()), *(("arm", p.arm) for p in now.points)]
    if old != new:
        differing = ", ".join(f"{key} {value!r}" for key, value in dict.fromkeys(old) if (key, value) not in new)
        raise StoreError(
            f"{now.origin.file} is already imported as {folder}, with {differing or 'fewer labels'}",
            "Remove that folder to import the file otherwise.",
        )


def load(path: Path) -> ImportedRun:
    """Reads an imported run. Raises StoreError."""
    try:
        data = json.loads((path / FILE).read_text(encoding="utf-8"))
        return ImportedRun.from_json(data)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"{path / FILE} can't be read: {error}", "Import the file again; remove this folder."
        ) from error


def imported_runs(root: Path) -> Iterator[ImportedRun]:
    """All imported runs below a folder, in the order of their names."""
    for path in sorted(root.glob(f"imported-*/{FILE}")):
        yield load(path.parent)
