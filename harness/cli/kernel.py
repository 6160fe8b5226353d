"""The kernel's own verbs: `mtpbench kernel …` passes its options on. Needs the extra `kernel`."""

from __future__ import annotations

import importlib.util

import typer

from harness.cli.group import verbs_of_a_file
from harness.errors import MissingPackageError

verbs = verbs_of_a_file()
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@verbs.command(context_settings=_PASS_ON)
def inspect(context: typer.Context) -> None:
    """Compile every configuration without a GPU: registers, spills, LDS, what a loop costs a KB (--arch gfx950)."""
    _need("triton")
    from kernel.offline import main as offline

    raise typer.Exit(offline(context.args))


@verbs.command(context_settings=_PASS_ON)
def bench(context: typer.Context) -> None:
    """Check, then time the kernel and what it is compared with, on this GPU (--shape targets --output FILE)."""
    _need("torch", "triton")
    from kernel.bench.__main__ import main as timed

    raise typer.Exit(timed(context.args))


def _need(*packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise MissingPackageError(package, "The kernel", "kernel")
