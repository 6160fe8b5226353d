"""Tables as every report shows them: for a document, and for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from rich import box
from rich.table import Table
from rich.text import Text


def markdown_table(
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    left: Collection[str],
    inert: Callable[[str], str] = str,
) -> list[str]:
    """A table's lines: columns named in `left` hold text, the others numbers. `inert`: escapes titles and cells."""
    lines = [_line(map(inert, titles)), "|" + "|".join("---" if title in left else "---:" for title in titles) + "|"]
    return lines + [_line(map(inert, row)) for row in rows]


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def terminal_table(titles: Sequence[str], left: Collection[str], title: str = "") -> Table:
    """An empty table whose columns named in `left` hold text, the others numbers. Cells are added as Text."""
    table = Table(title=Text(title) if title else None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for name in titles:
        table.add_column(Text(name), justify="left" if name in left else "right")
    return table
