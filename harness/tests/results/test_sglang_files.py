"""A run in the files that SGLang's nightly leaves: names and numbers by hand."""

from __future__ import annotations

import json

import pytest
from launches import launch, run, scenario

from harness.errors import MtpbenchError
from harness.results.sglang_files import COLUMNS, result_files, summary_table
from harness.store.runs import StoredRun

LABELS = {"model-prefix": "qwen3.5", "precision": "fp8", "runner": "mi355x", "framework": "sglang"}
TPOT, TTFT = 0.010, 0.05  # seconds; eight requests one after the other, 16 tokens each: the first, then 15


def labelled(**labels: str) -> StoredRun:
    return run([launch(0, TPOT)], of=scenario(labels={**LABELS, **labels}))


def test_one_file_a_level_with_that_tools_names() -> None:
    [(name, text)] = result_files(labelled()).items()
    assert name.startswith("qwen3.5_fp8_mi355x_sglang_mtp_tp1-ep1-dpafalse_")
    assert name.endswith("_conc1.json")
    found = json.loads(text)
    seconds = 8 * (TTFT + 15 * TPOT)
    assert found["completed"] == 8
    assert found["duration"] == pytest.approx(seconds)
    assert found["total_output_tokens"] == 8 * 16
    assert found["total_input_tokens"] == 8 * 32
    assert found["output_throughput"] == pytest.approx(8 * 16 / seconds)
    assert found["total_token_throughput"] == pytest.approx(8 * 48 / seconds)
    assert found["median_ttft_ms"] == pytest.approx(1e3 * TTFT)
    assert found["median_tpot_ms"] == pytest.approx(1e3 * TPOT)
    assert found["median_itl_ms"] == pytest.approx(1e3 * 15 * TPOT)  # a chunk's gap counts once
    assert found["median_e2el_ms"] == pytest.approx(1e3 * (TTFT + 15 * TPOT))


def test_the_summary_has_that_tools_columns() -> None:
    lines = summary_table(labelled()).splitlines()
    assert "| " + " | ".join(COLUMNS) + " |" in lines
    [row] = [line for line in lines if line.startswith("| 1 |")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:2] == ["1", "8"]
    assert float(cells[5]) == pytest.approx(1e3 * TPOT, abs=0.01)


def test_hostile_labels_stay_names_of_files() -> None:
    [name] = result_files(labelled(**{"model-prefix": "../../etc/passwd", "runner": "a b"}))
    assert "/" not in name
    assert " " not in name


def test_without_labels_it_says_which() -> None:
    with pytest.raises(MtpbenchError, match="has no label model-prefix, precision, runner, framework"):
        result_files(run([launch(0, TPOT)]))
