"""What the verbs share: consoles, option types, the fingerprint of a run, and how Ctrl-C ends one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from harness.errors import Interrupted, MtpbenchError, ResumeError
from harness.fields import Container
from harness.run.experiment import Outcome
from harness.run.launcher import Launcher
from harness.scenario.format import Scenario
from harness.scenario.prompts import corpus_digest
from harness.store.runs import StoredRun
from harness.text import inert

# All of them are in docs/exit-codes.md.
EXIT_OK, EXIT_INVALID, EXIT_UNFORESEEN, EXIT_INTERRUPTED, EXIT_PIPE = 0, 2, 70, 130, 141
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
Gpus = Annotated[str, typer.Option(help="GPU ids to use, such as 2,3. Default: the scenario's, else 0, 1, …")]

Image = Annotated[
    str,
    typer.Option(
        metavar="REFERENCE",
        help="Run the servers' containers from this image, pinned: NAME@sha256:…; `none`: right here, without any.",
    ),
]
NO_CONTAINER = "none"
_SERVER_PYTHON = "MTPBENCH_SERVER_PYTHON"  # the interpreter that has SGLang, where servers run without a container
_DIGEST = re.compile(r"^[^\s@]+@sha256:[0-9a-f]{64}$")


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


# Of a scenario that names no image, run in one all the same: weights stay on the host, RCCL has its buffers.
_CONTAINER = Container(
    image="none",
    shm_size="32g",
    mounts=["/root/.cache/huggingface:/root/.cache/huggingface"],
    pass_env=["HF_TOKEN"],
)


def from_image(scenario: Scenario, image: str) -> Scenario:
    """The scenario with its containers' image replaced. Raises MtpbenchError for a tag, which may move."""
    if not image:
        return scenario
    if image == NO_CONTAINER:
        return _without_container(scenario)
    if not _DIGEST.match(image):
        raise MtpbenchError(
            f"--image {image!r} is not pinned by a digest", "NAME@sha256:…, as `docker pull` prints it."
        )
    if not hasattr(scenario.server, "container"):
        raise MtpbenchError(f"{scenario.name} runs no container", "Leave out --image.")
    container = scenario.server.container or _CONTAINER
    server = scenario.server.model_copy(update={"container": container.model_copy(update={"image": image})})
    return scenario.model_copy(update={"server": server})


def _without_container(scenario: Scenario) -> Scenario:
    """The scenario's servers on this machine, which may be inside an image itself, with that image's interpreter."""
    server = scenario.server
    update: dict[str, Any] = {"container": None} if getattr(server, "container", None) else {}
    python = os.environ.get(_SERVER_PYTHON)
    if python and hasattr(server, "python") and not server.python:
        update["python"] = python
    arms = {
        name: {key: value for key, value in changes.items() if key != "container"}
        for name, changes in scenario.arms.items()
    }
    return scenario.model_copy(update={"server": server.model_copy(update=update), "arms": arms})


def only_arms(scenario: Scenario, names: Sequence[str]) -> Scenario:
    """The scenario with some of its arms, in its own order; all of them where none is named."""
    for name in names:
        if name not in scenario.arms:
            raise MtpbenchError(f"{scenario.name} has no arm {name!r}", f"It has: {', '.join(scenario.arms)}")
    if not names:
        return scenario
    arms = {name: changes for name, changes in scenario.arms.items() if name in names}
    baseline = scenario.baseline if scenario.baseline in arms else None
    return scenario.model_copy(update={"arms": arms, "baseline": baseline})


def with_prompts(environment: dict[str, Any], scenario: Scenario) -> dict[str, Any]:
    """The fingerprint of a run: the machine's, and that of the texts from which this Python makes prompts."""
    return {**environment, "prompts": corpus_digest(scenario.workload)}


def check_same_environment(before: StoredRun, now: dict[str, Any]) -> None:
    """Raises ResumeError where an interrupted run would go on in another environment."""
    changed = sorted(
        key for key in {*before.environment, *now} if key != "variables" and before.environment.get(key) != now.get(key)
    )
    if changed:
        details = ", ".join(f"{k}: {before.environment.get(k)} → {now.get(k)}" for k in changed)
        raise ResumeError(
            f"this is no longer the environment in which the run began ({details})",
            "Passes from two environments are no one result. Start a new run.",
        )


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


@contextlib.contextmanager
def resumable(verb: str, run: Path) -> Iterator[None]:
    """However an interrupt comes while a run is open: what to type to go on is said, and the exit code is 130."""
    try:
        yield
    except (asyncio.CancelledError, KeyboardInterrupt, Interrupted):
        tell_resume(verb, run)
        raise typer.Exit(EXIT_INTERRUPTED) from None


def tell_resume(verb: str, run: Path) -> None:
    err.print(Text("interrupted; finished passes are saved", style="bold yellow"))
    err.print(Text(f"next: mtpbench {verb} --resume {run}"), soft_wrap=True)


def drive(
    run: Callable[[], Coroutine[Any, Any, Outcome]], launcher: Launcher, killed: Callable[[], None] = lambda: None
) -> Outcome:
    """Runs the event loop. First Ctrl-C (or SIGTERM): orderly end; second: kill the servers and leave, after `killed`
    has said what can be said."""

    async def main() -> Outcome:
        task = asyncio.current_task()
        assert task is not None
        interrupted = False

        def interrupt() -> None:
            nonlocal interrupted
            if interrupted:
                for server in launcher.alive:
                    server.kill()
                killed()
                sys.stderr.flush()
                os._exit(EXIT_INTERRUPTED)
            interrupted = True
            err.print(Text("ending the servers; once more kills them", style="bold yellow"))
            task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, interrupt)
        return await run()

    with interruptible():  # again as before, once the loop has given its own handlers up
        return asyncio.run(main())
