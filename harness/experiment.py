"""Runs a scenario: starts each server, warms up, measures every level, saves after each pass.

A server that dies, wedges or never starts costs its own remaining passes; the other launches go on, and
everything measured before is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from harness.checks import Expectations, findings
from harness.client import ControlClient
from harness.dialects import DIALECTS, Sampling
from harness.engines.base import Engine, LaunchContext
from harness.engines.command import Command
from harness.engines.registry import ENGINES, AnySettings
from harness.environment import image_digest, packages
from harness.errors import ServerDiedError, ServerError, ServerWedgedError
from harness.load import LoadJob, LoadResult, Progress, Workers
from harness.metrics import PassView
from harness.model import LaunchRecord, Pass, PassKey, PassRecord, RequestStatus
from harness.plan import LaunchPlan, launch_context, plan_launches
from harness.records import CONNECTION_LOST, PlannedRequest
from harness.scenario import Scenario
from harness.server import (
    ServerProcess,
    check_wedged,
    free_port,
    harmless,
    harmless_command,
)
from harness.store import RunStore, utc_now
from harness.telemetry import Recorder, Source
from harness.window import lag_p99, steady_window
from harness.workload import Block, Item, PromptBook, items_of, make_book, plan_blocks, poisson_offsets

_POLL_S = 0.2
_DEATH_S = 1.5


class Ui(Protocol):
    """Told what happens while a run runs."""

    def launch_starting(self, plan: LaunchPlan, number: int, total: int) -> None: ...
    def launch_waiting(self, seconds: float, last_line: str) -> None: ...
    def launch_ready(self, seconds: float) -> None: ...
    def preparing(self, what: str) -> None: ...
    def pass_starting(self, key: PassKey, requests: int, warmup: bool) -> None: ...
    def pass_progress(self, progress: Progress) -> None: ...
    def pass_done(self, view: PassView) -> None: ...
    def launch_failed(self, plan: LaunchPlan, error: ServerError) -> None: ...


@dataclass
class Options:
    """What the command line adds to a scenario."""

    cache_dir: Path
    gpus: tuple[int, ...] = ()
    fail_fast: bool = False


@dataclass
class Outcome:
    """How a run went."""

    failures: list[tuple[LaunchPlan, ServerError]] = field(default_factory=list)


@dataclass
class _Launch:
    """A server that is up, and what its passes need to know."""

    plan: LaunchPlan
    engine: Engine[AnySettings]
    base_url: str
    server: ServerProcess | None
    http: ControlClient
    model: str
    record: LaunchRecord
    book: PromptBook

    @property
    def settings(self) -> AnySettings:
        return self.plan.arm.server


class Experiment:
    """One run of a scenario into a store. `servers` lists what is alive, for an emergency stop."""

    def __init__(self, scenario: Scenario, store: RunStore, options: Options, source: Source | None, ui: Ui) -> None:
        self.scenario, self.store, self.options, self.ui = scenario, store, options, ui
        self._source = source
        self._blocks = plan_blocks(scenario)
        self._books: dict[str, PromptBook] = {}
        self.servers: list[ServerProcess] = []

    async def run(self) -> Outcome:
        """Everything that is planned and not yet done. Raises what is not a server's fault."""
        outcome = Outcome()
        done = self.store.done()
        plans = plan_launches(self.scenario)
        with Workers(self.scenario.max_slots) as workers:
            for number, plan in enumerate(plans, 1):
                todo = [key for key in plan.passes if key not in done]
                if not todo:
                    continue
                self.ui.launch_starting(plan, number, len(plans))
                try:
                    await self._run_launch(plan, todo, workers)
                except ServerError as error:
                    outcome.failures.append((plan, error))
                    self.ui.launch_failed(plan, error)
                    if self.options.fail_fast:
                        break
        return outcome

    async def _run_launch(self, plan: LaunchPlan, todo: list[PassKey], workers: Workers) -> None:
        async with self._launched(plan) as launch:
            for key in todo:
                warmup = self._blocks[key.level, key.index, True]
                warm = await self._load(launch, key, warmup, workers, warmup=True)
                await self._measure(launch, key, warm, workers)

    @contextlib.asynccontextmanager
    async def _launched(self, plan: LaunchPlan) -> AsyncIterator[_Launch]:
        engine, settings = ENGINES[plan.arm.server.engine], plan.arm.server
        self.ui.preparing(f"the {engine.name} engine")
        await asyncio.to_thread(engine.prepare, settings, self.options.cache_dir)
        context = launch_context(self.scenario, plan, self.options.gpus, free_port(), self.options.cache_dir)
        command, base_url = engine.command(settings, context), engine.base_url(settings, context)
        start = self.store.server_starts(plan.slug)
        async with contextlib.AsyncExitStack() as stack:
            http = await stack.enter_async_context(ControlClient(base_url))
            server = None
            if command is not None:
                server = self._server(plan, engine, context, command, base_url, start)
                self.servers.append(server)
                stack.callback(self.servers.remove, server)
                await self._start(stack, server, plan, context, command, start)
            model = getattr(settings, "model", None) if command is None else context.identity
            record = await self._describe(plan, engine, context, command, server, http, start)
            self.ui.launch_ready(record.ready_seconds)
            yield _Launch(
                plan,
                engine,
                base_url,
                server,
                http,
                model or await engine.identity(http) or "default",
                record,
                await self._book(engine, settings, http),
            )

    def _server(
        self,
        plan: LaunchPlan,
        engine: Engine[AnySettings],
        context: LaunchContext,
        command: Command,
        base_url: str,
        start: int,
    ) -> ServerProcess:
        return ServerProcess(
            command,
            base_url=base_url,
            port=context.port,
            identity=context.identity,
            identify=engine.identity,
            health_path=engine.health_path,
            log_path=self.store.log_path(plan.slug, start),
            ready_timeout_s=plan.arm.server.ready_timeout,
            on_wait=self.ui.launch_waiting,
        )

    async def _start(
        self,
        stack: contextlib.AsyncExitStack,
        server: ServerProcess,
        plan: LaunchPlan,
        context: LaunchContext,
        command: Command,
        start: int,
    ) -> None:
        try:
            await stack.enter_async_context(server)
        except ServerError as error:
            self.store.save_launch(self._launch_record(plan, context, command, start, str(error)))
            raise

    def _launch_record(
        self,
        plan: LaunchPlan,
        context: LaunchContext,
        command: Command | None,
        start: int,
        status: str,
    ) -> LaunchRecord:
        return LaunchRecord(
            slug=plan.slug,
            launch=plan.launch,
            arm=plan.arm.name,
            tp=plan.tp,
            server_start=start,
            started_at=utc_now(),
            command=harmless_command(command.argv) if command else (),
            environment=harmless(command.env) if command else {},
            status=status,
            gpus=context.gpus,
            log=self.store.log_path(plan.slug, start).name if command else "",
        )

    async def _describe(
        self,
        plan: LaunchPlan,
        engine: Engine[AnySettings],
        context: LaunchContext,
        command: Command | None,
        server: ServerProcess | None,
        http: ControlClient,
        start: int,
    ) -> LaunchRecord:
        """Asks the ready server who it is, and saves the answer before anything is measured."""
        base = self._launch_record(plan, context, command, start, "ready")
        found = await asyncio.to_thread(packages, engine.interpreter(plan.arm.server, context))
        container = getattr(plan.arm.server, "container", None)
        if container is not None:
            digest = await asyncio.to_thread(image_digest, container.runtime, container.image)
            found["image"] = f"{container.image} {digest or ''}".strip()
        record = replace(
            base,
            described=await engine.describe(plan.arm.server, http),
            packages=found,
            ready_seconds=server.ready_seconds if server else 0.0,
        )
        self.store.save_launch(record)
        return record

    async def _book(self, engine: Engine[AnySettings], settings: AnySettings, http: ControlClient) -> PromptBook:
        """Prompts are made once for each tokeniser: arms share a model."""
        key = f"{settings.engine}/{getattr(settings, 'model', None) or getattr(settings, 'url', '')}"
        if key not in self._books:
            self.ui.preparing(f"{self.scenario.workload.prompts} prompts")
            self._books[key] = await make_book(
                self.scenario,
                lambda text: engine.tokenize(settings, http, text),
                lambda ids: engine.detokenize(settings, http, ids),
            )
        return self._books[key]

    async def _measure(self, launch: _Launch, key: PassKey, warm: LoadResult | None, workers: Workers) -> None:
        """One measured pass, saved whether it completes or not."""
        log_before = launch.server.log_size() if launch.server else 0
        before = await launch.engine.counters(launch.settings, launch.http)
        recorder = Recorder(self._source, launch.record.gpus)
        started_at, error = utc_now(), None
        with recorder.recording() as samples:
            try:
                load = await self._load(launch, key, self._blocks[key.level, key.index, False], workers)
            except _PassFailedError as failure:
                load, error = failure.partial, failure.error
        assert load is not None, "a measured pass always has requests"
        after = {} if error else await launch.engine.counters(launch.settings, launch.http)
        log = launch.server.log_since(log_before) if launch.server else []
        record = PassRecord(
            key=key,
            started_at=started_at,
            t_start=load.t_start,
            t_end=load.t_end,
            status=str(error) if error else "complete",
            server_start=launch.record.server_start,
            gpus=launch.engine.gpu_count(launch.settings, launch.plan.tp),
            warmup_requests=len(warm.requests) if warm else 0,
            warmup_failures=sum(not r.ok for r in warm.requests) if warm else 0,
            client_lag_p99=lag_p99(load.lags, steady_window(load.requests, key.level)),
            counters={name: value - before.get(name, 0.0) for name, value in after.items()},
            gpu=tuple(samples),
            decode_log=tuple(launch.engine.parse_log(log)),
        )
        view = self._view(Pass(record, load.requests), launch)
        self.store.save_pass(view.source.record, load.requests)
        if error:
            raise error
        self.ui.pass_done(view)

    def _view(self, source: Pass, launch: _Launch) -> PassView:
        """The pass with its findings."""
        workload = self.scenario.workload
        expected = Expectations(
            concurrency=source.record.key.level.concurrency,
            speculative=launch.engine.speculative(launch.settings),
            exact_prompts=not workload.chat,
            shared_prefix=workload.shared_prefix_tokens,
            meaningful_output=launch.engine.meaningful_output(launch.settings),
        )
        found = findings(PassView.of(source, self.scenario.slo), expected)
        record = replace(source.record, findings=found)
        return PassView.of(Pass(record, source.requests), self.scenario.slo)

    async def _load(
        self, launch: _Launch, key: PassKey, block: Block, workers: Workers, *, warmup: bool = False
    ) -> LoadResult | None:
        """Sends a block of requests and watches server and streams; None for an empty block."""
        if not block.count:
            return None
        job = self._job(launch, key, items_of(launch.book, block), open_loop=key.level.open_loop and not warmup)
        self.ui.pass_starting(key, block.count, warmup)
        task = asyncio.ensure_future(workers.run(job))
        try:
            error = await self._watch(launch, workers, task)
        except BaseException:
            workers.board.request_stop(RequestStatus.CANCELLED)
            with contextlib.suppress(Exception):
                await asyncio.shield(task)
            raise
        load = await task
        if error is not None:
            if warmup:
                raise error
            died = isinstance(error, ServerDiedError)
            raise _PassFailedError(_blame_server(load) if died else load, error)
        return load

    async def _watch(self, launch: _Launch, workers: Workers, task: asyncio.Future[LoadResult]) -> ServerError | None:
        """Waits for the load to end; stops it when the server dies or wedges, and says which."""
        started = time.monotonic()
        while not task.done():
            await asyncio.wait([task], timeout=_POLL_S)
            progress = workers.board.progress()
            self.ui.pass_progress(progress)
            try:
                if launch.server:
                    launch.server.check()
                silent = time.monotonic() - max(progress.last_arrival, started)
                if progress.in_flight and silent > launch.settings.stall_timeout:
                    await self._check_wedged(launch, progress, silent)
            except ServerDiedError as error:
                workers.board.request_stop(RequestStatus.SERVER_DIED)
                return error
            except ServerWedgedError as error:
                workers.board.request_stop(RequestStatus.TIMED_OUT)
                return error
        if launch.server and workers.board.progress().failed:
            return await _death(launch.server)
        return None

    async def _check_wedged(self, launch: _Launch, progress: Progress, silent: float) -> None:
        await check_wedged(
            launch.base_url,
            launch.engine.health_path,
            silent,
            progress.decoding,
            progress.in_flight,
            launch.server,
        )

    def _job(self, launch: _Launch, key: PassKey, items: list[Item], *, open_loop: bool) -> LoadJob:
        workload = self.scenario.workload
        dialect = launch.engine.dialect(launch.settings, workload.chat)
        sampling = Sampling(launch.model, workload.ignore_eos, workload.temperature)
        offsets = [0.0] * len(items)
        if open_loop:
            offsets = poisson_offsets(key.level.rate, len(items), workload.seed + key.index)
        requests = tuple(
            PlannedRequest(
                index=index,
                body=DIALECTS[dialect].body(item.prompt, item.output_tokens, sampling),
                input_tokens=item.prompt.tokens,
                output_tokens=item.output_tokens,
                offset=offset,
                exact_output=workload.ignore_eos,
            )
            for index, (item, offset) in enumerate(zip(items, offsets, strict=True))
        )
        slots = min(self.scenario.arrival.slots(key.level), len(items))
        timeout = launch.settings.request_timeout
        keep_alive = launch.engine.keep_alive
        return LoadJob(launch.base_url, dialect, requests, slots, open_loop, timeout, keep_alive)


class _PassFailedError(Exception):
    """A measured pass ended early: what was measured, and why."""

    def __init__(self, partial: LoadResult, error: ServerError) -> None:
        super().__init__(str(error))
        self.partial, self.error = partial, error


async def _death(server: ServerProcess) -> ServerError | None:
    """Why requests failed, if the server is ending: its streams break a moment before its process is gone."""
    deadline = time.monotonic() + _DEATH_S
    while time.monotonic() < deadline:
        try:
            server.check()
        except ServerDiedError as error:
            return error
        await asyncio.sleep(_POLL_S / 4)
    return None


def _blame_server(load: LoadResult) -> LoadResult:
    """Requests whose connection went away with the server are the server's fault."""
    lost = (RequestStatus.TRUNCATED, RequestStatus.REFUSED)
    return replace(
        load,
        requests=tuple(
            replace(r, status=RequestStatus.SERVER_DIED)
            if r.status in lost and r.error.startswith(CONNECTION_LOST)
            else r
            for r in load.requests
        ),
    )
