"""Stored runs and manifests in any form: a value, or our own error that names the file; the other runs are read."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from launches import launch, run, save, scenario
from odd_events import JSON

from dashboards.overview import findings
from dashboards.scenario_page import scenario_page
from dashboards.site import gather
from harness.errors import MtpbenchError
from harness.model import GpuSample
from harness.nightly.series import build
from harness.nightly.told import tell
from harness.results.report import build as report
from harness.results.report import to_markdown
from harness.store.ab_record import load_session
from harness.store.archive import read_archive
from harness.store.manifest import Manifest, read_manifest, seal
from harness.store.runs import load_run, rows_path
from harness.store.verify import verify
from harness.verdict.accepted import Ledger
from harness.verdict.compare import compare
from harness.verdict.facts import facts
from harness.verdict.pairs import DEFAULT_METRICS, runs_of

TODAY = date(2026, 1, 3)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two nights, the second of which is what gets damaged."""
    root = tmp_path_factory.mktemp("odd") / "good"
    for day, name in ((1, "first"), (2, "second")):
        passes = [launch(n, 0.01 + 0.0001 * n, accept=3.0) for n in range(2)]
        passes = [
            replace(one, record=replace(one.record, gpu=(GpuSample(0.5, 0, 1000.0),), counters={"output_tokens": 9.0}))
            for one in passes
        ]
        made = run(passes, created_at=f"2026-01-0{day}T02:00:00+00:00", of=scenario(launches=2))
        path = save(root, made)
        seal(path)
        path.rename(path.with_name(f"{path.name[:16]}-{name}"))
        rows = rows_path(path)
        rows.rename(rows_path(path.with_name(f"{path.name[:16]}-{name}")))
    return root


@contextlib.contextmanager
def copied(good: Path) -> Iterator[Path]:
    root = good.with_name(f"copy-{os.getpid()}")
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(good, root)
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def use(root: Path, pages: bool) -> None:
    """All that reads a store. Whatever stands in it, the first night is read, and what is left out is named."""
    archive = read_archive(root)
    names = [one.run.path.name for one in archive.kept]
    assert any(name.endswith("first") for name in names)
    assert len(archive.kept) + len(archive.left_out) == 2
    told = tell(build(archive.nightly(), DEFAULT_METRICS), TODAY)
    assert told
    site = gather(archive, TODAY, "2026-01-03T00:00:00+00:00", Ledger(version=1))
    findings(site)
    for view in site.scenarios if pages else ():  # tables take ten times as long as all the rest
        scenario_page(site, view)
    with contextlib.suppress(MtpbenchError):
        verify(root)
    for path in root.glob("*-second"):
        with contextlib.suppress(MtpbenchError):
            one = load_run(path)
            to_markdown(report(one))
            for arm in one.scenario.arms:
                facts(one, arm)
            other = next(root.glob("*-first"))
            compare(runs_of([str(other)], "a"), runs_of([str(path)], "b"), metrics=DEFAULT_METRICS)
        with contextlib.suppress(MtpbenchError):
            load_session(path)
        with contextlib.suppress(MtpbenchError):
            read_manifest(path)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, one in inner for place in places(one, (*path, key)))]


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    inner = value
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = new
    return value


NEW = JSON | st.sampled_from(
    ["2026-13-01", "9999-12-31T23:59:59+00:00", "\x1b[31m", "../..", 10**400, -1, 1e300, [[[]]]]
)


@pytest.mark.fuzz
@pytest.mark.timeout(3600)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), new=NEW, rows=st.booleans())
def test_any_value_in_any_record(good: Path, data: st.DataObject, new: Any, rows: bool) -> None:
    with copied(good) as root:
        [path] = root.glob("*-second")
        if not rows:  # raw records are read in their place
            rows_path(path).unlink()
        files = [file for file in sorted(path.rglob("*")) if file.suffix in (".json", ".gz") and file.is_file()]
        file = data.draw(st.sampled_from(files))
        packed = file.suffix == ".gz"
        text = gzip.decompress(file.read_bytes()).decode() if packed else file.read_text()
        lines = text.splitlines() if packed else [text]
        number = data.draw(st.integers(0, len(lines) - 1))
        value = json.loads(lines[number])
        lines[number] = json.dumps(changed(value, data.draw(st.sampled_from(places(value))), new))
        out = "\n".join(lines).encode()
        file.write_bytes(gzip.compress(out) if packed else out)
        use(root, data.draw(st.integers(0, 15)) == 0)


@pytest.mark.fuzz
@pytest.mark.timeout(3600)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), piece=st.binary(max_size=8))
def test_any_bytes_in_any_file(good: Path, data: st.DataObject, piece: bytes) -> None:
    with copied(good) as root:
        [path] = root.glob("*-second")
        files = [file for file in sorted(path.rglob("*")) if file.is_file()] + [rows_path(path)]
        file = data.draw(st.sampled_from(files))
        content = file.read_bytes()
        at, length = data.draw(st.integers(0, len(content))), data.draw(st.integers(0, 200))
        file.write_bytes(content[:at] + piece + content[at + length :])
        use(root, data.draw(st.integers(0, 15)) == 0)


@pytest.mark.fuzz
@given(value=JSON, name=st.text(max_size=20))
def test_any_manifest(value: Any, name: str) -> None:
    entry = {"size": 1, "sha256": "0"}
    for document in (
        {"manifest_version": 1, "run": "r", "files": value},
        {"manifest_version": 1, "run": "r", "files": {name: entry}},
    ):
        with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):  # as read_manifest expects
            manifest = Manifest.from_json(document, "20260101T000000Z-r")
            for path in manifest.files:
                assert path.startswith(("20260101T000000Z-r/", "rows/date=2026-01-01/run-20260101T000000Z-r."))


def test_a_manifest_names_no_file_of_another_run() -> None:
    entry = {"size": 1, "sha256": "0"}
    for name in (
        "rows/date=2026-01-01/run-20260101T000000Z-other.parquet",
        "rows/x",
        "other/run.json",
        "r",
        "r/../x",
        "",
    ):
        document = {"manifest_version": 1, "run": "20260101T000000Z-r", "files": {name: entry}}
        with pytest.raises((ValueError, IndexError)):
            Manifest.from_json(document, "20260101T000000Z-r")
    ours = "rows/date=2026-01-01/run-20260101T000000Z-r.parquet"
    document = {"manifest_version": 1, "run": "20260101T000000Z-r", "files": {ours: entry}}
    assert list(Manifest.from_json(document, "20260101T000000Z-r").files) == [ours]
