"""Runs on disk: append-only, each file written whole or not at all, saved after every pass.

ROOT/<run id>/run.json                       scenario, fingerprint, versions
              scenario.yaml                  as the user wrote it
              launches/<launch>-s<n>.json    one server process: command, environment, what it says of itself
              launches/<launch>-s<n>.log
              launches/<launch>-s<n>.evidence/   which verify kernel served it, a file a process
              passes/<pass>.json             one pass
              passes/<pass>.requests.jsonl.gz
              passes/profiles/<pass>.json    where the device's time went at that load, traced afterwards
              passes/failed/…                passes that did not complete, for diagnosis
              ab.json                        of an A/B run: which arms are which side
              report.html
              manifest.json                  written last: every file with its SHA-256, see manifest.py
              quarantine.json                its host was unsteady: the run is kept and judges nothing
ROOT/rows/date=<day>/run-<run id>.parquet    one row a pass, for pandas and DuckDB
ROOT/nights/<day>-<job>.json                 what a night was told to measure, and how its steps ended
ROOT/events/<time>-<digest>.jsonl            what happened to the series: see events.py
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gzip
import json
import os
import secrets
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import IO, Any

from harness import __version__
from harness.errors import ResumeError, StoreError
from harness.model import LaunchRecord, Pass, PassKey, PassRecord, RequestRecord
from harness.redact import MASK, masked, masked_json, masked_text
from harness.scenario.format import Scenario
from harness.store import shapes

STORE_VERSION = 1  # 1: first
AB_FILE = "ab.json"  # beside run.json where the run is an A/B: see ab_record.py
EVENTS = "events"  # beside the runs: what happened to the series, see events.py
NIGHTS = "nights"  # beside the runs: what each night was told to measure, see nightly/night.py
QUARANTINE_FILE = (
    "quarantine.json"  # {"reason", "since"}, and "released" once it judges again: see nightly/quarantine.py
)

_MOST_ROWS = 100_000  # arms × TP × levels of a scenario
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def utc_now() -> str:
    """ISO 8601, seconds, UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


@dataclass(frozen=True)
class StoredRun:
    """A run as read back. `passes`: completed ones; `failed`: those that no later attempt completed.

    `quarantine`: why its numbers judge nothing; empty where they do.
    """

    path: Path
    id: str
    created_at: str
    scenario: Scenario
    environment: dict[str, Any]
    launches: tuple[LaunchRecord, ...]
    passes: tuple[Pass, ...]
    failed: tuple[PassRecord, ...]
    quarantine: str = ""

    @property
    def simulated(self) -> dict[str, Any] | None:
        """How the simulator made it; None of a measured run."""
        made: dict[str, Any] | None = self.environment.get("simulated")
        return made


def head_of(run: str, created_at: str, scenario: Scenario, environment: dict[str, Any]) -> dict[str, Any]:
    """What `run.json` holds."""
    head = {
        "store_version": STORE_VERSION,
        "mtpbench": __version__,
        "id": run,
        "created_at": created_at,
        "scenario": scenario.model_dump(mode="json"),
        "environment": environment,
    }
    return dict(masked_json(head))


def variables_of(scenario: Scenario) -> dict[str, str]:
    """Every variable that a scenario gives to its servers."""
    out = dict(scenario.server.env)
    for changes in scenario.arms.values():
        own = changes.get("env")
        out |= {name: value for name, value in own.items() if isinstance(value, str)} if isinstance(own, dict) else {}
    return out


def with_secrets(scenario: Scenario, known: Mapping[str, str]) -> Scenario:
    """A stored scenario with the secrets that were not written down, from the variables of this process.

    Raises ResumeError that names those which are not set.
    """
    hidden = [name for name, value in variables_of(scenario).items() if MASK in value]
    missing = [name for name in hidden if name not in known]
    if missing:
        names = ", ".join(missing)
        raise ResumeError(
            f"{names} of this run's scenario is a secret, which is not written down",
            f"Set it in the environment: {missing[0]}=… mtpbench …, or better, name it in container.pass_env.",
        )

    def filled(env: Mapping[str, Any]) -> dict[str, Any]:
        return {name: known[name] if name in hidden else value for name, value in env.items()}

    server = scenario.server.model_copy(update={"env": filled(scenario.server.env)})
    arms = {
        name: {**changes, "env": filled(changes["env"])} if isinstance(changes.get("env"), dict) else changes
        for name, changes in scenario.arms.items()
    }
    return scenario.model_copy(update={"server": server, "arms": arms})


