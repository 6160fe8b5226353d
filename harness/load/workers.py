"""Drives one pass of requests: closed loop (a fixed number in flight) or open loop (Poisson arrivals).

Load runs in processes of its own, so that no progress display delays a time stamp: as many as cores allow, one core
being left for the rest. More would take turns on the cores, and a stamp would wait for its process's turn. All of a
pass's processes take requests from one shared counter: whatever their number, requests start in the same order.

    Workers.run (main process) → run_shard (load process) → Shard.drive → StreamClient → Connection
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Barrier
from types import TracebackType
from typing import Any, NamedTuple

from harness.access import PLAIN, Access
from harness.cores import usable_cores
from harness.errors import MtpbenchError
from harness.load.connection import RawStream
from harness.load.dialects import DIALECTS
from harness.load.pulse import Beat, Cost, beat, peak_memory
from harness.load.recording import Compactor
from harness.load.requests import PlannedRequest, to_record
from harness.load.stream import Endpoint, StreamClient
from harness.load.turnstile import Turnstile
from harness.model import RequestRecord, RequestStatus

STREAMS_PER_PROCESS = 16  # with fewer, another process would cost more to start than it saves (docs/client.md)
_CONNECT_AHEAD_S = 0.5  # of a request whose time is known: a connection then costs the request nothing
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
    access: Access = PLAIN


@dataclass(frozen=True)
class LoadResult:
    """`t_start` is when the first request was allowed to go; `pulses` are the looks at each load process."""

    requests: tuple[RequestRecord, ...]
    t_start: float
    t_end: float
    pulses: tuple[tuple[Beat, ...], ...] = ()
    costs: tuple[Cost, ...] = ()  # of each load process


@dataclass
class Board:
    """Shared between the processes of a pass: who takes which request, how it goes, whether to stop.

    `everyone` is where processes wait for each other. `state` holds the same numbers of each process, one after the
    other: when something last arrived, and how many requests are in flight, decode (in flight with a first token),
    have finished, have failed.
    """

    everyone: Barrier
    ticket: Synchronized[int]
    stop: Synchronized[int]  # 0: go on; else 1 + the index into _STOP_STATUS
    state: Any  # RawArray of doubles: each process writes only its own fields

    LAST_ARRIVAL, IN_FLIGHT, DECODING, FINISHED, FAILED = range(5)
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
            last_arrival=max(columns[self.LAST_ARRIVAL]),
            in_flight=int(sum(columns[self.IN_FLIGHT])),
            decoding=int(sum(columns[self.DECODING])),
            finished=int(sum(columns[self.FINISHED])),
            failed=int(sum(columns[self.FAILED])),
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
class _Counters:
    """The part of the board that belongs to one process; only that process writes it."""

    board: Board
    process: int

    def add(self, column: int, amount: int) -> None:
        self.board.state[self.process * Board.FIELDS + column] += amount

    def arrived(self, t: float) -> None:
        self.board.state[self.process * Board.FIELDS + Board.LAST_ARRIVAL] = t


@dataclass
class Shard:
    """One process's share of a pass. `clients` has one for each of its slots."""

    job: LoadJob
    clients: Mapping[int, StreamClient]
    board: Board
    number: int
    turnstile: Turnstile = field(default_factory=Turnstile)
    results: list[tuple[PlannedRequest, int, float, RawStream]] = field(default_factory=list)

    async def drive(self, t_start: float) -> None:
        """Runs until no request is left or the board says stop; results are in `results`."""
        await _until(t_start)
        slots = [asyncio.create_task(self._slot(slot, t_start)) for slot in self.clients]
        watcher = asyncio.create_task(self._cancel_on_stop(slots))
        try:
            await asyncio.gather(*slots)
        finally:
            watcher.cancel()

    async def _slot(self, slot: int, t_start: float) -> None:
        mine = _Counters(self.board, self.number)
        client = self.clients[slot]
        while self.board.stop_status is None:
            number = self.board.take()
            if number >= len(self.job.requests):
                return
            plan = self.job.requests[number]
            due = t_start + plan.offset if self.job.open_loop else time.monotonic()
            try:
                if due - time.monotonic() > _CONNECT_AHEAD_S:
                    await asyncio.sleep(due - time.monotonic() - _CONNECT_AHEAD_S)
                    await client.connect()
                await _until(due)
                await self.turnstile()
            except asyncio.CancelledError:
                return
            self.results.append((plan, slot, due, await self._request(plan, client, mine)))

    async def _request(self, plan: PlannedRequest, client: StreamClient, mine: _Counters) -> RawStream:
        first = True

        def on_event(t: float) -> None:
            nonlocal first
            mine.arrived(t)
            if first:
                mine.add(Board.DECODING, 1)
                first = False

        mine.add(Board.IN_FLIGHT, 1)
        raw = await client.stream(DIALECTS[self.job.dialect].path, plan.body, on_event)
        mine.add(Board.IN_FLIGHT, -1)
        if not first:
            mine.add(Board.DECODING, -1)
        mine.add(Board.FINISHED if raw.outcome == "eof" else Board.FAILED, 1)
        return raw

    async def _cancel_on_stop(self, slots: Sequence[asyncio.Task[None]]) -> None:
        while True:
            await asyncio.sleep(0.05)
            if self.board.stop_status is not None:
                for task in slots:  # again and again: a cancellation can be lost while a connection opens
                    task.cancel()


