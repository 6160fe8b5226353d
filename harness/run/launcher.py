"""From a planned launch to a server that is up, described and saved; torn down when the block ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from harness.engines.base import Engine, LaunchContext
from harness.engines.command import Command
from harness.engines.registry import ENGINES, AnySettings
from harness.engines.server import ServerProcess, free_port, server_process
from harness.engines.verify_plugin import plugin_folder
from harness.errors import ServerDiedError, ServerError
from harness.http import ControlClient
from harness.machine.fingerprint import image_digest, image_python_path, packages
from harness.model import LaunchRecord
from harness.redact import harmless, harmless_command
from harness.run.launch_proof import Proof
from harness.scenario.format import Scenario
from harness.scenario.launch_plan import LaunchPlan, launch_context
from harness.store.runs import RunStore, utc_now
from kernel.source import ROOT

_CRASH_S = 10.0  # SGLang's launcher looks for core dumps before it ends with its scheduler


@dataclass(frozen=True)
class Place:
    """Where an arm's server comes from: a checkout of this repository, and the Python that runs it."""

    checkout: Path
    python: str | None = None  # in place of this interpreter, for engines whose settings name none

    def settings(self, server: AnySettings) -> AnySettings:
        """The server's settings with this checkout first on its path, in a container too."""
        container = getattr(server, "container", None)
        inherited = "" if container else os.environ.get("PYTHONPATH", "")
        path = os.pathsep.join(filter(None, [str(self.checkout), server.env.get("PYTHONPATH", inherited)]))
        update: dict[str, Any] = {"env": {**server.env, "PYTHONPATH": path}}
        if container is not None:
            mount = f"{self.checkout}:{self.checkout}:ro"
            update["container"] = container.model_copy(update={"mounts": [*container.mounts, mount]})
        return server.model_copy(update=update)

    def command(self, command: Command) -> Command:
        """A command, started in the checkout: `python -m` looks in its working directory before anything else."""
        argv = command.argv
        if self.python and argv[0] == sys.executable:
            argv = (self.python, *argv[1:])
        return replace(command, argv=argv, cwd=str(self.checkout))

    def interpreter(self, command: tuple[str, ...]) -> tuple[str, ...]:
        return (self.python,) if self.python and command == (sys.executable,) else command


@dataclass(frozen=True)
class Options:
    """What the command line adds to a scenario."""

    cache_dir: Path
    gpus: tuple[int, ...] = ()
    fail_fast: bool = False
    places: Mapping[str, Place] = field(default_factory=dict)  # arm → where it runs, if not here


class LaunchUi(Protocol):
    """Told how a launch goes."""

    def preparing(self, what: str) -> None: ...
    def launch_waiting(self, seconds: float, last_line: str) -> None: ...
    def launch_ready(self, seconds: float) -> None: ...


@dataclass(frozen=True)
class Launch:
    """A server that is up. `server` is None where it was running already; `model` is what requests name."""

    plan: LaunchPlan
    engine: Engine[AnySettings]
    base_url: str
    server: ServerProcess | None
    http: ControlClient
    model: str
    record: LaunchRecord
    trace_dir: Path | None = None

    @property
    def settings(self) -> AnySettings:
        return self.plan.arm.server


@dataclass(frozen=True)
class _Start:
    """One server start, before it happens. `number` counts the starts of the same launch."""

    plan: LaunchPlan
    engine: Engine[AnySettings]
    context: LaunchContext
    command: Command | None
    number: int
    place: Place | None = None

    @property
    def settings(self) -> AnySettings:
        return self.plan.arm.server

    def record(self, status: str, log: Path) -> LaunchRecord:
        return LaunchRecord(
            slug=self.plan.slug,
            launch=self.plan.launch,
            arm=self.plan.arm.name,
            tp=self.plan.tp,
            server_start=self.number,
            started_at=utc_now(),
            command=harmless_command(self.command.argv) if self.command else (),
            environment=harmless(self.command.env) if self.command else {},
            status=status,
            gpus=self.context.gpus,
            log=log.name if self.command else "",
            verify=self.engine.verify_arm(self.settings) or "",
        )


