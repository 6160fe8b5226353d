"""`mtpbench ci image`: which image tonight's servers run from. Wiring only."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.text import Text

from harness.cli.common import err
from harness.cli.comparing import day_of
from harness.cli.group import verbs_of_a_file
from harness.machine.images import HUB, find_newest

verbs = verbs_of_a_file()


@verbs.command()
def image(
    repository: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="On Docker Hub.")] = "rocm/sgl-dev",
    flavour: Annotated[str, typer.Option(help="ROCm's version, as tags name it.")] = "rocm720",
    gpu: Annotated[str, typer.Option(help="As tags name it.")] = "mi35x",
    days: Annotated[int, typer.Option(help="How old it may be.")] = 7,
    today: Annotated[str, typer.Option(help="Such as 2026-11-30. Default: today, UTC.")] = "",
    hub: Annotated[str, typer.Option(metavar="URL", help="Of the registry's API.")] = HUB,
) -> None:
    """Print the newest image of SGLang for this GPU, pinned by its digest: for --image, and for $MTPBENCH_IMAGE.

    A series of nights goes on over images; which one a night had is in its fingerprint.
    """
    found = find_newest(repository, flavour, gpu, day_of(today), days, hub)
    err.print(Text(f"{found.tag} of {found.day}"), soft_wrap=True)
    sys.stdout.write(found.reference + "\n")
