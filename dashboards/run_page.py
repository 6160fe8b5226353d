"""`report.html`: one run on one self-contained page. No outside request, works from a file."""

from __future__ import annotations

import json
from pathlib import Path

from dashboards.charts import panels
from dashboards.markup import details, text
from dashboards.standalone import standalone
from harness.results.report import Report
from harness.store.runs import StoredRun


def render(run: StoredRun, report: Report, cache_dir: Path) -> str:
    """The page as HTML. Raises ImportError where altair or vl-convert is missing."""
    before = _head(run, report)
    after = (
        f"<h2>All lines</h2>{sweep_table(report)}"
        f"<h2>Servers</h2>{servers(run)}"
        f"<h2>Environment</h2><pre>{text(json.dumps(run.environment, indent=1))}</pre>"
        f"<h2>Scenario</h2><pre>{text(json.dumps(run.scenario.model_dump(mode='json'), indent=1))}</pre>"
    )
    return standalone(f"{run.scenario.name} – mtpbench", panels(report.lines), before, after, cache_dir)


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


def servers(run: StoredRun) -> str:
    """Every server that was started, folded away: how, and with what. Empty where there was none."""
    out = ""
    for launch in run.launches:
        described = {
            "command": " ".join(launch.command),
            "environment": launch.environment,
            "packages": launch.packages,
            "GPUs": launch.gpus,
        }
        summary = f"{launch.slug}: {launch.status}, {launch.ready_seconds:.1f} s to ready"
        out += details(summary, f"<pre>{text(json.dumps(described, indent=1))}</pre>")
    return out