class RunStore:
    """One run's folder, open for writing. Only one process may hold it.

    `on_pass` is told the files of each pass once they are on disk.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.on_pass: Callable[[tuple[Path, ...]], None] = lambda _files: None
        self._lock: IO[str] | None = None

    @classmethod
    def create(cls, root: Path, scenario: Scenario, scenario_text: str, environment: dict[str, Any]) -> RunStore:
        """A new run below `root`. Its id begins with the time, so that listings are in order."""
        stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        store = cls(root / f"{stamp}-{scenario.name}-{secrets.token_hex(3)}")
        try:
            for folder in ("launches", "passes/failed"):
                (store.path / folder).mkdir(parents=True)
        except OSError as error:
            raise _explain(error, store.path) from error
        store.lock()
        store.write_text("scenario.yaml", masked_text(scenario_text, variables_of(scenario)))
        store._write_json("run.json", head_of(store.path.name, utc_now(), scenario, environment))
        return store

    @classmethod
    def resume(cls, path: Path) -> RunStore:
        store = cls(path)
        if not (path / "run.json").is_file():
            raise ResumeError(f"{path} is not a run: it has no run.json", "Give the folder of the run.")
        store.lock()
        return store

    def lock(self) -> None:
        try:
            self._lock = (self.path / ".lock").open("w")
        except OSError as error:
            raise _explain(error, self.path / ".lock") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ResumeError(f"{self.path} is in use by another mtpbench", "Wait for it, or end it.") from error

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def log_path(self, slug: str, server_start: int) -> Path:
        return self.path / "launches" / f"{slug}-s{server_start}.log"

    def evidence_folder(self, slug: str, server_start: int) -> Path:
        """Where the processes of one server start write which kernel served them."""
        return self.path / "launches" / f"{slug}-s{server_start}.evidence"

    def save_launch(self, record: LaunchRecord) -> None:
        self._write_json(f"launches/{record.slug}-s{record.server_start}.json", record.to_json())

    def save_pass(self, record: PassRecord, requests: Iterable[RequestRecord]) -> None:
        """Requests first: a pass exists once its own file does."""
        base = f"passes/{record.key.slug}"
        if not record.complete:
            base = f"passes/failed/{record.key.slug}-s{record.server_start}"
        lines = "".join(
            json.dumps(replace(r, error=masked(r.error)).to_json(), separators=(",", ":")) + "\n" for r in requests
        )
        # mtime=0: equal content gives equal bytes.
        requests_file = self._write(f"{base}.requests.jsonl.gz", gzip.compress(lines.encode(), mtime=0))
        self.on_pass((requests_file, self._write_json(f"{base}.json", record.to_json())))

    def trace_folder(self, slug: str, server_start: int) -> Path:
        """Where the profiler of one server start writes, until it has been read."""
        return self.path / "launches" / f"{slug}-s{server_start}.trace"

    def save_profile(self, key: PassKey, profile: dict[str, Any]) -> None:
        """What the device did in a decode step at the load of a pass, traced when all was measured."""
        (self.path / "passes" / "profiles").mkdir(exist_ok=True)
        self._write_json(f"passes/profiles/{key.slug}.json", profile)

    def launches(self) -> list[LaunchRecord]:
        """Every server start so far, failed ones included."""
        return _launch_records(self.path)

    def done(self) -> set[PassKey]:
        """Keys of the passes that are complete."""
        return {record.key for record in _pass_records(self.path / "passes")}

    def server_starts(self, slug: str) -> int:
        """How many server processes this launch has had."""
        return len(list((self.path / "launches").glob(f"{slug}-s*.log")))

    def write_text(self, name: str, text: str) -> Path:
        return self._write(name, masked(text).encode("utf-8", "replace"))

    def write_rows(self, parquet: bytes) -> Path:
        path = rows_path(self.path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _explain(error, path) from error
        return write_atomically(path, parquet)

    def _write_json(self, name: str, value: dict[str, Any]) -> Path:
        text = json.dumps(masked_json(value), indent=1, allow_nan=False)
        return self._write(name, (text + "\n").encode())

    def _write(self, name: str, content: bytes) -> Path:
        return write_atomically(self.path / name, content)


def rows_path(run: Path) -> Path:
    """Where a run's Parquet file is, below the root that all runs share."""
    stamp = run.name[:8]
    day = f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:8]}"
    return run.parent / "rows" / f"date={day}" / f"run-{run.name}.parquet"


