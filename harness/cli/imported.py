"""`mtpbench import`, and what `list` and `report` show of imported runs. Registered from app.py."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.cli.store import STORE_HELP, say, spool
from harness.errors import MtpbenchError, ResultFileError
from harness.fields import NAME_PATTERN
from harness.importers import report as import_report
from harness.importers.base import load_document
from harness.importers.registry import AUTO, IMPORTERS, importer_for
from harness.store.imported_runs import ImportedRun, Origin, imported_runs, is_imported, load, run_id, save
from harness.store.manifest import seal
from harness.store.remote import push
from harness.store.runs import utc_now

_MAX_LABEL = 200


def register(app: typer.Typer, out: Console) -> None:
    """Adds the verb to the command line."""

    @app.command(name="import")
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


def show_report(path: Path, output: str, out: Console) -> bool:
    """Prints an imported run, and says whether it is valid."""
    report = import_report.build(load(path))
    if output == "table":
        out.print(import_report.to_rich(report))
    elif output in import_report.RENDERERS:
        sys.stdout.write(import_report.RENDERERS[output](report) + "\n")
    else:
        raise MtpbenchError(f"--format {output!r} is not for imported runs", "One of: table, markdown, json.")
    return report.valid


def holds_runs(folder: Path) -> bool:
    """Is this a folder of results, not of scenarios?"""
    return any(folder.glob("*/run.json")) or any(is_imported(path) for path in folder.glob("imported-*"))


def list_runs(folder: Path, out: Console) -> None:
    """One line a run, imported ones marked with where they come from."""
    table = Table("run", "origin", "arms", "load", "question or file")
    for path in sorted(folder.glob("*/run.json")):
        table.add_row(*(Text(cell) for cell in _measured(path)))
    for run in imported_runs(folder):
        arms = ", ".join(dict.fromkeys(point.arm or "unknown" for point in run.points))
        loads = ", ".join(dict.fromkeys(point.load for point in run.points))
        origin = f"IMPORTED from {run.origin.tool} {run.origin.tool_version}".strip()
        table.add_row(*(Text(cell) for cell in (run.id, origin, arms, loads, run.origin.file)))
    out.print(table)


def _measured(path: Path) -> tuple[str, ...]:
    """From run.json alone: a list must not read every request of every run."""
    try:
        head = json.loads(path.read_text(encoding="utf-8"))
        scenario = head["scenario"]
        levels = scenario["arrival"].get("concurrency") or scenario["arrival"].get("rates") or []
        loads = ", ".join(f"{level:g}" for level in levels)
        origin = "SIMULATED by mtpbench" if head["environment"].get("simulated") else "mtpbench"
        return str(head["id"]), origin, ", ".join(scenario["arms"]), loads, str(scenario["question"])
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        return path.parent.name, "DAMAGED", "", "", f"run.json can't be read: {error}"
