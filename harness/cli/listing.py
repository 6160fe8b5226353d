"""`mtpbench list`: scenarios in a folder, or runs in a store. It starts at once, see `group.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from harness.cli.common import out
from harness.cli.group import verbs_of_a_file
from harness.cli.store import local
from harness.errors import MtpbenchError, ScenarioError
from harness.scenario import yaml_file
from harness.store.imported_runs import imported_runs, is_imported

verbs = verbs_of_a_file()


@verbs.command(name="list")
def list_scenarios(
    place: Annotated[
        str, typer.Argument(metavar="FOLDER", help="Folder with scenario files, or with results; or a store's URL.")
    ] = "scenarios",
) -> None:
    """List the scenarios in a folder with their questions, or the runs in a store."""
    folder = local(place)
    if holds_runs(folder):
        list_runs(folder)
        return
    paths = sorted(folder.glob("*.yaml"))
    if not paths:
        raise MtpbenchError(f"no *.yaml in {folder}", "Name the folder: mtpbench list FOLDER")
    table = Table("file", "engine", "arms", "TP", "load", "question")
    broken = []
    for path in paths:
        try:
            loaded = yaml_file.load(path)
        except ScenarioError as error:
            broken += error.problems
            continue
        levels = ", ".join(level.label for level in loaded.levels())
        cells = [
            str(path),
            loaded.server.engine,
            ", ".join(loaded.arms),
            ", ".join(map(str, loaded.tp)),
        ]
        table.add_row(*(Text(cell) for cell in (*cells, levels, loaded.question)))
    out.print(table)
    if broken:
        raise ScenarioError(broken)


def holds_runs(folder: Path) -> bool:
    """Is this a folder of results, not of scenarios?"""
    return any(folder.glob("*/run.json")) or any(is_imported(path) for path in folder.glob("imported-*"))


def list_runs(folder: Path) -> None:
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
