"""What the public calls refuse, and that they can be captured in a graph."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from kernel import ops
from kernel.call import Pages, TokenSlots
from kernel.checks import UnsupportedCase, device_arch, split_descale
from kernel.config import LaunchConfig, launched_programs, select, split
from kernel.tests.problems import SMALL_HOPPER, Problem, expected, make_problem, run, token_layout

PROBLEM = make_problem([20, 5], [2, 1])


@pytest.mark.parametrize("operation", [ops.mtp_verify_attention, ops.generic_attention])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda p: {"q": p.q.half()}, "q_dtype"),
        (
            lambda p: {
                "k_cache": p.k_cache.view(torch.float8_e4m3fnuz),
                "v_cache": p.v_cache.view(torch.float8_e4m3fnuz),
            },
            "kv_dtype_fnuz",
        ),
        (lambda p: {"q": torch.cat([p.q, p.q], 1)}, "gqa_ratio"),
        (
            lambda p: {"k_cache": p.k_cache[:, :8], "v_cache": p.v_cache[:, :8]},
            "page_size",
        ),
    ],
)
def test_the_gate_speaks_through_the_call(
    operation: Callable[..., torch.Tensor],
    change: Callable[[Problem], dict[str, Any]],
    reason: str,
) -> None:
    with pytest.raises(UnsupportedCase) as caught:
        run(operation, replace(PROBLEM, **change(PROBLEM)), SMALL_HOPPER)
    assert caught.value.reason == reason


@pytest.mark.parametrize("operation", [ops.mtp_verify_attention, ops.generic_attention])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: {"q": p.q[0]}, "tokens, heads"),
        (lambda p: {"v_cache": p.v_cache[1:]}, "twins"),
        (lambda p: {"q": p.q[..., :128]}, "head sizes"),
        (lambda p: {"q": p.q.transpose(1, 2).contiguous().transpose(1, 2)}, "contiguous"),
        (lambda p: {"seqused_k": p.seqused_k.float()}, "int32 or int64"),
        (lambda p: {"seqused_k": p.seqused_k.repeat_interleave(2)[::2]}, "contiguous"),
        (lambda p: {"block_table": p.block_table[:1]}, "block_table"),
        (lambda p: {"block_table": p.block_table.T.contiguous().T}, "block_table"),
        (lambda p: {"seqused_k": p.seqused_k[:1], "block_table": p.block_table[:1]}, "cu_seqlens"),
        (lambda p: {"k_descale": torch.ones(2)}, "per-tensor"),
        (lambda p: {"v_descale": torch.ones(1).half()}, "fp32"),
    ],
)
def test_contradictions_raise(
    operation: Callable[..., torch.Tensor],
    change: Callable[[Problem], dict[str, Any]],
    message: str,
) -> None:
    with pytest.raises(ValueError, match=message):
        run(operation, replace(PROBLEM, **change(PROBLEM)), SMALL_HOPPER)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: {"draft_slots": t.draft_slots.int()}, "dtype"),
        (lambda t: {"draft_slots": t.draft_slots[1:]}, "draft slots"),
        (lambda t: {"kv_indptr": t.kv_indptr[1:]}, "cu_seqlens"),
    ],
)
def test_contradicting_token_slots_raise(change: Callable[[TokenSlots], dict[str, torch.Tensor]], message: str) -> None:
    tokens = token_layout(PROBLEM)
    tokens = replace(tokens, **change(tokens))
    with pytest.raises(ValueError, match=message):
        ops.mtp_verify_attention(
            PROBLEM.q,
            PROBLEM.k_cache.flatten(0, 1),
            PROBLEM.v_cache.flatten(0, 1),
            torch.empty_like(PROBLEM.q),
            tokens,
            cu_seqlens_q=PROBLEM.cu_seqlens_q,
            max_seqlen_q=2,
            max_seqlen_k=32,
            softmax_scale=1.0,
            arch=SMALL_HOPPER,
        )


def test_a_cpu_has_no_architecture() -> None:
    with pytest.raises(ValueError, match="arch="):
        device_arch(torch.device("cpu"))


def test_descales_split_into_number_and_pointer() -> None:
    tensor = torch.tensor([0.5])
    assert split_descale(None) == (1.0, None)
    assert split_descale(2) == (2.0, None)
    assert split_descale(tensor) == (1.0, tensor)


def _config(programs: int, min_tiles: int = 1) -> LaunchConfig:
    case = PROBLEM.case(SMALL_HOPPER)
    return replace(select(case, SMALL_HOPPER), programs=programs, min_tiles=min_tiles)


def _pieces(config: LaunchConfig, tiles: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """The device's cut, worked out here."""
    slots, even_pieces = split(config, len(tiles), kv_heads)
    size = min(math.ceil(int(tiles.sum()) * kv_heads / slots), math.ceil(int(tiles.max()) / even_pieces))
    return torch.ceil(tiles / max(size, config.min_tiles)).int()


@pytest.mark.parametrize("programs", [1, 2, 7, 132, 512])
@pytest.mark.parametrize("min_tiles", [1, 2, 8])
def test_pieces_never_exceed_the_launch(programs: int, min_tiles: int) -> None:
    config = _config(programs, min_tiles)
    generator = torch.Generator().manual_seed(programs)
    for batch in (1, 2, 3, 16, 64, 512):
        for kv_heads in (1, 2):
            launched = launched_programs(config, batch, kv_heads)
            for high in (1, 3, 100, 5000):
                tiles = torch.randint(0, high + 1, (batch,), generator=generator)
                assert int(_pieces(config, tiles, kv_heads).sum()) * kv_heads <= launched


def test_equal_lengths_are_cut_alike_and_fill_the_device() -> None:
    """16 x 8192 on 264 programs: 16 pieces each, where the other bound alone would leave 15."""
    assert _pieces(_config(264), torch.full((16,), 128), 1).tolist() == [16] * 16


@pytest.mark.parametrize(
    ("items", "slots", "even_pieces"),
    [(1, 131, 132), (16, 116, 8), (66, 66, 2), (67, 197, 3), (132, 132, 2), (198, 66, 1), (199, 197, 1)],
)
def test_slots_and_items_fill_whole_waves(items: int, slots: int, even_pieces: int) -> None:
    config = _config(132)
    assert split(config, items, 1) == (slots, even_pieces)
    assert launched_programs(config, items, 1) % 132 == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs need a GPU")
def test_a_captured_call_follows_new_lengths() -> None:
    """One graph, captured at one set of lengths, replayed at another."""
    problem = make_problem([500, 40], [4, 4])
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

    from kernel.bench.measure import capture
    from kernel.reference import relative_error

    graph = capture([call])
    problem.seqused_k.copy_(torch.tensor([77, 33]))
    graph.replay()
    assert relative_error(out, expected(problem)) <= 3e-3
