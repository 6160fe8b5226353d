"""Stores: sealed runs, a store on a real S3-compatible server with many writers, and damage that is named."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from commands import mtpbench
from commands import run as measure
from conftest import SCENARIO
from launches import launch, run, save

from harness.engines.server import free_port
from harness.errors import MtpbenchError, StoreError
from harness.http import ControlClient
from harness.store.manifest import MANIFEST_FILE, Manifest, read_manifest, seal
from harness.store.remote import Remote, Uploader, cache_folder, mirror, push
from harness.store.runs import QUARANTINE_FILE, RunStore, load_run, rows_path
from harness.store.verify import verify, verify_remote

SECRET = "not-to-be-written-anywhere"
WRITERS = 8


def quiet(_text: str) -> None:
    raise AssertionError(_text)


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an empty bucket on a moto server of its own; credentials are in the environment."""
    port = free_port()
    log = tmp_path_factory.mktemp("moto") / "log"
    with log.open("w") as file:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        process = subprocess.Popen(command, stdout=file, stderr=file)
    values = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "tester",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        _wait(f"http://127.0.0.1:{port}", process, log)
        import fsspec

        fsspec.filesystem("s3", skip_instance_cache=True).mkdir("results")
        yield "s3://results"
    finally:
        process.terminate()
        process.wait(timeout=20)
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    import asyncio

    async def up() -> bool:
        async with ControlClient(url) as http:
            return (await http.get("/moto-api/", 5.0)).ok

    deadline = time.monotonic() + 60
    while not asyncio.run(up()):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    folder = save(tmp_path / "runs", run([0.010, 0.011, 0.012]))
    seal(folder)
    return folder


