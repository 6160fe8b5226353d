"""The kernel for gfx950: what its loop may cost, and whole calls in the emulator, with every Triton it may meet."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kernel.config import ONE_WAVE, TWO_WAVES
from kernel.emulator.listing import parse
from kernel.tests.compilers import HAS_TRITON, INSTALLED, VERSIONS, compiler
from kernel.tests.emulated import Case, Listings, Result, run

# Instructions, and vector and matrix cycles, for each KB of KV: by GROUP, ROWS and shape.
BUDGETS: dict[tuple[int, int, str], tuple[float, float]] = {
    (16, 64, ONE_WAVE): (22.6, 46.5),
    (16, 64, TWO_WAVES): (34.5, 48.5),
    (16, 32, ONE_WAVE): (13.0, 24.0),
    (16, 32, TWO_WAVES): (18.5, 24.5),
    (8, 32, ONE_WAVE): (13.0, 24.0),
    (8, 32, TWO_WAVES): (18.5, 24.5),
    (16, 16, ONE_WAVE): (10.1, 12.2),
    (8, 16, ONE_WAVE): (10.1, 12.2),
}
# LLVM packs fewer instructions in pairs for Triton 3.7, which puts a barrier between copies, too.
OLDER_TRITON = {key: (limits[0] * 1.1, limits[1] * 1.05) for key, limits in BUDGETS.items()}
# Relative error of the partial results' sum, before it is rounded to bf16; bf16 itself adds 1.7e-3.
MAX_ERROR = 8e-4
MAX_WORST_ROW = 2e-3
PORTABLE_ERROR = 3e-3


def shape_of(row: dict[str, Any]) -> tuple[int, int, str]:
    """A row's key in the budgets."""
    label = dict(word.split("=", 1) for word in row["label"].split())
    return int(label["GROUP"]), int(label["ROWS"]), TWO_WAVES if "waves_per_eu" in label else ONE_WAVE


def check_costs(rows: list[dict[str, Any]], triton: str) -> set[tuple[int, int, str]]:
    """Hold every kernel for gfx950 against its budget; the shapes that had one."""
    seen = set()
    budgets = OLDER_TRITON if triton.startswith("3.7.") else BUDGETS
    for row in rows:
        if row["kernel"] != "cdna4_kernel":
            continue
        loop, key = row["loop"], shape_of(row)
        assert row["spills"] == 0, row["label"]
        assert loop["spill_accesses"] == 0
        # K and V come in 16 bytes a lane, straight to LDS, and no wave writes there.
        assert set(loop["copies"]) == {"16"}
        assert loop["lds_written"] == 0
        # Two workgroups a CU fill its four SIMDs with 64 rows, half of them with fewer.
        assert row["waves_per_simd"] >= max(key[1], 32) / 64 * (2 if key[2] == TWO_WAVES else 1)
        if key in BUDGETS:
            seen.add(key)
            instructions, cycles = budgets[key]
            assert loop["instructions"] <= instructions, row["label"]
            assert loop["vector_cycles"] + loop["matrix_cycles"] <= cycles, row["label"]
    return seen


def check_case(case: Case, listings: Listings) -> Result:
    """Run a case; hold its errors, and no two lanes of an LDS read in one bank."""
    result = run(case, listings)
    if case.shape is None:
        assert result.error <= PORTABLE_ERROR
    else:
        assert result.partial_error <= MAX_ERROR
        assert result.worst_row <= MAX_WORST_ROW
        assert set(result.bank_cycles.values()) == {1.0}
    return result


# --- what `make test` runs: four tokens of 16 heads, with the installed Triton ---


@pytest.fixture(scope="module")
def sample(listings_folder: Path) -> Any:
    """The sample's report."""
    report = compiler(listings_folder, "gfx950").report
    if not report.only("cdna4_kernel"):
        pytest.skip("the Gluon of this Triton lacks what the kernel needs")
    return report


@pytest.mark.timeout(300)
def test_the_loop_keeps_its_budget(sample: Any) -> None:
    assert check_costs(sample.rows, version("triton")) == {(16, 64, ONE_WAVE)}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case((300, 0, 150), (4, 2, 3)), id="ragged-with-an-empty-sequence"),
        pytest.param(Case((130,), (4,), kv_heads=2, far_pages=1 << 20, late=True), id="beyond-4-GB-late"),
    ],
)
@pytest.mark.timeout(300)
def test_a_short_call(sample: Any, case: Case) -> None:
    check_case(case, Listings(sample.listings))


def _registers(text: str) -> set[tuple[str, int]]:
    """Vector registers that an operand names."""
    found = re.match(r"^-?\|?([va])(?:(\d+)|\[(\d+):(\d+)\])", text)
    if not found:
        return set()
    first = int(found[2] or found[3])
    return {(found[1], number) for number in range(first, int(found[4] or first) + 1)}


