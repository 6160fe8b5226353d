"""The gate: every boundary on both sides, and no heavy import behind it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernel.config import CDNA4_SHAPES, H200, MI355X, Arch, reachable, select, select_generic
from kernel.gate import AttentionCase, reject_reason

ACCEPTED = AttentionCase(
    arch="gfx950",
    query_heads=32,
    kv_heads=2,
    head_size=256,
    page_size=16,
    q_dtype="bfloat16",
    kv_dtype="float8_e4m3fn",
    batch=16,
    max_seqlen_q=4,
    max_seqlen_k=70000,
)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"arch": "sm_90"},
        {"query_heads": 16, "kv_heads": 1},
        {"query_heads": 128, "kv_heads": 8},
        {"query_heads": 8, "kv_heads": 1},
        {"query_heads": 16, "kv_heads": 2},
        {"max_seqlen_q": 1},
        {"max_seqlen_q": 2},
        {"max_seqlen_q": 3},
        {"batch": 1},
        {"batch": 512},
        {"max_seqlen_k": 1},
        {"max_seqlen_k": 2**30},
        {"layout": "tokens", "page_size": 1},
    ],
)
def test_accepts(change: dict[str, Any]) -> None:
    case = replace(ACCEPTED, **change)
    assert reject_reason(case) is None
    gluon = [select(case, arch, gluon=True, shape=shape) for arch in (MI355X, H200) for shape in CDNA4_SHAPES]
    for config in (select(case, MI355X), select(case, H200), *gluon):
        assert config.rows >= case.query_heads // case.kv_heads * case.max_seqlen_q
        assert config.batch_block >= case.batch


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"arch": "gfx942"}, "arch"),
        ({"arch": "sm_80"}, "arch"),
        ({"arch": "sm_100"}, "arch"),
        ({"q_dtype": "float16"}, "q_dtype"),
        ({"q_dtype": "float32"}, "q_dtype"),
        ({"kv_dtype": "bfloat16"}, "kv_dtype"),
        ({"kv_dtype": "float8_e5m2"}, "kv_dtype"),
        ({"kv_dtype": "float8_e4m3fnuz"}, "kv_dtype_fnuz"),
        ({"head_size": 128}, "head_size"),
        ({"head_size": 512}, "head_size"),
        ({"query_heads": 4, "kv_heads": 1}, "gqa_ratio"),
        ({"query_heads": 24, "kv_heads": 2}, "gqa_ratio"),
        ({"query_heads": 32, "kv_heads": 1}, "gqa_ratio"),
        ({"page_size": 1}, "page_size"),
        ({"page_size": 8}, "page_size"),
        ({"page_size": 32}, "page_size"),
        ({"layout": "tokens"}, "page_size"),
        ({"max_seqlen_q": 5}, "query_length"),
        ({"batch": 513}, "batch"),
        ({"max_seqlen_k": 2**30 + 1}, "kv_length"),
        ({"sliding_window": 1}, "sliding_window"),
        ({"softcap": 1}, "softcap"),
        ({"sinks": 1}, "sinks"),
        ({"tree_width": 2}, "tree"),
    ],
)
def test_rejects(change: dict[str, Any], reason: str) -> None:
    assert reject_reason(replace(ACCEPTED, **change)) == reason


@pytest.mark.parametrize(
    "change",
    [
        {"batch": 0},
        {"kv_heads": 0},
        {"max_seqlen_q": 0},
        {"max_seqlen_k": 0},
        {"sliding_window": -1},
        {"layout": "ragged"},
    ],
)
def test_nonsense_is_a_bug_and_raises(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        replace(ACCEPTED, **change)


@pytest.mark.parametrize("arch", [MI355X, H200, Arch("sm_90", 1)])
def test_every_accepted_case_has_a_configuration(arch: Arch) -> None:
    cases = [*reachable(arch), *reachable(arch, gluon=True)]
    assert cases
    assert all(reject_reason(case) is None for case, _ in cases)
    assert all(config.programs >= 1 for _, config in cases)


def test_an_unknown_architecture_is_a_bug_in_select() -> None:
    with pytest.raises(ValueError, match="gate should have refused"):
        select(ACCEPTED, Arch("sm_80", 108))


@pytest.mark.parametrize(("batch", "segments"), [(1, 128), (2, 128), (4, 128), (8, 128), (16, 64), (32, 32), (64, 16)])
def test_generic_segments_follow_aiter(batch: int, segments: int) -> None:
    case = replace(ACCEPTED, query_heads=16, kv_heads=1, batch=batch, max_seqlen_k=262144)
    assert select_generic(case, MI355X).segments == segments


@pytest.mark.parametrize(
    ("change", "segments"),
    [
        ({"max_seqlen_k": 512}, 1),
        ({"max_seqlen_k": 513}, 64),  # ceil(513 / 16) = 33
        ({"batch": 204, "max_seqlen_k": 262144}, 8),  # 1020 programs, 4 CUs x 256 = 1024
        ({"batch": 205, "max_seqlen_k": 262144}, 1),  # 1025
    ],
)
def test_generic_skips_segments_where_aiter_does(change: dict[str, Any], segments: int) -> None:
    case = replace(ACCEPTED, query_heads=16, kv_heads=1, **{"batch": 1, **change})
    assert select_generic(case, MI355X).segments == segments


def test_asking_needs_neither_torch_nor_triton() -> None:
    code = (
        "import sys, kernel, kernel.gate, kernel.config;"
        "bad = {'torch', 'triton', 'sglang', 'numpy'} & set(sys.modules);"
        "sys.exit(f'imported {bad}' if bad else 0)"
    )
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root, timeout=60)
