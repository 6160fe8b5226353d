"""Importers on files that the tools wrote, and on files that nobody should have written."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cli.app import main
from harness.errors import MtpbenchError, ResultFileError, StoreError
from harness.importers import base
from harness.importers import report as import_report
from harness.importers.base import Field, load_document
from harness.importers.registry import IMPORTERS, importer_for
from harness.store.imported_runs import IMPORT_VERSION, ImportedRun, Number, Origin, Point, load, run_id, save
from harness.store.runs import load_run

FIXTURES = Path(__file__).parent
FILES = sorted(path for path in FIXTURES.iterdir() if path.suffix in (".json", ".jsonl"))
DOCS = Path(__file__).parents[3] / "docs" / "importing.md"


def format_of(path: Path) -> str:
    return next(name for name in IMPORTERS if path.stem.startswith(name))


def points(path: Path, name: str = "auto") -> tuple[Point, ...]:
    document = load_document(path)
    return importer_for(document, name).read(document).points


def value(point: Point, name: str) -> float:
    number = point.get(name)
    assert number is not None, f"{name} is not in {[n.name for n in point.numbers]}"
    return number.value


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_each_file_is_recognised_as_its_own_format_and_no_other(path: Path) -> None:
    document = load_document(path)
    assert [name for name, one in IMPORTERS.items() if one.recognises(document)] == [format_of(path)]


def test_every_format_has_a_file() -> None:
    assert {format_of(path) for path in FILES} == set(IMPORTERS)


# The statistics of aiperf.jsonl are computed on import: they are compared with AIPerf's own further down.
@pytest.mark.parametrize("path", [f for f in FILES if f.name != "aiperf.jsonl"], ids=lambda p: p.name)
def test_every_number_is_the_files_own_under_its_own_name(path: Path) -> None:
    """Nothing is converted: the value stands in the file's text, under the last part of the name."""
    text = path.read_text(encoding="utf-8")
    for point in points(path):
        assert point.numbers
        for number in point.numbers:
            key = re.escape(number.name.split(".")[-1])
            found = re.findall(rf'"{key}":\s*(-?[\d.eE+-]+)', text)
            assert number.value in [float(one) for one in found], number


def test_sglang_bench_serving() -> None:
    two, four = points(FIXTURES / "sglang-bench-serving.jsonl")
    assert (two.arm, two.concurrency, two.rate, two.requests, two.failed) == ("mtp", 2, None, 6, None)
    assert (two.where, four.where, four.concurrency) == ("line 1", "line 2", 4)
    assert two.get("median_tpot_ms") == Number("median_tpot_ms", 2.864738562493585, "ms", False)
    assert two.get("std_tpot_ms") == Number("std_tpot_ms", 0.06806960456606298, "ms", None)
    assert value(two, "accept_length") == 3.2
    assert two.settings["server_info.kv_cache_dtype"] == "fp8_e4m3"
    assert two.settings["request_rate"] == "inf"
    assert not any("itl" in n.name and n.unit != "ms" for n in two.numbers)
    [detailed] = points(FIXTURES / "sglang-bench-serving-details.jsonl")
    assert detailed.load == "all at once"
    assert detailed.failed == 0


def test_sglang_one_batch_server(tmp_path: Path) -> None:
    one, four = points(FIXTURES / "sglang-one-batch-server.jsonl")
    assert (one.arm, one.concurrency, four.concurrency, one.requests) == ("mtp", 1, 4, None)
    assert value(four, "last_ttft") == 0.0339
    line = json.loads((FIXTURES / "sglang-one-batch-server.jsonl").read_text().splitlines()[0])
    (tmp_path / "x.jsonl").write_text(json.dumps(line | {"acc_length": -1, "last_gen_throughput": -1}))
    [absent] = points(tmp_path / "x.jsonl")
    assert absent.get("acc_length") is None, "-1 means that the server said nothing"
    assert absent.get("last_gen_throughput") is None


