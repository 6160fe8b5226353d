"""Is the client right? Its TTFT and TPOT beside the scripted server's own time stamps.

`mtpbench selftest client` prints the table that is in docs/client.md.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.engines.base import LaunchContext
from harness.engines.script import ScriptedSettings
from harness.engines.scripted import Scripted
from harness.engines.server import free_port, server_process
from harness.http import ControlClient
from harness.load.dialects import DIALECTS, Prompt, Sampling
from harness.load.requests import PlannedRequest
from harness.load.workers import LoadJob, Workers
from harness.metrics.definitions import tpot, ttft
from harness.metrics.steady_window import counted, lag_p99, steady_window
from harness.model import LoadLevel, RequestRecord

_OUTPUT_TOKENS = 60
# Streams out of step with each other, three tokens every 20 ms, as MTP on a busy server sends them.
_SCRIPT = {"engine": "scripted", "ttft": "100ms", "ttft_jitter": "300ms", "step": "20ms", "chunk_tokens": [3]}


@dataclass(frozen=True)
class ClientErrors:
    """Measured minus true, in seconds, one of each for every request of the steady state."""

    ttft: tuple[float, ...]
    tpot: tuple[float, ...]
    lag_p99: float

    def percentiles(self, name: str) -> tuple[float, ...]:
        """Median, p90, p99 and maximum of the absolute error of `ttft` or `tpot`."""
        return tuple(np.percentile(np.abs(getattr(self, name)), (50, 90, 99, 100)))


def compare(
    requests: Sequence[RequestRecord], truth: Sequence[dict[str, Any]], streams: int, lag: float = 0.0
) -> ClientErrors:
    """Pairs each counted request with what the server wrote down; prompts begin with the request's index.

    The true TTFT runs from the arrival of the request's bytes at the server's event loop to the sending of its
    first token, the true TPOT over its own stamps.
    """
    level = LoadLevel(concurrency=streams)
    told = {entry["prompt"][0]: entry for entry in truth}
    first_errors, token_errors = [], []
    for record in counted(requests, steady_window(requests, level), level):
        entry = told[record.index]
        (first, n_first), (last, n_last) = entry["events"][0], entry["events"][-1]
        measured_first, measured_token = ttft(record), tpot(record)
        if measured_first is not None and measured_token is not None:
            first_errors.append(measured_first - (first - entry["arrived"]))
            token_errors.append(measured_token - (last - first) / (n_last - n_first))
    return ClientErrors(tuple(first_errors), tuple(token_errors), lag)


async def check_client(streams: int, rounds: int = 4) -> ClientErrors:
    """Drives a scripted server with so many streams, and compares."""
    engine, settings = Scripted(), ScriptedSettings.model_validate(_SCRIPT)
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        context = LaunchContext(port, f"client-check-{port}", 1, (), streams, 128, Path(folder))
        command = engine.command(settings, context)
        server = server_process(engine, settings, context, command, Path(folder) / "server.log")
        async with server, ControlClient(server.base_url) as http:
            job = LoadJob(server.base_url, "openai", _requests(rounds * streams), streams, False, 60.0)
            with Workers(streams) as workers:
                result = await workers.run(job)
            truth = (await http.get("/truth")).json()
    window = steady_window(result.requests, LoadLevel(concurrency=streams))
    return compare(result.requests, truth, streams, lag_p99(result.lags, window))


def _requests(count: int) -> tuple[PlannedRequest, ...]:
    body = DIALECTS["openai"].body
    return tuple(
        PlannedRequest(n, body(Prompt(4, ids=(n, 1, 2, 3)), _OUTPUT_TOKENS, Sampling("any")), 4, _OUTPUT_TOKENS)
        for n in range(count)
    )