class Launcher:
    """Starts servers. `alive` lists those that run, for an emergency stop."""

    def __init__(self, scenario: Scenario, store: RunStore, options: Options, ui: LaunchUi) -> None:
        self._scenario, self._store, self._options, self._ui = scenario, store, options, ui
        self.alive: list[ServerProcess] = []

    @contextlib.asynccontextmanager
    async def launched(self, plan: LaunchPlan) -> AsyncIterator[Launch]:
        """A ready server. Raises ServerStartError; what is known of the failed start is saved."""
        place = self._options.places.get(plan.arm.name)
        if place is not None:
            plan = replace(plan, arm=plan.arm.model_copy(update={"server": place.settings(plan.arm.server)}))
        start = await self._prepare(plan, place)
        base_url = start.engine.base_url(start.settings, start.context)
        async with contextlib.AsyncExitStack() as stack:
            http = await stack.enter_async_context(ControlClient(base_url, start.engine.access(start.settings)))
            server = None
            if start.command is not None:
                server = self._server(start, start.command)
                self.alive.append(server)
                stack.callback(self.alive.remove, server)
                try:
                    await stack.enter_async_context(server)
                except ServerError as error:
                    self._store.save_launch(start.record(str(error), server.log_path))
                    raise
            record = await self._describe(start, server, http)
            self._ui.launch_ready(record.ready_seconds)
            proof = Proof(self._scenario, self._store, record, start.context)
            stack.callback(proof.finish)
            record = await self._proved(proof, start, server, http)
            asked = getattr(start.settings, "model", None) if server is None else None
            model = asked or await start.engine.identity(http) or "default"
            yield Launch(plan, start.engine, base_url, server, http, model, record, start.context.trace_dir)

    async def _proved(
        self, proof: Proof, start: _Start, server: ServerProcess | None, http: ControlClient
    ) -> LaunchRecord:
        """What the proof collects; why not, if the server is refused or dies under it, is saved with the launch."""
        try:
            return await proof.collect(start.engine, start.settings, http, self._ui.preparing)
        except ServerError as error:
            if server is not None and isinstance(error, ServerDiedError):
                error = await server.death(_CRASH_S) or error  # its log says why
            proof.refuse(str(error))
            raise error from None

    async def _prepare(self, plan: LaunchPlan, place: Place | None) -> _Start:
        engine, cache_dir = ENGINES[plan.arm.server.engine], self._options.cache_dir
        self._ui.preparing(f"the {engine.name} engine")
        await asyncio.to_thread(engine.prepare, plan.arm.server, cache_dir)
        context = launch_context(self._scenario, plan, self._options.gpus, free_port(), cache_dir)
        number = self._store.server_starts(plan.slug)
        if engine.verify_arm(plan.arm.server):
            context = await asyncio.to_thread(self._with_plugin, plan, context, number, place)
        if self._scenario.profile:
            folder = self._store.trace_folder(plan.slug, number).absolute()
            folder.mkdir(parents=True, exist_ok=True)
            context = replace(context, trace_dir=folder)
        command = engine.command(plan.arm.server, context)
        if place is not None and command is not None:
            command = place.command(command)
        return _Start(plan, engine, context, command, number, place)

    def _with_plugin(self, plan: LaunchPlan, context: LaunchContext, number: int, place: Place | None) -> LaunchContext:
        container = getattr(plan.arm.server, "container", None)
        folder = self._store.evidence_folder(plan.slug, number).absolute()
        folder.mkdir(parents=True, exist_ok=True)  # else a container runtime makes it, owned by root
        sources = place.checkout / "kernel" if place else ROOT
        return replace(
            context,
            plugin_dir=plugin_folder(context.cache_dir.absolute(), sources),
            evidence_dir=folder,
            image_python_path=image_python_path(container.runtime, container.image) if container else "",
        )

    def _server(self, start: _Start, command: Command) -> ServerProcess:
        return server_process(
            start.engine,
            start.settings,
            start.context,
            command,
            self._store.log_path(start.plan.slug, start.number),
            start.settings.ready_timeout,
            self._ui.launch_waiting,
        )

    async def _describe(self, start: _Start, server: ServerProcess | None, http: ControlClient) -> LaunchRecord:
        """Asks the ready server who it is, and saves the answer before anything is measured."""
        interpreter = start.engine.interpreter(start.settings, start.context)
        if start.place is not None:
            interpreter = start.place.interpreter(interpreter)
        found = await asyncio.to_thread(packages, interpreter)
        container = getattr(start.settings, "container", None)
        if container is not None:
            digest = await asyncio.to_thread(image_digest, container.runtime, container.image)
            found["image"] = f"{container.image} {digest or ''}".strip()
        record = replace(
            start.record("ready", self._store.log_path(start.plan.slug, start.number)),
            described=await start.engine.describe(start.settings, http),
            packages=found,
            ready_seconds=server.ready_seconds if server else 0.0,
        )
        self._store.save_launch(record)
        return record
