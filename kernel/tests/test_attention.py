"""Both kernels against fp32: under Triton's interpreter on a CPU, compiled on a GPU."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernel import ops
from kernel.config import Arch, select, select_generic
from kernel.reference import relative_error
from kernel.tests.problems import (
    DEVICE,
    MAX_ERROR,
    PAGE,
    SMALL_CDNA,
    SMALL_HOPPER,
    Operation,
    Problem,
    assert_accurate,
    expected,
    make_problem,
    run,
    token_layout,
    with_descales,
)

ARCHES = (SMALL_HOPPER, SMALL_CDNA)


def check(problem: Problem) -> None:
    """Both architectures' kernels and the generic arm within the tolerance table."""
    reference = expected(problem)
    generic = run(ops.generic_attention, problem, SMALL_CDNA)
    assert relative_error(generic, reference) <= MAX_ERROR
    for arch in ARCHES:
        assert_accurate(run(ops.mtp_verify_attention, problem, arch), generic, reference)


@pytest.mark.parametrize(
    ("kv_lengths", "query_lengths"),
    [
        pytest.param([150, 64, 4, 70], [4, 3, 4, 1], id="ragged"),
        pytest.param([1], [1], id="one-token"),
        pytest.param([15, 16, 17], [2, 2, 1], id="page-boundary"),
        pytest.param([63, 64, 65], [4, 4, 4], id="tile-boundary"),
        pytest.param([4, 3, 2, 1], [4, 3, 2, 1], id="no-prefix"),
    ],
)
def test_lengths(kv_lengths: list[int], query_lengths: list[int]) -> None:
    check(make_problem(kv_lengths, query_lengths))


@pytest.mark.parametrize("length_dtype", [torch.int32, torch.int64])
def test_two_kv_heads(length_dtype: torch.dtype) -> None:
    check(make_problem([70, 33], [4, 2], kv_heads=2, length_dtype=length_dtype))


@pytest.mark.parametrize("queries", [[4, 3], [1, 1], [1, 2]])
def test_eight_heads_a_kv_head(queries: list[int]) -> None:
    """TP4 of a model with 32 and 2 heads: a tile has half as many rows, a generic workgroup two query tokens."""
    check(make_problem([70, 33], queries, group=8))


def test_eight_heads_two_kv_heads_and_a_first_token_that_sees_nothing() -> None:
    check(make_problem([0, 2, 40], [1, 4, 3], kv_heads=2, group=8))


def test_one_sequence_cut_over_every_program() -> None:
    check(make_problem([330], [4]))


def test_the_generic_arm_cut_in_segments() -> None:
    """A padded length above 512 makes AITER's rule cut KV, also into empty segments."""
    problem = make_problem([70, 3], [2, 3])
    wide = problem.block_table.new_full((2, 40), 2**30)
    wide[:, : problem.block_table.shape[1]] = problem.block_table
    problem = replace(problem, block_table=wide)
    assert select_generic(problem.case(SMALL_CDNA), SMALL_CDNA).segments == 16
    out = run(ops.generic_attention, problem, SMALL_CDNA)
    assert relative_error(out, expected(problem)) <= MAX_ERROR


def test_few_items_take_the_tall_reduction() -> None:
    arch = Arch("sm_90", 32)
    problem = make_problem([530], [1])
    assert select(problem.case(arch), arch).reduction.chunk == 64
    out = run(ops.mtp_verify_attention, problem, arch)
    assert relative_error(out, expected(problem)) <= MAX_ERROR


@pytest.mark.parametrize("programs", [1, 2, 3, 17])
def test_any_number_of_programs(programs: int) -> None:
    problem = make_problem([130, 5, 200], [2, 1, 2])
    out = run(ops.mtp_verify_attention, problem, Arch("sm_90", programs))
    assert relative_error(out, expected(problem)) <= MAX_ERROR


@pytest.mark.parametrize("arch", ARCHES)
def test_sequences_without_kv_and_padding_rows_give_zeros(arch: Arch) -> None:
    """Graph padding: a length of 0 or 1 with four query rows, between real sequences."""
    problem = make_problem([0, 70, 1, 0, 40, 0], [4, 2, 4, 1, 4, 4])
    out = run(ops.mtp_verify_attention, problem, arch)
    assert relative_error(out, expected(problem)) <= MAX_ERROR
    assert bool((out[:4] == 0).all())
    assert bool((out[-4:] == 0).all())


