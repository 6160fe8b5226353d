"""What of the bench needs no GPU: shapes, inputs, the fast fp32 answer, reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from kernel.bench.__main__ import main, source_hash, text
from kernel.bench.arms import ARMS, ArmUnavailable
from kernel.bench.inputs import MAX_SETS, fp32_answer, make_inputs, sets_needed
from kernel.bench.shapes import FAMILIES, Shape, spread, uniform
from kernel.bench.tune import tuned_shapes
from kernel.reference import reference_attention, relative_error

CPU = torch.device("cpu")


def test_names_tell_shapes_apart() -> None:
    for shapes in FAMILIES.values():
        names = [shape.name for shape in dict.fromkeys(shapes)]
        assert len(names) == len(set(names))
    assert uniform(16, 8192).name == "16x8192"
    assert uniform(16, 8192, group=8, queries=(1, 2)).name == "16x8192/g8/q1-2"
    assert spread(16, 1000, 70000, 2).name == "16x1000-70000/h2"


def test_kv_bytes_count_each_byte_once() -> None:
    assert uniform(16, 70000).kv_bytes == 16 * 70000 * 512
    assert uniform(1, 1024, kv_heads=2).kv_bytes == 1024 * 1024


def test_the_spread_has_the_total_of_its_uniform_twin() -> None:
    assert sum(spread(16, 1000, 70000).lengths) == sum(uniform(16, 35500).lengths)


def test_sets_exceed_the_cache() -> None:
    cache = 60 << 20
    shape = uniform(16, 1024)
    assert sets_needed(shape, cache) * shape.kv_bytes >= 3 * cache
    assert sets_needed(uniform(64, 32768), cache) == 1
    assert sets_needed(uniform(1, 16), cache) == MAX_SETS


def test_fast_answer_equals_the_reference() -> None:
    shape = Shape((20, 37), kv_heads=2, group=8, queries=(4, 2), context_length=64)
    first, second = make_inputs(shape, 2, CPU)
    for inputs in (first, second):
        slow = reference_attention(
            inputs.q,
            inputs.k_cache,
            inputs.v_cache,
            cu_seqlens_q=inputs.cu_seqlens_q,
            seqused_k=inputs.seqused_k,
            block_table=inputs.block_table,
            softmax_scale=inputs.softmax_scale,
        )
        assert relative_error(fp32_answer(inputs, 2), slow) < 1e-6
        assert relative_error(fp32_answer(inputs, 1), slow[:4]) < 1e-6


def test_sets_share_no_page() -> None:
    inputs = make_inputs(Shape((33, 16), context_length=64), 3, CPU)
    used = torch.cat([each.block_table[0, :3] for each in inputs])
    used = torch.cat([used, *(each.block_table[1, :1] for each in inputs)])
    assert len(set(used.tolist())) == len(used) == 12


def test_a_missing_library_is_a_reason() -> None:
    (inputs,) = make_inputs(Shape((20,), context_length=32), 1, CPU)
    with pytest.raises(ArmUnavailable, match=r"AMD.s AITER is `amd-aiter` on PyPI"):
        ARMS["aiter"](inputs)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_bench_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--shape", "c16"]) == 2
    assert "no GPU" in capsys.readouterr().err


def test_an_unknown_arm_is_refused() -> None:
    with pytest.raises(SystemExit):
        main(["--arms", "theirs"])


def test_report_text_shows_rates_and_reasons() -> None:
    timed = {
        "arm": "ours",
        "shape": "1x8192",
        "status": "timed",
        "seconds": {"median": 2e-6},
        "kv_bytes_per_second": 2e12,
        "relative_error": 1e-3,
    }
    missing = {"arm": "aiter", "shape": "1x8192", "status": "unavailable", "reason": "not here"}
    report = {"device": "X", "read_bytes_per_second": 4e12, "rows": [timed, missing]}
    lines = text(report).splitlines()
    assert "2.0 us" in lines[1]
    assert "50%" in lines[1]
    assert lines[2].endswith("unavailable: not here")


def test_the_faster_shape_of_the_kernel_is_written_down(tmp_path: Path) -> None:
    def row(arm: str, shape: str, rows: int, seconds: float) -> dict[str, Any]:
        timed = {"status": "timed", "seconds": {"median": seconds}}
        return {"arm": arm, "shape": shape, "query_rows": rows, **timed}

    rows = [
        row("ours-one-wave", "a", 64, 1.0), row("ours-two-waves", "a", 64, 1.5),
        row("ours-one-wave", "b", 64, 4.0), row("ours-two-waves", "b", 64, 2.0),
        row("ours-one-wave", "c", 32, 1.0), row("ours-two-waves", "c", 32, 1.1),
        row("ours-one-wave", "d", 16, 1.0), row("ours", "d", 16, 0.1),
    ]  # fmt: skip
    path = tmp_path / "shapes.json"
    assert "64 rows two-waves" in tuned_shapes({"device": "X", "triton": "3.9.0", "rows": rows}, path)
    # 1.5 x and 0.5 x: their product is below 1. 16 rows ran in one shape only.
    assert json.loads(path.read_text())["shapes"] == {"64": "two-waves", "32": "one-wave"}
    assert "nothing to tune" in tuned_shapes({"device": "X", "triton": "3.9.0", "rows": []}, tmp_path / "none.json")
    assert not (tmp_path / "none.json").exists()


def test_source_hash_is_stable() -> None:
    assert source_hash() == source_hash()
    assert len(source_hash()) == 64