def write_atomically(path: Path, content: bytes) -> Path:
    """The file is there whole, or as it was before. Raises StoreError that says what can be done."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        try:
            with unfinished.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise _explain(error, path) from error
    return path


def write_below(root: Path, name: str, content: bytes) -> Path:
    """A file of a store in a folder, whose folders are made where they are not there. Raises StoreError."""
    path = root / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"can't write {path.parent}: {error.strerror}", "Choose another store.") from error
    return write_atomically(path, content)


def _explain(error: OSError, path: Path) -> StoreError:
    if error.errno in _FULL:
        return StoreError(
            f"no space left while writing {path}",
            "Passes saved before are complete and readable. Free some space and run again with --resume.",
        )
    return StoreError(f"can't write {path}: {error.strerror}", "Choose another place with --store.")


def load_head(path: Path) -> StoredRun:
    """Reads all of a run but its passes. Raises StoreError that names the file that is damaged."""
    if (path / "import.json").is_file():
        raise StoreError(
            f"{path} is an imported result: it has numbers of another tool and no raw records",
            "`mtpbench report` shows it.",
        )
    head = read_json(path / "run.json")
    version = head.get("store_version")
    if version != STORE_VERSION:
        raise StoreError(f"{path} has store version {version}; this mtpbench reads version {STORE_VERSION}")
    with _damage(path / "run.json"):
        created_at = str(head["created_at"])
        if not 2000 <= datetime.fromisoformat(created_at.replace("Z", "+00:00")).year <= 2200:
            raise ValueError(f"it was begun at {created_at}")
        shapes.plain(head["environment"], "environment")
        return StoredRun(
            path=path,
            id=str(head["id"]),
            created_at=created_at,
            scenario=_scenario(path, head["scenario"]),
            environment=_environment(head["environment"]),
            launches=tuple(_launch_records(path)),
            passes=(),
            failed=(),
            quarantine=_quarantine(path),
        )


def load_run(path: Path) -> StoredRun:
    """Reads a run's folder. Raises StoreError that names the file that is damaged."""
    head = load_head(path)
    passes = [
        Pass(record, read_requests(path / "passes" / f"{record.key.slug}.requests.jsonl.gz"))
        for record in map(partial(_profiled, path), _pass_records(path / "passes"))
    ]
    done = {one.record.key for one in passes}
    return replace(
        head,
        passes=tuple(sorted(passes, key=lambda p: p.record.t_start)),
        failed=tuple(r for r in _pass_records(path / "passes" / "failed") if r.key not in done),
    )


def _environment(found: dict[str, Any]) -> dict[str, Any]:
    """A fingerprint. What the simulator adds has a form of its own, which reports rely on."""
    made = found.get("simulated")
    if made is not None:
        str(made["hardware"]["name"]), int(made["seed"])
        for one in made["injected"].values():
            float(one["size"]), list(one.get("arms") or [])
    return dict(found)


