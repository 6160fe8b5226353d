"""An imported run as a table, Markdown or JSON: the tool's own names and units, and where it comes from. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from harness.importers.registry import IMPORTERS
from harness.store.imported_runs import ImportedRun, Number, Point
from harness.text import escape, markdown_table, terminal_table

_CAVEAT = (
    "Every number is that tool's, by its definition, over its whole run: not a metric of mtpbench's of a like name."
)


@dataclass(frozen=True)
class ImportReport:
    """Everything that a reader gets, in the order in which it is read."""

    headline: str
    valid: bool
    run: ImportedRun
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def build(run: ImportedRun) -> ImportReport:
    importer = IMPORTERS.get(run.origin.format)
    wanted = importer.headline if importer else ()
    shown = [name for name in wanted if any(point.get(name) for point in run.points)]
    units = {number.name: number.unit for point in run.points for number in point.numbers}
    columns = ("arm", "load", "requests", *(f"{name} [{units[name]}]" for name in shown))
    invalid = next((f.message for point in run.points for f in point.findings if f.invalid), None)
    return ImportReport(
        headline=f"IMPORTED: {run.origin.describe()}" + (f". INVALID: {invalid}" if invalid else ""),
        valid=invalid is None,
        run=run,
        columns=columns,
        rows=tuple(_row(point, shown) for point in run.points),
        notes=tuple(_notes(run)),
    )


def _row(point: Point, shown: list[str]) -> tuple[str, ...]:
    requests = "unknown" if point.requests is None else str(point.requests)
    failed = f" ({point.failed} failed)" if point.failed else ""
    return (point.arm or "unknown", point.load, requests + failed, *(_cell(point.get(name)) for name in shown))


def _cell(number: Number | None) -> str:
    return "–" if number is None else f"{number.value:.5g}"


def _notes(run: ImportedRun) -> list[str]:
    said = [f"{key} {value}" for key, value in (("host", run.host), *run.labels.items()) if value]
    notes = [_CAVEAT]
    notes.append(f"Said on import, not by the file: {', '.join(said)}." if said else "Host: unknown.")
    if run.origin.ignored:
        notes.append(f"Not taken from the file: {run.origin.left}.")
    findings = {finding.message: point for point in run.points for finding in point.findings}
    return notes + [f"{point.where}: {message}" for message, point in findings.items()]


def to_rich(report: ImportReport) -> RenderableType:
    table = terminal_table(report.columns, ("arm",))
    for row in report.rows:
        table.add_row(*(Text(cell) for cell in row))
    parts: list[RenderableType] = [Text(report.headline, style="bold cyan" if report.valid else "bold red"), table]
    parts += [Text(f"note: {note}", style="yellow") for note in report.notes]
    return Group(*parts, Text(report.run.id, style="dim"))


def to_markdown(report: ImportReport) -> str:
    out = [f"**{escape(report.headline)}**", ""]
    out += markdown_table(report.columns, report.rows, ("arm",), escape)
    out += ["", *(f"- note: {escape(note)}" for note in report.notes)]
    return "\n".join([*out, "", f"<sub>{escape(report.run.id)}</sub>", ""])


def to_json(report: ImportReport) -> str:
    """For programs: every number under its tool's name, not rounded."""
    document = {"headline": report.headline, "valid": report.valid, "imported": True, **report.run.to_json()}
    return json.dumps(document, indent=1, ensure_ascii=False)


RENDERERS: dict[str, Callable[[ImportReport], str]] = {"markdown": to_markdown, "json": to_json}
