"""`mtpbench doctor`: does what we rely on still hold upstream?"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from harness.cli.common import check_format, default_cache, err, out
from harness.cli.group import verbs_of_a_file
from harness.errors import MtpbenchError
from harness.store.runs import write_atomically
from harness.upstream import render
from harness.upstream.drift import drift_of
from harness.upstream.expectations import SUPPORTED
from harness.upstream.fetch import fetch, newest
from harness.upstream.flag_table import flag_table
from harness.upstream.reader import Tree, UpstreamError, WheelTree

verbs = verbs_of_a_file()


@verbs.command()
def doctor(
    versions: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[VERSION]...",
            help=f"With --upstream. Default: {', '.join(SUPPORTED)} and the newest on the package index.",
        ),
    ] = None,
    upstream: Annotated[
        bool, typer.Option("--upstream", help="Check SGLang's wheels, fetched through pip and cached.")
    ] = False,
    wheel: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Check this wheel; may be repeated. No network.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Show also what holds in every version.")] = False,
    output_format: Annotated[str, typer.Option("--format", help="table, markdown or json.")] = "table",
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write everything here, as JSON.")] = None,
    flags: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Only write the versions' flags and variables here, as `validate` reads them."
        ),
    ] = None,
) -> None:
    """Check that what mtpbench relies on in SGLang is there and means the same: hooks, flags, metrics, endpoints.

    Reads source, runs none of it. Exit codes: 0 everything holds, 1 something drifted, 2 it could not be checked.
    """
    if not upstream and not wheel:
        raise MtpbenchError("what shall be checked?", "mtpbench doctor --upstream, or --wheel FILE")
    if versions and not upstream:
        raise MtpbenchError("versions go with --upstream", f"mtpbench doctor --upstream {' '.join(versions)}")
    check_format(output_format, render.RENDERERS)

    def say(line: str) -> None:
        err.print(Text(line, style="dim"), soft_wrap=True)

    trees = _trees(versions or [], upstream, wheel or [], default_cache() / "upstream", say)
    if flags is not None:
        write_atomically(flags, flag_table(trees).encode())
        say(f"{flags}: {', '.join(tree.version for tree in trees)}")
        return
    report = drift_of(trees)
    if output is not None:
        write_atomically(output, render.to_json(report).encode())
    if output_format == "table":
        out.print(render.to_rich(report, every))
    else:
        sys.stdout.write(render.RENDERERS[output_format](report, True))
    if report.exit_code:
        raise typer.Exit(report.exit_code)


def _trees(
    versions: list[str], upstream: bool, wheels: list[Path], cache_dir: Path, say: Callable[[str], None]
) -> list[Tree]:
    """What is to be looked at, each version once."""
    trees: dict[str, Tree] = {}
    if upstream and not versions:
        versions = list(SUPPORTED)
        say("asking the package index for the newest sglang")
        if (latest := newest(say)) not in versions:
            versions.append(latest)
    paths = [*wheels, *(fetch(version, cache_dir, say) for version in versions)]
    for path in paths:
        tree = WheelTree(path)
        if tree.version in trees and str(path) != trees[tree.version].origin:
            raise UpstreamError(f"two wheels of version {tree.version}: {trees[tree.version].origin}, {path}")
        trees[tree.version] = tree
    return list(trees.values())