def test_vllm(tmp_path: Path) -> None:
    path = FIXTURES / "vllm.json"
    [point] = points(path)
    assert (point.concurrency, point.rate, point.requests, point.failed) == (2, None, 6, 0)
    assert point.measured_at == "20261130-033453"
    assert point.settings["gpu"] == "mi355x", "metadata that is merged flat is taken as settings"
    assert value(point, "spec_decode_acceptance_length") == 4.0
    old = json.loads(path.read_text()) | {"num_prompts": 8, "request_rate": 2.5, "request_goodput:": 1.5}
    del old["failed"]
    (tmp_path / "old.json").write_text(json.dumps(old))
    [older] = points(tmp_path / "old.json")
    assert (older.failed, older.rate, value(older, "request_goodput:")) == (2, 2.5, 1.5)
    assert older.findings[0].code == "requests_failed"
    assert older.findings[0].invalid


def test_aiperf_and_its_single_requests_agree() -> None:
    """Our statistics of its requests are its own aggregates, where both exist."""
    [aggregate] = points(FIXTURES / "aiperf.json")
    [computed] = points(FIXTURES / "aiperf.jsonl")
    assert (aggregate.requests, aggregate.concurrency, aggregate.failed) == (6, 2, 0)
    assert (computed.requests, computed.concurrency) == (6, None), "two requests of the warm-up are left out"
    for name in ("time_to_first_token", "inter_token_latency", "inter_chunk_latency", "request_latency"):
        for statistic in ("avg", "p50", "p90", "p99", "min", "max", "std"):
            key = f"{name}.{statistic}"
            assert value(computed, key) == pytest.approx(value(aggregate, key), rel=1e-9), key
    assert aggregate.settings["model"] == "tiny"
    document = load_document(FIXTURES / "aiperf.json")
    assert importer_for(document, "auto").read(document).tool_version == "0.13.0"


def test_guidellm() -> None:
    [point] = points(FIXTURES / "guidellm.json")
    assert (point.concurrency, point.requests, point.failed) == (2, 6, 0)
    ttft, tpot, itl = (
        value(point, f"{n}_ms.mean") for n in ("time_to_first_token", "time_per_output_token", "inter_token_latency")
    )
    tokens = value(point, "output_token_count.mean")
    # Its time per output token holds TTFT, so that nobody may take it for TPOT.
    assert tpot == pytest.approx((ttft + itl * (tokens - 1)) / tokens, rel=0.02)
    assert point.measured_at.startswith("2026-11-30T03:25")


def test_inferencex(tmp_path: Path) -> None:
    [point] = points(FIXTURES / "inferencex.json")
    assert (point.arm, point.concurrency) == ("mi355x sglang fp8 mtp", 2)
    assert point.get("median_ttft") == Number("median_ttft", 0.035076884500085725, "s", False)
    assert point.get("std_intvty") is None
    rows = json.loads((FIXTURES / "inferencex.json").read_text()) * 3
    (tmp_path / "one.json").write_text(json.dumps(rows[0]))
    assert [p.where for p in points(tmp_path / "one.json")] == ["the file"]
    (tmp_path / "three.json").write_text(json.dumps(rows))
    assert [p.where for p in points(tmp_path / "three.json")] == ["[0]", "[1]", "[2]"]


def change(path: Path, tmp_path: Path, edit: Callable[[str], str]) -> Path:
    changed = tmp_path / path.name
    changed.write_text(edit(path.read_text(encoding="utf-8")), encoding="utf-8")
    return changed


SGLANG, GUIDE, AIPERF = (FIXTURES / n for n in ("sglang-bench-serving.jsonl", "guidellm.json", "aiperf.json"))


