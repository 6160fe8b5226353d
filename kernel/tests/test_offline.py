"""Every configuration compiles for both architectures without spills, and uses matrix units."""

from __future__ import annotations

from collections import Counter
from importlib.metadata import version
from pathlib import Path

import pytest

from kernel.offline import ARCHES, Resources, main, table
from kernel.tests.compilers import compiler

GOOD = Resources("k", "gfx950", "", 100, 0, 0, 1024, 8, {16: 2}, 4.0, True)


@pytest.mark.parametrize("arch", sorted(ARCHES))
@pytest.mark.timeout(600)
def test_every_configuration_ships(arch: str, listings_folder: Path) -> None:
    rows = compiler(listings_folder, arch).report.rows
    verify = [row for row in rows if row["needs_matrix"] and not row["kernel"].startswith("generic")]
    names = Counter(row["kernel"] for row in verify)
    # Two layouts; two row counts where no instruction fixes them.
    assert names["verify_kernel"] == (4 if arch == "gfx950" else 2)
    if arch == "sm_90":
        assert names["hopper_kernel"] == 2
    else:  # the Gluon of Triton 3.6 lacks what the kernel needs
        assert names["cdna4_kernel"] == (0 if version("triton").startswith("3.6.") else 1)
    assert all(row["spills"] == 0 for row in rows)
    assert all(row["matrix_instructions"] > 0 for row in verify)
    assert all(row["waves_per_simd"] >= (1 if row["kernel"] == "cdna4_kernel" else 2) for row in verify)


@pytest.mark.parametrize(
    ("resources", "fault"),
    [
        (Resources("k", "a", "", 1, 0, 3, 0, 8, {}, 1.0, True), "3 spilled"),
        (Resources("k", "a", "", 1, 0, 0, 0, 0, {}, 1.0, True), "no matrix instruction"),
        (Resources("k", "a", "", 1, 0, 0, 0, 8, {}, 0.0, True), "does not fit the device"),
    ],
)
def test_a_fault_is_named_in_the_table(resources: Resources, fault: str) -> None:
    assert resources.faults == [fault]
    assert f"<- {fault}" in table([GOOD, resources])
    assert "<-" not in table([GOOD])


def test_a_reduction_needs_no_matrix_unit() -> None:
    assert not Resources("k", "a", "", 1, 0, 0, 0, 0, {}, 1.0, False).faults


def test_the_interpreter_cannot_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(RuntimeError, match="unset it"):
        main(["--arch", "gfx950"])
