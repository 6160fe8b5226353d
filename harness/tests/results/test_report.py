"""What a report says of two arms, against ratios set by hand."""

from __future__ import annotations

import pytest
from conftest import SCENARIO

from harness.model import LoadLevel
from harness.results.lines import Line, Value, crossing
from harness.scenario.yaml_file import parse


def line(arm: str, concurrency: int, value: float | None) -> Line:
    values = {} if value is None else {"tpot_p50": Value(value, value, value, 1, 10)}
    return Line(arm, 1, LoadLevel(concurrency=concurrency), values, 10, 0, (), True)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([8.0, 9.0, 9.5, 12.0], "better up to 4, worse from 8 on (against plain)"),
        ([8.0, 10.1, 12.0, 13.0], "better at 1, worse from 4 on, about equal (within 2 %) at 2 (against plain)"),
        ([12.0, 9.0, 12.0, 9.0], "better at 2, 8, worse at 1, 4 (against plain)"),
        ([5.0, 5.0, 5.0, 5.0], "better at every level measured (against plain)"),
        ([10.1, 9.9, 10.0, 10.0], "about equal (within 2 %) at every level measured (against plain)"),
        ([None, None, None, None], "not comparable with plain: no level has both"),
    ],
)
def test_where_an_arm_wins_and_loses(values: list[float | None], expected: str) -> None:
    scenario = parse(SCENARIO, "x.yaml")
    levels = [1, 2, 4, 8]
    lines = [line("plain", level, 10.0) for level in levels]
    lines += [line("drafts", level, value) for level, value in zip(levels, values, strict=True)]
    assert crossing(lines, scenario, "drafts", 1, "tpot_p50", False) == expected
