"""The truth server, checked by another client than ours, and the comparison with it."""

from __future__ import annotations

import http.client
import json
import time
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from harness.metrics.client_health import Health, health
from harness.metrics.steady_window import Window
from harness.model import Event, LoadLevel, RequestRecord, RequestStatus
from harness.selftest.client import Streams, cells, check_arrivals, check_client, errors_against, serving
from harness.selftest.truth_server import Schedule, Truth, read_truth


def ask(link: http.client.HTTPConnection, path: str, body: dict[str, object]) -> list[tuple[float, str]]:
    link.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    answer, out = link.getresponse(), []
    assert answer.status == 200
    while line := answer.readline():
        if line.startswith(b"data: "):
            out.append((time.monotonic(), line[6:].decode().strip()))
    return out


@pytest.mark.parametrize("lockstep", [False, True])
def test_the_server_does_what_it_writes_down(tmp_path: Path, lockstep: bool) -> None:
    """By the standard library's client: texts, counts, gaps, and times that this process agrees with."""
    plan = Schedule(ttft=0.05, jitter=0.02, gap=0.03, chunk_tokens=4, lockstep=lockstep)
    with serving(plan, tmp_path / "t.npz") as url:
        link = http.client.HTTPConnection(urlsplit(url).netloc)
        begun = time.monotonic()
        options = {"include_usage": True, "continuous_usage_stats": True}
        body = {"prompt": "QID7 x", "max_tokens": 10, "stream": True, "stream_options": options}
        first = ask(link, "/v1/completions", body)
        chat = {"messages": [{"role": "user", "content": "QID9 y"}], "max_tokens": 2, "stream": True}
        second = ask(link, "/v1/chat/completions", chat)
        link.close()
    truth = read_truth(tmp_path / "t.npz")
    assert truth.number.tolist() == [7, 9]
    assert truth.tokens.tolist() == [1, 5, 9, 10, 1, 2]
    assert truth.new_tokens.tolist() == [1, 4, 4, 1, 1, 1]
    assert truth.request.tolist() == [0, 0, 0, 0, 1, 1]
    assert truth.blocked == 0
    assert (truth.late >= 0).all()
    assert np.diff(truth.due[:4]) == pytest.approx([0.03] * 3)
    wait = truth.due[0] - truth.arrived[0]
    assert 0.05 <= wait <= 0.07 + (0.03 if lockstep else 0)
    if lockstep:
        assert truth.due[:4] / 0.03 == pytest.approx(np.round(truth.due[:4] / 0.03), abs=1e-6)
    assert begun < truth.arrived[0] < truth.sent[0]
    messages = [json.loads(text) for _, text in first if text != "[DONE]"]
    assert [m["usage"]["completion_tokens"] for m in messages] == [1, 5, 9, 10, 10]
    assert "".join(m["choices"][0]["text"] for m in messages[:-1]) == " R00000000" + 9 * " tok"
    assert messages[-2]["choices"][0]["finish_reason"] == "length"
    assert first[-1][1] == second[-1][1] == "[DONE]"
    for (seen, _), sent in zip(first[:4], truth.sent[:4], strict=True):
        assert 0 < seen - sent < 1
    assert all("usage" not in json.loads(text) for _, text in second[:-1])  # nobody asked


def test_odd_requests_do_not_end_the_server(tmp_path: Path) -> None:
    with serving(Schedule(0.01, 0.0, 0.01), tmp_path / "t.npz") as url:
        for path, body, status in [
            ("/v1/completions", b"[1]", 400),
            ("/v1/completions", b"\xff", 400),
            ("/x", b"", 404),
        ]:
            link = http.client.HTTPConnection(urlsplit(url).netloc)
            link.request("POST", path, body)
            assert link.getresponse().status == status
            link.close()
    assert len(read_truth(tmp_path / "t.npz").number) == 0


def test_errors_by_hand() -> None:
    """Two requests, sent at 10.0 and 20.0, of which the server knows other times."""

    def record(index: int, start: float, times: list[float]) -> RequestRecord:
        events = tuple(Event(t, n) for n, t in enumerate(times, 1))
        return RequestRecord(index, 0, start, start, times[-1], RequestStatus.OK, events)

    requests = [record(n, 10.0 * n, [10 * n + 1.0, 10 * n + 2.5]) for n in (1, 2, 3)]
    truth = Truth(
        number=np.array([3, 2, 1]),
        arrived=np.array([30.0, 20.1, 10.0]),
        request=np.array([2, 1, 2, 1, 0, 0]),
        due=np.zeros(6),
        sent=np.array([10.9, 20.8, 12.4, 22.2, 31.0, 32.0]),
        tokens=np.array([1, 1, 2, 2, 1, 2]),
        blocked=0,
    )
    errors = errors_against(requests, truth, LoadLevel(concurrency=1))  # the first one is the ramp
    assert errors.stamp == pytest.approx([21 - 20.8, 22.5 - 22.2, 31 - 31, 32.5 - 32])
    assert errors.ttft == pytest.approx([1.0 - 0.7, 1.0 - 1.0])
    assert errors.tpot == pytest.approx([1.5 - 1.4, 1.5 - 1.0])
    assert errors.e2e == pytest.approx([2.5 - 2.1, 2.5 - 2.0])


def test_health_by_hand() -> None:
    """Of two processes over [0, 10]: what is outside does not count; the busier one does."""
    idle = [(1.0, 0.0, 0.1), (5.0, 0.0, 0.2), (9.0, 0.002, 0.3)]
    busy = [(-1.0, 5.0, 0.0), (1.0, 0.0, 1.0), (9.0, 0.0, 7.0), (11.0, 5.0, 8.0)]
    found = health([idle, busy], Window(0.0, 10.0))
    assert found == Health(0.0, pytest.approx(1 / 5), pytest.approx(6 / 8))
    assert health([[]], None) == Health(None, None, None)


def test_the_client_agrees_with_the_truth() -> None:
    """Counts and pairs, not times: how exact the client is on this machine `mtpbench selftest client` says."""
    checked = check_client(Streams(8, 12, 4, Schedule(0.05, 0.02, 0.02, 3)))
    assert checked.failed == 0
    assert len(checked.errors.ttft) >= 8
    assert len(checked.errors.stamp) == 5 * len(checked.errors.ttft)
    assert 0.5 < checked.tokens_per_s / checked.case.ideal < 1.05
    assert (checked.errors.stamp > -1e-4).all()  # nothing is seen before it is sent
    assert all(cells(checked))


def test_arrivals_are_those_that_were_asked_for() -> None:
    found = check_arrivals(100.0, 40, 64, Schedule(0.02, 0.0, 0.001))
    assert found.failed == 0
    assert (found.late >= 0).all()
    assert found.seen_rate == pytest.approx(found.asked_rate, rel=0.3)
    assert 0.5 < found.asked_variation < 1.5
