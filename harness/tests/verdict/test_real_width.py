"""An A/B whose answer is plain to see, and was INCONCLUSIVE for the sake of a number that the scenario sets."""

from __future__ import annotations

from pathlib import Path

import pytest
import real_width
from commands import mtpbench

from harness.cli.compare import named_runs, stored_comparison
from harness.verdict.compare import Verdict


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_width.store(tmp_path_factory.mktemp("real"))


def test_the_headline_is_that_of_the_primary_endpoint(measured: Path) -> None:
    found = stored_comparison(named_runs([str(measured)]), None, None, str(measured.parent), measured / "none.yaml")
    assert found.verdict in (Verdict.PASS, Verdict.IMPROVED)
    assert "is 36.1 % faster, not yet proven" in found.headline
    row = next(row for row in found.rows if row.primary)
    assert row.base == pytest.approx(21.375e-3, rel=1e-4)
    assert row.word == "faster, not yet proven"


def test_what_the_scenario_sets_is_no_row(measured: Path) -> None:
    found = stored_comparison(named_runs([str(measured)]), None, None, str(measured.parent), measured / "none.yaml")
    assert not any(row.key.metric.startswith("accept_length") for row in found.rows)
    said = "mtp-upstream → mtp-in-tree: its accept length is set to 3.3 by the scenario, so it is not compared."
    assert said in found.notes


def test_the_same_on_the_command_line(measured: Path, tmp_path: Path) -> None:
    done = mtpbench("compare", measured, cwd=tmp_path, check=0)
    assert "faster, not yet" in done.stdout


def test_the_device_is_asked_where_it_is_timed(measured: Path) -> None:
    """By default, of any two runs, and in its unit: 41.9 against 19.7 ms of forward passes a step, and prefills."""
    sides = [f"{measured}@{arm}" for arm in ("base.mtp-upstream", "head.mtp-in-tree")]
    found = stored_comparison(named_runs(sides), None, None, str(measured.parent), measured / "none.yaml")
    device = next(row for row in found.rows if row.key.metric == "device_time_per_token")
    assert device.change is not None
    assert device.change < -0.3
    assert "faster" in device.sentence
    assert device.metric.shown(1.25e-3) == "1.25 ms/token"
