"""Runs a scenario: starts each server, warms up, measures every level, saves after each pass.

A server that dies, wedges or never starts costs its own remaining passes; the other launches go on, and
everything measured before is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from harness.checks.passes import Expectations, findings
from harness.engines.server import check_answers, check_silence, check_wedged
from harness.errors import ServerDiedError, ServerError, ServerWedgedError, StoreError
from harness.load.dialects import DIALECTS, Sampling
from harness.load.open_files import allow_files
from harness.load.requests import CONNECTION_LOST, PlannedRequest
from harness.load.workers import LoadJob, LoadResult, Progress, Workers
from harness.machine.telemetry import Recorder, Source
from harness.metrics.client_health import health
from harness.metrics.definitions import PassView
from harness.metrics.steady_window import steady_window
from harness.model import Pass, PassKey, PassRecord, RequestStatus
from harness.run.launcher import Launch, Launcher, LaunchUi, Options
from harness.run.step_profile import read_traces
from harness.scenario.format import Scenario
from harness.scenario.launch_plan import LaunchPlan, plan_launches
from harness.scenario.prompts import Item, PromptBook, items_of, make_book, plan_blocks, poisson_offsets
from harness.store.runs import RunStore, utc_now

_POLL_S = 0.2
_HOPELESS_STARTS = 2  # of an arm that never served a whole launch: a third would fail as well, after minutes


class Ui(LaunchUi, Protocol):
    """Told what happens while a run runs."""

    def launch_starting(self, plan: LaunchPlan, number: int, total: int) -> None: ...
    def launch_failed(self, plan: LaunchPlan, error: ServerError) -> None: ...
    def launch_left_out(self, plan: LaunchPlan, failures: int) -> None: ...
    def pass_starting(self, key: PassKey, requests: int, warmup: bool) -> None: ...
    def pass_progress(self, progress: Progress) -> None: ...
    def pass_done(self, view: PassView) -> None: ...
    def no_profile(self, key: PassKey, why: str) -> None: ...


@dataclass
class Outcome:
    """How a run went."""

    failures: list[tuple[LaunchPlan, ServerError]] = field(default_factory=list)


class Experiment:
    """One run of a scenario into a store."""

    def __init__(self, scenario: Scenario, store: RunStore, options: Options, source: Source | None, ui: Ui) -> None:
        self.scenario, self.store, self.options, self.ui = scenario, store, options, ui
        self.launcher = Launcher(scenario, store, options, ui)
        self._source = source
        self._blocks = plan_blocks(scenario)
        self._books: dict[str, PromptBook] = {}

    async def run(self, enough: Callable[[int], bool] = lambda _launch: False) -> Outcome:
        """Everything that is planned and not yet done, until `enough`, told the number of the launch that would be
        next, says so. Raises what is not a server's fault."""
        outcome = Outcome()
        done = self.store.done()
        served = {(key.arm, key.tp) for key in done}
        failed: Counter[tuple[str, int]] = Counter()
        plans = plan_launches(self.scenario)
        allow_files(self.scenario.max_slots)
        with Workers(self.scenario.max_slots) as workers:
            for number, plan in enumerate(plans, 1):
                todo = [key for key in plan.passes if key not in done]
                if not todo:
                    continue
                if enough(plan.launch):
                    break
                arm = (plan.arm.name, plan.tp)
                if failed[arm] >= _HOPELESS_STARTS and arm not in served:
                    self.ui.launch_left_out(plan, failed[arm])
                    continue
                self.ui.launch_starting(plan, number, len(plans))
                try:
                    await self._run_launch(plan, todo, workers)
                    served.add(arm)
                except ServerError as error:
                    failed[arm] += 1
                    outcome.failures.append((plan, error))
                    self.ui.launch_failed(plan, error)
                    if self.options.fail_fast:
                        break
        return outcome

    async def _run_launch(self, plan: LaunchPlan, todo: list[PassKey], workers: Workers) -> None:
        async with self.launcher.launched(plan) as launch:
            book = await self._book(launch)
            for key in todo:
                warmup = self._job(launch, key, items_of(book, self._blocks[key.level, key.index, True]), warmup=True)
                warm = await self._load(launch, key, warmup, workers, warmup=True) if warmup.requests else None
                if warm is not None and not any(r.ok for r in warm.requests):
                    raise self._nothing_works(launch, key, warm)
                job = self._job(launch, key, items_of(book, self._blocks[key.level, key.index, False]))
                await self._measure(launch, key, job, warm, workers)
            await self._profile(launch, [key for key in plan.passes if key.index == 0], book, workers)

    def _nothing_works(self, launch: Launch, key: PassKey, warm: LoadResult) -> ServerError:
        """Not one warm-up succeeded: nothing is measured on such a server, at this level or the next."""
        first = next((r.error for r in warm.requests if r.error), "no request was answered")
        error = ServerWedgedError(
            f"all {len(warm.requests)} warm-up requests at {key.level.label} failed, so nothing is measured: {first}",
            "The server's log may say why.",
            log_path=launch.server.log_path if launch.server else None,
            log_tail=launch.server.tail() if launch.server else (),
        )
        self.store.save_pass(
            PassRecord(
                key=key,
                started_at=utc_now(),
                t_start=warm.t_start,
                t_end=warm.t_end,
                status=str(error),
                server_start=launch.record.server_start,
                gpus=launch.engine.gpu_count(launch.settings, launch.plan.tp),
                warmup_requests=len(warm.requests),
                warmup_failures=len(warm.requests),
            ),
            (),
        )
        return error

    async def _profile(self, launch: Launch, keys: list[PassKey], book: PromptBook, workers: Workers) -> None:
        """Traces the device at each load that asks for it, in a burst: all prefills come before the first decode
        step. Comes last, since a profiler that was on once can slow a process down."""
        for key in [key for key in keys if self.scenario.profiled(key.level)]:
            assert self.scenario.profile is not None
            assert launch.trace_dir is not None
            self.ui.preparing(f"a profile at {key.level.label}")
            folder = launch.trace_dir / key.slug
            if not await launch.engine.start_profile(launch.settings, launch.http, folder, self.scenario.profile.steps):
                self.ui.no_profile(key, "the server does not trace")
                return
            items = items_of(book, self._blocks[key.level, key.index, False])[: key.level.concurrency]
            await self._load(launch, key, self._job(launch, key, items), workers, warmup=True)
            try:
                profile = await asyncio.to_thread(read_traces, folder)
            except StoreError as error:
                self.ui.no_profile(key, str(error))
                continue
            if profile is None:
                self.ui.no_profile(key, "its trace shows no CUDA graph of the model")
            else:
                self.store.save_profile(key, profile.to_json())
            shutil.rmtree(folder, ignore_errors=True)  # megabytes; what they say is kept

    async def _book(self, launch: Launch) -> PromptBook:
        """Prompts are made once for each tokeniser: arms share a model."""
        engine, settings, http = launch.engine, launch.settings, launch.http
        key = f"{settings.engine}/{getattr(settings, 'model', None) or getattr(settings, 'url', '')}"
        if key not in self._books:
            self.ui.preparing(f"{self.scenario.workload.prompts} prompts")
            self._books[key] = await make_book(
                self.scenario,
                lambda text: engine.tokenize(settings, http, text),
                lambda ids: engine.detokenize(settings, http, ids),
            )
        return self._books[key]

    async def _measure(
        self, launch: Launch, key: PassKey, job: LoadJob, warm: LoadResult | None, workers: Workers
    ) -> None:
        """One measured pass, saved whether it completes or not."""
        log_before = launch.server.log_size() if launch.server else 0
        before = await launch.engine.counters(launch.settings, launch.http)
        recorder = Recorder(self._source, launch.record.gpus)
        started_at, error = utc_now(), None
        with recorder.recording() as samples:
            try:
                load = await self._load(launch, key, job, workers)
            except _PassFailedError as failure:
                load, error = failure.partial, failure.error
        after = {} if error else await launch.engine.counters(launch.settings, launch.http)
        accepted = None if error else await launch.engine.accept_length(launch.settings, launch.http)
        log = launch.server.log_since(log_before) if launch.server else []
        client = health(load.pulses, steady_window(load.requests, key.level))
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
            client_lag_p99=client.lag_p99 or 0.0,
            client_late_share=client.late_share,
            client_cpu=client.busiest,
            server_accept_length=accepted,
            counters={name: value - before.get(name, 0.0) for name, value in after.items()},
            gpu=tuple(samples),
            decode_log=tuple(launch.engine.parse_log(log)),
        )
        view = self._view(Pass(record, load.requests), launch)
        self.store.save_pass(view.source.record, load.requests)
        if error:
            raise error
        self.ui.pass_done(view)

    def _view(self, source: Pass, launch: Launch) -> PassView:
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
        self, launch: Launch, key: PassKey, job: LoadJob, workers: Workers, *, warmup: bool = False
    ) -> LoadResult:
        """Sends the requests of a job and watches server and streams."""
        self.ui.pass_starting(key, len(job.requests), warmup)
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

    async def _watch(self, launch: Launch, workers: Workers, task: asyncio.Future[LoadResult]) -> ServerError | None:
        """Waits for the load to end; stops it when the server dies or nothing comes from it, and says which."""
        busy_since, failed = time.monotonic(), 0
        while not task.done():
            await asyncio.wait([task], timeout=_POLL_S)
            progress = workers.board.progress()
            self.ui.pass_progress(progress)
            if not progress.in_flight:  # an open loop may have nothing to wait for
                busy_since = time.monotonic()
            try:
                if launch.server:
                    launch.server.check()
                elif progress.failed > failed:
                    failed = progress.failed
                    await check_answers(launch.base_url, launch.engine.health_path)
                silent = time.monotonic() - max(progress.last_arrival, busy_since)
                if progress.in_flight and silent > launch.settings.stall_timeout:
                    await self._check_wedged(launch, progress, silent)
            except ServerDiedError as error:
                workers.board.request_stop(RequestStatus.SERVER_DIED)
                return error
            except ServerWedgedError as error:
                workers.board.request_stop(RequestStatus.TIMED_OUT)
                return error
        if not workers.board.progress().failed:
            return None
        if launch.server:
            return await launch.server.death()
        try:
            await check_answers(launch.base_url, launch.engine.health_path)
        except ServerDiedError as error:
            return error
        return None

    async def _check_wedged(self, launch: Launch, progress: Progress, silent: float) -> None:
        check_silence(silent, launch.settings.silence_timeout, progress.in_flight, launch.server)
        await check_wedged(
            launch.base_url,
            launch.engine.health_path,
            silent,
            progress.decoding,
            progress.in_flight,
            launch.server,
            launch.engine.access(launch.settings),
        )

    def _job(self, launch: Launch, key: PassKey, items: list[Item], *, warmup: bool = False) -> LoadJob:
        """Requests encoded and ready. Warm-ups are sent at once, also where the pass is an open loop."""
        workload, level = self.scenario.workload, key.level
        dialect = launch.engine.dialect(launch.settings, workload.chat)
        sampling = Sampling(launch.model, workload.ignore_eos, workload.temperature)
        open_loop = level.open_loop and not warmup
        offsets = [0.0] * len(items)
        if open_loop:
            offsets = poisson_offsets(level.rate, len(items), workload.seed + key.index)
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
        access = launch.engine.access(launch.settings)
        return LoadJob(launch.base_url, dialect, requests, slots, open_loop, timeout, access)


class _PassFailedError(Exception):
    """A measured pass ended early: what was measured, and why."""

    def __init__(self, partial: LoadResult, error: ServerError) -> None:
        super().__init__(str(error))
        self.partial, self.error = partial, error


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
