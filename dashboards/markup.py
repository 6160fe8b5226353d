"""HTML and script text in which no name can become markup."""

from __future__ import annotations

import hashlib
import html
import json
import re
from collections.abc import Collection, Mapping, Sequence

from harness.text import inert

# As JSON writes them: control characters but tab and line feed, and marks that turn the direction of text around.
_ACTS = re.compile(r"\\u(?:00[01][0-9a-f]|007f|008[0-9a-f]|009[0-9a-f]|061c|200[ef]|202[a-e]|206[6-9])")
_SAFE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,119}")


def text(value: object) -> str:
    """Inert in text and in quoted attributes."""
    return html.escape(inert(str(value)), quote=True)


def script_json(value: object) -> str:
    """JSON that can stand in a script: no `</script>` and no comment can end it early."""
    dumped = json.dumps(value, separators=(",", ":"), allow_nan=False)
    dumped = _ACTS.sub(r"\\ufffd", dumped)
    return dumped.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def slug(name: str) -> str:
    """A file name for a name: itself where it is harmless, else what is left of it and a hash."""
    if _SAFE.fullmatch(name):
        return name
    rest = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:60]
    return f"{rest or 'name'}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def details(summary: str, body: str, kind: str = "") -> str:
    """Folded away until asked for; `body` is HTML."""
    return f"<details{f' class={kind!r}' if kind else ''}><summary>{text(summary)}</summary>{body}</details>"


def items(sentences: list[str], kind: str = "") -> str:
    """A list of plain sentences."""
    inner = "".join(f"<li>{text(sentence)}</li>" for sentence in sentences)
    return f"<ul{f' class={kind!r}' if kind else ''}>{inner}</ul>" if sentences else ""


def grid(caption: str, heads: Sequence[str], rows: str, *, name: str = "", wide: bool = False) -> str:
    """A table of `line`s: for the many that great_tables, at a third of a second each, would take hours for."""
    titles = "".join(f'<th scope="col">{text(head)}</th>' for head in heads)
    body = f'<tbody id="{name}">' if name else "<tbody>"
    table = '<table class="wide">' if wide else "<table>"
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(caption)}">{table}'
        f"<caption>{text(caption)}</caption><thead><tr>{titles}</tr></thead>{body}{rows}</tbody></table></div>"
    )


def line(cells: Sequence[str], *, head: int = 0, right: Collection[int] = (), data: Mapping[str, object] = {}) -> str:
    """A row of HTML cells; cell `head` heads it. `data`: what site.js filters by."""
    asks = "".join(f' data-{key}="{text(value)}"' for key, value in data.items())
    inner = "".join(
        f'<th scope="row">{cell}</th>' if n == head else f'<td class="{"right" if n in right else "text"}">{cell}</td>'
        for n, cell in enumerate(cells)
    )
    return f"<tr{asks}>{inner}</tr>"
