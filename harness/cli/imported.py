"""`mtpbench import`, and what `list` and `report` show of imported runs."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from harness.cli.common import out
from harness.cli.group import verbs_of_a_file
from harness.cli.store import STORE_HELP, say, spool
from harness.errors import MtpbenchError, ResultFileError
from harness.fields import NAME_PATTERN
from harness.importers import report as import_report
from harness.importers.base import load_document
from harness.importers.registry import AUTO, IMPORTERS, importer_for
from harness.store.imported_runs import ImportedRun, Origin, load, run_id, save
from harness.store.manifest import seal
from harness.store.remote import push
from harness.store.runs import utc_now

_MAX_LABEL = 200


verbs = verbs_of_a_file()


@verbs.command(name="import")
def import_files(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Result files, as the tool wrote them.")],
    format_name: Annotated[str, typer.Option("--format", help=f"{AUTO}, {', '.join(IMPORTERS)}.")] = AUTO,
    store: Annotated[str, typer.Option(help=STORE_HELP)] = "runs",
    arm: Annotated[str, typer.Option(help="What was measured; overrides what the file calls it.")] = "",
    host: Annotated[str, typer.Option(help="The machine on which it was measured.")] = "",
    label: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Anything else that the file does not say.")
    ] = None,
) -> None:
    """Bring in results of other tools, under their own names and definitions: see docs/importing.md.

    The same file again changes nothing. All files are read before anything is written.
    """
    labels = _labels(label or [])
    _check_arm(arm)
    runs, problems = [], []
    for path in files:
        try:
            runs.append(read(path, format_name, arm, host, labels))
        except ResultFileError as error:
            problems += error.problems
            hint = error.hint
    if problems:
        raise ResultFileError(problems, hint)
    root, remote = spool(store)
    for run in runs:
        folder, new = save(root, run)
        seal(folder)
        if remote:
            push(folder, remote, say)
        what = f"{len(run.points)} result{'s' if len(run.points) > 1 else ''} of {run.origin.tool}"
        out.print(Text(f"{folder}: {what}" if new else f"{folder}: already imported"), soft_wrap=True)
        if new and run.origin.ignored:
            out.print(Text(f"  not taken: {run.origin.left}", style="dim"), soft_wrap=True)


def read(path: Path, format_name: str, arm: str, host: str, labels: dict[str, str]) -> ImportedRun:
    """A file as an imported run, not yet saved. Raises ResultFileError."""
    document = load_document(path)
    importer = importer_for(document, format_name)
    parsed = importer.read(document)
    points = tuple(replace(point, arm=arm) for point in parsed.points) if arm else parsed.points
    origin = Origin(
        format=importer.format,
        tool=importer.tool,
        tool_version=parsed.tool_version,
        file=document.name,
        sha256=document.sha256,
        imported_at=utc_now(),
        ignored=parsed.ignored,
    )
    return ImportedRun(run_id(importer.format, document.sha256), origin, points, host, labels)


def _check_arm(arm: str) -> None:
    if arm and not NAME_PATTERN.match(arm):
        raise MtpbenchError(f"--arm {arm!r}: letters, digits, dots and dashes, at most 64", "Such as --arm mtp")


def _labels(texts: list[str]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not NAME_PATTERN.match(key) or not value or len(value) > _MAX_LABEL or key in labels:
            raise MtpbenchError(f"--label {text[:80]!r}: KEY=VALUE, each key once", "Such as --label gpu=MI355X")
        labels[key] = value
    return labels


def show_report(path: Path, output: str) -> bool:
    """Prints an imported run, and says whether it is valid."""
    report = import_report.build(load(path))
    if output == "table":
        out.print(import_report.to_rich(report))
    elif output in import_report.RENDERERS:
        sys.stdout.write(import_report.RENDERERS[output](report) + "\n")
    else:
        raise MtpbenchError(f"--format {output!r} is not for imported runs", "One of: table, markdown, json.")
    return report.valid
