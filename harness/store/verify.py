"""Is what a store holds still what was written? Every file against its run's manifest, every record read."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import StoreError
from harness.store import imported_runs as import_store
from harness.store.ab_record import load_session
from harness.store.manifest import MANIFEST_FILE, Entry, Manifest, files_of, read_manifest
from harness.store.remote import Remote
from harness.store.rows import read_rows
from harness.store.runs import AB_FILE, load_run, read_json, read_launch, read_pass, read_requests


@dataclass(frozen=True)
class Damage:
    """One file that is not as it was written."""

    run: str
    file: str  # below the store
    what: str


@dataclass
class Checked:
    """What was looked at. `unfinished`: runs without a manifest, read but not compared with anything."""

    runs: int = 0
    files: int = 0
    unfinished: list[str] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)

    @property
    def sentence(self) -> str:
        what = f"{self.files} files of {self.runs} run{'s' if self.runs != 1 else ''}"
        if self.damage:
            files = len({one.file for one in self.damage})
            return f"DAMAGED: {files} of {what}"
        if self.runs and len(self.unfinished) == self.runs:
            return f"OK: {what} can be read; there is no manifest to compare them with"
        return f"OK: {what} are as they were written" if self.runs else "OK: there are no runs"


def verify(root: Path, told: Callable[[str], None] = lambda _run: None) -> Checked:
    """A store in a folder."""
    checked = Checked()
    runs = [path for path in sorted(root.iterdir()) if _is_run(path)] if root.is_dir() else []
    for run in runs:
        told(run.name)
        _verify_run(run, checked)
    known = {f"run-{run.name}.parquet" for run in runs}
    for rows in sorted(root.glob("rows/*/run-*.parquet")):
        if rows.name not in known:
            run_name = rows.stem.removeprefix("run-")
            checked.damage.append(Damage(run_name, rows.relative_to(root).as_posix(), "its run is not there"))
    return checked


def verify_remote(remote: Remote, told: Callable[[str], None] = lambda _run: None) -> Checked:
    """A store behind a URL: everything is fetched anew, a run at a time."""
    listed = sorted(remote.listing())
    runs: dict[str, list[str]] = {}
    for name in listed:
        top, _, rest = name.partition("/")
        run = Path(rest).stem.removeprefix("run-") if top == "rows" else top
        if rest and not {"..", ""} & set(name.split("/")):
            runs.setdefault(run, []).append(name)
    checked = Checked()
    for run, names in runs.items():
        told(run)
        with tempfile.TemporaryDirectory(prefix="mtpbench-verify-") as folder:
            root = Path(folder)
            for name, content in remote.get(names).items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_bytes(content)
            found = verify(root)
        checked.runs += found.runs
        checked.files += found.files
        checked.unfinished += found.unfinished
        checked.damage += found.damage
    return checked


def _is_run(path: Path) -> bool:
    names = ("run.json", import_store.FILE, MANIFEST_FILE)
    return path.is_dir() and not path.name.startswith(".") and any((path / name).is_file() for name in names)


def _verify_run(run: Path, checked: Checked) -> None:
    root, before = run.parent, len(checked.damage)

    def damaged(file: str, what: str) -> None:
        checked.damage.append(Damage(run.name, file, what.replace(f"{root}/", "")))

    checked.runs += 1
    manifest: Manifest | None = None
    try:
        manifest = read_manifest(run)
        if manifest is None:
            checked.unfinished.append(run.name)
    except StoreError as error:
        damaged(f"{run.name}/{MANIFEST_FILE}", str(error))
    here = {path.relative_to(root).as_posix(): path for path in files_of(run)}
    for name in sorted({*here, *(manifest.files if manifest else ())}):
        checked.files += 1
        wrong = next(_wrong(name, here.get(name), manifest), "")
        if wrong:
            damaged(name, wrong)
    if len(checked.damage) == before and (run / "run.json").is_file():
        try:
            load_run(run)
        except StoreError as error:
            damaged(f"{run.name}/run.json", str(error))


def _wrong(name: str, path: Path | None, manifest: Manifest | None) -> Iterator[str]:
    """What is wrong with a file, the plainest first."""
    entry = manifest.files.get(name) if manifest else None
    if path is None:
        yield "is missing"
        return
    content = path.read_bytes()
    if manifest is not None and entry is None:
        yield "is not in the manifest: written after the run was finished"
    if entry is not None and entry.size != len(content):
        yield f"has {len(content)} bytes, was written with {entry.size}"
    if entry is not None and entry != Entry.of(content):
        yield "has other content than was written: its SHA-256 differs"
    try:
        _read(path)
    except StoreError as error:
        yield str(error)


def _read(path: Path) -> None:
    """Reads a file as what its name says. Raises StoreError."""
    if path.suffix == ".parquet":
        read_rows(path)
    elif path.name.endswith(".requests.jsonl.gz"):
        read_requests(path)
    elif path.suffix == ".json" and path.parent.name in ("passes", "failed"):
        read_pass(path)
    elif path.suffix == ".json" and path.parent.name == "launches":
        read_launch(path)
    elif path.name == AB_FILE:
        load_session(path.parent)
    elif path.name == import_store.FILE:
        import_store.load(path.parent)
    elif path.suffix == ".json":
        read_json(path)
