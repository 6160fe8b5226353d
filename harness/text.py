"""Text as every report shows it: tables for a document and for the terminal, names made inert."""

from __future__ import annotations

import re
import unicodedata
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


# Right-to-left marks, embeddings, overrides and isolates: they turn what follows them around.
_TURNS = frozenset(map(chr, (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))))
_LINES = "\n\t"


def inert(text: str) -> str:
    """Text that a terminal or a page can only show: control characters, half surrogates and marks that change the
    direction of writing become U+FFFD. Lines and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join("\N{REPLACEMENT CHARACTER}" if _acts(c) else c for c in text)


def _acts(c: str) -> bool:
    return c in _TURNS or (c not in _LINES and unicodedata.category(c) in ("Cc", "Cs"))


def escape(text: str) -> str:
    """Markdown and HTML inert: a name can't open a tag, a link, a cell or a line, nor call a person or an issue.

    GitHub looks for @names, #numbers and addresses after Markdown is done, where a backslash is gone: an invisible
    space (U+200B) parts them.
    """
    text = inert(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\`*_{}\[\]()#+!|~$])", r"\\\1", re.sub(r"\s+", " ", text))
    return re.sub(r"(@|#(?=\d)|:(?=//)|\bwww(?=\.))", r"\1&#8203;", text)