# Eight processes of one interpreter: importing in each would take longer than all the rest.
WRITE = """
import os, sys
from pathlib import Path
import s3fs
from harness.store.remote import Remote, push
url, *folders = sys.argv[1:]
children = []
for folder in folders:
    if child := os.fork():
        children.append(child)
        continue
    try:
        sys.stdout.write(f"{push(Path(folder), Remote(url), print)}\\n")
        sys.stdout.flush()
        os._exit(0)
    finally:
        os._exit(1)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


def test_eight_writers_at_once_lose_nothing(tmp_path: Path, s3: str) -> None:
    """The same scenario, the same second, one store; read back, compared file by file, and asked by DuckDB."""
    url = f"{s3}/nightly"
    written = {(folder := save(tmp_path / f"runner-{n}", run([0.01] * 3))).name: folder for n in range(WRITERS)}
    assert len(written) == WRITERS
    command = [sys.executable, "-c", WRITE, url, *map(str, written.values())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "10\n" * WRITERS  # run.json, scenario.yaml, a launch, three passes of two files, rows
    assert SECRET not in done.stdout + done.stderr
    copy = mirror(Remote(url), tmp_path / "copy", quiet)
    for name, path in written.items():
        files = {p.relative_to(path): p.read_bytes() for p in path.rglob("*") if p.is_file() and p.name != ".lock"}
        assert files == {p.relative_to(copy / name): p.read_bytes() for p in (copy / name).rglob("*") if p.is_file()}
        assert load_run(copy / name).passes == load_run(path).passes
    checked = verify_remote(Remote(url))
    assert (checked.runs, checked.files, checked.damage, checked.unfinished) == (8, 80, [], [])
    files = f"{copy}/rows/date=*/run-*.parquet"
    [counted] = duckdb.sql(f"SELECT count(*), count(DISTINCT run) FROM '{files}'").fetchall()
    assert counted == (3 * WRITERS, WRITERS)
    # The query of docs/storage.md, as it stands there.
    text = (Path(__file__).parents[3] / "docs" / "storage.md").read_text()
    query = text.split("```sql\n")[1].split("```")[0].rstrip(";\n")
    query = query.replace("runs/rows/date=*/run-*.parquet", files).replace("mi355x-qwen35-fp8-tp2", "scripted")
    [(day, arm, concurrency, tpot)] = duckdb.sql(query).fetchall()
    assert (str(day), arm, concurrency) == ("2026-01-01", "mtp", 1)
    assert tpot == pytest.approx(10.0)


def test_readers_pass_over_what_is_not_finished_and_copy_only_what_is_new(
    tmp_path: Path, sealed: Path, s3: str
) -> None:
    remote = Remote(f"{s3}/half")
    store, told = RunStore(sealed), []
    follower = Uploader(remote, sealed.parent, told.append)
    store.on_pass = follower.passed
    late = launch(3, 0.013)
    store.save_pass(late.record, late.requests)
    assert set(remote.listing()) == {f"{sealed.name}/passes/{late.record.key.slug}{end}"
                                     for end in (".json", ".requests.jsonl.gz")}  # fmt: skip
    copy = mirror(remote, tmp_path / "copy", quiet)
    assert not list(copy.iterdir())
    (sealed / MANIFEST_FILE).unlink()
    assert push(sealed, remote, quiet) == 12
    assert push(sealed, remote, quiet) == 12  # changes nothing
    mirror(remote, copy, quiet)
    times = {path: path.stat().st_mtime_ns for path in copy.rglob("*.json")}
    (sealed / QUARANTINE_FILE).write_text('{"reason": "it drifts", "since": "2026-01-02"}')
    push(sealed, remote, quiet)
    mirror(remote, copy, quiet)
    assert load_run(copy / sealed.name).quarantine == "it drifts"
    unchanged = copy / sealed.name / "passes"
    assert all(path.stat().st_mtime_ns == times[path] for path in unchanged.glob("*.json"))
    assert told == []


def test_a_storage_that_fails_leaves_the_run_and_says_how_to_go_on(tmp_path: Path, sealed: Path, s3: str) -> None:
    remote, told = Remote("s3://no-such-bucket/x"), []
    follower = Uploader(remote, sealed.parent, told.append)
    files = tuple(sealed.glob("passes/*.json"))
    follower.passed(files)
    follower.passed(files)  # tries no more
    assert len(told) == 1
    assert "the run goes on, and all of it is copied at its end" in told[0]
    with pytest.raises(StoreError, match="was not copied: s3://no-such-bucket/x can't be") as failure:
        follower.finish(sealed)
    assert f"mtpbench store push {sealed} s3://no-such-bucket/x" in failure.value.hint
    assert verify(sealed.parent).sentence == "OK: 10 files of 1 run are as they were written"
    assert SECRET not in str(failure.value)
    with pytest.raises(StoreError, match="holds no credentials"):
        Remote(f"s3://tester:{SECRET}@results/x")
    with pytest.raises(StoreError, match="no-such-bucket/x can't be listed"):
        mirror(remote, tmp_path / "copy", quiet)


@pytest.mark.parametrize("protocol", ["file", "memory"])
def test_any_file_system_of_fsspec_will_do(tmp_path: Path, sealed: Path, protocol: str) -> None:
    remote = Remote(f"{protocol}://{tmp_path}/shared/store/")
    push(sealed, remote, quiet)
    copy = mirror(remote, tmp_path / "copy", quiet)
    assert load_run(copy / sealed.name).passes == load_run(sealed).passes
    assert verify_remote(remote).sentence == "OK: 10 files of 1 run are as they were written"
    with pytest.raises(MtpbenchError, match=r"needs the package nosuchfs|Protocol not known"):
        Remote("nosuch://x/y")


def test_another_run_of_the_same_name_is_refused(tmp_path: Path, sealed: Path, s3: str) -> None:
    remote = Remote(f"{s3}/twice")
    push(sealed, remote, quiet)
    other = save(tmp_path / "other", run([0.02])).rename(tmp_path / "other" / sealed.name)
    with pytest.raises(StoreError, match="has another run of the name"):
        push(other, remote, quiet)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


@pytest.mark.parametrize("harm", [flip, cut, Path.unlink])
@pytest.mark.parametrize(
    "pattern", ["run.json", "scenario.yaml", "launches/*.json", "passes/00*.json", "passes/00*.gz", "rows"]
)
def test_verify_names_each_damaged_file(sealed: Path, harm: object, pattern: str) -> None:
    path = rows_path(sealed) if pattern == "rows" else next(iter(sealed.glob(pattern)))
    harm(path)  # type: ignore[operator]
    found = verify(sealed.parent)
    assert [one.file for one in found.damage] == [path.relative_to(sealed.parent).as_posix()]
    assert found.sentence == "DAMAGED: 1 of 10 files of 1 run"


@pytest.mark.parametrize("pattern", ["launches/*.json", "passes/00*.json", "passes/00*.gz", "rows"])
def test_without_a_manifest_what_can_not_be_read_is_still_named(sealed: Path, pattern: str) -> None:
    (sealed / MANIFEST_FILE).unlink()
    path = rows_path(sealed) if pattern == "rows" else next(iter(sealed.glob(pattern)))
    cut(path)
    found = verify(sealed.parent)
    assert [one.file for one in found.damage] == [path.relative_to(sealed.parent).as_posix()]
    assert found.unfinished == [sealed.name]
    path.unlink()
    assert verify(sealed.parent).unfinished == [sealed.name]


def test_verify_names_what_was_added_and_rows_without_a_run(sealed: Path) -> None:
    extra = sealed / "passes" / "09-mtp-tp1-p00-c0001.json"
    extra.write_text("{}")
    stray = sealed.parent / "rows" / "date=2026-01-02" / "run-20260102T000000Z-x-000000.parquet"
    stray.parent.mkdir()
    stray.write_bytes(rows_path(sealed).read_bytes())
    found = {one.file.rpartition("/")[2]: one.what for one in verify(sealed.parent).damage}
    assert found == {
        extra.name: "is not in the manifest: written after the run was finished",
        stray.name: "its run is not there",
    }


def test_damage_behind_a_url_is_named_and_left_out(tmp_path: Path, sealed: Path, s3: str) -> None:
    remote = Remote(f"{s3}/damaged")
    push(sealed, remote, quiet)
    good = save(tmp_path / "runs", run([0.01], name="good"))
    push(good, remote, quiet)
    name = f"{sealed.name}/passes/00-mtp-tp1-p00-c0001.requests.jsonl.gz"
    remote.put({name: gzip.compress(b"{}\n", mtime=0)})
    told: list[str] = []
    copy = mirror(remote, tmp_path / "copy", told.append)
    assert told == [f"left out: {remote.url}/{name} is damaged"]
    assert [path.parent.name for path in copy.glob("*/run.json")] == [good.name]
    assert [one.file for one in verify_remote(remote).damage] == [name]


def test_a_resumed_run_is_sealed_anew_without_blessing_damage(sealed: Path) -> None:
    before = read_manifest(sealed)
    path = next(iter(sealed.glob("passes/00*.gz")))
    flip(path)
    late = launch(3, 0.013)
    RunStore(sealed).save_pass(late.record, late.requests)
    after = seal(sealed)
    assert before is not None
    assert len(after.files) == len(before.files) + 2
    assert [one.file for one in verify(sealed.parent).damage] == [path.relative_to(sealed.parent).as_posix()]


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "r/../../x", "other/x", "r", "r\\..\\x"])
def test_a_manifest_can_not_lead_out_of_its_run(name: str) -> None:
    document = {"manifest_version": 1, "run": "r", "files": {name: {"size": 1, "sha256": "0"}}}
    with pytest.raises(ValueError, match="no file of the run"):
        Manifest.from_json(document, "r")


def test_the_verbs_take_a_url(tmp_path: Path, sealed: Path, s3: str) -> None:
    url, cache = f"{s3}/verbs", {"XDG_CACHE_HOME": str(tmp_path / "cache")}

    def call(*args: object, check: int = 0) -> str:
        return mtpbench(*args, cwd=tmp_path, check=check, **cache).stdout

    call("store", "push", sealed, url)
    assert sealed.name[:40] in call("list", url)
    assert json.loads(call("report", f"{url}/{sealed.name}", "--format", "json"))["valid"]
    same = f"{url}/{sealed.name}@mtp"
    assert json.loads(call("compare", same, same, "--store", url, "--format", "json"))["base"] == same
    call("trend", url, "--today", "2026-01-01", check=5)
    mine = save(tmp_path / "pulled", run([0.01]))
    call("store", "pull", url, "pulled")
    assert mine.is_dir()
    assert load_run(tmp_path / "pulled" / sealed.name).passes == load_run(sealed).passes
    call("store", "verify", url)
    call("store", "verify", "runs")
    rows_path(sealed).unlink()
    assert "is missing" in call("store", "verify", "runs", check=1)
    call("store", "rows", sealed)
    call("store", "verify", "runs")
    nothing = mtpbench("report", f"{url}/nothing", cwd=tmp_path, check=2, **cache)
    assert f"{url} has no finished run nothing" in nothing.stderr
    assert cache_folder(tmp_path / "cache" / "mtpbench", url).is_dir()


def test_a_run_measured_into_a_url(tmp_path: Path, s3: str) -> None:
    """The command line: each pass copied as it ends, the manifest last, no credentials in a record or a log."""
    url = f"{s3}/measured"
    stored, printed = measure(tmp_path, SCENARIO.replace("concurrency: [1, 2]", "concurrency: [1]"), "--store", url)
    assert f"copied: {url}/{stored.id} (" in printed
    copy = mirror(Remote(url), tmp_path / "copy", quiet, skip=None)
    assert load_run(copy / stored.id).passes == stored.passes
    assert len(list(copy.glob("*/launches/*.log"))) == 2
    assert json.loads((copy / stored.id / MANIFEST_FILE).read_text())["run"] == stored.id
    everything = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert SECRET.encode() not in everything + printed.encode()
