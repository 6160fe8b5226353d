"""Imported results against each other: ratios by hand, and what must never become a ratio."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import mtpbench
from scipy import stats as scipy_stats

from harness.errors import MtpbenchError
from harness.importers import compare as import_compare
from harness.importers.compare import compare_imported
from harness.importers.units import factor
from harness.model import Finding
from harness.store.imported_runs import ImportedRun, Number, Origin, Point
from harness.verdict.compare import Verdict

FIXTURES = Path(__file__).parent


def run(name: str, *values: tuple[float, float], host: str = "a", tool: str = "vllm", **settings: Any) -> ImportedRun:
    """One file a call; each of `values` is a result at concurrency 16: (TPOT in ms, tokens/s)."""
    points = tuple(
        Point(
            f"result {n}",
            arm="mtp",
            concurrency=16,
            settings=settings,
            numbers=(
                Number("median_tpot_ms", tpot, "ms", higher_is_better=False),
                Number("output_throughput", rate, "tokens/s", higher_is_better=True),
                Number("completed", 48, "requests"),
            ),
        )
        for n, (tpot, rate) in enumerate(values)
    )
    return ImportedRun(name, Origin(tool, tool, "1", f"{name}.json", name, "2026-11-30"), points, host)


BASE = run("base", (10.0, 1000.0), (10.2, 980.0), (10.1, 990.0), (10.0, 1010.0))


def scaled(tpot: float, rate: float) -> ImportedRun:
    """BASE again, each result scaled, with 0.1 % of spread."""
    wiggle = (1.001, 0.999, 1.0005, 0.9995)
    values = [(p.numbers[0].value * tpot * w, p.numbers[1].value * rate * w) for p, w in zip(BASE.points, wiggle)]  # noqa: B905
    return run("head", *values)


def test_a_slowdown_has_the_t_interval_of_its_log_ratios() -> None:
    comparison = compare_imported([BASE], [scaled(1.054, 1.0)], ["median_tpot_ms"])
    [row] = comparison.rows
    assert comparison.verdict is Verdict.FAIL
    assert comparison.exit_code == 1
    deltas = [math.log(1.054 * w) for w in (1.001, 0.999, 1.0005, 0.9995)]
    assert row.change == pytest.approx(math.expm1(sum(deltas) / 4))
    mean, sd = sum(deltas) / 4, scipy_stats.tstd(deltas)
    low, high = scipy_stats.t.interval(0.9, 3, loc=mean, scale=sd / 2)
    assert row.interval == pytest.approx((math.expm1(low), math.expm1(high)))
    assert "median_tpot_ms at 16 (mtp): +5.4 %" in comparison.headline


def test_direction_comes_from_the_tool_and_the_headline_from_the_worst_row() -> None:
    better = compare_imported([BASE], [scaled(0.9, 1.1)], ["median_tpot_ms", "output_throughput"])
    assert [row.verdict for row in better.rows] == [Verdict.IMPROVED, Verdict.IMPROVED]
    mixed = compare_imported([BASE], [scaled(0.9, 0.9)], ["median_tpot_ms", "output_throughput"])
    assert [row.verdict for row in mixed.rows] == [Verdict.IMPROVED, Verdict.FAIL]
    assert mixed.verdict is Verdict.FAIL


def test_one_result_a_side_settles_nothing() -> None:
    comparison = compare_imported([run("b", (10, 1000))], [run("h", (20, 500))], ["median_tpot_ms"])
    assert comparison.verdict is Verdict.INCONCLUSIVE
    assert "changed by +100.0 %" in comparison.headline
    assert "Import two or more of each" in comparison.headline


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (run("h", (10, 1000), tool="guidellm"), "different tools"),
        (run("h", (10, 1000), host="b"), "host: a and b"),
        (run("h", (10, 1000), model="other"), "model: other and tiny"),
    ],
)
def test_unlike_results_are_never_put_into_a_ratio(other: ImportedRun, said: str) -> None:
    base = run("b", (10, 1000), model="tiny")
    comparison = compare_imported([base], [other], ["median_tpot_ms"])
    assert (comparison.verdict, comparison.rows) == (Verdict.INCOMPARABLE, ())
    assert said in comparison.headline


def test_a_difference_may_be_meant_and_failed_requests_are_invalid() -> None:
    base, head = run("b", (10, 1000), model="tiny"), run("h", (11, 900), model="other")
    allowed = compare_imported([base], [head], ["median_tpot_ms"], allowed=["model"])
    assert allowed.rows
    assert "model: other and tiny, as meant" in allowed.notes
    failed = replace(base.points[0], findings=(Finding("failed", "3 requests failed", invalid=True),))
    assert compare_imported([replace(base, points=(failed,))], [base]).verdict is Verdict.INVALID


def test_a_number_that_is_not_there_is_named() -> None:
    with pytest.raises(MtpbenchError, match="no number of nothing") as error:
        compare_imported([BASE], [BASE], ["nothing"])
    assert "median_tpot_ms, output_throughput" in error.value.hint, "and not `completed`, which is neither good nor bad"


def test_names_are_escaped_in_markdown() -> None:
    hostile = replace(BASE, points=tuple(replace(p, arm="<img src=x>|") for p in BASE.points))
    text = import_compare.to_markdown(compare_imported([hostile], [hostile], ["median_tpot_ms"]))
    assert "<img" not in text
    assert "x>|" not in text


def imported(folder: Path, name: str, factor: float) -> Path:
    """Imports vLLM's file with its TPOT scaled, and returns where it lies."""
    document = json.loads((FIXTURES / "vllm.json").read_text())
    document = {k: v * factor if "tpot" in k and isinstance(v, float) else v for k, v in document.items()}
    (folder / f"{name}.json").write_text(json.dumps(document))
    before = set((folder / "runs").glob("*"))
    mtpbench("import", f"{name}.json", "--host", "a", cwd=folder, check=0)
    [path] = set((folder / "runs").glob("*")) - before
    return path


