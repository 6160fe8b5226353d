"""When the Gluon kernel is chosen, and on a Hopper GPU what only it does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernel import ops
from kernel.bench.measure import capture
from kernel.call import Pages
from kernel.checks import device_arch
from kernel.config import CDNA4, H200, HOPPER, PORTABLE, launched_programs, select
from kernel.counters import counters
from kernel.reference import relative_error
from kernel.tests.problems import (
    DEVICE,
    MAX_ERROR,
    SMALL_CDNA,
    Problem,
    assert_accurate,
    expected,
    make_problem,
    run,
)

CASE = make_problem([70], [4]).case(H200)
on_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or device_arch(DEVICE).name != "sm_90", reason="needs a Hopper GPU"
)


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_programs_wait_only_for_programs_that_the_device_holds(kv_heads: int) -> None:
    waiting = 0
    for batch in range(1, 513):
        case = replace(CASE, batch=batch, kv_heads=kv_heads, query_heads=16 * kv_heads)
        config = select(case, H200, gluon=True)
        assert config.body == HOPPER
        if config.shares:
            waiting += 1
            assert launched_programs(config, batch, kv_heads) <= 2 * H200.compute_units
    assert waiting >= 132 // kv_heads


def test_without_gluon_hopper_takes_the_portable_kernel() -> None:
    assert select(CASE, H200).body == PORTABLE


def test_each_architecture_takes_its_own_gluon_kernel() -> None:
    assert select(replace(CASE, arch="gfx950"), SMALL_CDNA, gluon=True).body == CDNA4
    slots = replace(CASE, arch="gfx950", layout="tokens", page_size=1)
    assert select(slots, SMALL_CDNA, gluon=True).body == PORTABLE


def test_tensors_on_a_cpu_do_not_fit() -> None:
    problem = make_problem([20], [2])
    assert not ops.gluon_fits(problem.q.cpu(), problem.k_cache.cpu(), problem.v_cache.cpu(), "sm_90")


@on_hopper
def test_what_does_not_fit_runs_on_the_portable_kernel() -> None:
    """Slots of 264 bytes: copies of 16 bytes would be out of line."""
    problem = make_problem([40, 20], [4, 2])
    assert ops.gluon_fits(problem.q, problem.k_cache, problem.v_cache, "sm_90")
    odd = []
    for cache in (problem.k_cache, problem.v_cache):
        wide = torch.zeros((*cache.shape[:3], 264), dtype=torch.uint8, device=DEVICE)
        wide[..., :256] = cache.view(torch.uint8)
        odd.append(wide[..., :256].view(torch.float8_e4m3fn))
    assert not ops.gluon_fits(problem.q, *odd, "sm_90")
    out = run(ops.mtp_verify_attention, replace(problem, k_cache=odd[0], v_cache=odd[1]), None)
    assert relative_error(out, expected(problem)) <= MAX_ERROR


def _accurate(problem: Problem) -> None:
    generic = run(ops.generic_attention, problem, None)
    assert_accurate(run(ops.mtp_verify_attention, problem, None), generic, expected(problem))


@on_hopper
@pytest.mark.parametrize("factor", [1, 2, 4, 8, 16, 64])
@pytest.mark.parametrize("lengths", [[2000], [300] * 20])
def test_any_spread_of_logits(factor: int, lengths: list[int]) -> None:
    problem = make_problem(lengths, [4] * len(lengths))
    _accurate(replace(problem, q=problem.q * factor))


@on_hopper
def test_queries_beyond_fp16_with_tiny_keys() -> None:
    """What a row's power has beyond 2^13 stays outside the product."""
    problem = make_problem([300, 90], [4, 4])
    q = problem.q * 2.0**-4
    q[..., 0] = 1.5 * 2.0**14
    k = problem.k_cache.float()
    k[..., 0] = (torch.arange(k[..., 0].numel(), device=DEVICE) % 5 - 2).view(k.shape[:-1]) * 2.0**-9
    _accurate(replace(problem, q=q, k_cache=k.to(torch.float8_e4m3fn), softmax_scale=1.0))


@on_hopper
@pytest.mark.parametrize("batch", [1, 2, 4, 7, 33, 132, 133, 300])
def test_any_batch(batch: int) -> None:
    """Every way to share the sums, and the reduction of its own beyond 132 items."""
    _accurate(make_problem([37 + 90 * (seq % 3) for seq in range(batch)], [1 + seq % 4 for seq in range(batch)]))


@on_hopper
@pytest.mark.parametrize("queries", [[4, 4, 4], [1, 1, 1], [1, 3, 2]])
@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("batch", [1, 40])
def test_eight_heads_a_kv_head(queries: list[int], kv_heads: int, batch: int) -> None:
    lengths, repeated = [700, 0, 65] * batch, queries * batch
    _accurate(make_problem(lengths, repeated, kv_heads=kv_heads, group=8))


@on_hopper
@pytest.mark.parametrize("queries", [[1], [1, 2, 3, 4] * 9])
def test_one_token_and_ragged_queries(queries: list[int]) -> None:
    _accurate(make_problem([900 + 31 * n for n in range(len(queries))], queries))


@on_hopper
def test_launches_leave_the_counters_as_zeros_and_repeat_bit_for_bit() -> None:
    problem = make_problem([900, 0, 70], [4, 2, 4])
    out = torch.empty_like(problem.q)

    def call() -> None:
        ops.mtp_verify_attention(
            problem.q,
            problem.k_cache,
            problem.v_cache,
            out,
            Pages(problem.seqused_k, problem.block_table),
            cu_seqlens_q=problem.cu_seqlens_q,
            max_seqlen_q=4,
            max_seqlen_k=problem.max_seqlen_k,
            softmax_scale=problem.softmax_scale,
            k_descale=None,
            v_descale=None,
        )

    call()
    first = out.clone()
    assert relative_error(first, expected(problem)) <= MAX_ERROR
    graph = capture([call] * 20)
    for _ in range(50):
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, first)
    assert bool((counters(DEVICE) == 0).all())
