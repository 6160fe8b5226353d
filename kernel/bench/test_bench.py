"""The bench's cases under pytest-benchmark, timed by the device: ``pytest kernel/bench``."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernel.bench.arms import ARMS, MAX_ERROR, MAX_ERROR_BY_ARM, MAX_SETS_BY_ARM, ArmUnavailable
from kernel.bench.inputs import cache_bytes, fp32_answer, make_inputs, sets_needed
from kernel.bench.measure import DeviceClock, capture
from kernel.bench.shapes import FAMILIES, Shape
from kernel.reference import relative_error

pytest.importorskip("pytest_benchmark", reason="pytest-benchmark is not installed")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU to time on")


def _clock() -> float:
    """Made on first use: collecting must not need a device."""
    global _device_clock
    if _device_clock is None:
        _device_clock = DeviceClock()
    return _device_clock()


_device_clock: DeviceClock | None = None


@needs_gpu
@pytest.mark.benchmark(timer=_clock)
@pytest.mark.parametrize("arm", sorted(ARMS))
@pytest.mark.parametrize("shape", FAMILIES["targets"], ids=lambda shape: str(shape.name))
def test_verify_attention(benchmark: Any, shape: Shape, arm: str) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    count = min(sets_needed(shape, cache_bytes(device)), MAX_SETS_BY_ARM.get(arm, 1 << 30))
    inputs = make_inputs(shape, count, device)
    try:
        calls = [ARMS[arm](each) for each in inputs]
    except ArmUnavailable as error:
        pytest.skip(str(error))
    calls[0]()
    answer = fp32_answer(inputs[0], 1)
    assert relative_error(inputs[0].out[: answer.shape[0]], answer) <= MAX_ERROR_BY_ARM.get(arm, MAX_ERROR)
    graph = capture(calls)
    benchmark.extra_info |= {"kv_bytes": shape.kv_bytes, "calls_per_round": len(calls)}
    benchmark.pedantic(graph.replay, rounds=20, warmup_rounds=3)
