"""The tolerance table at full size, on a GPU."""

from __future__ import annotations

import math

import pytest
import torch

from kernel.bench.arms import ARMS
from kernel.bench.inputs import fp32_answer, make_inputs
from kernel.bench.shapes import Shape, spread, uniform
from kernel.tests.problems import assert_accurate

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="full size needs a GPU")


@pytest.mark.parametrize(
    "shape",
    [
        uniform(1, 8192),
        uniform(1, 70000),
        uniform(16, 8192, kv_heads=2),
        uniform(64, 8192),
        uniform(256, 1024),
        spread(16, 1000, 70000),
    ],
    ids=lambda shape: str(shape.name),
)
def test_full_size(shape: Shape) -> None:
    (inputs,) = make_inputs(shape, 1, torch.device("cuda"))
    answer = fp32_answer(inputs, min(4, len(shape.lengths)))
    results = {}
    for arm in ("ours", "generic"):
        inputs.out.fill_(math.nan)
        ARMS[arm](inputs)()
        assert bool(inputs.out.isfinite().all()), f"{arm} left rows unwritten"
        results[arm] = inputs.out[: answer.shape[0]].clone()
    assert_accurate(results["ours"], results["generic"], answer)