async def _until(due: float) -> None:
    """Sleeps until `due`, never less. Timers are exact to a millisecond and may be early by half of it."""
    while (left := due - time.monotonic()) > 0:
        await asyncio.sleep(left if left > 5e-4 else 0)


class ShardResult(NamedTuple):
    """What a load process hands back. Records are pickled one by one, which is how they stay small."""

    records: list[bytes]
    beats: list[Beat]
    cost: Cost


async def _run_shard(job: LoadJob, slots: Sequence[int], number: int, t_start: float, board: Board) -> ShardResult:
    dialect = DIALECTS[job.dialect]
    endpoint = await Endpoint.of(job.url, job.access)
    compactor = Compactor()
    shard = Shard(job, {slot: StreamClient(endpoint, job.timeout_s, compactor) for slot in slots}, board, number)
    beats: list[Beat] = []
    heart = asyncio.create_task(beat(beats))
    gc.collect()
    gc.freeze()
    gc.disable()
    began = time.process_time()
    try:
        await shard.drive(t_start)
    finally:
        gc.enable()
        gc.unfreeze()
        heart.cancel()
        for client in shard.clients.values():
            client.close()
    loaded = time.process_time()
    stopped = board.stop_status or RequestStatus.CANCELLED
    records: list[bytes] = []
    while shard.results:  # one at a time: what was kept compactly is a hundred times as large when it is decoded
        plan, slot, due, raw = shard.results.pop()
        records.append(pickle.dumps(to_record(plan, slot, due, raw, dialect, stopped), pickle.HIGHEST_PROTOCOL))
    return ShardResult(records, beats, Cost(loaded - began, time.process_time() - loaded, peak_memory()))


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


def run_shard(job: LoadJob, slots: Sequence[int], number: int, t_start: float) -> ShardResult:
    """One process's share of a pass."""
    assert _board is not None, "run_shard runs only in a process that Workers started"
    if sys.platform == "win32":
        return asyncio.run(_run_shard(job, slots, number, t_start, _board))
    import uvloop

    return uvloop.run(_run_shard(job, slots, number, t_start, _board))


def load_processes(slots: int, cores: int) -> int:
    """How many processes drive so many slots: at most one fewer than there are cores, at least one."""
    return max(1, min(cores - 1, -(-slots // STREAMS_PER_PROCESS)))


class Workers:
    """The load processes of an experiment, kept between passes. They start at once, while the first server does."""

    def __init__(self, max_slots: int) -> None:
        self.processes = load_processes(max_slots, usable_cores())
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
        t_end = time.monotonic()
        records: list[RequestRecord] = sorted((pickle.loads(r) for d in done for r in d.records), key=lambda r: r.index)
        return LoadResult(
            tuple(records), t_start, t_end, tuple(tuple(d.beats) for d in done), tuple(d.cost for d in done)
        )
