"""concurrency-16.html: does MTP still pay at 16, and what its step and its accepted tokens cost there?"""

from __future__ import annotations

from dashboards.account_part import account_part
from dashboards.frame import controls, figure, legend, page
from dashboards.markup import text
from dashboards.scenario_page import nights_figure, now_table
from dashboards.site import CONCURRENCY, ScenarioView, Site, long_label
from harness.model import LoadLevel
from harness.verdict.pairs import Metric

FILE = "concurrency-16.html"
LEVELS = (8, 16, 32)


def sixteen_page(site: Site) -> str:
    """Every scenario that is measured at 16: TPOT over nights beside 8 and 32, and TPOT's two parts now."""
    views = [view for view in site.scenarios if any(level.concurrency == CONCURRENCY for _, level in view.groups)]
    body = (
        "<h1>Concurrency 16: where MTP has to earn its verify step</h1>"
        "<p>TPOT is step time divided by accept length, exactly. An arm loses either because its steps got longer or "
        "because fewer drafted tokens are accepted; both are below.</p>"
    )
    body += controls(relative=False) if views else ""
    if not views:
        body += "<p>No stored scenario is measured at concurrency 16.</p>"
    for view in views:
        body += _of_scenario(site, view)
    return page(site, "Concurrency 16", body, here=FILE)


def _of_scenario(site: Site, view: ScenarioView) -> str:
    groups = [(tp, level) for tp, level in view.groups if level.concurrency in LEVELS and not level.factor]
    figures = "".join(nights_figure(view, Metric.of("tpot_p50"), tp, level) for tp, level in groups)
    return (
        f"<h2>{text(view.name)}</h2><p>{text(view.question)} "
        f'<a href="scenario/{text(view.file)}.html">All of it</a></p>'
        f'{legend(view.arms)}<div class="charts three">{figures}</div>'
        f"<h3>TPOT and its two parts</h3>{_parts(view, groups)}{now_table(site, view, groups)}"
        f"{account_part(view, site.explained.get(view.name, []))}"
    )


def _parts(view: ScenarioView, groups: list[tuple[int, LoadLevel]]) -> str:
    figures = ""
    for tp in sorted({tp for tp, _ in groups}):
        for length in sorted({level.input_tokens for _, level in groups}):
            place = f"TP{tp}" + (f", {length} tokens in" if length else "")
            for name in ("tpot_p50", "step_time_p50", "accept_length_mean"):
                if any(one.key.row.metric == name for one in view.series):
                    figures += figure(
                        f"{long_label(Metric.of(name))} over load, {place}", "", spec="load", metric=name,
                        key=f"recent:{view.file}", file=f"data/scenario/{view.file}/recent.js", tp=tp, input=length,
                    )  # fmt: skip
    return f'<div class="charts large">{figures}</div>'
