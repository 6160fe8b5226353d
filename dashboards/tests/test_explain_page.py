"""The page of an explanation: self-contained, complete, and inert whatever its runs are called."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from dashboards.charts import account_panels
from dashboards.explain_page import render
from harness.cli.explain import subjects
from harness.explain.answer import Explanation, explain

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.fixture(scope="module")
def paired() -> Explanation:
    """Four pairs on an H200, with device times and traces."""
    return explain(*subjects([str(RESULTS / "20261130T063447Z-h200-ab-verify-610fee")]))


def test_page_is_self_contained_and_complete(paired: Explanation, tmp_path: Path) -> None:
    page = render(paired, tmp_path)
    ours = page[: page.index("<script>")] + page[page.rindex("<script>") :]
    assert not re.search(r'(src|href)="(?!data:)', ours)
    assert ours.count("<figure>") == 2
    assert ours.count("<tr") == 2 + (1 + len(paired.rows) + len(paired.device) + len(paired.traced)) + 12
    assert "certain is a change of the device&#x27;s target verify" in ours


def test_parts_follow_each_other_up_to_the_whole(paired: Explanation) -> None:
    spec = account_panels(paired)[0][1]
    [rows] = spec["datasets"].values()
    parts, whole = rows[:-1], rows[-1]
    assert [row["start"] for row in parts[1:]] == [row["end"] for row in parts[:-1]]
    assert whole["part"] == "TPOT"
    assert parts[-1]["end"] == pytest.approx(whole["end"])
    assert all(row["low"] < row["end"] < row["high"] for row in rows)


def test_what_tpot_consists_of_adds_up(paired: Explanation) -> None:
    """Milliseconds a token of all parts, stalls below zero left out, are TPOT to a few percent."""
    spec = account_panels(paired)[1][1]
    [rows] = spec["datasets"].values()
    for side, tpot in (("base", paired.tpot.base), ("head", paired.tpot.head)):
        assert sum(row["ms"] for row in rows if row["side"] == side) == pytest.approx(1e3 * tpot, rel=0.05)


def test_hostile_names_are_inert(paired: Explanation, tmp_path: Path) -> None:
    name = "</script><img src=x onerror=alert(1)>"
    base = replace(paired.case.base, side=replace(paired.case.base.side, arms={paired.case.base.label: name}))
    page = render(replace(paired, case=replace(paired.case, base=base), sentence=name), tmp_path)
    ours = page[: page.index("<script>")] + page[page.rindex("<script>") :]
    assert "<img" not in ours
    assert ours.count("</script>") == 1
    specs = re.search(r"const specs = (\[.*?\]);", page[page.rindex("<script>") :], re.DOTALL)
    assert specs
    assert len(json.loads(specs[1])) == 2