def test_compare_takes_imported_results(tmp_path: Path) -> None:
    base = [imported(tmp_path, "b", 1.0), imported(tmp_path, "b2", 1.001)]
    head = [imported(tmp_path, "h", 1.2), imported(tmp_path, "h2", 1.202)]
    done = mtpbench(
        "compare", *base, "vs", *head, "--metric", "mean_tpot_ms", "--format", "json", cwd=tmp_path, check=1
    )
    document = json.loads(done.stdout)
    assert document["exit_code"] == 1
    assert document["rows"][0]["change"] == pytest.approx(0.2, abs=1e-3)
    assert document["rows"][0]["name"] == "mean_tpot_ms"


def test_an_imported_result_is_never_compared_with_a_measured_run(tmp_path: Path) -> None:
    measured = Path(__file__).parents[3] / "docs" / "results" / "20261130T005138Z-h200-smoke-4f5617"
    done = mtpbench("compare", imported(tmp_path, "b", 1.0), measured, cwd=tmp_path, check=2)
    assert "their numbers are defined otherwise" in done.stderr


def without(of: ImportedRun, name: str, only: int | None = None) -> ImportedRun:
    """A result that lacks a number; only in its nth point where one is named."""
    return replace(
        of,
        points=tuple(
            replace(p, numbers=tuple(n for n in p.numbers if n.name != name)) if only in (None, k) else p
            for k, p in enumerate(of.points)
        ),
    )


BOTH = ["median_tpot_ms", "output_throughput"]


def test_a_measured_zero_is_invalid_and_a_key_that_is_gone_is_missing() -> None:
    """As seen in use: head's throughput was 0, or its key gone, and the word was PASS."""
    zero = compare_imported([BASE], [scaled(1.0, 0.0)], BOTH)
    assert (zero.verdict, zero.exit_code) == (Verdict.INVALID, 2)
    assert zero.headline == "INVALID: output_throughput at 16 (mtp): head measured 0."
    gone = compare_imported([BASE], [without(scaled(1.0, 1.0), "output_throughput")], BOTH)
    assert (gone.verdict, gone.exit_code) == (Verdict.MISSING, 6)
    assert gone.headline == "MISSING: output_throughput at 16 (mtp): head does not have it."
    assert compare_imported([BASE], [without(BASE, "output_throughput", 2)], BOTH).verdict is Verdict.INVALID
    new = compare_imported([without(BASE, "output_throughput")], [scaled(1.0, 1.0)], BOTH)
    assert [row.verdict for row in new.rows] == [Verdict.PASS, Verdict.NO_BASELINE]
    assert "| 6 |" not in import_compare.to_markdown(gone)
    row = json.loads(import_compare.to_json(gone))["rows"][1]
    assert (row["verdict"], row["why"], row["head"]) == ("MISSING", "head does not have it", None)


def test_a_load_that_is_gone_is_missing() -> None:
    other = replace(BASE, points=(*BASE.points, replace(BASE.points[0], concurrency=64)))
    gone = compare_imported([other], [scaled(1.0, 1.0)], BOTH)
    assert gone.verdict is Verdict.MISSING
    assert gone.headline.startswith("MISSING: median_tpot_ms at 64 (mtp): head does not have it. 2 of 4 rows")
    assert compare_imported([scaled(1.0, 1.0)], [other], BOTH).notes[-1] == "only head has mtp at 64"


def in_unit(of: ImportedRun, name: str, unit: str, scale: float = 1.0) -> ImportedRun:
    """A result that gives one of its numbers in another unit."""
    return replace(
        of,
        points=tuple(
            replace(p, numbers=tuple(replace(n, unit=unit, value=n.value * scale) if n.name == name else n
                                     for n in p.numbers))
            for p in of.points
        ),
    )  # fmt: skip


@pytest.mark.parametrize(("unit", "scale"), [("s", 1e-3), ("sec", 1e-3), ("us", 1e3), ("ms", 1.0)])
def test_units_are_converted(unit: str, scale: float) -> None:
    """As seen in use: `sec` on one side and `ms` on the other was IMPROVED by 99.9 %, or FAIL by 99 900 %."""
    for base, head in ((BASE, in_unit(scaled(1.054, 1.0), BOTH[0], unit, scale)),
                       (in_unit(BASE, BOTH[0], unit, scale), scaled(1.054, 1.0))):  # fmt: skip
        comparison = compare_imported([base], [head], BOTH[:1])
        assert comparison.verdict is Verdict.FAIL
        assert comparison.rows[0].change == pytest.approx(0.054, abs=1e-3)
        assert any("is turned into" in note for note in comparison.notes) == (unit != "ms")


@pytest.mark.parametrize("unit", ["tokens/s", "", "furlongs"])
def test_units_that_do_not_fit_are_named(unit: str) -> None:
    comparison = compare_imported([BASE], [in_unit(BASE, BOTH[0], unit)], BOTH)
    assert comparison.verdict is Verdict.INCOMPARABLE
    assert f"median_tpot_ms is in ms and in {unit}" in comparison.headline
    assert factor("tokens/ms", "tok/s") == pytest.approx(1000)
    assert factor("requests/min", "tokens/s") is None
