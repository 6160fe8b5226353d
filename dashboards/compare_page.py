"""compare.html?a=RUN&b=RUN: two stored runs side by side, made in the browser."""

from __future__ import annotations

from dashboards.frame import page
from dashboards.site import Site

FILE = "compare.html"


def compare_page(site: Site) -> str:
    body = (
        "<h1>Two runs side by side</h1>"
        '<p class="banner">This is no verdict. Two single runs were not measured in turn: whatever the host did '
        "between them counts as a change, and nothing says how sure it is. <code>mtpbench ab SCENARIO --base REF"
        "</code> measures pairs and decides.</p>"
        '<div id="compare"><form class="filters" aria-label="Choose two runs">'
        '<label>A<select name="a"></select></label><label>B<select name="b"></select></label>'
        '<button>Compare</button></form><div id="result" aria-live="polite"></div></div>'
        "<noscript><p>This page compares in the browser and needs JavaScript. <code>mtpbench compare A B</code> does "
        "not.</p></noscript>"
    )
    return page(site, "Compare two runs", body, here=FILE)
