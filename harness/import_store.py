"""Imported runs on disk, in the same folder as runs of ours: ROOT/imported-<format>-<hash>/import.json.

The name comes from the file's content, so that importing it again finds what is there: nothing is ever there twice,
and two imports at once can't both win.
"""

from __future__ import annotations

import errno
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from harness.errors import StoreError
from harness.imported import ImportedRun
from harness.store import write_atomically

FILE = "import.json"


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