@pytest.mark.parametrize(
    ("path", "edit", "message"),
    [
        (SGLANG, lambda t: t[: len(t) - 40], "sglang-bench-serving.jsonl:2: is cut off"),
        (GUIDE, lambda t: t[:5000], "guidellm.json:1: is cut off"),
        (SGLANG, lambda t: t.replace('"duration": 0.18', '"duration": NaN, "x": 0.18'), ":2: duration: is nan"),
        (
            SGLANG,
            lambda t: t.replace('"mean_ttft_ms": 38', '"mean_ttft_ms": Infinity, "x": 38'),
            "mean_ttft_ms: is inf",
        ),
        (
            SGLANG,
            lambda t: t.replace('"completed": 6', '"completed": "6"', 1),
            ":1: completed: a number is expected, not text",
        ),
        (SGLANG, lambda t: t.replace('"completed": 6', '"completed": 5.5', 1), "completed: a count is expected"),
        (SGLANG, lambda t: t.replace('"completed": 6', '"completed": true', 1), "not a truth value"),
        (SGLANG, lambda t: t.replace('"tag": "mtp"', '"tag": ["mtp"]', 1), "tag: text is expected, not a list"),
        (SGLANG, lambda t: t.replace('"duration"', '"tag"', 1), ":1: tag: stands there twice"),
        (SGLANG, lambda t: t.replace('"completed": 6', '"completed": ' + "9" * 5000, 1), "can't be parsed"),
        (
            SGLANG,
            lambda t: t.replace('"duration": 0', '"duration": 1' + "0" * 400 + ', "x": 0', 1),
            "too large a number",
        ),
        (SGLANG, lambda _: "[" * 100_000, "can't be parsed"),
        (SGLANG, lambda _: "", "is empty"),
        (SGLANG, lambda _: '{"hello": 1}', "looks like no known format"),
        (SGLANG, lambda _: '"text"', "looks like no known format"),
        (SGLANG, lambda t: t + "not json\n", ":3: is not JSON"),
        (GUIDE, lambda t: t.replace('"version":2', '"version":1'), "metadata.version: only version 2"),
        (
            GUIDE,
            lambda t: re.sub(r'"benchmarks":\[.*\],"conc', '"benchmarks":[],"conc', t, flags=re.DOTALL),
            "no benchmark",
        ),
        (
            GUIDE,
            lambda t: t.replace('"metrics":{', '"metrics":[],"m":{', 1),
            "benchmarks[0].metrics: an object is expected",
        ),
        (
            AIPERF,
            lambda t: t.replace('"avg": 19.', '"avg": "fast", "x": 19.'),
            "request_throughput.avg: a number is expected",
        ),
    ],
    ids=range(20),
)
def test_what_is_wrong_with_a_file_is_said(
    tmp_path: Path, path: Path, edit: Callable[[str], str], message: str
) -> None:
    with pytest.raises(ResultFileError) as caught:
        points(change(path, tmp_path, edit))
    assert message in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("value", "key"),
    [("-3.5", "mean_ttft_ms"), ("9e12", "mean_ttft_ms"), ("-1", "output_throughput"), ("1.93e11", "output_throughput")],
)
def test_a_measurement_that_cannot_be_is_refused(tmp_path: Path, value: str, key: str) -> None:
    changed = change(SGLANG, tmp_path, lambda text: re.sub(rf'"{key}": [0-9.e+-]+', f'"{key}": {value}', text, count=1))
    with pytest.raises(ResultFileError, match=rf":1: {key}: .* is no measurement: it can't be"):
        points(changed)


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([10**400, "\x1b[2J", -1]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) within a JSON value."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    return [place for key in keys for place in [(value, key), *places(value[key])]]


@pytest.mark.fuzz
@given(path=st.sampled_from(FILES), where=st.floats(0, 1, exclude_max=True), junk=JUNK)
def test_a_file_with_anything_anywhere_is_read_or_refused(path: Path, where: float, junk: Any) -> None:
    """No other error, nothing that a terminal obeys, nothing that JSON can't hold."""
    text = path.read_text(encoding="utf-8")
    values = [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else [json.loads(text)]
    found = places(values)
    container, key = found[int(where * len(found))]
    container[key] = junk
    with tempfile.TemporaryDirectory() as folder:
        changed = Path(folder) / path.name
        changed.write_text("\n".join(map(json.dumps, values)), encoding="utf-8")
        try:
            document = load_document(changed)
            parsed = importer_for(document, "auto").read(document)
        except MtpbenchError as error:
            refusal = str(error)
        else:
            refusal = ""
    assert refusal.isprintable()
    if refusal:
        return
    record = ImportedRun("x", Origin("vllm", "", parsed.tool_version, "x", "", "", parsed.ignored), parsed.points)
    written = json.dumps(record.to_json(), allow_nan=False)
    assert ImportedRun.from_json(json.loads(written)) == record
    assert "\\u001b" not in written


def test_files_that_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "missing", tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(ResultFileError, match="is no file"):
            load_document(path)
    (tmp_path / "binary").write_bytes(b"\x1f\x8b\x08\x00")
    with pytest.raises(ResultFileError, match="is not UTF-8"):
        load_document(tmp_path / "binary")
    monkeypatch.setattr(base, "MAX_BYTES", 1000)
    with pytest.raises(ResultFileError, match="is larger than"):
        load_document(SGLANG)
    monkeypatch.setattr(base, "MAX_BYTES", 10**6)
    monkeypatch.setattr(base, "MAX_POINTS", 1)
    with pytest.raises(ResultFileError, match="more than 1 results"):
        load_document(SGLANG)


def test_secrets_of_a_server_are_not_taken(tmp_path: Path) -> None:
    path = change(
        SGLANG, tmp_path, lambda t: t.replace('"api_key": null', '"api_key": "hunter2", "admin_api_key": "hunter2"')
    )
    document = load_document(path)
    parsed = importer_for(document, "auto").read(document)
    origin = Origin("sglang-bench-serving", "SGLang", "", path.name, document.sha256, "now", parsed.ignored)
    folder, _ = save(tmp_path / "runs", ImportedRun("imported-x", origin, parsed.points))
    assert "hunter2" not in "".join(p.read_text() for p in folder.iterdir())


def test_statistics_of_samples_are_numpys(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in (FIXTURES / "aiperf.jsonl").read_text().splitlines()]
    ttfts = []
    for number, line in enumerate(lines):
        line["metrics"]["time_to_first_token"]["value"] = float(number)
        if line["metadata"]["benchmark_phase"] == "profiling":
            ttfts.append(float(number))
    lines[-1]["error"] = {"message": "gone"}
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, lines)))
    [point] = points(tmp_path / "x.jsonl")
    assert (point.requests, point.failed) == (5, 1)
    assert value(point, "time_to_first_token.p90") == np.percentile(ttfts[:-1], 90)
    assert point.findings[0].invalid