def test_instructions_by_hand_read_nothing_that_is_still_on_its_way(sample: Any) -> None:
    """LLVM puts a wait between a transcendental, or a conversion into half a register, and what reads it next; it does
    not look into what is written by hand."""
    for file in sample.listings.glob("*cdna4*.s"):
        code = parse(file.read_text()).instructions
        for before, ins in pairwise(code):
            by_hand = ins.name in ("v_pk_add_f32", "v_pk_mul_f32", "v_readlane_b32", "v_readfirstlane_b32")
            slow = re.match(r"^v_(exp|log|rcp|rsq|sqrt)_", before.name) or "op_sel:[0,0,0,1]" in before.text
            if by_hand and slow:
                read = set().union(*(_registers(text) for text in ins.operands[1:]))
                assert not read & _registers(before.operands[0]), f"{before.text}; {ins.text}"


@pytest.mark.parametrize(
    ("length", "most"), [pytest.param(512, 2.05, id="one-tile"), pytest.param(1024, 1.6, id="two")]
)
@pytest.mark.timeout(300)
def test_what_lies_outside_the_loop(sample: Any, length: int, most: float) -> None:
    """Vector and matrix cycles of all that pieces of one and of two tiles execute, beside their turns of the loop.

    1 x 8192 on an MI355X makes pieces of one tile, 16 x 8192 of two.
    """
    case = Case((length,), (4,))  # cut in four
    result = check_case(case, Listings(sample.listings))
    assert result.cycles <= most * result.loop_cycles


# --- everything, for minutes ---

CASES = [
    Case((300, 0, 37, 777), (4, 2, 3, 1)),
    Case((300, 0, 37, 777), (4, 2, 3, 4), late=True),
    Case((128, 256, 129), (4, 4, 3), kv_heads=2),
    Case((1, 2, 3, 4, 1), (4, 4, 4, 4, 1)),
    Case((15, 16, 17, 127), (3, 4, 3, 4)),
    Case((200, 40), (4, 3), far_pages=1 << 20),
    Case((400,), (4,), query_size=64.0),
    Case((400,), (4,), values="wide"),
    Case((400,), (4,), values="mean", late=True),
    Case((300, 33), (2, 1)),
    Case((300, 33), (2, 2), kv_heads=2, late=True),
    Case((300, 33), (1, 1)),
    Case((500, 129), (1, 1), kv_heads=2, late=True),
    Case((300, 0, 45), (4, 3, 1), group=8),
    Case((300, 129), (4, 4), group=8, kv_heads=2, late=True),
    Case((300, 64), (2, 1), group=8),
    Case((300, 17), (1, 1), group=8, kv_heads=2, late=True),
    Case((20,) * 66, (1,) * 66),  # more sequences than lanes
    Case((2000,), (4,), compute_units=20),  # many pieces, another reduction
    Case((900, 100), (4, 4), compute_units=9),
]
PORTABLE_CASES = [
    Case((100, 0, 37), (4, 2, 3), shape=None),
    Case((130, 20), (2, 1), kv_heads=2, shape=None, late=True),
    Case((100, 33), (4, 3), group=8, shape=None, far_pages=1 << 20),
    Case((100, 37), (4, 3), tokens=True, shape=None),
    Case((70, 33), (1, 2), tokens=True, kv_heads=2, group=8, shape=None, late=True),
]


@pytest.fixture(scope="module", params=[INSTALLED, *VERSIONS])
def everything(request: pytest.FixtureRequest, listings_folder: Path) -> Any:
    """All kernels' report with one Triton, and its version."""
    installed = version("triton") if HAS_TRITON else ""
    if request.param == installed:
        pytest.skip("the installed one")
    report = compiler(listings_folder, "gfx950", "--no-generic", request.param).report
    return report, installed if request.param == INSTALLED else request.param


@pytest.mark.every_kernel
@pytest.mark.timeout(3000)
def test_every_loop_keeps_its_budget(everything: Any) -> None:
    report, triton = everything
    expected = {key for key in BUDGETS if key[2] == ONE_WAVE or not triton.startswith("3.7.")}
    assert check_costs(report.rows, triton) == expected
    assert all(row["spills"] == 0 for row in report.rows)


@pytest.mark.every_kernel
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("shape", [ONE_WAVE, TWO_WAVES])
@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case.lengths[:4]}-{case.queries[:4]}-g{case.group}".replace(" ", "")
)
def test_every_call(everything: Any, case: Case, shape: str) -> None:
    report, triton = everything
    if shape == TWO_WAVES and triton.startswith("3.7."):
        pytest.skip("Triton 3.7 cannot compile this shape without spills, so it is not offered there")
    check_case(replace(case, shape=shape), Listings(report.listings))


@pytest.mark.every_kernel
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("case", PORTABLE_CASES, ids=lambda case: f"{case.lengths}-g{case.group}".replace(" ", ""))
def test_every_call_of_the_portable_kernel(everything: Any, case: Case) -> None:
    check_case(case, Listings(everything[0].listings))
