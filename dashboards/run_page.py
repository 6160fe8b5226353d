"""`report.html`: one run on one self-contained page. No outside request, works from a file."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

from dashboards.charts import panels, vega_lite_version
from dashboards.markup import script_json, text
from harness.report import Report, build
from harness.store import StoredRun, write_atomically

STYLE = """
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

SCRIPT = """
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


def render(run: StoredRun, cache_dir: Path) -> str:
    """The page as HTML. Raises ImportError where altair or vl-convert is missing."""
    report = build(run)
    charts = panels(report.lines)
    figures = "".join(
        f'<figure><figcaption>{text(title)}</figcaption><div class="chart" id="chart-{n}"></div></figure>'
        for n, (title, _) in enumerate(charts)
    )
    bundle = vega_bundle(vega_lite_version(charts[0][1]["$schema"] if charts else "/v5.20"), cache_dir)
    specs = script_json([spec for _, spec in charts])
    title = f"{run.scenario.name} – mtpbench"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{text(title)}</title><style>{STYLE}</style></head><body>"
        f"{_head(run, report)}"
        f'<div class="charts">{figures}</div>'
        f"<h2>All lines</h2>{sweep_table(report)}"
        f"<h2>Servers</h2>{_launches(run)}"
        f"<h2>Environment</h2><pre>{text(json.dumps(run.environment, indent=1))}</pre>"
        f"<h2>Scenario</h2><pre>{text(json.dumps(run.scenario.model_dump(mode='json'), indent=1))}</pre>"
        f"<script>{bundle}</script><script>const specs = {specs};{SCRIPT}</script></body></html>"
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


def _head(run: StoredRun, report: Report) -> str:
    kind = "verdict ok" if report.valid else "verdict"
    sentences = "".join(f"<li>{text(sentence)}</li>" for sentence in report.conclusions)
    notes = "".join(f'<li class="soft">{text(note)}</li>' for note in report.notes)
    return (
        f'<p class="{kind}">{text(report.headline)}</p><h1>{text(report.question)}</h1>'
        f"<ul>{sentences}{notes}</ul>"
        f'<p class="soft">{text(run.id)}, {text(run.created_at)}. {text(report.environment)}</p>'
    )


def sweep_table(report: Report) -> str:
    """All lines of a run, as `mtpbench report` prints them."""

    def kind(column: str) -> str:
        return ' class="text"' if column == "arm" else ""

    head = "".join(f'<th scope="col"{kind(c)}>{text(c)}</th>' for c in report.columns)
    body, previous = "", None
    for row in report.rows:
        first = ' class="first"' if previous is not None and row[:2] != previous else ""
        previous = row[:2]
        cells = "".join(
            f"<td{kind(column)}>{text(cell)}</td>" for column, cell in zip(report.columns, row, strict=True)
        )
        body += f"<tr{first}>{cells}</tr>"
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _launches(run: StoredRun) -> str:
    out = ""
    for launch in run.launches:
        details = {
            "command": " ".join(launch.command),
            "environment": launch.environment,
            "packages": launch.packages,
            "GPUs": launch.gpus,
        }
        summary = f"{launch.slug}: {launch.status}, {launch.ready_seconds:.1f} s to ready"
        out += f"<details><summary>{text(summary)}</summary><pre>{text(json.dumps(details, indent=1))}</pre></details>"
    return out
