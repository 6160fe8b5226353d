"""One stored run as a page of the site: what it is worth, what served it, its sweep, findings and downloads."""

from __future__ import annotations

import json

from dashboards.frame import figure, legend, page, word
from dashboards.markup import details, grid, items, line, slug, text
from dashboards.run_page import servers, sweep_table
from dashboards.site import Site, state_of
from harness.checks.kernel_evidence import reasons
from harness.model import Finding, LaunchRecord
from harness.results.report import Report
from harness.store.ab_record import sides
from harness.store.archive import Kept
from harness.verdict.compare import compare
from harness.verdict.facts import facts
from harness.verdict.pairs import Metric
from harness.verdict.report import rows_of, told

_PANELS = ("tpot_p50", "ttft_p50", "output_throughput", "step_time_p50", "accept_length_mean")
_NO_SERVER = '<p class="soft">No server was started.</p>'
_COMPARED = ("TP", "load", "arm", "metric", "base", "head", "change", "90 % interval", "A/A floor", "pairs", "p",
             "verdict")  # fmt: skip


def site_run(site: Site, kept: Kept, files: list[str]) -> str:
    """run/<name>.html; `files`: downloads, relative to the page."""
    run, report = kept.run, site.reports[kept.run.id]
    kind, why = state_of(report)
    banner = ""
    if run.quarantine:
        banner += f'<p class="banner bad">In quarantine, judges nothing: {text(run.quarantine)}</p>'
    if run.simulated and not site.only_simulated:
        banner += '<p class="banner">This run is SIMULATED: nothing was measured.</p>'
    view = next((v for v in site.scenarios if any(one is kept for one in v.runs)), None)
    up = (
        f'<a href="../scenario/{text(view.file)}.html">{text(run.scenario.name)}</a>'
        if view
        else text(run.scenario.name)
    )
    name = slug(run.path.name)
    body = (
        f'{banner}<p class="soft">Run {text(run.id)} of {up}, begun {text(run.created_at)}</p>'
        f"<h1>{text(report.question)}</h1><p>{word(kind)} {text(why)}</p>{items(list(report.conclusions))}"
        f'<p class="soft">{text(report.environment)}</p>'
        f'<p><a href="../compare.html?b={text(name)}">Compare with another run</a></p>'
    )
    if kept.session is not None:
        body += _comparison(kept)
    body += (
        f"<h2>Evidence</h2>{_evidence(kept)}"
        f"<h2>Findings</h2>{_findings(kept, report)}"
        f"<h2>Sweep</h2>{legend(run.scenario.arms)}{_figures(report, name)}"
        f'<div class="tight">{sweep_table(report)}</div>'
        f"<h2>Servers</h2>{servers(kept.run) or _NO_SERVER}"
        f"<h2>Fingerprint</h2>{_fingerprint(kept)}"
        f"<h2>Downloads</h2>{_downloads(kept, files)}"
    )
    return page(site, run.id, body, depth=1)


def _comparison(kept: Kept) -> str:
    """The paired verdict of an A/B run."""
    assert kept.session is not None, "checked by the caller"
    session = kept.session
    found = compare(*sides(kept.run, session), metrics=session.metrics, plan=session.plan, allowed=session.allowed)
    rows = "".join(line([*map(text, cells[:-1]), word(cells[-1])], head=3) for cells in rows_of(found))
    verdict, _, why = found.headline.partition(": ")
    return (
        f"<h2>{'A/A' if session.kind == 'aa' else 'A/B'} of {session.pairs} pairs</h2>"
        f"<p>{text(session.base.label)} → {text(session.head.label)}: {word(verdict)} {text(why)}</p>"
        f"{items([row.sentence for row in told(found)])}{items(list(found.notes), 'soft')}"
        + details(
            f"All {len(found.rows)} rows",
            grid("Rows of the comparison; p is for all rows together, that head is slower at all", _COMPARED, rows),
        )
    )


def _evidence(kept: Kept) -> str:
    """Which kernel served target-verify, for each rank of each launch."""
    rows = ""
    for launch in kept.run.launches:
        for entry in launch.evidence or ({},) if launch.verify else ():
            rows += _evidence_row(launch, entry)
    if not rows:
        return '<p class="soft">No arm asks for a verify kernel: SGLang ran unhooked, and nothing was counted.</p>'
    heads = ("launch", "rank", "asked for", "served by it", "passed on", "kernel", "sources", "said of it")
    return grid("What each process wrote down: calls captured in graphs or run eagerly", heads, rows)


def _evidence_row(launch: LaunchRecord, entry: dict[str, object]) -> str:
    def counts(key: str) -> str:
        value = entry.get(key)
        return reasons({str(k): n for k, n in value.items() if isinstance(n, int)}) if isinstance(value, dict) else "–"

    def listed(key: str) -> str:
        value = entry.get(key)
        return ", ".join(map(str, value)) if isinstance(value, list) and value else "–"

    wrong = [finding for finding in launch.findings if finding.code.startswith(("evidence", "verify", "beyond"))]
    said = "; ".join(f.message for f in wrong) or (
        str(entry.get("error") or "as asked") if entry else _unwritten(launch)
    )
    kind = "INVALID" if any(f.invalid for f in wrong) or "error" in entry else "OK" if entry else "MISSING"
    cells = (entry.get("rank", "–"), launch.verify, counts("served"), counts("passed"), listed("bodies"),
             entry.get("kernel_hash", "–"))  # fmt: skip
    return line([text(launch.slug), *map(text, cells), f'<span class="{kind}">{text(said)}</span>'])


def _unwritten(launch: LaunchRecord) -> str:
    return "nothing written" if launch.status == "ready" else f"never ready: {launch.status}"


def _findings(kept: Kept, report: Report) -> str:
    run = kept.run
    found = [(launch.slug, finding) for launch in run.launches for finding in launch.findings]
    found += [(p.record.key.slug, finding) for p in run.passes for finding in p.record.findings]
    notes = items(list(report.notes), "soft")
    failed = [(record.key.slug, Finding("pass_failed", record.status, invalid=True)) for record in run.failed]
    dead = [
        (one.slug, Finding("launch_failed", one.status, invalid=True)) for one in run.launches if one.status != "ready"
    ]
    rows = "".join(
        line([text(where), word("INVALID") if finding.invalid else "note", text(finding.message)])
        for where, finding in [*dead, *failed, *found]
    )
    if not rows:
        return f"<p>No check found anything.</p>{notes}"
    return notes + grid("What checks found", ("where", "weight", "what"), rows)


def _figures(report: Report, name: str) -> str:
    asks = {"key": f"run:{name}", "file": f"data/run/{name}.js"}
    lengths = sorted({line.level.input_tokens for line in report.lines if not line.level.factor})
    out = ""
    for length in lengths:
        place = f", {length} tokens in" if length else ""
        for metric in _PANELS:
            if any(line.get(metric) is not None for line in report.lines):
                label = Metric.of(metric).label
                out += figure(f"{label} over load{place}", "", spec="load", metric=metric, input=length, **asks)
        if any(line.get("interactivity") for line in report.lines):
            per_gpu = any(line.get("output_throughput_per_gpu") for line in report.lines)
            metric = "output_throughput_per_gpu" if per_gpu else "output_throughput"
            out += figure(
                f"Throughput against interactivity{place}", "", spec="frontier", metric=metric, input=length, **asks
            )
    return f'<div class="charts large">{out}</div><p class="soft small">Bars: lowest and highest launch.</p>'


def _fingerprint(kept: Kept) -> str:
    run = kept.run
    known = facts(run, run.scenario.baseline_arm)
    rows = "".join(
        line([text(fact), text(", ".join(map(str, value)) if isinstance(value, list) else value)])
        for fact, value in sorted(known.items())
        if not fact.startswith(("server.", "workload.", "arrival."))
    )
    caption = f"What the numbers depend on; packages as in arm {run.scenario.baseline_arm}"
    scenario = f"<pre>{text(json.dumps(run.scenario.model_dump(mode='json'), indent=1))}</pre>"
    return grid(caption, ("fact", "value"), rows) + details("Scenario", scenario)


def _downloads(kept: Kept, files: list[str]) -> str:
    entries = "".join(f'<li><a href="{text(file)}" download>{text(file.rsplit("/", 1)[-1])}</a></li>' for file in files)
    where = f"Raw records and logs: the folder <code>{text(kept.run.path.name)}</code> of the store."
    return f'<ul>{entries}</ul><p class="soft">{where}</p>'
