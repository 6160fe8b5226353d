"""A comparison as a comment on a pull request: what a reviewer needs in ten seconds, and the rest folded away.

Pure: a comparison in, Markdown out. Every name in it is somebody's, so all are escaped.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from harness.errors import MtpbenchError
from harness.text import escape
from harness.verdict.compare import Comparison, Row, Verdict
from harness.verdict.report import HEADERS, LEGEND, cells_of, footer, label_of, rows_of, told

LIMIT = 65536  # GitHub's, in characters; counted here in bytes, which are never fewer
SHOWN, OPEN = 8, 3  # rows before the fold, and of those that are merely undecided
_SENTENCES = 40
_MARKS = {Verdict.PASS: "✅", Verdict.IMPROVED: "✅", Verdict.FAIL: "❌", Verdict.INVALID: "❌"}
_UNSURE = "⚠️"
_SHORT = ("", "base", "head", "change", "90 % interval", "A/A floor", "")
_URL = re.compile(r"^(https?://)?[A-Za-z0-9._~/%+=?&-]+$")
_QUIET = (Verdict.PASS, Verdict.INCONCLUSIVE)


@dataclass(frozen=True)
class Pictures:
    """Where the picture of the comparison is, for a light and for a dark page."""

    light: str
    dark: str

    def __post_init__(self) -> None:
        for url in (self.light, self.dark):
            if not _URL.match(url):
                raise MtpbenchError(f"{url[:200]!r} can't stand in a page as a picture's address", "An https URL.")


def marker(scenario: str) -> str:
    """By which a later comment finds this one. Names have no characters that could end it."""
    return f"<!-- mtpbench-ab:{re.sub(r'[^A-Za-z0-9._-]', '_', scenario)} -->"


class Stage(str, Enum):
    """How far an A/B of a pull request has come before there is a verdict, or why there will be none."""

    MEASURING = "measuring"
    REFUSED = "refused"
    FAILED = "failed"
    CANCELLED = "cancelled"


_STAGES = {
    Stage.MEASURING: "⏳ Measuring",
    Stage.REFUSED: "🚫 Not measured",
    Stage.FAILED: "❌ The measurement failed",
    Stage.CANCELLED: "⚠️ The measurement was cancelled",
}


def to_answer(stage: Stage, scenario: str, sentence: str, details_url: str = "") -> str:
    """The comment that stands where the verdict will: it has that one's marker, so the verdict replaces it."""
    out = [marker(scenario), f"### {_STAGES[stage]}", escape(_cut(sentence, 1500)), ""]
    if details_url:
        if not _URL.match(details_url):
            raise MtpbenchError(f"{details_url[:200]!r} is no address", "An https URL.")
        out += [f"[The job]({details_url})", ""]
    return "\n".join(out)


def to_comment(comparison: Comparison, why: str = "", pictures: Pictures | None = None) -> str:
    """The comment, at most LIMIT bytes: if it is longer, rows of the folded table go, and it says so.

    `why`: a sentence on the cause, such as that of `mtpbench explain`.
    """
    sentences, rows = _SENTENCES, len(comparison.rows)
    while True:
        text = _whole(comparison, why, pictures, rows, sentences)
        if len(text.encode()) <= LIMIT or (rows, sentences) == (0, 0):
            return text
        rows, sentences = (rows, 0) if sentences else (rows // 2, 0)


def matter(comparison: Comparison) -> list[Row]:
    """The rows that decide, the worst first; where nothing moved, the primary endpoint or the row that moved most."""
    order = list(Verdict)
    rows = [row for row in comparison.rows if row.primary or row.verdict not in _QUIET]
    if comparison.verdict is Verdict.INCONCLUSIVE:
        undecided = [row for row in comparison.rows if row.verdict is Verdict.INCONCLUSIVE and not row.primary]
        rows += sorted(undecided, key=lambda row: -abs(row.change or 0.0))[:OPEN]
    if not rows:
        rows = sorted(comparison.rows, key=lambda row: -abs(row.change or 0.0))[:1]
    # IMPROVED is last in the order of severity; what moved says more than what did not.
    quiet = Verdict.PASS
    return sorted(rows, key=lambda r: (not r.primary, r.verdict is quiet, order.index(r.verdict), -abs(r.change or 0)))


def _whole(comparison: Comparison, why: str, pictures: Pictures | None, rows: int, sentences: int) -> str:
    word, _, sentence = comparison.headline.partition(": ")
    out = [marker(comparison.scenario), f"### {_MARKS.get(comparison.verdict, _UNSURE)} {escape(word)}"]
    out += [f"**{escape(_cut(sentence, 1500))}**", ""]
    shown = matter(comparison)
    if shown:
        out += [*_table(_SHORT, [_short_cells(row, comparison) for row in shown[:SHOWN]], left=1), ""]
        if len(shown) > SHOWN:
            out += [f"… and {len(shown) - SHOWN} more, below.", ""]
    if why:
        out += [f"**Why:** {escape(_cut(why, 1500))}", ""]
    if pictures:
        alt = html.escape(_cut(comparison.headline, 200), quote=True)
        out += [
            "<picture>",
            f'<source media="(prefers-color-scheme: dark)" srcset="{html.escape(pictures.dark)}">',
            f'<img alt="{_inert(alt)}" src="{html.escape(pictures.light)}">',
            "</picture>",
            "",
        ]
    out += ["<details>", f"<summary>All {len(comparison.rows)} rows, and how it was decided</summary>", ""]
    if comparison.rows:
        out += _table(HEADERS, rows_of(comparison)[:rows], left=0)
        if rows < len(comparison.rows):
            out += ["", f"{len(comparison.rows) - rows} more rows are left out: a comment has {LIMIT} characters."]
        out.append("")
    said = [row.sentence for row in told(comparison)] + [f"note: {note}" for note in comparison.notes]
    out += [f"- {escape(_cut(line, 600))}" for line in said[:sentences]]
    if len(said) > sentences:
        out.append(f"- … and {len(said) - sentences} more; `mtpbench compare RUN` shows all.")
    out += ["", "</details>", "", f"<sub>{escape(_cut(footer(comparison), 600))}. {escape(LEGEND)}</sub>", ""]
    return "\n".join(out)


def _short_cells(row: Row, comparison: Comparison) -> tuple[str, ...]:
    """What it is, in words, and what was measured."""
    by_name = dict(zip(HEADERS, cells_of(row), strict=True))
    return (label_of(row, comparison), *(by_name[name] for name in _SHORT[1:-1]), row.word)


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """`left`: how many columns, from the first on, are text."""
    texts = ("arm", "metric", "")
    align = ["---" if n < left or title in texts else "---:" for n, title in enumerate(headers)]
    lines = ["| " + " | ".join(escape(title) or " " for title in headers) + " |", "|" + "|".join(align) + "|"]
    return lines + ["| " + " | ".join(escape(_cut(cell, 200)) for cell in row) + " |" for row in rows]


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _inert(alt: str) -> str:
    """An attribute is no text to Markdown, but a line end would end the element."""
    return re.sub(r"\s+", " ", alt)
