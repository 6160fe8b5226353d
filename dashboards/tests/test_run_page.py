"""Reports and the page, on stored runs: the committed H200 results and hostile names."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dashboards.charts import PANELS, panels
from dashboards.run_page import render
from harness.checks.passes import Expectations, findings
from harness.metrics.definitions import PassView, accept_length, distribution, step_time, tpot
from harness.results.lines import summarise
from harness.results.report import build, to_json, to_markdown
from harness.store.rows import parquet, rows
from harness.store.runs import StoredRun, load_run

RESULTS = Path(__file__).parents[2] / "docs" / "results"
RUNS = sorted(RESULTS.glob("*-h200-smoke*"))


@pytest.fixture(params=RUNS, ids=lambda path: path.name.split("-", 1)[1])
def run(request: pytest.FixtureRequest) -> StoredRun:
    return load_run(request.param)


def test_committed_results_read_back(run: StoredRun) -> None:
    """Real SGLang at TP1 and TP2: whole, valid, with its fingerprint."""
    assert len(run.passes) == 8
    assert all(r.ok for p in run.passes for r in p.requests)
    assert run.environment["gpus"][0]["name"] == "NVIDIA H200"
    assert run.launches[0].packages["sglang"] == "0.5.16"
    assert run.launches[0].described["kv_cache_dtype"] == "fp8_e4m3"
    assert build(run).valid
    assert len(rows(run)) == 8


def test_row_files_of_different_runs_have_one_schema() -> None:
    """One arm reports accept lengths, another does not: DuckDB must still read all files as one table."""
    schemas = []
    for path in RUNS:
        stored = load_run(path)
        plain = dataclasses.replace(stored, passes=tuple(p for p in stored.passes if p.record.key.arm == "no-mtp"))
        schemas += [pq.read_schema(io.BytesIO(parquet(run))).remove_metadata() for run in (stored, plain)]
    assert all(schema == schemas[0] for schema in schemas)
    assert not any(field.type == pa.null() for field in schemas[0])


def test_metrics_of_real_records_are_consistent(run: StoredRun) -> None:
    for one in run.passes:
        mtp = one.record.key.arm == "mtp"
        for r in one.requests:
            assert (r.prompt_tokens, r.tokens, r.cached_tokens) == (8192, 256, 0)
            assert (r.verify_steps is not None) == mtp
            if mtp:
                assert tpot(r) == pytest.approx(step_time(r) / accept_length(r))  # type: ignore[operator]
        # Every verify step that requests report is in the server's own counter.
        if mtp:
            reported = sum(r.verify_steps or 0 for r in one.requests)
            assert one.record.counters["verify_calls"] == reported
        assert {sample.gpu for sample in one.record.gpu} == set(range(one.record.key.tp))
        view = PassView.of(one)
        assert distribution("ttft", view).percentiles[99] is None  # never enough requests here


def test_page_is_self_contained_and_complete(run: StoredRun, cache: Path) -> None:
    page = render(run, build(run), cache)
    ours = page[: page.index("<script>")] + page[page.rindex("<script>") :]
    assert not re.search(r'(src|href)="(?!data:)', ours)
    assert ours.count("<figure>") == 5
    assert ours.count("<tr") == 1 + 8
    assert build(run).headline in ours


def test_each_prompt_length_has_charts_of_its_own() -> None:
    """They follow the page's width, which the facets of one chart can't: those ran over their neighbours."""
    [path] = RESULTS.glob("*-4cdc53")
    lines = summarise(load_run(path))
    charts = panels(lines)
    assert [title for title, _ in charts[:2]] == [
        f"Time per output token (TPOT), median: {length} tokens in" for length in (8192, 32768)
    ]
    assert len(charts) == 2 * (len(PANELS) + 1)
    assert all(spec["width"] == "container" for _, spec in charts)
    [values] = charts[1][1]["datasets"].values()
    measured = {(v["series"], v["load"]): v["tpot_p50"] for v in values}
    assert len(values) == len(measured) == 20
    [one] = [
        line for line in lines if (line.arm, line.level.value, line.level.input_tokens) == ("mtp-in-tree", 8, 32768)
    ]
    assert measured["mtp-in-tree", 8] == pytest.approx(1e3 * (one.get("tpot_p50") or 0))
    assert panels([]) == []


def hostile(run: StoredRun) -> StoredRun:
    """The same run whose names try to break out of HTML, script, Markdown and tables."""
    name = "</script><img src=x onerror=alert(1)>|`[a](http://b) *"
    scenario = run.scenario.model_copy(update={"question": name, "name": name})
    return dataclasses.replace(run, id=name, scenario=scenario, environment={**run.environment, "host": name})


def test_hostile_names_are_inert(run: StoredRun, cache: Path) -> None:
    page = render(hostile(run), build(hostile(run)), cache)
    ours = page[: page.index("<script>")] + page[page.rindex("<script>") :]
    assert "<img" not in ours
    assert ours.count("</script>") == 1
    markdown = to_markdown(build(hostile(run)))
    assert "<img" not in markdown
    assert "[a](http" not in markdown
    assert json.loads(to_json(build(hostile(run))))["run"].startswith("</script>")


def test_missing_passes_are_said_first(run: StoredRun) -> None:
    half = dataclasses.replace(run, passes=run.passes[:4])
    report = build(half)
    assert report.headline == "INCOMPLETE: 4 of 8 passes are complete"
    assert not report.valid
    assert any("not comparable with no-mtp" in sentence for sentence in report.conclusions)
    lines = summarise(half)
    assert [line.complete for line in lines].count(False) == 4


def test_throttling_and_lag_are_seen(run: StoredRun) -> None:
    one = run.passes[-1]
    view = PassView.of(one)
    assert view.window is not None
    expected = Expectations(16, True, True, 0, False)
    assert "clock_dropped" not in {finding.code for finding in findings(view, expected)}
    slowed = [dataclasses.replace(s, clock_mhz=900.0) if n % 4 == 0 else s for n, s in enumerate(one.record.gpu)]
    record = dataclasses.replace(one.record, gpu=tuple(slowed), client_lag_p99=0.5)
    codes = {f.code for f in findings(PassView.of(dataclasses.replace(one, record=record)), expected)}
    assert {"clock_dropped", "client_lag"} <= codes
