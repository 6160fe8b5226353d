"""HTML and script text in which no name can become markup."""

from __future__ import annotations

import hashlib
import html
import json
import re

_SAFE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,119}")


def text(value: object) -> str:
    """Inert in text and in quoted attributes."""
    return html.escape(str(value), quote=True)


def script_json(value: object) -> str:
    """JSON that can stand in a script: no `</script>` and no comment can end it early."""
    dumped = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return dumped.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def slug(name: str) -> str:
    """A file name for a name: itself where it is harmless, else what is left of it and a hash."""
    if _SAFE.fullmatch(name):
        return name
    rest = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:60]
    return f"{rest or 'name'}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def details(summary: str, body: str, kind: str = "") -> str:
    """Folded away until asked for; `body` is HTML."""
    return f'<details{f" class={kind!r}" if kind else ""}><summary>{text(summary)}</summary>{body}</details>'


def items(sentences: list[str], kind: str = "") -> str:
    """A list of plain sentences."""
    inner = "".join(f"<li>{text(sentence)}</li>" for sentence in sentences)
    return f'<ul{f" class={kind!r}" if kind else ""}>{inner}</ul>' if sentences else ""
