"""Traces made by hand: two decode steps of 100 us, the target's graph of 28 kernels, the draft's of eight."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from harness.errors import StoreError
from harness.run.step_profile import profile_of, read_traces


def kernel(start: float, dur: float, name: str, correlation: int, category: str = "kernel") -> dict[str, Any]:
    return {"ph": "X", "cat": category, "ts": start, "dur": dur, "name": name, "args": {"correlation": correlation}}


def step(start: float, number: int) -> list[dict[str, Any]]:
    """60 us of the target, of which 20 attention, 30 GEMM, 4 all-reduce and 6 else; a gap of 10; 16 us of drafts;
    a copy of 4 us outside of graphs; a gap of 10 before the next step."""
    target = [
        kernel(start, 10, "hopper_kernel", number),
        kernel(start + 10, 10, "reduce_kernel", number),
        kernel(start + 20, 30, "nvjet_tst_128x64", number),
        kernel(start + 50, 4, "ncclDevKernel_AllReduce", number),
        *(kernel(start + 54 + n / 4, 1 / 4, "rms_norm", number) for n in range(24)),
    ]
    draft = [kernel(start + 70 + 2 * n, 2, "hopper_kernel", number + 1000) for n in range(8)]
    copy = kernel(start + 86, 4, "Memcpy DtoH", number + 2000, "gpu_memcpy")
    return [*target, *draft, copy]


def test_parts_of_a_step_by_hand() -> None:
    profile = profile_of([event for n in range(3) for event in step(1000 + 100 * n, n)])
    assert profile is not None
    assert profile.steps == 2, "the third step has no end"
    assert profile.step_s == pytest.approx(100e-6)
    assert profile.parts == pytest.approx(
        {
            "verify_attention": 20e-6, "gemm": 30e-6, "all_reduce": 4e-6, "draft": 16e-6,
            "other": 10e-6, "host_gap": 20e-6,
        }
    )  # fmt: skip
    assert profile.kernels[0] == ("nvjet_tst_128x64", pytest.approx(30e-6), 1.0)


def test_a_step_with_a_prefill_in_it_is_left_out() -> None:
    """The second of three periods lasts 1 ms: its prefill is no part of a decode step."""
    starts = [0, 100, 1100, 1200]
    events = [event for n, start in enumerate(starts) for event in step(start, n)]
    events.append(kernel(200, 900, "nvjet_prefill", 5000))
    profile = profile_of(events)
    assert profile is not None
    assert (profile.steps, profile.step_s) == (2, pytest.approx(100e-6))


def test_kernels_that_overlap_share_their_time() -> None:
    """Two streams busy in the same 50 us: 50 us in all, 25 each."""
    events = []
    for n in range(3):
        for k in range(10):
            events.append(kernel(100 * n + 5 * k, 5, "nvjet", n))
            events.append(kernel(100 * n + 5 * k, 5, "rms_norm", n))
    profile = profile_of(events)
    assert profile is not None
    assert profile.parts == pytest.approx({"gemm": 25e-6, "other": 25e-6, "host_gap": 50e-6})


@pytest.mark.parametrize(
    "events",
    [
        [],
        [{"ph": "M", "name": "process_name"}],
        [kernel(10 * n, 1, "eager", n) for n in range(100)],  # no graph: each kernel was launched by itself
        [event for n in range(2) for event in step(100 * n, n)],  # one whole step says nothing of its spread
    ],
)
def test_nothing_to_be_told(events: list[dict[str, Any]]) -> None:
    assert profile_of(events) is None


def test_the_decode_trace_of_a_rank_is_read(tmp_path: Path) -> None:
    trace = {"traceEvents": [event for n in range(3) for event in step(100 * n, n)]}
    content = gzip.compress(json.dumps(trace).encode())
    (tmp_path / "17-TP-0-DECODE.trace.json.gz").write_bytes(content)
    (tmp_path / "17-TP-0-EXTEND.trace.json.gz").write_bytes(b"not read")
    profile = read_traces(tmp_path)
    assert profile is not None
    assert profile.to_json()["parts"]["gemm"] == pytest.approx(30e-6)
    with pytest.raises(StoreError, match="no trace of decode steps"):
        read_traces(tmp_path, rank=1)
    (tmp_path / "17-TP-1-DECODE.trace.json.gz").write_bytes(content[:-20])
    with pytest.raises(StoreError, match="is no trace"):
        read_traces(tmp_path, rank=1)