def test_a_field_takes_its_statistics_and_no_other_key() -> None:
    field = Field("{stat}_ttft_ms", "ms", False, "")
    assert [k for k in ("mean_ttft_ms", "p99.9_ttft_ms", "p50_ttft_ms") if not field.matches(k)] == []
    assert [
        k for k in ("ttft_ms", "mean_ttft", "xmean_ttft_ms", "mean_ttft_ms_2", "p_ttft_ms") if field.matches(k)
    ] == []


@pytest.mark.parametrize("name", IMPORTERS)
def test_every_mapping_and_its_source_are_documented(name: str) -> None:
    text = DOCS.read_text(encoding="utf-8")
    importer = IMPORTERS[name]
    assert f"`{name}`" in text
    assert importer.source in text
    for field in importer.fields:
        assert f"| `{field.name}` | {field.unit} | {field.meaning} |" in text, field.name


Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["mtpbench", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return call


def test_import_list_report(cli: Cli, tmp_path: Path) -> None:
    store = tmp_path / "runs"
    code, out, err = cli(
        "import", SGLANG, FIXTURES / "vllm.json", "--store", store, "--host", "node7", "--label", "gpu=MI355X"
    )
    assert code == 0, err
    assert "2 results of SGLang bench_serving" in out
    folders = sorted(store.iterdir())
    assert [f.name.rsplit("-", 1)[0] for f in folders] == ["imported-sglang-bench-serving", "imported-vllm"]

    code, out, _ = cli("list", store)
    assert code == 0
    assert out.count("IMPORTED from") == 2
    assert "2, 4" in out

    code, out, _ = cli("report", folders[0])
    assert code == 0
    assert out.startswith("IMPORTED: SGLang bench_serving (version unknown), sglang-bench-serving.jsonl, sha256 ")
    assert "median_tpot_ms [ms]" in out
    assert "host node7, gpu MI355X" in out
    assert "not a metric of mtpbench's" in out

    code, out, _ = cli("report", folders[0], "--format", "json")
    document = json.loads(out)
    assert document["imported"] is True
    assert document["origin"]["file"] == SGLANG.name
    assert document["points"][1]["concurrency"] == 4
    assert "environment" not in document, "no fingerprint is invented"
    code, out, _ = cli("report", folders[0], "--format", "markdown")
    assert out.startswith("**IMPORTED: ")
    assert cli("report", folders[0], "--format", "html")[0] == 2


def test_the_same_file_twice_changes_nothing_and_other_labels_are_refused(cli: Cli, tmp_path: Path) -> None:
    store = tmp_path / "runs"
    assert cli("import", SGLANG, "--store", store, "--arm", "mtp")[0] == 0
    [folder] = store.iterdir()
    before = (folder / "import.json").read_bytes()
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(SGLANG.read_bytes())
    code, out, _ = cli("import", copy, SGLANG, "--store", store, "--arm", "mtp")
    assert code == 0
    assert out.count("already imported") == 2
    assert (folder / "import.json").read_bytes() == before
    code, _, err = cli("import", SGLANG, "--store", store, "--arm", "no-mtp")
    assert code == 2
    assert "is already imported as" in err
    assert "Remove that folder" in err
    assert [p.name for p in store.iterdir()] == [folder.name], "nothing half-written is left"


def test_a_bad_file_among_good_ones_imports_nothing(cli: Cli, tmp_path: Path) -> None:
    bad = change(SGLANG, tmp_path, lambda t: t[:-30])
    code, _, err = cli("import", FIXTURES / "vllm.json", bad, "--store", tmp_path / "runs")
    assert code == 2
    assert f"{bad.name}:2: is cut off" in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--format", "vllm"), "is no result of vLLM bench serve"),
        (("--format", "csv"), "--format 'csv' is unknown"),
        (("--arm", "a b"), "--arm 'a b'"),
        (("--label", "gpu"), "KEY=VALUE"),
        (("--label", "gpu=a", "--label", "gpu=b"), "each key once"),
    ],
)
def test_what_cannot_be_asked_is_said(cli: Cli, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    code, _, err = cli("import", SGLANG, "--store", tmp_path / "runs", *arguments)
    assert code == 2
    assert message in err


def test_a_run_with_failures_is_invalid_in_every_view(cli: Cli, tmp_path: Path) -> None:
    data = json.loads((FIXTURES / "vllm.json").read_text()) | {"failed": 2, "completed": 4}
    (tmp_path / "x.json").write_text(json.dumps(data))
    assert cli("import", tmp_path / "x.json", "--store", tmp_path / "runs")[0] == 0
    [folder] = (tmp_path / "runs").iterdir()
    for output in ("table", "markdown", "json"):
        code, out, _ = cli("report", folder, "--format", output)
        assert code == 2
        assert "INVALID: 2 of 6 requests failed" in out


def test_imported_runs_are_no_runs_of_ours(tmp_path: Path) -> None:
    """What has no raw records can't be read as if it had: nothing derives our metrics from it."""
    origin = Origin("vllm", "vLLM", "", "x.json", "0" * 64, "2026-11-30T00:00:00+00:00")
    folder, new = save(tmp_path, ImportedRun(run_id("vllm", "0" * 64), origin, (Point("the file"),)))
    assert new
    with pytest.raises(StoreError, match="is an imported result"):
        load_run(folder)


def test_records_keep_everything_and_their_version(tmp_path: Path) -> None:
    document = load_document(FIXTURES / "vllm.json")
    parsed = importer_for(document, "auto").read(document)
    origin = Origin("vllm", "vLLM", "", "vllm.json", document.sha256, "now", parsed.ignored)
    run = ImportedRun("imported-vllm-1", origin, parsed.points, "host", {"gpu": "MI355X"})
    folder, _ = save(tmp_path, run)
    assert load(folder) == run
    data: dict[str, Any] = json.loads((folder / "import.json").read_text())
    (folder / "import.json").write_text(json.dumps(data | {"import_version": IMPORT_VERSION + 1}))
    with pytest.raises(StoreError, match="this mtpbench reads"):
        load(folder)


def test_what_a_terminal_would_obey_is_inert(cli: Cli, tmp_path: Path) -> None:
    path = change(SGLANG, tmp_path, lambda t: t.replace('"tag": "mtp"', '"tag": "\\u001b[2Jgone\\nforged"'))
    assert cli("import", path, "--store", tmp_path / "runs")[0] == 0
    [folder] = (tmp_path / "runs").iterdir()
    for output in ("table", "markdown", "json"):
        _, out, _ = cli("report", folder, "--format", output)
        assert "\x1b" not in out
        assert "gone" in out


def test_names_are_inert_in_markdown() -> None:
    origin = Origin("vllm", "vLLM", "", "<img src=x>|`a`.json", "0" * 64, "now")
    run = ImportedRun("imported-vllm-0", origin, (Point("the file", arm="[x](http://e)|<b>"),))
    text = import_report.to_markdown(import_report.build(run))
    assert "<img" not in text
    assert "<b>" not in text
    assert "](http" not in text
