"""Drives one pass of requests: closed loop (a fixed number in flight) or open loop (Poisson arrivals).

Load runs in processes of its own, at most STREAMS_PER_PROCESS streams each, so that neither a progress
display nor hundreds of other streams delay a time stamp. All of a pass's processes take requests from one
shared counter: whatever their number, requests start in the same order.

    Workers.run (main process) → run_shard (load process) → drive → StreamClient
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Barrier
from types import TracebackType
from typing import Any

from harness.errors import MtpbenchError
from harness.load.dialects import DIALECTS
from harness.load.requests import PlannedRequest, to_record
from harness.load.stream import RawStream, StreamClient
from harness.model import RequestRecord, RequestStatus

# httpx needs about 40 µs an event; 128 streams of a fast server stay under half a core (docs/client.md).
STREAMS_PER_PROCESS = 128
_HEARTBEAT_S = 0.02
_TIMER_RESOLUTION_S = 1e-3  # of uvloop's timers: lateness within it is not the loop's
# Every process gets the time to read its requests before the common start: bodies arrive at > 100 MB/s.
_START_DELAY_S = 0.1
_START_DELAY_S_PER_BYTE = 1e-8

_STOP_STATUS = (RequestStatus.CANCELLED, RequestStatus.SERVER_DIED, RequestStatus.TIMED_OUT)


@dataclass(frozen=True)
class LoadJob:
    """What every load process of a pass is told. `slots` are numbered from 0 over all processes."""

    url: str
    dialect: str
    requests: tuple[PlannedRequest, ...]
    slots: int
    open_loop: bool
    timeout_s: float
    keep_alive: bool = True


@dataclass(frozen=True)
class LoadResult:
    """`t_start` is when the first request was allowed to go; `lags`: (when, how late an event loop ran), in s."""

    requests: tuple[RequestRecord, ...]
    t_start: float
    t_end: float
    lags: tuple[tuple[float, float], ...] = ()


@dataclass
class Board:
    """Shared between the processes of a pass: who takes which request, how it goes, whether to stop.

    `everyone` is where processes wait for each other. `state` holds five numbers a process: last arrival, in flight,
    decoding (in flight with a first token), finished, failed.
    """

    everyone: Barrier
    ticket: Synchronized[int]
    stop: Synchronized[int]  # 0: go on; else 1 + the index into _STOP_STATUS
    state: Any  # RawArray of doubles: each process writes only its own fields

    FIELDS = 5

    @classmethod
    def create(cls, processes: int) -> Board:
        context = multiprocessing.get_context("spawn")
        return cls(
            context.Barrier(processes),
            context.Value("q", 0),
            context.Value("i", 0),
            context.RawArray("d", cls.FIELDS * processes),
        )

    def reset(self) -> None:
        self.ticket.value = 0
        self.stop.value = 0
        for position in range(len(self.state)):
            self.state[position] = 0.0

    def take(self) -> int:
        with self.ticket.get_lock():
            number = self.ticket.value
            self.ticket.value = number + 1
        return number

    def request_stop(self, status: RequestStatus) -> None:
        self.stop.value = 1 + _STOP_STATUS.index(status)

    @property
    def stop_status(self) -> RequestStatus | None:
        return _STOP_STATUS[self.stop.value - 1] if self.stop.value else None

    def progress(self) -> Progress:
        columns = [self.state[start :: self.FIELDS] for start in range(self.FIELDS)]
        return Progress(
            last_arrival=max(columns[0]),
            in_flight=int(sum(columns[1])),
            decoding=int(sum(columns[2])),
            finished=int(sum(columns[3])),
            failed=int(sum(columns[4])),
        )


@dataclass(frozen=True)
class Progress:
    """A pass seen from outside while it runs; `last_arrival` is 0 before anything arrived."""

    last_arrival: float
    in_flight: int
    decoding: int
    finished: int
    failed: int


@dataclass
class _Slot:
    """The part of the board that belongs to one process, as counters."""

    board: Board
    base: int

    def add(self, column: int, amount: int) -> None:
        self.board.state[self.base + column] += amount

    def arrival(self, t: float) -> None:
        self.board.state[self.base] = t


Send = Callable[[PlannedRequest, int, Callable[[float], None]], Awaitable[RawStream]]


@dataclass
class Shard:
    """One process's share of a pass, independent of httpx and of real time: both are handed in."""

    job: LoadJob
    slots: Sequence[int]
    board: Board
    number: int
    send: Send
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Coroutine[Any, Any, None]] = asyncio.sleep
    results: list[tuple[PlannedRequest, int, float, RawStream]] = field(default_factory=list)

    async def drive(self, t_start: float) -> None:
        """Runs until no request is left or the board says stop; results are in `results`."""
        await self.sleep(max(0.0, t_start - self.clock()))
        slots = [asyncio.create_task(self._slot(slot, t_start)) for slot in self.slots]
        watcher = asyncio.create_task(self._cancel_on_stop(slots))
        try:
            await asyncio.gather(*slots)
        finally:
            watcher.cancel()

    async def _slot(self, slot: int, t_start: float) -> None:
        mine = _Slot(self.board, self.number * Board.FIELDS)
        while self.board.stop_status is None:
            number = self.board.take()
            if number >= len(self.job.requests):
                return
            plan = self.job.requests[number]
            due = t_start + plan.offset if self.job.open_loop else self.clock()
            if due > self.clock():
                try:
                    await self.sleep(due - self.clock())
                except asyncio.CancelledError:
                    return
            self.results.append((plan, slot, due, await self._request(plan, slot, mine)))

    async def _request(self, plan: PlannedRequest, slot: int, mine: _Slot) -> RawStream:
        first = True

        def on_event(t: float) -> None:
            nonlocal first
            mine.arrival(t)
            if first:
                mine.add(2, 1)
                first = False

        mine.add(1, 1)
        raw = await self.send(plan, slot, on_event)
        mine.add(1, -1)
        if not first:
            mine.add(2, -1)
        mine.add(3 if raw.outcome == "eof" else 4, 1)
        return raw

    async def _cancel_on_stop(self, slots: Sequence[asyncio.Task[None]]) -> None:
        while self.board.stop_status is None:
            await asyncio.sleep(0.05)
        for task in slots:
            task.cancel()


