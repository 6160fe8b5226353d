"""The verbs over scenario files: `mtpbench validate` and `mtpbench schema`. They start at once, see `group.py`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from harness.cli.common import out
from harness.cli.group import verbs_of_a_file
from harness.errors import ScenarioError
from harness.scenario import yaml_file
from harness.scenario.format import Scenario
from harness.scenario.problems import warnings

verbs = verbs_of_a_file()


@verbs.command()
def validate(
    scenarios: Annotated[list[Path], typer.Argument(metavar="SCENARIO...", help="Scenario files.")],
) -> None:
    """Check scenario files: every error with its file, line and key."""
    problems = []
    for path in scenarios:
        try:
            loaded = yaml_file.load(path)
        except ScenarioError as error:
            problems += error.problems
            continue
        sizes = "/".join(f"TP{tp}" for tp in loaded.tp)
        out.print(Text(f"{path}: ok ({loaded.name}, {sizes}, arms: {', '.join(loaded.arms)})"), soft_wrap=True)
        for warning in [*warnings(loaded), *_memory(loaded, path)]:
            out.print(Text(f"  note: {warning}", style="yellow"), soft_wrap=True)
    if problems:
        raise ScenarioError(problems)


def _memory(scenario: Scenario, path: Path) -> list[str]:
    """Does it fit the machine? Only where the file of that machine, beside the scenario, says how much it has."""
    file = path.parent / "hardware" / "mi355x.yaml"
    if getattr(scenario.server, "gpu_vendor", "") != "amd" or not file.is_file():
        return []
    from harness.simulator.hardware import load_hardware
    from harness.simulator.memory import memory_notes

    gib = load_hardware(file).memory_gib
    return memory_notes(scenario, gib) if gib else []


@verbs.command()
def schema() -> None:
    """Print the JSON Schema of scenario files, for editors: every key with its type and meaning."""
    sys.stdout.write(json.dumps(Scenario.model_json_schema(), indent=1) + "\n")