def test_output_past_the_last_sequence_is_left_alone() -> None:
    problem = make_problem([40], [2])
    padded = replace(problem, q=torch.cat([problem.q, problem.q]))
    out = run(ops.mtp_verify_attention, padded, SMALL_HOPPER)
    assert bool(out[2:].isnan().all())
    assert relative_error(out[:2], expected(problem)) <= MAX_ERROR


def test_poisoned_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scratch starts with whatever memory held: NaN must not reach the output."""
    empty = torch.empty

    def poisoned(*args: object, **kwargs: object) -> torch.Tensor:
        tensor: torch.Tensor = empty(*args, **kwargs)  # type: ignore[call-overload]
        return tensor.fill_(math.nan)

    monkeypatch.setattr(torch, "empty", poisoned)
    check(make_problem([100, 3, 66], [3, 2, 4]))


@pytest.mark.parametrize(("k_scale", "v_scale"), [(8.0, 1e30), (2.0**-20, 2.0**-100)])
def test_huge_and_tiny_descales(k_scale: float, v_scale: float) -> None:
    check(with_descales(make_problem([70, 20], [4, 4]), k_scale, v_scale))


def test_descales_may_be_tensors_or_numbers() -> None:
    problem = with_descales(make_problem([40], [4]), 0.5, 3.0)
    reference = expected(problem)
    expanded = torch.tensor(3.0, device=DEVICE).expand(1, 2)
    tensors = replace(problem, k_descale=torch.tensor([0.5], device=DEVICE), v_descale=expanded)
    for operation in (ops.mtp_verify_attention, ops.generic_attention):
        assert relative_error(run(operation, tensors, SMALL_HOPPER), reference) <= MAX_ERROR
        assert relative_error(run(operation, problem, SMALL_HOPPER), reference) <= MAX_ERROR
    plain = with_descales(problem, 1.0, 1.0)
    none = replace(problem, k_descale=None, v_descale=None)
    for operation in (ops.mtp_verify_attention, ops.generic_attention):
        assert torch.equal(run(operation, plain, SMALL_HOPPER), run(operation, none, SMALL_HOPPER))


def test_extreme_stored_values() -> None:
    """-0, subnormals and +-448 in K and V; a subnormal must not be flushed."""
    problem = make_problem([48], [4])
    values = torch.tensor([-0.0, 0.0, 2.0**-9, -(2.0**-9), 7 * 2.0**-9, 448.0, -448.0, 2.0**-6])
    generator = torch.Generator().manual_seed(1)
    picks = torch.randint(0, len(values), (2, *problem.k_cache.shape), generator=generator)
    k, v = values[picks].to(torch.float8_e4m3fn).to(DEVICE)
    check(replace(problem, k_cache=k, v_cache=v, k_descale=2.0**-8))
    small = values[:4][picks % 4].to(torch.float8_e4m3fn).to(DEVICE)
    check(replace(problem, k_cache=k, v_cache=small[1], k_descale=2.0**-8))


@pytest.mark.parametrize("magnitude", [2.0**-120, 2.0**-20, 2.0**20, 2.0**100])
def test_queries_out_of_fp16_range(magnitude: float) -> None:
    """bf16 has fp32's range: fp16 arithmetic must neither overflow nor flush."""
    problem = make_problem([40], [2])
    scaled = replace(
        problem,
        q=(problem.q.float() * magnitude).to(torch.bfloat16),
        softmax_scale=problem.softmax_scale / magnitude,
    )
    check(scaled)


@pytest.mark.parametrize("spread", [2.0**-8, 2.0**-40])
def test_small_elements_beside_large_ones(spread: float) -> None:
    """A row's scale follows its largest element; what that does to the others must not show."""
    problem = make_problem([70, 33], [4, 2])
    q = problem.q.clone()
    q[..., ::2] *= spread
    q[:, 3] = 0  # a whole row of zeros
    check(replace(problem, q=q))


def test_a_negative_softmax_scale() -> None:
    check(replace(make_problem([70, 5], [4, 3]), softmax_scale=-0.0625))


