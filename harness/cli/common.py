"""What all verbs share: consoles, exit codes, option types, how results and errors are shown, what Ctrl-C does."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.text import Text

from harness.errors import Interrupted, MtpbenchError
from harness.text import inert

# All of them are in docs/exit-codes.md.
EXIT_INVALID, EXIT_UNFORESEEN, EXIT_INTERRUPTED, EXIT_PIPE = 2, 70, 130, 141
# A log file has no width: wide enough for every table.
_WIDTH = None if sys.stdout.isatty() else 160


class InertConsole(Console):
    """A terminal to which no name, server's error or log line can send anything but text."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(inert(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """`mtpbench trend | head` is no FAIL."""
        try:
            super().on_broken_pipe()
        except SystemExit:
            raise SystemExit(EXIT_PIPE) from None


out, err = InertConsole(width=_WIDTH), InertConsole(stderr=True)

Renderer = Callable[[Any], str]
ScenarioPath = Annotated[
    Path | None, typer.Argument(metavar="SCENARIO", help="A scenario file (YAML); not with --resume.")
]
NeedGpu = Annotated[bool, typer.Option("--need-gpu/--no-gpu", help="That no AMD GPU is there is a problem.")]
Gpus = Annotated[str, typer.Option(help="GPU ids to use, such as 2,3. Default: the scenario's, else 0, 1, …")]

Image = Annotated[
    str,
    typer.Option(
        metavar="REFERENCE",
        help="Run the servers' containers from this image, pinned: NAME@sha256:…; `none`: right here, without any.",
    ),
]


def default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "mtpbench"


def check_format(output: str, renderers: Iterable[str], *more: str) -> None:
    """Raises MtpbenchError for an unknown --format: before the work, whose result could not be shown."""
    known = ("table", *renderers, *more)
    if output not in known:
        raise MtpbenchError(f"--format {output!r} is unknown", f"One of: {', '.join(known)}.")


def show(
    document: Any, output: str, to_rich: Callable[[Any], RenderableType], renderers: Mapping[str, Renderer]
) -> None:
    """Prints a result in a format that `check_format` knows; all but a table go to standard output as they are."""
    if output == "table":
        out.print(to_rich(document))
    else:
        sys.stdout.write(renderers[output](document) + "\n")


def gpu_ids(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError as error:
        raise MtpbenchError(f"--gpus {text!r}: whole numbers separated by commas, such as 2,3") from error


def print_error(console: Console, error: Exception, hint: str, log: object, tail: tuple[str, ...]) -> None:
    """An expected error for a person: what happened, the log's last lines, what to do next."""
    console.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
    for line in tail:
        console.print(Text(f"  | {line}", style="dim"), soft_wrap=True)
    if log:
        console.print(Text(f"log: {log}"), soft_wrap=True)
    if hint:
        console.print(Text(f"next: {hint}"), soft_wrap=True)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C and SIGTERM raise Interrupted, which no library takes for an error of its own."""

    def interrupt(_number: int, _frame: object) -> None:
        raise Interrupted

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