def _quarantine(path: Path) -> str:
    """Why a run's numbers judge nothing; empty where they do."""
    file = path / QUARANTINE_FILE
    mark = read_json(file) if file.is_file() else {}
    return "" if not mark or mark.get("released") else str(mark.get("reason") or "no reason given")


def _launch_records(path: Path) -> list[LaunchRecord]:
    return [read_launch(p) for p in sorted((path / "launches").glob("*.json"))]


def _scenario(path: Path, stored: Any) -> Scenario:
    """As it was run: an A/B that was decided early is complete with the pairs that it took."""
    shapes.plain(stored, "scenario")
    scenario = Scenario.model_validate(stored)
    if scenario.baseline_arm not in [arm.name for arm in scenario.resolved_arms()]:
        raise ValueError(f"its baseline {scenario.baseline_arm!r} is not one of its arms")
    if not 1 <= len(scenario.levels()) * len(scenario.arms) * len(scenario.tp) <= _MOST_ROWS:
        raise ValueError("it has no row, or absurdly many")
    session = read_json(path / AB_FILE) if (path / AB_FILE).is_file() else {}
    finished = session.get("finished_pairs")
    return scenario.model_copy(update={"launches": finished}) if type(finished) is int and finished > 0 else scenario


def _pass_records(folder: Path) -> list[PassRecord]:
    return [read_pass(path) for path in sorted(folder.glob("*.json"))]


def _profiled(path: Path, record: PassRecord) -> PassRecord:
    """With what was traced at its load, if anything was."""
    profile = path / "passes" / "profiles" / f"{record.key.slug}.json"
    if not profile.is_file():
        return record
    with _damage(profile):
        return replace(record, step_profile=dict(read_json(profile)["parts"]))


def read_pass(path: Path) -> PassRecord:
    """A pass without its requests. Raises StoreError."""
    with _damage(path):
        record = PassRecord.from_json(read_json(path))
        check_record(record)
        return record


def read_launch(path: Path) -> LaunchRecord:
    """One server start. Raises StoreError."""
    with _damage(path):
        record = LaunchRecord.from_json(read_json(path))
        shapes.check(record, LaunchRecord)
        return record


def check_record(record: PassRecord) -> None:
    """Raises ValueError for a pass that can't be, whatever its file says."""
    shapes.check(record, PassRecord)
    key = record.key
    if key.launch < 0 or key.index < 0 or key.tp < 1 or record.t_end < record.t_start:
        raise ValueError("its key or its times can't be")


@contextlib.contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Whatever a record's content does to its reader becomes a StoreError that names the file."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        why = f"{error!r}"[:300]
        raise StoreError(f"{path} is damaged: {why}", "Move it away to read the rest of the run.") from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises StoreError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, RecursionError, ValueError) as error:
        why = f"{error}"[:300]
        raise StoreError(f"{path} can't be read: {why}", "Is this the folder of a run?") from error
    if not isinstance(value, dict):
        raise StoreError(f"{path} is damaged: a JSON object is expected")
    return value


def read_requests(path: Path) -> tuple[RequestRecord, ...]:
    """The requests of a pass. Raises StoreError."""
    try:
        text = gzip.decompress(path.read_bytes()).decode()
        found = tuple(RequestRecord.from_json(json.loads(line)) for line in text.split("\n") if line)
        for one in found:
            _check_request(one)
        return found
    except (
        *(OSError, EOFError, zlib.error, RecursionError),
        *(ArithmeticError, AttributeError, LookupError, TypeError, ValueError),
    ) as error:
        why = f"{error!r}"[:300]
        raise StoreError(f"{path} is damaged: {why}", "Move its pass away to read the rest.") from error


def _check_request(one: RequestRecord) -> None:
    shapes.check(one, RequestRecord)
    counts = (one.prompt_tokens, one.completion_tokens, one.cached_tokens, one.verify_steps, one.input_tokens_asked)
    if min((count for count in counts if count is not None), default=0) < 0 or one.t_end < one.t_send:
        raise ValueError("its counts or its times can't be")
    if one.ok and not one.events:
        raise ValueError("it is ok, and nothing arrived")