@pytest.mark.parametrize("growth", [1.0, -1.0])
def test_logits_that_rise_and_fall_along_the_sequence(growth: float) -> None:
    """The largest logit of a row moves from tile to tile, by more than fp16 weights can hold."""
    problem = make_problem([200], [4])
    k = problem.k_cache.float()
    for seq, length in enumerate(problem.seqused_k.tolist()):
        position = torch.arange(length, device=DEVICE)
        factor = torch.exp2(growth * 6 * (position / length - 0.5))
        pages = problem.block_table[seq].long()[position // PAGE]
        k[pages, position % PAGE] *= factor[:, None, None]
    check(replace(problem, k_cache=k.to(torch.float8_e4m3fn), softmax_scale=0.25))


def test_page_order_does_not_matter() -> None:
    """The same KV on other pages gives the same bits."""
    problem = make_problem([90, 40], [4, 4])
    order = torch.randperm(problem.k_cache.shape[0], generator=torch.Generator().manual_seed(5))
    where = torch.empty_like(order)
    where[order] = torch.arange(len(order))
    table = problem.block_table.cpu()
    table = torch.where(table < len(order), where[table.clamp(max=len(order) - 1)].int(), table)
    moved = replace(
        problem,
        k_cache=problem.k_cache.view(torch.uint8)[order].view(torch.float8_e4m3fn),
        v_cache=problem.v_cache.view(torch.uint8)[order].view(torch.float8_e4m3fn),
        block_table=table.to(DEVICE),
    )
    for operation in (ops.mtp_verify_attention, ops.generic_attention):
        assert torch.equal(run(operation, moved, SMALL_HOPPER), run(operation, problem, SMALL_HOPPER))


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("operation", [ops.mtp_verify_attention, ops.generic_attention], ids=["verify", "generic"])
def test_token_slots_give_the_same_bits(arch: Arch, operation: Operation) -> None:
    problem = make_problem([75, 3, 17], [4, 3, 1], kv_heads=2)
    out = torch.full_like(problem.q, math.nan)
    operation(
        problem.q,
        problem.k_cache.flatten(0, 1),
        problem.v_cache.flatten(0, 1),
        out,
        token_layout(problem),
        cu_seqlens_q=problem.cu_seqlens_q,
        max_seqlen_q=problem.max_seqlen_q,
        max_seqlen_k=problem.max_seqlen_k,
        softmax_scale=problem.softmax_scale,
        arch=arch,
    )
    assert torch.equal(out, run(operation, problem, arch))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_addresses_past_2_gib(dtype: torch.dtype) -> None:
    """Pages whose byte offset needs more than 31 bits; on a CPU untouched pages take no memory."""
    problem = make_problem([40, 20], [4, 2], length_dtype=dtype)
    shift = 2**31 // problem.k_cache[0].numel() + 1
    far = []
    for cache in (problem.k_cache, problem.v_cache):
        size = (shift + cache.shape[0], *cache.shape[1:])
        storage = torch.empty(size, dtype=torch.uint8, device=DEVICE)
        storage[shift:] = cache.view(torch.uint8)
        far.append(storage.view(torch.float8_e4m3fn))
    moved = replace(problem, k_cache=far[0], v_cache=far[1], block_table=problem.block_table + shift)
    for operation in (ops.mtp_verify_attention, ops.generic_attention):
        assert torch.equal(run(operation, moved, SMALL_HOPPER), run(operation, problem, SMALL_HOPPER))


@settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(
    shapes=st.lists(st.tuples(st.integers(0, 140), st.integers(1, 4)), min_size=1, max_size=3),
    kv_heads=st.integers(1, 2),
    programs=st.integers(1, 7),
    seed=st.integers(0, 2**16),
)
def test_drawn_shapes(shapes: list[tuple[int, int]], kv_heads: int, programs: int, seed: int) -> None:
    problem = make_problem(
        [prefix + query for prefix, query in shapes],
        [query for _, query in shapes],
        kv_heads=kv_heads,
        seed=seed,
    )
    out = run(ops.mtp_verify_attention, problem, Arch("sm_90", programs))
    assert relative_error(out, expected(problem)) <= MAX_ERROR


def test_strided_inputs() -> None:
    """Q as a slice of a fused projection, K and V interleaved in one buffer."""
    problem = make_problem([70], [3])
    wide = torch.zeros(3, 40, 256, dtype=torch.bfloat16, device=DEVICE)
    wide[:, 8:24] = problem.q
    both = torch.stack([problem.k_cache.view(torch.uint8), problem.v_cache.view(torch.uint8)], 1)
    strided = replace(
        problem,
        q=wide[:, 8:24],
        k_cache=both[:, 0].view(torch.float8_e4m3fn),
        v_cache=both[:, 1].view(torch.float8_e4m3fn),
    )
    assert strided.k_cache.stride(0) == 2 * problem.k_cache.stride(0)
    for operation in (ops.mtp_verify_attention, ops.generic_attention):
        assert torch.equal(run(operation, strided, SMALL_HOPPER), run(operation, problem, SMALL_HOPPER))


def test_page_size_constant_matches_the_gate() -> None:
    from kernel.gate import PAGE_SIZE

    assert PAGE == PAGE_SIZE
