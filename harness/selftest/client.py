"""Is the client right? Its time stamps beside those of a server that writes down what it really did.

`mtpbench selftest client` prints the table that is in docs/client.md. Server and client share this machine's
monotonic clock; the server has a core of its own, where there are two.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness.engines.server import free_port
from harness.errors import ServerStartError
from harness.http import ControlClient
from harness.load.dialects import DIALECTS, Prompt, Sampling
from harness.load.requests import PlannedRequest
from harness.load.workers import LoadJob, LoadResult, Workers
from harness.metrics.client_health import Health, health
from harness.metrics.definitions import e2e, tpot, ttft
from harness.metrics.steady_window import Window, counted, peak_in_flight, steady_window
from harness.model import LoadLevel, RequestRecord
from harness.scenario.prompts import poisson_offsets
from harness.selftest.truth_server import Schedule, Truth, read_truth

_STARTED_S = 20.0


@dataclass(frozen=True)
class Streams:
    """One cell of the table: so many streams, each with `tokens` tokens an answer, for `rounds` answers a slot."""

    streams: int
    tokens: int = 64
    rounds: int = 4
    schedule: Schedule = field(default_factory=Schedule)

    @property
    def label(self) -> str:
        plan = self.schedule
        step = "in lockstep" if plan.lockstep else "out of step"
        return f"{self.streams} streams {step}, {plan.chunk_tokens} tokens every {1e3 * plan.gap:g} ms"

    @property
    def ideal(self) -> float:
        """Output tokens a second if no slot ever waited between two answers."""
        plan = self.schedule
        chunks = -(-(self.tokens - 1) // plan.chunk_tokens)
        ahead = plan.gap / 2 if plan.lockstep else 0.0  # until the next common step, on average
        return self.streams * self.tokens / (plan.ttft + plan.jitter / 2 + ahead + chunks * plan.gap)


@dataclass(frozen=True)
class Errors:
    """Measured minus true, in seconds, over the steady state: one for each event, and one for each request."""

    stamp: NDArray[np.float64]
    ttft: NDArray[np.float64]
    tpot: NDArray[np.float64]
    e2e: NDArray[np.float64]

    def percentiles(self, name: str, percents: Sequence[float] = (50, 90, 99, 100)) -> tuple[float, ...]:
        """Of the absolute error."""
        values = np.abs(getattr(self, name))
        return tuple(np.percentile(values, percents)) if len(values) else (float("nan"),) * len(percents)


@dataclass(frozen=True)
class Checked:
    """One case, measured."""

    case: Streams
    errors: Errors
    failed: int
    tokens_per_s: float  # that the server sent in the steady state
    cpu_per_event: float  # seconds, of all load processes
    decode_per_event: float  # seconds more, after the load
    peak_bytes: int  # of the largest load process
    server_late_p99: float  # seconds
    health: Health


LEFT = ("load",)
HEADERS = (
    "load",
    "events",
    "stamp p50 / p99",
    "TTFT p50 / p99",
    "TPOT p99",
    "E2E p99",
    "tokens/s (possible)",
    "CPU µs an event (+ decoding)",
    "MB",
    "server late p99",
    "loop late p99",
)


def cells(checked: Checked) -> list[str]:
    """A row of the table; times are in milliseconds."""

    def two(name: str) -> str:
        middle, tail = checked.errors.percentiles(name, (50, 99))
        return f"{1e3 * middle:.3f} / {1e3 * tail:.3f}"

    def tail(name: str) -> str:
        return f"{1e3 * checked.errors.percentiles(name, (99,))[0]:.3f}"

    failed = f", {checked.failed} FAILED" if checked.failed else ""
    return [
        checked.case.label + failed,
        str(len(checked.errors.stamp)),
        two("stamp"),
        two("ttft"),
        tail("tpot"),
        tail("e2e"),
        f"{checked.tokens_per_s:.0f} ({checked.case.ideal:.0f})",
        f"{1e6 * checked.cpu_per_event:.1f} (+ {1e6 * checked.decode_per_event:.1f})",
        f"{checked.peak_bytes / 1e6:.0f}",
        f"{1e3 * checked.server_late_p99:.3f}",
        "–" if checked.health.lag_p99 is None else f"{1e3 * checked.health.lag_p99:.3f}",
    ]


def errors_against(requests: Sequence[RequestRecord], truth: Truth, level: LoadLevel) -> Errors:
    """Pairs each counted request with what the server wrote down; prompts name the request's index.

    The true TTFT runs from the arrival of the request's last byte at the server to the sending of its first token,
    TPOT and E2E likewise, and an event's stamp is compared with the moment before its `send`.
    """
    place = {int(number): position for position, number in enumerate(truth.number)}
    order = np.argsort(truth.request, kind="stable")
    sent, tokens = truth.sent[order], truth.tokens[order]
    edges = np.searchsorted(truth.request[order], np.arange(len(truth.number) + 1))
    stamps, rows = [], []
    for r in counted(requests, steady_window(requests, level), level):
        at = place[r.index]
        when, count = sent[edges[at] : edges[at + 1]], tokens[edges[at] : edges[at + 1]]
        true = dict(zip(count.tolist(), when.tolist(), strict=True))
        stamps += [event.t - true[event.tokens] for event in r.events]
        arrived = truth.arrived[at]
        first, last = when[0] - arrived, when[-1] - arrived
        each = (last - first) / (count[-1] - count[0]) if len(count) > 1 else np.nan
        told = [value if value is not None else np.nan for value in (ttft(r), tpot(r), e2e(r))]
        rows.append((told[0] - first, told[1] - each, told[2] - last))
    table = np.array(rows, dtype=float).reshape(-1, 3)
    return Errors(np.array(stamps), *(column[np.isfinite(column)] for column in table.T))


def check_client(case: Streams) -> Checked:
    """Drives a truth server with one case, and compares."""
    with _own_core() as core, tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "truth.npz"
        with serving(case.schedule, log, core) as url, Workers(case.streams) as workers:
            result = asyncio.run(_load(url, case, workers))
        truth = read_truth(log)
    return _checked(case, result, truth)


async def _load(url: str, case: Streams, workers: Workers) -> LoadResult:
    requests = tuple(request(n, case.tokens) for n in range(case.streams * case.rounds))
    return await workers.run(LoadJob(url, "openai", requests, case.streams, False, 600.0))


def request(number: int, tokens: int) -> PlannedRequest:
    """A request whose prompt names its number."""
    prompt = Prompt(16, text=f"QID{number} the page maps each token to its slot")
    return PlannedRequest(number, DIALECTS["openai"].body(prompt, tokens, Sampling("truth")), prompt.tokens, tokens)


def _checked(case: Streams, result: LoadResult, truth: Truth) -> Checked:
    level = LoadLevel(concurrency=case.streams)
    window = steady_window(result.requests, level) or Window(result.t_start, result.t_end)
    inside = (truth.sent > window.start) & (truth.sent <= window.end)
    events = len(truth.sent)
    return Checked(
        case=case,
        errors=errors_against(result.requests, truth, level),
        failed=sum(not r.ok for r in result.requests),
        tokens_per_s=float(truth.new_tokens[inside].sum()) / window.seconds,
        cpu_per_event=sum(cost.load_s for cost in result.costs) / events,
        decode_per_event=sum(cost.decode_s for cost in result.costs) / events,
        peak_bytes=max(cost.peak_bytes for cost in result.costs),
        server_late_p99=float(np.percentile(truth.late[inside], 99)),
        health=health(result.pulses, window),
    )


@dataclass(frozen=True)
class Arrivals:
    """An open loop as it was: how late sends were, in seconds; requests a second and the coefficient of variation of
    the gaps between arrivals, as asked (1 for Poisson, but for chance) and as the server saw them."""

    late: NDArray[np.float64]
    asked_rate: float
    seen_rate: float
    asked_variation: float
    seen_variation: float
    most_in_flight: int
    failed: int


def check_arrivals(rate: float, count: int, slots: int, schedule: Schedule) -> Arrivals:
    """Sends `count` requests as a Poisson process at `rate`, at most `slots` of them at once."""
    offsets = poisson_offsets(rate, count, 1)
    requests = tuple(replace(request(n, 64), offset=offset) for n, offset in enumerate(offsets))
    with _own_core() as core, tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "truth.npz"
        with serving(schedule, log, core) as url, Workers(slots) as workers:
            result = asyncio.run(workers.run(LoadJob(url, "openai", requests, slots, True, 600.0)))
        seen = np.diff(np.sort(read_truth(log).arrived))
    asked = np.diff(offsets)
    return Arrivals(
        late=np.array([r.t_send - r.t_scheduled for r in result.requests]),
        asked_rate=float(1 / asked.mean()),
        seen_rate=float(1 / seen.mean()),
        asked_variation=float(asked.std() / asked.mean()),
        seen_variation=float(seen.std() / seen.mean()),
        most_in_flight=peak_in_flight(result.requests),
        failed=sum(not r.ok for r in result.requests),
    )


@contextlib.contextmanager
def _own_core() -> Iterator[int | None]:
    """Keeps one core for the server: this process and the load processes to come use the others."""
    cores = os.sched_getaffinity(0)
    if len(cores) == 1:
        yield None
        return
    os.sched_setaffinity(0, cores - {max(cores)})
    try:
        yield max(cores)
    finally:
        os.sched_setaffinity(0, cores)


@contextlib.contextmanager
def serving(schedule: Schedule, log: Path, core: int | None = None) -> Iterator[str]:
    """A truth server's URL; what it did is in `log` when the context is left."""
    port = free_port()
    argv = [sys.executable, "-m", "harness.selftest.truth_server", "--port", str(port), "--log", str(log)]
    argv += ["--ttft", str(schedule.ttft), "--jitter", str(schedule.jitter), "--gap", str(schedule.gap)]
    argv += ["--chunk-tokens", str(schedule.chunk_tokens)] + (["--lockstep"] if schedule.lockstep else [])
    argv += ["--core", str(core)] if core is not None else []
    process = subprocess.Popen(argv)
    url = f"http://127.0.0.1:{port}"
    try:
        asyncio.run(_until_up(url, process))
        yield url
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    finally:
        process.kill()
        process.wait()


async def _until_up(url: str, process: subprocess.Popen[bytes]) -> None:
    async with ControlClient(url) as http:
        for _ in range(int(_STARTED_S / 0.1)):
            if (await http.get("/health", 1.0)).ok:
                return
            if process.poll() is not None:
                break
            await asyncio.sleep(0.1)
    raise ServerStartError("the truth server did not start: see its message above")
