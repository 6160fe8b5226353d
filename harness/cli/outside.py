"""`mtpbench ci outside`: can servers in containers be measured from here? Wiring only."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from harness.cli.common import NeedGpu, out
from harness.cli.group import verbs_of_a_file
from harness.machine.outside import Runtime, unreachable

verbs = verbs_of_a_file()


@verbs.command()
def outside(
    image: Annotated[str, typer.Argument(metavar="IMAGE", help="Of the servers, NAME@sha256:…; pulled if need be.")],
    runtime: Annotated[Runtime, typer.Option(help="Which command runs it.")] = "docker",
    patience: Annotated[float, typer.Option(metavar="SECONDS", help="How long its page may take to appear.")] = 30.0,
    need_gpu: NeedGpu = True,
) -> None:
    """Can servers be measured from here, in containers of an image? Asks one, in seconds: network, folders, GPUs.

    In a pod whose network does not reach the containers that it starts they can't: better known now than when a model
    has been loaded for half an hour. Exit codes: 0 yes, 1 no.
    """
    found = unreachable(image, runtime, patience, need_gpu)
    for problem in found:
        out.print(Text(problem, style="bold red"), soft_wrap=True)
    if found:
        raise typer.Exit(1)
    out.print(Text(f"a container of {image} can be reached from here"), soft_wrap=True)
