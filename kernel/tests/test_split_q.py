"""Q in two E4M3 parts: exact for bf16, whatever the magnitude, and no worse in the whole kernel."""

# Triton parses this function itself and forbids most annotations on its parameters.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import triton
import triton.language as tl

from kernel import ops
from kernel.arithmetic import two_e4m3
from kernel.config import H200, MI355X, Arch, LaunchConfig, select
from kernel.gate import AttentionCase
from kernel.reference import relative_error
from kernel.tests.problems import (
    DEVICE,
    MAX_ERROR,
    SMALL_CDNA,
    SMALL_HOPPER,
    assert_accurate,
    expected,
    make_problem,
    run,
)


@triton.jit
def _split_kernel(x_ptr, high_ptr, low_ptr, N: tl.constexpr):
    place = tl.arange(0, N)
    high, low = two_e4m3(tl.load(x_ptr + place))
    tl.store(high_ptr + place, high.to(tl.float32))
    tl.store(low_ptr + place, low.to(tl.float32))


def _split(x: torch.Tensor) -> torch.Tensor:
    high, low = torch.empty_like(x), torch.empty_like(x)
    _split_kernel[(1,)](x, high, low, x.numel())
    return high + low


def test_two_parts_hold_every_bf16_value_of_eight_binades() -> None:
    significands = torch.arange(128, 256, dtype=torch.float32)
    values = torch.cat([significands * 2.0**power for power in range(-9, 1)])  # 0.25 to 255
    values = torch.cat([values, -values])
    padded = torch.zeros(4096)
    padded[: values.numel()] = values
    padded = padded.to(DEVICE)
    assert torch.equal(_split(padded), padded)


def test_below_that_the_parts_are_off_by_less_than_e4m3s_least_step() -> None:
    values = (torch.randn(4096, generator=torch.Generator().manual_seed(0)) * 0.05).bfloat16()
    x = values.float().to(DEVICE)
    assert float((_split(x) - x).abs().max()) <= 2.0**-9


@pytest.fixture
def splitting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hopper launches that split, as measured in NOTES.md."""

    def chosen(case: AttentionCase, arch: Arch) -> LaunchConfig:
        config = select(case, arch)
        return replace(config, num_warps=4, num_stages=2, split_q=True) if arch.name == "sm_90" else config

    monkeypatch.setattr(ops, "select", chosen)


@pytest.mark.usefixtures("splitting")
@pytest.mark.parametrize("spread", [2.0**-8, 2.0**-16, 2.0**-40])
def test_small_elements_beside_large_ones(spread: float) -> None:
    """A row's scale follows its largest element; what that does to the others must not show."""
    problem = make_problem([70, 33], [4, 2])
    q = problem.q.clone()
    q[..., ::2] *= spread
    q[:, 3] = 0  # a whole row of zeros
    problem = replace(problem, q=q)
    generic = run(ops.generic_attention, problem, SMALL_CDNA)
    assert_accurate(run(ops.mtp_verify_attention, problem, SMALL_HOPPER), generic, expected(problem))


@pytest.mark.usefixtures("splitting")
@pytest.mark.parametrize("arch", [SMALL_HOPPER, SMALL_CDNA])
def test_a_negative_softmax_scale(arch: Arch) -> None:
    problem = replace(make_problem([70, 5], [4, 3]), softmax_scale=-0.0625)
    out = run(ops.mtp_verify_attention, problem, arch)
    assert relative_error(out, expected(problem)) <= MAX_ERROR


def test_no_configuration_splits_by_itself() -> None:
    """Its FP8 sums leave the tolerance for wide logits, so nothing selects it."""
    case = make_problem([70], [4]).case(SMALL_HOPPER)
    assert not select(case, H200).split_q
    assert not select(replace(case, arch="gfx950"), MI355X).split_q
