"""Client and load against a real server whose timing, counts and faults are known."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from servers import drive, measure, requests, scripted

from harness.load.turnstile import Turnstile
from harness.load.workers import LoadJob, Workers, load_processes
from harness.metrics.definitions import accept_length, inter_token_latencies, tpot, ttft
from harness.metrics.steady_window import peak_in_flight
from harness.model import RequestStatus

FAULTS = {
    "error_before_first": (0, RequestStatus.STREAM_ERROR, "scripted failure", 0),
    "error_after": (3, RequestStatus.STREAM_ERROR, "after 3 tokens", 3),
    "http_503": (0, RequestStatus.REFUSED, "HTTP 503", 0),
    "drop": (3, RequestStatus.TRUNCATED, "connection lost", 3),
    "no_done": (3, RequestStatus.TRUNCATED, "without its end mark", 3),
    "only_done": (0, RequestStatus.TRUNCATED, "without a single token", 0),
    "stop_early": (3, RequestStatus.TRUNCATED, "3 of 8 tokens, finish reason stop", 3),
}


@pytest.mark.parametrize("api", ["openai", "sglang"])
def test_every_fault_has_its_terminal_state(tmp_path: Path, api: str) -> None:
    """Only whole streams are ok, and only tokens that arrived are credited."""
    # Every second request goes wrong, each in its own way; those between must not notice.
    faults = [{"kind": kind, "requests": [2 * n + 1], "at": FAULTS[kind][0]} for n, kind in enumerate(FAULTS)]
    result = measure(tmp_path, count=2 * len(FAULTS) + 1, slots=1, faults=faults, api=api)
    for good in result.requests[::2]:
        assert (good.status, good.tokens) == (RequestStatus.OK, 8), good.error
    for kind, bad in zip(FAULTS, result.requests[1::2], strict=True):
        _, status, message, received = FAULTS[kind]
        assert bad.status is status, kind
        assert message in bad.error, kind
        assert (bad.events[-1].tokens if bad.events else 0) == received, kind


WIRES = ["plain", "bytewise", "crlf", "comments", "no_space", "coalesced"]


@pytest.mark.parametrize(("api", "wire"), [*(("openai", wire) for wire in WIRES), ("sglang", "bytewise")])
def test_bytes_cut_and_decorated_anyhow(tmp_path: Path, wire: str, api: str) -> None:
    """The same tokens arrive, whatever the wire does."""
    result = measure(tmp_path, count=2, slots=1, output_tokens=30, wire=wire, api=api)
    assert [r.status for r in result.requests] == [RequestStatus.OK] * 2
    assert [r.tokens for r in result.requests] == [30, 30]
    assert len({r.output_digest for r in result.requests}) == 1


def test_output_digest_does_not_depend_on_the_wire(tmp_path: Path) -> None:
    digests = set()
    for wire in ("plain", "coalesced"):
        digests.add(measure(tmp_path, count=1, slots=1, wire=wire).requests[0].output_digest)
    assert len(digests) == 1


@pytest.mark.parametrize("usage", ["every_chunk", "final", "none"])
def test_usage_wherever_the_server_reports_it(tmp_path: Path, usage: str) -> None:
    result = measure(tmp_path, count=1, slots=1, output_tokens=9, chunk_tokens=[4], usage=usage)
    record = result.requests[0]
    if usage == "none":  # three chunks arrived; that they held nine tokens nobody said
        assert record.status is RequestStatus.TRUNCATED
        assert record.tokens == 3
    else:
        assert record.ok
        assert record.tokens == 9


def test_chat_stream_with_a_role_chunk(tmp_path: Path) -> None:
    """TTFT is the time of the first token, not of the chunk that only names the role."""

    async def main():
        async with scripted(tmp_path, role_chunk=True, ttft=0.2) as running:
            return await drive(running.base_url, 1, 1, api="openai-chat")

    record = asyncio.run(main()).requests[0]
    assert record.ok
    assert ttft(record) >= 0.2  # type: ignore[operator]


def test_four_token_chunks(tmp_path: Path) -> None:
    """Four tokens a chunk, from the server to the metrics: accept length 4, ITL a quarter of the step."""
    result = measure(tmp_path, count=1, slots=1, output_tokens=41, step=0.02, chunk_tokens=[4], speculative=True)
    record = result.requests[0]
    assert record.verify_steps == 10
    assert accept_length(record) == 4.0
    samples = inter_token_latencies(record)
    assert len(samples) == 40
    assert np.median(samples) == pytest.approx(tpot(record), rel=0.3)


def test_time_out(tmp_path: Path) -> None:
    async def main():
        async with scripted(tmp_path, faults=[{"kind": "stall", "requests": [0], "at": 2}]) as running:
            return await drive(running.base_url, 2, 1, timeout_s=1.0)

    stalled, good = asyncio.run(main()).requests
    assert stalled.status is RequestStatus.TIMED_OUT
    assert "2 of 8 tokens" in stalled.error
    assert good.ok


def test_nobody_listens() -> None:
    result = asyncio.run(drive("http://127.0.0.1:9", 2, 1))
    assert [r.status for r in result.requests] == [RequestStatus.REFUSED] * 2


def test_stop_keeps_what_was_measured(tmp_path: Path) -> None:
    async def main():
        async with scripted(tmp_path, step=0.05) as running:
            job = LoadJob(running.base_url, "openai", requests(8, 400), 4, False, 60.0)
            with Workers(4) as workers:
                task = asyncio.ensure_future(workers.run(job))
                while workers.board.progress().decoding < 4:
                    await asyncio.sleep(0.05)
                workers.board.request_stop(RequestStatus.CANCELLED)
                started = time.monotonic()
                result = await task
                return result, time.monotonic() - started

    result, seconds = asyncio.run(main())
    assert seconds < 3
    assert [r.status for r in result.requests] == [RequestStatus.CANCELLED] * 4  # the others never began
    assert all(r.events for r in result.requests)


def test_concurrency_is_exact_over_several_processes(tmp_path: Path) -> None:
    """160 asked are 160 in flight, not more, over two processes; every request runs once."""

    async def main():
        async with scripted(tmp_path, ttft=0.5, step=0.1) as running:
            return await drive(running.base_url, 320, 160, output_tokens=4)

    result = asyncio.run(main())
    assert [r.index for r in result.requests] == list(range(320))
    assert all(r.ok for r in result.requests)
    assert peak_in_flight(result.requests) == 160
    assert {r.slot for r in result.requests} == set(range(160))


def test_processes_follow_cores() -> None:
    """One core is left for the server and for the rest; few slots need few processes."""
    assert [load_processes(512, cores) for cores in (1, 2, 4, 16)] == [1, 1, 3, 15]
    assert [load_processes(slots, 16) for slots in (1, 16, 17, 2048)] == [1, 1, 2, 15]


def test_open_loop_sends_on_schedule(tmp_path: Path) -> None:
    """Never early; each send and its schedule are kept, in the order of the schedule."""

    async def main():
        async with scripted(tmp_path) as running:
            offsets = [0.0, 0.1, 0.1, 0.15, 0.8]
            planned = [replace(r, offset=t) for r, t in zip(requests(5), offsets, strict=True)]
            with Workers(64) as workers:
                return await workers.run(LoadJob(running.base_url, "openai", tuple(planned), 64, True, 20.0))

    result = asyncio.run(main())
    assert all(r.ok for r in result.requests)
    assert [round(r.t_scheduled - result.t_start, 6) for r in result.requests] == [0.0, 0.1, 0.1, 0.15, 0.8]
    assert all(r.t_send >= r.t_scheduled for r in result.requests)


def test_what_a_load_process_costs_is_told(tmp_path: Path) -> None:
    result = measure(tmp_path, count=4, slots=2, output_tokens=30)
    [cost], [beats] = result.costs, result.pulses
    assert cost.load_s > 0 < cost.decode_s
    assert 10e6 < cost.peak_bytes < 10e9
    assert all(0 <= beat.late < 60 and beat.cpu > 0 for beat in beats)


def test_the_turnstile_lets_two_pass_and_keeps_the_order() -> None:
    async def main() -> list[tuple[int, int]]:
        turnstile, passed, rounds = Turnstile(), [], 0

        def count() -> None:
            nonlocal rounds
            rounds += 1
            loop.call_soon(count)

        async def one(number: int) -> None:
            await turnstile()
            passed.append((number, rounds))

        loop = asyncio.get_running_loop()
        loop.call_soon(count)
        tasks = [asyncio.ensure_future(one(n)) for n in range(9)]
        await asyncio.sleep(0)
        tasks[4].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return passed

    passed = asyncio.run(main())
    assert [number for number, _ in passed] == [0, 1, 2, 3, 5, 6, 7, 8]
    assert max(Counter(turn for _, turn in passed).values()) <= 2
