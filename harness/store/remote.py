"""A store on object storage: `s3://bucket/prefix`, or any other file system that fsspec knows.

The same paths as on disk. A run is measured into a local folder and copied; nobody needs a lock, since a run has one
writer and a name of its own. Its manifest is written last, and readers pass over runs without one. Credentials come
from the environment, as the storage's own tools read them, and are in no record. The only place that imports fsspec.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from harness.errors import MissingPackageError, StoreError
from harness.redact import harmless
from harness.store.manifest import MANIFEST_FILE, MARKS, Entry, Manifest, read_manifest, seal
from harness.store.runs import EVENTS, NIGHTS, RunStore, read_json, write_atomically

_URL = re.compile(r"^[a-z][a-z0-9+.-]*://")
_RUN = re.compile(r"^(?!rows$|nights$|events$)[A-Za-z0-9][A-Za-z0-9._-]*$")
_AT_ONCE = 64 * 2**20  # bytes held in memory while copying
_BATCH = 64  # files
# A dead network must not keep a GPU waiting for long: what was not copied is copied at the end.
_OPTIONS: dict[str, dict[str, Any]] = {
    "s3": {"config_kwargs": {"connect_timeout": 5, "read_timeout": 30, "retries": {"max_attempts": 3}}},
    "file": {"auto_mkdir": True},
}
# What no verb reads: a server's log, the processes' own evidence (it is in the launch's record), a page made anew.
_NOT_READ = re.compile(r"\.log$|\.(evidence|trace)/|/report\.html$")

Tell = Callable[[str], None]


def is_url(text: str) -> bool:
    return bool(_URL.match(text))


class Remote:
    """A store behind a URL. Raises StoreError for whatever the storage says."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        if re.search(r"://[^/]*@", url):
            raise StoreError(
                "a store's URL holds no credentials: it is written down",
                "Give them in the environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
            )
        try:
            import fsspec
        except ImportError as error:
            raise MissingPackageError("fsspec", f"A store at {self.url}", "s3") from error
        protocol = url.partition("://")[0]
        options = {"skip_instance_cache": True, "use_listings_cache": False, **_OPTIONS.get(protocol, {})}
        try:
            self._fs, self._root = fsspec.core.url_to_fs(self.url, **options)
        except ImportError as error:
            raise MissingPackageError(f"{protocol}fs", f"A store at {self.url}", "s3") from error
        except ValueError as error:
            raise StoreError(f"{self.url}: {error}", "Such as s3://bucket/prefix.") from error

    def put(self, files: Mapping[str, bytes]) -> None:
        """Writes whole objects, many at once; names are paths below the store."""
        with self._storage("written"):
            self._fs.pipe({f"{self._root}/{name}": content for name, content in files.items()})

    def get(self, names: Sequence[str]) -> dict[str, bytes]:
        """Reads whole objects, many at once. One that is not there is left out."""
        paths = {f"{self._root}/{name}": name for name in names}
        with self._storage("read"):
            found = self._fs.cat(list(paths), on_error="return") if paths else {}
            out = {}
            for path, content in found.items():
                if isinstance(content, bytes):
                    out[paths[path]] = content
                elif not isinstance(content, FileNotFoundError):
                    raise content
        return out

    def listing(self, below: str = "") -> dict[str, tuple[int, str]]:
        """Every object: path below the store → (size, what changes when it is written anew)."""
        top = f"{self._root}/{below}".rstrip("/")
        with self._storage("listed"):
            self._fs.invalidate_cache()
            found = self._fs.find(top, detail=True)
        out = {}
        for path, info in found.items():
            changed = next((str(info[key]) for key in ("ETag", "etag", "mtime", "created") if key in info), "")
            out[path.removeprefix(self._root).lstrip("/")] = int(info["size"] or 0), changed
        return out

    @contextmanager
    def _storage(self, done: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # every storage has an error tree of its own
            message = f"{self.url} can't be {done}: {type(error).__name__}: {_without_secrets(str(error))}"
            raise StoreError(message, "Check the URL, the network and the storage's credentials.") from None


def _without_secrets(text: str) -> str:
    """Some storages repeat in an error what they were given."""
    kept = harmless(dict(os.environ))
    for name, value in os.environ.items():
        if name not in kept and len(value) >= 8:
            text = text.replace(value, "***")
    return text


@dataclass
class Uploader:
    """Copies a run while it grows, and whole at its end. A storage that fails never stops a run."""

    remote: Remote
    root: Path  # the local folder above the run's
    tell: Tell
    _sent: dict[str, Entry] = field(default_factory=dict)
    _failed: bool = False

    def passed(self, files: tuple[Path, ...]) -> None:
        """Copies what a pass wrote; tries no more after a failure, until the end."""
        if self._failed:
            return
        try:
            self._send(files)
        except StoreError as error:
            self._failed = True
            self.tell(f"{error}; the run goes on, and all of it is copied at its end")

    def finish(self, run: Path) -> int:
        """The whole run, its manifest last. Returns how many files it has. Raises StoreError; what is here stays."""
        try:
            return self._finish(run)
        except StoreError as error:
            hint = f"Nothing is lost, the run is in {run}. Then: mtpbench store push {run} {self.remote.url}"
            raise StoreError(f"{run.name} was not copied: {error}", hint) from error

    def _finish(self, run: Path) -> int:
        manifest = read_manifest(run) or seal(run)
        for first in ("run.json", "import.json"):
            self._refuse_another(run / first)
        self._send((self.root / name for name in manifest.files), manifest)
        self._send(run / name for name in MARKS if (run / name).is_file())
        there = self.remote.listing(run.name)
        for folder in {str(PurePosixPath(name).parent) for name in manifest.files if name.startswith("rows/")}:
            there |= self.remote.listing(folder)
        for name, entry in manifest.files.items():
            if there.get(name, (-1, ""))[0] != entry.size:
                raise StoreError(f"{self.remote.url}/{name} is not there, or not whole")
        self.remote.put({f"{run.name}/{MANIFEST_FILE}": manifest.to_bytes()})
        return len(manifest.files)

    def _refuse_another(self, file: Path) -> None:
        """Names hold six random digits; two runs of one name would be mixed up for ever."""
        name = file.relative_to(self.root).as_posix()
        if file.is_file() and (there := self.remote.get([name])) and there[name] != file.read_bytes():
            raise StoreError(f"{self.remote.url} has another run of the name {file.parent.name}")

    def _send(self, files: Iterable[Path], manifest: Manifest | None = None) -> None:
        batch: dict[str, bytes] = {}
        size = 0
        for path in files:
            name = path.relative_to(self.root).as_posix()
            try:
                content = path.read_bytes()
            except OSError as error:
                raise StoreError(f"{path} can't be read: {error.strerror}") from error
            entry = Entry.of(content)
            if manifest is not None and manifest.files.get(name) != entry:
                raise StoreError(f"{path} has changed since the run was finished", "mtpbench store verify names all.")
            if self._sent.get(name) == entry:
                continue
            if batch and (size + len(content) > _AT_ONCE or len(batch) >= _BATCH):
                self._put(batch)
                batch, size = {}, 0
            batch[name], size = content, size + len(content)
        if batch:
            self._put(batch)

    def _put(self, batch: dict[str, bytes]) -> None:
        self.remote.put(batch)
        self._sent |= {name: Entry.of(content) for name, content in batch.items()}


def uploader(remote: Remote, store: RunStore, tell: Tell) -> Uploader:
    """An uploader that follows a run."""
    out = Uploader(remote, store.path.parent, tell)
    store.on_pass = out.passed
    return out


def push(run: Path, remote: Remote, tell: Tell) -> int:
    """Copies a run that is on disk; seals it first if it never ended. Raises StoreError, also if it is in use."""
    run = run.absolute()
    if not any((run / name).is_file() for name in ("run.json", "import.json")):
        raise StoreError(f"{run} is not a run: it has no run.json", "Give the folder of the run.")
    store = RunStore(run)
    store.lock()
    try:
        return Uploader(remote, run.parent, tell).finish(run)
    finally:
        store.close()


Wanted = Callable[[str, frozenset[str]], bool]  # name of a run, names of its files below it → is it wanted?


def everything(_run: str, _files: frozenset[str]) -> bool:
    return True


def mirror(
    remote: Remote,
    into: Path,
    tell: Tell,
    *,
    wanted: Wanted = everything,
    only: str = "",
    skip: re.Pattern[str] | None = _NOT_READ,
    prune: bool = False,
) -> Path:
    """A local folder like the store: its finished runs, less what no verb reads. Copies only what is new.

    `only`: the one run to look for; `prune`: remove what the store no longer has. A run that can't be read whole is
    told and left as it was here before, if it was.
    """
    listed = remote.listing(only)
    runs: dict[str, set[str]] = {}
    for name in listed:
        run, slash, rest = name.partition("/")
        if slash and _RUN.match(run):
            runs.setdefault(run, set()).add(rest)
    finished = {run: frozenset(names) for run, names in runs.items() if MANIFEST_FILE in names}
    into.mkdir(parents=True, exist_ok=True)
    for gone in into.iterdir() if prune and not only else ():
        if gone.is_dir() and gone.name not in (*finished, "rows", NIGHTS, EVENTS):
            shutil.rmtree(gone)
    if not only:
        _mirror_nights(remote, listed, into, tell)
    for run in sorted(finished):
        if wanted(run, finished[run]):
            try:
                _mirror_run(remote, run, listed, into, skip)
            except StoreError as error:
                tell(f"left out: {error}")
    return into


_NIGHT = re.compile(rf"^(?:{NIGHTS}/[A-Za-z0-9][A-Za-z0-9._-]*\.json|{EVENTS}/[A-Za-z0-9][A-Za-z0-9._-]*\.jsonl)$")


def _mirror_nights(remote: Remote, listed: Mapping[str, tuple[int, str]], into: Path, tell: Tell) -> None:
    """What nights were told to measure, and events: small files, of which a name is written anew at most once."""
    names = [name for name, (size, _) in listed.items() if _NIGHT.match(name) and size < _AT_ONCE]
    known_file = into / f".{NIGHTS}.json"
    known = read_json(known_file) if known_file.is_file() else {}
    new = [name for name in names if known.get(name) != list(listed[name]) or not (into / name).is_file()]
    try:
        for start in range(0, len(new), _BATCH):
            for name, content in remote.get(new[start : start + _BATCH]).items():
                _write(into / name, content)
    except StoreError as error:
        tell(f"left out: {error}")
        return
    if new:
        write_atomically(known_file, json.dumps({name: list(listed[name]) for name in names}).encode())


def _mirror_run(
    remote: Remote, run: str, listed: Mapping[str, tuple[int, str]], into: Path, skip: re.Pattern[str] | None
) -> None:
    known_file = into / f".{run}.json"
    known = read_json(known_file) if known_file.is_file() and (into / run).is_dir() else {}
    manifest_name = f"{run}/{MANIFEST_FILE}"
    names = [manifest_name, *(f"{run}/{mark}" for mark in MARKS if f"{run}/{mark}" in listed)]
    now = {name: list(listed[name]) for name in names}
    if known == now:
        return
    heads = remote.get(names)
    try:
        manifest = Manifest.from_json(json.loads(heads[manifest_name]), run)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{remote.url}/{manifest_name} is damaged: {error!r}") from error
    missing = [n for n, e in manifest.files.items() if not (skip and skip.search(n)) and not _has(into / n, e)]
    for start in range(0, len(missing), _BATCH):
        part = missing[start : start + _BATCH]
        found = remote.get(part)
        for name in part:
            if name not in found or Entry.of(found[name]) != manifest.files[name]:
                what = "is damaged" if name in found else "is missing"
                raise StoreError(f"{remote.url}/{name} {what}", f"mtpbench store verify {remote.url}")
            _write(into / name, found[name])
    for name in reversed(names):
        _write(into / name, heads[name])
    write_atomically(known_file, json.dumps(now).encode())


def _has(path: Path, entry: Entry) -> bool:
    return path.is_file() and path.stat().st_size == entry.size and Entry.of(path.read_bytes()) == entry


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)


def cache_folder(cache: Path, url: str) -> Path:
    """Where a store's mirror is kept."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", url.rstrip("/"))[-40:].strip("-")
    return cache / "stores" / f"{name}-{hashlib.sha256(url.rstrip('/').encode()).hexdigest()[:8]}"