async def _heartbeat(lags: list[tuple[float, float]]) -> None:
    """How late this event loop wakes up: what it adds, at worst, to a time stamp."""
    while True:
        before = time.monotonic()
        await asyncio.sleep(_HEARTBEAT_S)
        now = time.monotonic()
        lags.append((now, max(0.0, now - before - _HEARTBEAT_S - _TIMER_RESOLUTION_S)))


async def _run_shard(
    job: LoadJob, slots: Sequence[int], number: int, t_start: float, board: Board
) -> tuple[list[RequestRecord], list[tuple[float, float]]]:
    dialect = DIALECTS[job.dialect]
    clients = {slot: StreamClient(job.url, job.timeout_s, job.keep_alive) for slot in slots}

    async def send(plan: PlannedRequest, slot: int, on_event: Callable[[float], None]) -> RawStream:
        return await clients[slot].stream(dialect.path, plan.body, on_event)

    shard = Shard(job, slots, board, number, send)
    lags: list[tuple[float, float]] = []
    heartbeat = asyncio.create_task(_heartbeat(lags))
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        await shard.drive(t_start)
    finally:
        gc.enable()
        heartbeat.cancel()
        for client in clients.values():
            await client.close()
    stopped = board.stop_status or RequestStatus.CANCELLED
    records = [to_record(plan, slot, due, raw, dialect, stopped) for plan, slot, due, raw in shard.results]
    return records, lags


# What a load process keeps between passes; set once by _init_process, because shared memory can only be
# handed over at the start of a process.
_board: Board | None = None


def _init_process(board: Board) -> None:
    global _board
    _board = board
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the main process decides


def _meet() -> None:
    """A process's first task: over when all of them are there."""
    assert _board is not None
    _board.everyone.wait()


def _end_with_parent() -> None:
    """A killed harness must leave no load behind."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "runs only in a load process"
    parent.join()
    os._exit(1)


def run_shard(
    job: LoadJob, slots: Sequence[int], number: int, t_start: float
) -> tuple[list[RequestRecord], list[tuple[float, float]]]:
    """One process's share of a pass: its records, and the lags of its event loop in seconds."""
    assert _board is not None, "run_shard runs only in a process that Workers started"
    if sys.platform == "win32":
        return asyncio.run(_run_shard(job, slots, number, t_start, _board))
    import uvloop

    return uvloop.run(_run_shard(job, slots, number, t_start, _board))


class Workers:
    """The load processes of an experiment, kept between passes. They start at once, while the first server does."""

    def __init__(self, max_slots: int) -> None:
        self.processes = -(-max_slots // STREAMS_PER_PROCESS)
        self.board = Board.create(self.processes)
        self._pool = ProcessPoolExecutor(
            self.processes,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_init_process,
            initargs=(self.board,),
        )
        self._up: list[Future[None]] = []

    def __enter__(self) -> Workers:
        self._up = [self._pool.submit(_meet) for _ in range(self.processes)]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.board.request_stop(RequestStatus.CANCELLED)
        self._pool.shutdown(wait=True, cancel_futures=True)

    async def run(self, job: LoadJob) -> LoadResult:
        """Sends all requests of `job`; ends early when the board says stop."""
        shards = [range(job.slots)[number :: self.processes] for number in range(self.processes)]
        loop = asyncio.get_running_loop()
        size = sum(len(request.body) for request in job.requests) * self.processes
        try:
            await asyncio.gather(*map(asyncio.wrap_future, self._up))
            self.board.reset()
            t_start = time.monotonic() + _START_DELAY_S + _START_DELAY_S_PER_BYTE * size
            futures = [
                loop.run_in_executor(self._pool, run_shard, job, list(slots), number, t_start)
                for number, slots in enumerate(shards)
                if slots
            ]
            done = await asyncio.gather(*futures)
        except BrokenProcessPool as error:
            raise MtpbenchError(
                "a load-generating process was killed in the middle of a pass",
                "Finished passes are saved; look for the out-of-memory killer (dmesg), then run with --resume.",
            ) from error
        records = sorted((record for part, _ in done for record in part), key=lambda r: r.index)
        lags = tuple(lag for _, part in done for lag in part)
        return LoadResult(tuple(records), t_start, time.monotonic(), lags)
