"""Why TPOT changed, on one self-contained page: the sentence, pictures and tables, hypotheses, what to run next."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dashboards.charts import account_panels
from dashboards.markup import text
from dashboards.standalone import standalone
from harness.explain.answer import Explanation
from harness.explain.report import ACCOUNT_HEADERS, HYPOTHESIS_HEADERS, LEGEND, account_rows, headline, hypothesis_rows

_OWN_STYLE = """
h1 { max-width: 60rem; text-wrap: pretty }
tbody tr.whole td { font-weight: 600; border-bottom: 2px solid var(--line) } tbody tr.finer td { color: var(--soft) }
td.text.figures { white-space: normal; min-width: 16rem }
tr.confirmed td { font-weight: 600 } tr.refuted td { color: var(--soft) }
.next code { overflow-wrap: anywhere }
@media (max-width: 640px) {
  .stack thead { display: none } .stack tr { display: block; padding: .4rem 0; border-bottom: 1px solid var(--line) }
  .stack td { display: inline; padding: 0 .3rem 0 0; border: 0; white-space: normal; text-align: left }
  .stack td.figures { display: block; min-width: 0 }
}
"""
_LEFT = {"part", "hypothesis", "", "figures"}


def render(explanation: Explanation, cache_dir: Path) -> str:
    """The page as HTML. Raises ImportError where altair or vl-convert is missing."""
    case = explanation.case
    names = (
        f"base: {case.base.name} ({_runs(case.base.side.runs)}); head: {case.head.name} ({_runs(case.head.side.runs)})"
    )
    notes = "".join(f'<li class="soft">{text(note)}</li>' for note in explanation.notes)
    before = (
        f'<p class="soft">Why did TPOT change?</p><h1>{text(headline(explanation))}</h1>'
        f'<p class="soft">{text(names)}</p>'
    )
    after = (
        f"<h2>The account</h2>{_account(explanation)}"
        f'<p class="soft">{text(LEGEND)}</p>'
        f"<h2>Hypotheses</h2>{_hypotheses(explanation)}"
        f'<h2>Next</h2><p class="next"><code>{text(explanation.next)}</code><br>{text(explanation.next_why)}</p>'
        f"<ul>{notes}</ul>"
    )
    charts = account_panels(explanation)
    return standalone("Why did TPOT change? – mtpbench", charts, before, after, cache_dir, _OWN_STYLE)


def _runs(runs: Sequence[object]) -> str:
    return ", ".join(str(getattr(run, "id", "")) for run in runs)


def _account(explanation: Explanation) -> str:
    rows = account_rows(explanation)
    kinds = ["whole" if n == 0 else "finer" if row[0].startswith(" ") else "" for n, row in enumerate(rows)]
    return _table(ACCOUNT_HEADERS, [tuple(cell.replace("  ", "\u2003") for cell in row) for row in rows], kinds)


def _hypotheses(explanation: Explanation) -> str:
    rows = hypothesis_rows(explanation)
    return _table(HYPOTHESIS_HEADERS, rows, [one.outcome.state.value for one in explanation.tested], "stack")


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]], kinds: Sequence[str], kind: str = "") -> str:
    """`kinds`: what each row is; `stack`: cells one below the other where the page is narrow."""

    def cell(tag: str, title: str, value: str) -> str:
        classes = " ".join(["text"] * (title in _LEFT) + ["figures"] * (title == "figures"))
        scope = ' scope="col"' if tag == "th" else ""
        return f'<{tag}{scope} class="{classes}">{text(value)}</{tag}>'

    head = "".join(cell("th", title, title) for title in headers)
    body = "".join(
        f'<tr class="{kind}">{"".join(cell("td", t, v) for t, v in zip(headers, row, strict=True))}</tr>'
        for row, kind in zip(rows, kinds, strict=True)
    )
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )
