"""A drift report as a table for the terminal, as Markdown or as JSON. Pure: a report in, text out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from harness.upstream.drift import DRIFT, HOLDS, NOT_EXPECTED, UNKNOWN, DriftReport, Expected, Result
from harness.upstream.expectations import BEYOND_SGLANG

_STYLES = {HOLDS: "green", DRIFT: "bold red", UNKNOWN: "bold yellow", NOT_EXPECTED: "dim"}


def headline(report: DriftReport) -> str:
    """The verdict in a sentence; the worst thing first."""
    versions = ", ".join(report.versions)
    drifted, unknown = report.count(DRIFT), report.count(UNKNOWN)
    if drifted:
        also = f", {unknown} could not be checked" if unknown else ""
        return f"DRIFT: {drifted} of {_total(report)} expectations do not hold{also} (SGLang {versions})"
    if unknown:
        return f"UNKNOWN: {unknown} of {_total(report)} expectations could not be checked (SGLang {versions})"
    return f"OK: all {_total(report)} expectations hold (SGLang {versions})"


def _total(report: DriftReport) -> int:
    return report.count(HOLDS) + report.count(DRIFT) + report.count(UNKNOWN)


def _shown(report: DriftReport, every: bool) -> list[Expected]:
    """All rows, or those that do not simply hold in every version."""
    return [row for row in report.rows if every or any(result.status != HOLDS for result in row.results)]


def _problems(report: DriftReport) -> Iterator[tuple[str, Expected, Result]]:
    for row in report.rows:
        for version, result in zip(report.versions, row.results, strict=True):
            if result.status in (DRIFT, UNKNOWN):
                yield version, row, result


def delta(before: str, after: str) -> str:
    """What a list of words lost and got; both texts where they are no lists."""
    old, new = (text.replace("; ", ", ").split(", ") for text in (before, after))
    lost, got = [word for word in old if word not in new], [word for word in new if word not in old]
    if len(old) < 3 or len(lost) + len(got) > len(old):
        return f"{before} → {after}"
    return "; ".join([*(f"− {word}" for word in lost), *(f"+ {word}" for word in got)]) or "another order"


def to_rich(report: DriftReport, every: bool) -> RenderableType:
    parts: list[RenderableType] = [Text(headline(report), style="bold red" if report.exit_code else "bold green")]
    if rows := _shown(report, every):
        table = Table("what we rely on", "used by", *report.versions, box=box.SIMPLE_HEAD)
        for row in rows:
            cells = [Text(result.status, style=_STYLES[result.status]) for result in row.results]
            table.add_row(Text(row.what), Text(row.used_by), *cells)
        parts.append(table)
    for version, row, result in _problems(report):
        parts.append(Text(f"{version}: {row.what}: {result.message}", style=_STYLES[result.status]))
        parts.append(Text(f"  {result.place or 'no place'}; used by {row.used_by}", style="dim"))
    if report.changes:
        parts.append(Text("Holds, and yet changed:", style="bold"))
    for change in report.changes:
        between = " → ".join(change.versions)
        parts.append(Text(f"  {between}  {change.what}: {delta(change.before, change.after)}  ({change.place})"))
    parts += [Text(f"not checked: {name}: {why}", style="dim") for name, why in BEYOND_SGLANG.items()]
    return Group(*parts)


def to_markdown(report: DriftReport, every: bool = True) -> str:
    out = [f"**{headline(report)}**", ""]
    out.append("| what we rely on | used by | " + " | ".join(report.versions) + " |")
    out.append("|---|---|" + "---|" * len(report.versions))
    for row in _shown(report, every):
        cells = [r.status if r.status == NOT_EXPECTED else f"{r.status}, `{r.place}`" for r in row.results]
        out.append(f"| {_cell(row.what)} | {_cell(row.used_by)} | " + " | ".join(cells) + " |")
    out += [""]
    for version, row, result in _problems(report):
        out.append(f"- {version}: {_cell(row.what)}: {_cell(result.message)} (`{result.place}`)")
    for change in report.changes:
        between = " → ".join(change.versions)
        out.append(f"- {between}: {_cell(change.what)}: {_cell(delta(change.before, change.after))}")
    out += [f"- not checked: {_cell(name)}: {_cell(why)}" for name, why in BEYOND_SGLANG.items()]
    return "\n".join([*out, ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def to_json(report: DriftReport, every: bool = True) -> str:
    """For programs: every expectation in every version."""
    document = {
        "headline": headline(report),
        "exit_code": report.exit_code,
        "versions": [{"version": v, "origin": o} for v, o in zip(report.versions, report.origins, strict=True)],
        "expectations": [
            {
                "what": row.what,
                "used_by": row.used_by,
                "results": {v: asdict(r) for v, r in zip(report.versions, row.results, strict=True)},
            }
            for row in _shown(report, every)
        ],
        "not_checked": BEYOND_SGLANG,
        "changes": [asdict(change) for change in report.changes],
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


RENDERERS: dict[str, Callable[[DriftReport, bool], str]] = {"markdown": to_markdown, "json": to_json}
