"""A page that is one file: charts and their script inside, no request to anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from dashboards.charts import vega_lite_version
from dashboards.markup import script_json, text
from harness.store.runs import write_atomically

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #59636e; --line: #d1d9e0; --paper: #fff; --bad: #b3261e;
  --good: #1a7f37; --panel: #f6f8fa }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9198a1; --line: #3d444d; --paper: #0d1117;
  --bad: #ff7b72; --good: #56d364; --panel: #151b23 } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 1240px; padding: 1rem 1.25rem 3rem; color: var(--ink); background: var(--paper);
  font: 15px/1.5 system-ui, sans-serif }
h1 { font-size: 1.35rem; margin: .5rem 0 } h2 { font-size: 1.05rem; margin: 2rem 0 .5rem }
.verdict { font-weight: 700; color: var(--bad) } .verdict.ok { color: var(--good) }
.soft { color: var(--soft) }
.charts { display: grid; gap: 1.25rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 430px), 1fr)) }
figure { margin: 0; padding: .75rem; border: 1px solid var(--line); border-radius: 8px; min-width: 0;
  background: var(--panel) }
figure:last-child:nth-child(odd) { grid-column: 1 / -1 }
figcaption { font-weight: 600; margin-bottom: .25rem } .chart { width: 100% }
.scroll { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100% }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap }
th.text, td.text { text-align: left } tbody tr.first td { border-top: 2px solid var(--line) }
pre { overflow-x: auto; background: var(--panel); padding: .75rem; border-radius: 8px; font-size: 12.5px }
details { margin: .4rem 0 } summary { cursor: pointer }
"""

_SCRIPT = """
const dark = matchMedia('(prefers-color-scheme: dark)');
function draw() {
  const ink = getComputedStyle(document.documentElement).getPropertyValue('--ink').trim();
  const line = getComputedStyle(document.documentElement).getPropertyValue('--line').trim();
  const config = { background: 'transparent', view: { stroke: null }, font: 'system-ui, sans-serif',
    axis: { labelColor: ink, titleColor: ink, gridColor: line, domainColor: line, tickColor: line },
    legend: { labelColor: ink }, text: { color: ink } };
  specs.forEach((spec, n) => vegaEmbed('#chart-' + n, { ...spec, config },
    { renderer: 'svg', actions: { export: true, source: false, compiled: false, editor: false } })
    .catch(console.error));
}
dark.addEventListener('change', draw);
draw();
"""


def standalone(
    title: str, charts: Sequence[tuple[str, dict[str, Any]]], before: str, after: str, cache_dir: Path, style: str = ""
) -> str:
    """The page as HTML: `charts` (caption, Vega-Lite specification) between two parts of its body.

    Raises ImportError where vl-convert is missing.
    """
    figures = "".join(
        f'<figure><figcaption>{text(caption)}</figcaption><div class="chart" id="chart-{n}"></div></figure>'
        for n, (caption, _) in enumerate(charts)
    )
    bundle = vega_bundle(vega_lite_version(str(charts[0][1]["$schema"]) if charts else "/v5.20"), cache_dir)
    specs = script_json([spec for _, spec in charts])
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{text(title)}</title><style>{_STYLE}{style}</style></head><body>"
        f'{before}<div class="charts">{figures}</div>{after}'
        f"<script>{bundle}</script><script>const specs = {specs};{_SCRIPT}</script></body></html>"
    )


def plain(title: str, body: str) -> str:
    """A page of that kind without charts, and so without a script."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{text(title)}</title><style>{_STYLE}</style></head><body>{body}</body></html>"
    )


def vega_bundle(version: str, cache_dir: Path) -> str:
    """Vega, Vega-Lite and vega-embed as one script. Bundling takes four seconds, so it is kept."""
    import vl_convert

    path = cache_dir / f"vega-lite-{version}-{metadata.version('vl-convert-python')}.js"
    if not path.exists():
        bundle = vl_convert.javascript_bundle(None, vl_version=version)  # type: ignore[arg-type]
        cache_dir.mkdir(parents=True, exist_ok=True)
        write_atomically(path, bundle.encode())
    return path.read_text(encoding="utf-8")
