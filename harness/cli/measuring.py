"""What `run`, `ab` and `aa` share: the environment of a run, the event loop, and what Ctrl-C leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import typer
from rich.text import Text

from harness.cli.common import EXIT_INTERRUPTED, err, interruptible
from harness.errors import Interrupted, ResumeError
from harness.run.experiment import Outcome
from harness.run.launcher import Launcher
from harness.scenario.format import Scenario
from harness.scenario.prompts import corpus_digest
from harness.store.runs import StoredRun


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
