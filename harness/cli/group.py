"""Verbs that are listed without being imported: `mtpbench --help` shows them all and must be there at once.

What a verb needs (numpy, httpx, the load processes) takes seconds to import. So the tree in `app.py` names for each
verb the file that holds it; that file is imported when the verb is called, and only then.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from harness.cli.early import leaving_at_once

MARKUP: Final = "markdown"


def verbs_of_a_file() -> typer.Typer:
    """What a file in `harness/cli/` registers its verbs with: `@verbs.command()`. A verb is found there by its name."""
    return typer.Typer(rich_markup_mode=MARKUP)


class ListedVerb(TyperCommand):
    """A verb as its group lists it: its name and a line of help."""

    def __init__(self, name: str, place: str, line: str) -> None:
        super().__init__(name=name, help=line, rich_markup_mode=MARKUP)
        self.place = place

    def load(self) -> Any:
        """The verb itself, with its options: imports its file."""
        file, _, verbs = self.place.partition(":")
        with leaving_at_once():
            module = importlib.import_module(f"harness.cli.{file}")
        return get_group(getattr(module, verbs or "verbs")).commands[str(self.name)]


class Group(TyperGroup):
    """A group of listed verbs and of groups. Only the verb that is called is imported."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, ListedVerb) else command, rest


def verb(name: str, place: str, line: str) -> ListedVerb:
    """`place`: a file of `harness/cli/`; with `:NAME`, its verbs of that name instead of `verbs`. `line`: the first
    paragraph of the verb's own help."""
    return ListedVerb(name, place, line)


def group(name: str, text: str, *members: ListedVerb | Group) -> Group:
    """Its members are listed in this order."""
    return Group(name=name, help=text, commands=list(members), no_args_is_help=True, rich_markup_mode=MARKUP)
