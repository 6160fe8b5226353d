"""`mtpbench scenarios import`: other tools' configurations as scenarios."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from harness.cli.common import err, out
from harness.cli.group import verbs_of_a_file
from harness.errors import MtpbenchError
from harness.importers.sglang_configs import read_configs
from harness.results.sglang_files import result_files, summary_table
from harness.store.runs import StoredRun, write_atomically

verbs = verbs_of_a_file()
_MAX_BYTES = 1_000_000
RESULTS_AS = ("sglang",)


@verbs.command(name="import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="SGLang's scripts/ci/amd/benchmark-configs.yaml.")],
    output: Annotated[Path, typer.Option("--output", metavar="FOLDER", help="Where NAME.yaml go.")] = Path("scenarios"),
    only: Annotated[list[str] | None, typer.Option(metavar="NAME", help="This entry; may be repeated.")] = None,
    recipes: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="What relative chat templates are relative to: InferenceX.")
    ] = None,
    leave_out: Annotated[
        list[str] | None,
        typer.Option("--leave-out", metavar="FLAG", help="Drop this flag, option, variable or key knowingly."),
    ] = None,
    version: Annotated[str, typer.Option(help="SGLang's, against whose flags entries are checked.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Write over files that are there.")] = False,
) -> None:
    """Make a scenario of each entry: `base` and `mtp` become arms, every flag, variable and client option comes along.

    What has no place here is refused by its name, and nothing is written. `mtpbench report RUN --results-as sglang`
    writes results as that tool's consumers expect them.
    """
    found = read_configs(
        _text(file), str(file), recipes=recipes, leave_out=leave_out or [], only=only or [], version=version
    )
    if not found:
        raise MtpbenchError(f"{file} has no entry", "`configs:` is a list of them.")
    there = [output / f"{one.name}.yaml" for one in found if (output / f"{one.name}.yaml").exists()]
    if there and not force:
        raise MtpbenchError(f"{', '.join(map(str, there))} is there already", "--force writes over it.")
    _folder(output)
    for one in found:
        path = output / f"{one.name}.yaml"
        write_atomically(path, f"# Made of {file.name} by `mtpbench scenarios import`.\n{one.text}".encode())
        arms = ", ".join(one.scenario.arms)
        out.print(Text(f"{path}: {arms}; concurrency {one.scenario.arrival.concurrency}"), soft_wrap=True)
        for note in one.notes:
            err.print(Text(f"  note: {note}", style="yellow"), soft_wrap=True)


def _text(file: Path) -> str:
    try:
        if file.stat().st_size > _MAX_BYTES:
            raise MtpbenchError(f"{file} is larger than {_MAX_BYTES} bytes", "That is no such configuration.")
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MtpbenchError(f"{file} can't be read: {error}", "Name SGLang's benchmark-configs.yaml.") from error


def _folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MtpbenchError(f"can't write {path}: {error.strerror}", "Choose another folder.") from error


def write_results(run: StoredRun, results_as: str, folder: Path) -> None:
    """A run's result files in another tool's format, and the table of its summary as `summary.md`."""
    if results_as not in RESULTS_AS:
        raise MtpbenchError(f"--results-as {results_as!r} is unknown", f"One of: {', '.join(RESULTS_AS)}.")
    files = result_files(run) | {"summary.md": summary_table(run)}
    _folder(folder)
    for name, text in files.items():
        write_atomically(folder / name, text.encode())
    err.print(Text(f"{folder}: {len(files) - 1} results and summary.md, as {results_as} writes them"), soft_wrap=True)
