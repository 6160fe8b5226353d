"""`mtpbench ci sheet`: one page and one archive of what `ci/amd/everything.sh` found. Wiring only."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from harness.cli.common import out
from harness.cli.group import verbs_of_a_file
from harness.errors import MissingPackageError, MtpbenchError
from harness.redact import masked
from harness.store.runs import write_atomically

PAGE = "index.html"
_LEFT_OUT = ("tools",)  # what pip put there


verbs = verbs_of_a_file()


@verbs.command()
def sheet(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="What ci/amd/everything.sh wrote.")],
    steps: Annotated[str, typer.Option(metavar="NAMES", help="All steps in their order, separated by blanks.")],
) -> None:
    """One page of all steps, FOLDER/index.html, and one archive to send back, FOLDER.tar.gz.

    Exit codes: 0 every step did its work or was skipped on purpose, 1 one did not.
    """
    if not folder.is_dir():
        raise MtpbenchError(f"{folder} is no folder", "ci/amd/everything.sh --out FOLDER makes it.")
    try:
        from dashboards.node_page import headline, read_steps, render
    except ImportError as error:
        raise MissingPackageError(str(error.name), "The page", "") from error
    found = read_steps(folder, steps.split())
    page = write_atomically(folder / PAGE, render(folder, found).encode())
    archive = folder.with_name(f"{folder.name}.tar.gz")
    write_atomically(archive, _packed(folder))
    for step in found:
        style = None if step.good else "bold red"
        out.print(
            Text(f"{step.name}: {step.word}{f': {step.found}' if step.found else ''}", style or ""), soft_wrap=True
        )
    out.print(Text(headline(found), style="bold"), soft_wrap=True)
    out.print(Text(f"page: {page}"), soft_wrap=True)
    out.print(Text(f"to send back: {archive}"), soft_wrap=True)
    if not all(step.good for step in found):
        raise typer.Exit(1)


def _packed(folder: Path) -> bytes:
    """The folder as a tar.gz, without links. Secrets in the steps' logs are masked; a run's files are so already."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for path in sorted(folder.rglob("*")):
            inside = path.relative_to(folder)
            if inside.parts[0] in _LEFT_OUT or path.is_symlink() or not path.is_file():
                continue
            data = path.read_bytes()
            if len(inside.parts) == 1 and path.suffix == ".log":
                data = masked(data.decode(errors="replace")).encode()
            entry = tarfile.TarInfo(f"{folder.name}/{inside.as_posix()}")
            entry.size, entry.mtime = len(data), int(path.stat().st_mtime)
            archive.addfile(entry, io.BytesIO(data))
    return content.getvalue()
