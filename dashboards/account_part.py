"""The account of causes at concurrency 16: why an arm's TPOT is another than the baseline's, from raw records."""

from __future__ import annotations

from dashboards.charts import account_panels
from dashboards.data import put
from dashboards.frame import figure
from dashboards.markup import details, grid, items, line, text
from dashboards.site import Explained, ScenarioView
from harness.explain.answer import Explanation
from harness.explain.report import ACCOUNT_HEADERS, HYPOTHESIS_HEADERS, LEGEND, account_rows, headline, hypothesis_rows


def account_part(view: ScenarioView, explained: list[Explained]) -> str:
    """For each arm: the sentence, how the parts add up, and what the hypotheses say."""
    out = "<h3>Why: each arm against the scenario's baseline</h3>"
    if not explained:
        return out + (
            '<p class="soft">No night has raw records of an arm and of its baseline at concurrency 16 in this store: '
            "the account is made of them.</p>"
        )
    for number, one in enumerate(explained):
        out += f'<h4>{text(one.title)}</h4><p class="soft small">In run {text(one.run.id)}</p>'
        if isinstance(one.answer, Explanation):
            out += _explained(one.answer, file_of(view, number))
        else:
            out += f'<p class="soft">{text(one.answer)}</p>'
    return out


def file_of(view: ScenarioView, number: int) -> str:
    return f"data/account/{view.file}-{number}.js"


def _explained(answer: Explanation, file: str) -> str:
    figures = "".join(
        figure(title, "", spec="given", key=f"{file}#{n}", file=file)
        for n, (title, _) in enumerate(account_panels(answer))
    )
    # Spaces in front of a part's name say that it divides the one above.
    account = "".join(
        line([text(cell).replace("  ", "\u2003") for cell in cells], right=(1, 2, 3, 4))
        for cells in account_rows(answer)
    )
    tested = "".join(line([text(cell) for cell in cells], head=1) for cells in hypothesis_rows(answer))
    return (
        f"<p>{text(headline(answer))}</p>"
        f'<div class="charts large">{figures}</div>'
        f"{grid('The account: parts add up to the change of TPOT', ACCOUNT_HEADERS, account)}"
        f'<p class="soft small">{text(LEGEND)}</p>'
        + details(
            "Hypotheses", grid("What the data say of each", [head or "says" for head in HYPOTHESIS_HEADERS], tested)
        )
        + f"<p>Next: <code>{text(answer.next)}</code> {text(answer.next_why)}</p>{items(list(answer.notes), 'soft')}"
    )


def account_data(answer: Explanation, file: str) -> str:
    """A script with the charts of one explanation, and the account as their table."""
    rows = [[cell.strip() for cell in cells] for cells in account_rows(answer)]
    return "".join(
        put(f"{file}#{n}", {"spec": spec, "head": ACCOUNT_HEADERS, "rows": rows})
        for n, (_, spec) in enumerate(account_panels(answer))
    )
