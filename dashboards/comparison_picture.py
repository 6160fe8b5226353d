"""A comparison as a picture for a comment: one for light pages, one for dark ones."""

from __future__ import annotations

from dashboards.charts import Bar, forest
from harness.verdict.compare import Comparison, Row
from harness.verdict.report import label_of

MOST = 24  # rows


def bars(comparison: Comparison) -> list[Bar]:
    """The rows that have an interval, the primary ones and those that moved most first, at most MOST."""
    known = [(row, change) for row in comparison.rows if (change := row.change) is not None and row.interval]
    known.sort(key=lambda item: (not item[0].primary, -abs(item[1])))
    kept = {row.key for row, _ in known[:MOST]}
    return [_bar(row, label_of(row, comparison)) for row in comparison.rows if row.key in kept]


def _bar(row: Row, label: str) -> Bar:
    sign = -100.0 if row.metric.higher_is_better else 100.0
    assert row.change is not None
    assert row.interval is not None
    low, high = sorted(sign * end for end in row.interval)
    floor = 100 * abs(row.metric.change(row.floor)) if row.floor is not None else None
    return Bar(label[:60], sign * row.change, low, high, floor, row.verdict.value)


def render(comparison: Comparison, dark: bool) -> bytes | None:
    """A PNG; None where no row has an interval. Raises ImportError where altair or vl-convert is missing."""
    import vl_convert

    shown = bars(comparison)
    return bytes(vl_convert.vegalite_to_png(forest(shown, dark), scale=1.5)) if shown else None
