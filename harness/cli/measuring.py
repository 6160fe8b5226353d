"""The one way in which `run`, `ab` and `aa` measure: what is asked, the run that is open, the event loop, Ctrl-C.

`begin` or `go_on` opens a run; within its block `drive` measures what is missing, and `deliver` seals and copies it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.text import Text

from harness.cli.common import EXIT_INTERRUPTED, default_cache, err, interruptible
from harness.cli.store import deliver, follow, spool
from harness.errors import Interrupted, ResumeError
from harness.machine.fingerprint import fingerprint
from harness.machine.telemetry import Source, open_source
from harness.run.experiment import Experiment, Outcome, Ui
from harness.run.launcher import Launcher, Options, Place
from harness.scenario.format import Scenario
from harness.scenario.prompts import corpus_digest
from harness.store.remote import Uploader
from harness.store.runs import RunStore, StoredRun, load_run, with_secrets


@dataclass(frozen=True)
class Asked:
    """What a person asks of each verb that measures: a scenario file, or a run to go on with; and where."""

    verb: str
    file: Path | None
    resume: Path | None
    store: str
    """A folder, or the URL of a store: then it is measured here and copied there."""

    gpus: tuple[int, ...] = ()
    image: str = ""


@dataclass(frozen=True)
class Measuring:
    """A run that is open. Use as a context manager."""

    asked: Asked
    scenario: Scenario
    store: RunStore
    source: Source | None
    """Reads the GPUs."""

    environment: Mapping[str, Any]
    """This machine's fingerprint."""

    follower: Uploader | None
    """Copies finished passes, where the run goes to a URL."""

    def __enter__(self) -> Measuring:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()

    @property
    def path(self) -> Path:
        return self.store.path

    def drive(
        self,
        ui: Ui,
        *,
        fail_fast: bool = False,
        places: Mapping[str, Place] | None = None,
        enough: Callable[[int], bool] = lambda _launch: False,
    ) -> Outcome:
        """Measures what is missing. `places` and `enough` as in `Options` and `Experiment.run`."""
        options = Options(default_cache(), self.asked.gpus, fail_fast, places or {})
        experiment = Experiment(self.scenario, self.store, options, self.source, ui)
        return _drive(lambda: experiment.run(enough), experiment.launcher, self._tell_resume)

    def deliver(self) -> bool:
        """Seals the run, and copies the rest of it. False where that failed, which was told."""
        return deliver(self.path, self.follower)

    @contextlib.contextmanager
    def resumable(self) -> Iterator[None]:
        """However an interrupt comes: what to type to go on is said, and the exit code is 130."""
        try:
            yield
        except (asyncio.CancelledError, KeyboardInterrupt, Interrupted):
            self._tell_resume()
            raise typer.Exit(EXIT_INTERRUPTED) from None

    def _tell_resume(self) -> None:
        err.print(Text("interrupted; finished passes are saved", style="bold yellow"))
        err.print(Text(f"next: mtpbench {self.asked.verb} --resume {self.path}"), soft_wrap=True)


def begin(asked: Asked, scenario: Scenario) -> Measuring:
    """A new run of what `asked.file` became on the command line."""
    assert asked.file is not None, "checked by the verbs"
    source = open_source()
    environment = fingerprint(source)
    root, remote = spool(asked.store)
    text = asked.file.read_text(encoding="utf-8")
    store = RunStore.create(root, scenario, text, with_prompts(environment, scenario))
    return Measuring(asked, scenario, store, source, environment, follow(store, remote))


def go_on(asked: Asked) -> Measuring:
    """The rest of an interrupted run. Raises ResumeError where this is no longer the environment in which it began."""
    assert asked.resume is not None, "checked by the verbs"
    source = open_source()
    environment = fingerprint(source)
    _, remote = spool(asked.store)
    before = load_run(asked.resume)
    if before.simulated:
        raise ResumeError(
            f"{asked.resume} is simulated: there is nothing to measure", "mtpbench simulate makes it anew."
        )
    check_same_environment(before, with_prompts(environment, before.scenario))
    scenario = with_secrets(before.scenario, os.environ)
    store = RunStore.resume(asked.resume)
    return Measuring(asked, scenario, store, source, environment, follow(store, remote))


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


def _drive(run: Callable[[], Coroutine[Any, Any, Outcome]], launcher: Launcher, killed: Callable[[], None]) -> Outcome:
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
