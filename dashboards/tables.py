"""Tables of the pages. The only place that imports great_tables.

Cells are HTML that `html.cell` made safe. great_tables lays the table out (spanners, row headers, alignment); its
style sheet, 10 kB a table and light only, is left out: assets/site.css has one for all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
from great_tables import GT
from great_tables import html as raw

from dashboards.markup import text


@dataclass(frozen=True)
class Column:
    """A column: key in the rows, title, and whether it holds numbers, which are set right."""

    key: str
    title: str
    number: bool = False


def table(
    name: str,
    caption: str,
    columns: Sequence[Column],
    rows: Sequence[Mapping[str, str]],
    *,
    spanners: Mapping[str, Sequence[str]] = {},
    tight: bool = False,
) -> str:
    """Rows of safe HTML as a table whose first column heads its rows. `name`: its id; `tight`: cells are one line."""
    if not rows:
        return f'<p class="soft">{text(caption)}: none.</p>'
    first, keys = columns[0], [column.key for column in columns]
    frame = pd.DataFrame([{key: row.get(key, "–") for key in keys} for row in rows], columns=keys)
    made = (
        GT(frame, rowname_col=first.key, id=name)
        .tab_stubhead(raw(text(first.title)))
        .cols_label(cases={column.key: raw(text(column.title)) for column in columns})
        .cols_align("left", columns=[column.key for column in columns if not column.number])
        .cols_align("right", columns=[column.key for column in columns if column.number])
        .fmt(str, columns=keys)
    )
    for label, of in spanners.items():
        made = made.tab_spanner(raw(text(label)), columns=list(of))
    page = made.as_raw_html()
    found = re.search(r"<table.*</table>", page, re.DOTALL)
    assert found is not None, "great_tables makes a table"
    body = found[0].replace(">", f"><caption>{text(caption)}</caption>", 1)
    kind = "scroll tight" if tight else "scroll"
    return f'<div class="{kind}" tabindex="0" role="region" aria-label="{text(caption)}">{body}</div>'
