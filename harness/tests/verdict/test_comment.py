"""The comment on a pull request: what is read first, what hostile names can't do, and that it fits."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from launches import launch, run, scenario, side
from markdown_it import MarkdownIt

from harness.ab.looks import evaluate
from harness.errors import MtpbenchError
from harness.store.ab_record import load_session
from harness.tests.verdict.test_verdict import noisy, tpot
from harness.verdict.compare import Comparison, Verdict, compare
from harness.verdict.pr_comment import LIMIT, Pictures, marker, matter, to_comment

EXAMPLE = "20261130T063447Z-h200-ab-verify-610fee"
HOSTILE = "a|b `c` @someone #12 <img src=x onerror=alert(1)> [x](http://evil.example) www.evil.example\n\n# H\n"
HOSTILE += "--> $x$ </details>"


class Seen(HTMLParser):
    """Elements and text of a page, as a browser would see them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.comments: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)

    def tags(self) -> set[str]:
        return {tag for tag, _ in self.elements}


def seen(comment: str) -> Seen:
    """As GitHub renders it: CommonMark with tables, raw HTML let through."""
    return Seen(MarkdownIt("commonmark", {"html": True}).enable("table").render(comment))


def big(rows: int, head: float = 0.0106) -> Comparison:
    """A comparison with this many arms, of which the first is slower."""
    arms = [f"arm-{n:04d}" for n in range(rows)]
    plan = scenario(arms={name: {} for name in arms}, launches=8)

    def passes(slow: float, seed: int) -> list:  # type: ignore[type-arg]
        return [
            launch(i, value, arm=arm)
            for n, arm in enumerate(arms)
            for i, value in enumerate(noisy(slow if n == 0 else 0.01, seed=seed))
        ]

    base = side("base", run(passes(0.01, 1), name="b", of=plan))
    return compare(base, side("head", run(passes(head, 2), name="h", of=plan)), metrics=("tpot_p50",))


def test_the_verdict_the_row_and_the_rest_folded() -> None:
    found = tpot(noisy(0.01), noisy(0.0106, seed=2), metrics=("tpot_p50", "ttft_p50"))
    comment = to_comment(found, why="its step time grew", pictures=Pictures("https://x.example/ab-light.png", "d.png"))
    lines = comment.split("\n")
    assert lines[0] == marker("scripted") == "<!-- mtpbench-ab:scripted -->"
    assert lines[1] == "### ❌ FAIL"
    assert lines[2].startswith("**TPOT at concurrency 1 \\(TP1, mtp\\) is 6.0 % slower \\(90 % interval \\+5.")
    assert lines[6].startswith("| TPOT, concurrency 1 \\* | 10 ms | 10.6 ms | \\+6.0 % |")
    before, after = comment.split("<details>")
    assert "**Why:** its step time grew" in before
    assert '<source media="(prefers-color-scheme: dark)" srcset="d.png">' in before
    assert "TTFT" not in before
    assert "TTFT" in after
    page = seen(comment)
    assert {"h3", "table", "picture", "source", "img", "details", "summary", "sub"} <= page.tags()
    assert page.comments == [" mtpbench-ab:scripted "]


def test_what_stands_before_the_fold() -> None:
    passed = tpot(noisy(0.01), noisy(0.01, seed=2))
    assert to_comment(passed).split("\n")[1] == "### ✅ PASS"
    assert [row.primary for row in matter(passed)] == [True]
    rows = matter(big(20))
    assert len(rows) == 20  # each arm's TPOT at concurrency 1 is the primary endpoint
    assert rows[0].verdict is Verdict.FAIL
    assert "… and 12 more, below." in to_comment(big(20)).split("<details>")[0]
    nothing = tpot([0.01], [0.01])
    assert to_comment(nothing).split("\n")[1] == "### ⚠️ INCONCLUSIVE"
    empty = replace(passed, rows=(), verdict=Verdict.NO_BASELINE, headline="NO_BASELINE: there are no runs of base.")
    assert "### ⚠️ NO\\_BASELINE" in to_comment(empty)


def test_the_example_in_the_docs_is_what_the_command_writes() -> None:
    results = Path(__file__).parents[3] / "docs" / "results"
    session = load_session(results / EXAMPLE)
    found = evaluate(results / EXAMPLE, session)
    text = to_comment(found, pictures=Pictures("pr-comment/ab-light.png", "pr-comment/ab-dark.png"))
    assert (results / "pr-comment.md").read_text() == text
    assert len(matter(found)) == 4  # of 15: the primary endpoint, and of nine undecided rows the three that moved most
    assert len(seen(text).text.split("All 15 rows")[0]) < 900


def test_hostile_names_stay_names() -> None:
    found = tpot(noisy(0.01), noisy(0.0106, seed=2))
    row = replace(found.rows[0], key=replace(found.rows[0].key, arm=HOSTILE), sentence=f"{HOSTILE} is slower.")
    hostile = replace(
        found, scenario=HOSTILE, base=HOSTILE, head=HOSTILE, notes=(HOSTILE,), rows=(row, *found.rows[1:]),
        headline=f"FAIL: {HOSTILE}",
    )  # fmt: skip
    comment = to_comment(hostile, why=HOSTILE, pictures=Pictures("l.png", "d.png"))
    page, tame = seen(comment), seen(to_comment(found, why="x", pictures=Pictures("l.png", "d.png")))
    assert page.tags() == tame.tags()
    [image] = [attrs for tag, attrs in page.elements if tag == "img"]
    assert image["src"] == "l.png"
    assert len(page.comments) == 1
    assert [tag for tag, _ in page.elements].count("td") == [tag for tag, _ in tame.elements].count("td")
    # Names are there to be read, and call nobody: no @name, #number or address is left in one piece.
    assert "onerror=alert(1)" in page.text
    assert not re.search(r"@\w|#\d|://|www\.", page.text)


@pytest.mark.parametrize("rows", [24, 1500])
def test_it_fits(rows: int) -> None:
    found = big(24)
    many = replace(found, rows=tuple(found.rows[n % len(found.rows)] for n in range(rows)), notes=("x" * 700,) * 300)
    comment = to_comment(many)
    assert len(comment.encode()) <= LIMIT
    assert comment.rstrip().endswith("</sub>")
    assert seen(comment).tags() >= {"details", "sub"}
    left_out = "more rows are left out: a comment has 65536 characters." in comment
    assert left_out == (rows == 1500)
    assert comment.split("\n")[1] == "### ❌ FAIL"


@pytest.mark.parametrize("url", ["javascript:alert(1)", 'x" onerror="y', "https://a b", "<img>", "x\ny"])
def test_a_picture_is_an_address_and_nothing_else(url: str) -> None:
    with pytest.raises(MtpbenchError, match="can't stand in a page"):
        Pictures(url, "dark.png")
