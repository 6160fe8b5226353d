"""Whole runs against servers that are odd in one way: the right word, exit code and sentence, and the run goes on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from commands import mtpbench, run
from conftest import SCENARIO, one_pass, request
from odd_server import OddServer

from harness.checks.passes import Expectations, findings
from harness.load.open_files import allow_files
from harness.metrics.definitions import PassView, distribution
from harness.model import Finding, GpuSample
from harness.results.report import build
from harness.store.runs import StoredRun


def scenario(server: OddServer, *, api: str = "openai", more: str = "", arms: str = "{one: {}}", **changes: str) -> str:
    text = SCENARIO.split("server:")[0]
    text += f"server: {{engine: attach, url: '{server.url}', api: {api}{more}}}\narms: {arms}\n"
    text += SCENARIO[SCENARIO.index("workload:") :].replace("concurrency: [1, 2]", "concurrency: [2]")
    for old, new in {"requests_per_slot: 4": "requests_per_slot: 3", "min_requests: 8": "min_requests: 6"}.items():
        text = text.replace(old, new)
    for old, new in changes.items():
        text = text.replace(f"  {old}: ", f"  {new}: " if not new.startswith("=") else f"  {new[1:]} #")
    return text


def said(stored: StoredRun, output: str) -> str:
    return " ".join(output.split()) + build(stored).headline


def test_one_odd_event_is_one_failed_request_and_no_end(tmp_path: Path) -> None:
    """`usage` as a list in every answer: INVALID (2), not a traceback (1), which automation would read as FAIL."""
    with OddServer("usage_list").running() as server:
        text = scenario(server).replace("arrival:", "arrival:\n  warmup_per_slot: 0")
        stored, output = run(tmp_path, text, check=2)
    assert "INVALID: 6 of 6 requests failed" in said(stored, output)
    assert "an event can't be read: `usage` is not an object: b'{\"choices\"" in said(stored, output)
    assert "Traceback" not in output


@pytest.mark.parametrize("page", ["comma", "html", "nan", "garbage"])
def test_a_page_of_metrics_that_cannot_be_read_is_none(tmp_path: Path, page: str) -> None:
    with OddServer("plain", page=page).running() as server:
        stored, _ = run(tmp_path, scenario(server, api="llamacpp"))
    assert build(stored).headline == "OK: all 6 requests succeeded in 1 passes"


def test_nothing_is_measured_where_no_warm_up_succeeded(tmp_path: Path) -> None:
    with OddServer("negative_usage").running() as server:
        text = scenario(server).replace("concurrency: [2]", "concurrency: [1, 2]")
        stored, output = run(tmp_path, text, check=2)
        assert server.requests == 1  # the warm-up of the first level; the second is not tried
    assert "INCOMPLETE: 0 of 2 passes are complete: all 1 warm-up requests at 1 failed" in build(stored).headline
    assert "`completion_tokens` can't be -1" in output


def test_a_server_that_is_healthy_and_silent_does_not_keep_a_run(tmp_path: Path) -> None:
    with OddServer("plain", silent=True).running() as server:
        _, output = run(tmp_path, scenario(server, more=", stall_timeout: 1s, silence_timeout: 2s"), check=2)
    assert re.search(r"nothing at all arrived for \d+ s while 2 requests waited", output)
    assert "raise server.silence_timeout" in output


def test_an_attached_server_that_died_is_called_so_once(tmp_path: Path) -> None:
    with OddServer("plain", refuse_after=5).running() as server:
        stored, output = run(
            tmp_path, scenario(server, arms="{one: {}, two: {}}", more=", request_timeout: 5s"), check=2
        )
        assert server.requests <= 8
    text = said(stored, output)
    assert "no longer answers" in text
    assert "does not answer" in text  # the second arm
    assert "/tokenize" not in text
    assert "INCOMPLETE: 0 of 2 passes" in text


def test_an_open_loop_that_waits_in_the_client_is_none(tmp_path: Path) -> None:
    """Two slots for 200 requests/s of a quarter second each: sends are late, latency counts from the schedule."""
    with OddServer("plain").running() as server:
        text = scenario(server).replace("concurrency: [2]", "rates: [200/s]\n  max_in_flight: 2")
        text = text.replace("  requests_per_slot: 3\n", "").replace("min_requests: 6", "min_requests: 30")
        stored, output = run(tmp_path, text, check=2)
    text = said(stored, output)
    assert "INVALID:" in text
    assert "after their time, at most 2 in flight" in text
    assert "200 were asked for" in text
    assert "sent/s" in output
    report = build(stored)
    [line] = report.lines
    assert line.get("lateness_p50") > 0.1  # type: ignore[operator]
    assert line.get("ttft_p50") == pytest.approx(line.get("ttft_from_send_p50") + line.get("lateness_p50"), rel=0.5)  # type: ignore[operator]
    assert line.get("ttft_p50") > 3 * line.get("ttft_from_send_p50")  # type: ignore[operator]
    assert line.get("arrival_rate") < 30  # type: ignore[operator]


def found(view: PassView) -> dict[str, Finding]:
    expected = Expectations(view.source.record.key.level.concurrency, None, True, 0, True)
    return {finding.code: finding for finding in findings(view, expected)}


def test_every_request_preempted_is_said() -> None:
    requests = [request(n, send=float(n), events=[(n + 0.1, 1), (n + 0.9, 9)]) for n in range(16)]
    every = found(PassView.of(one_pass(requests, counters={"retracted_requests": 16.0})))["requests_preempted"]
    some = found(PassView.of(one_pass(requests, counters={"retracted_requests": 2.0})))["requests_preempted"]
    assert "16 times in this pass of 16" in every.message
    assert (every.invalid, some.invalid) == (True, False)
    assert "requests_preempted" not in found(PassView.of(one_pass(requests, counters={"retracted_requests": 0.0})))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"prompt_tokens": 5, "cached_tokens": 6}, "6 cached tokens of a prompt of 5"),
        ({"verify_steps": 12}, "12 verify steps for 9 tokens"),
    ],
)
def test_counts_that_cannot_all_be_right_are_invalid(values: dict[str, int], said: str) -> None:
    requests = [request(n, send=float(n), events=[(n + 0.1, 1), (n + 0.9, 9)], **values) for n in range(6)]
    finding = found(PassView.of(one_pass(requests)))["impossible_counts"]
    assert finding.invalid
    assert said in finding.message


def test_answers_in_one_piece_have_a_dash_and_a_reason() -> None:
    requests = [request(n, send=float(n), events=[(n + 0.5, 1), (n + 0.5001, 9)]) for n in range(6)]
    view = PassView.of(one_pass(requests))
    assert "6 of 6 answers came in one piece" in found(view)["all_at_once"].message
    assert distribution("tpot", view).percentiles[50] is None


def test_clocks_that_dip_are_no_news_and_clocks_that_stay_low_are() -> None:
    requests = [request(n, send=float(n), events=[(n + 0.1, 1), (n + 0.9, 9)]) for n in range(6)]

    def clocks(*mhz: float) -> PassView:
        return PassView.of(one_pass(requests, gpu=tuple(GpuSample(1.0 + n / 9, 0, one) for n, one in enumerate(mhz))))

    assert "clock_dropped" not in found(clocks(1755, 1980, 1800, 1755))
    low = found(clocks(1980, 1000, 1000, 1000))["clock_dropped"]
    assert "1245 MHz on average in the steady state, though it can at 1980" in low.message


def test_notes_of_one_level_are_of_that_level_alone(tmp_path: Path) -> None:
    text = SCENARIO.replace("plain: {}", "plain: {faults: [{kind: error_after, requests: [3, 4], at: 2}]}")
    text = text.replace("  drafts: {chunk_tokens: [4], speculative: true}\n", "")
    text = text.replace("arrival:", "arrival:\n  warmup_per_slot: 0")
    _, output = run(tmp_path, text, check=2)
    assert "plain at 1: 2 of 8 requests failed" in " ".join(output.split())
    assert "plain at 2: 2 of" not in output
    assert "could not keep up" not in output


def test_what_nobody_counts_is_a_dash_with_a_reason(tmp_path: Path) -> None:
    with OddServer("no_usage").running() as server:
        text = scenario(server).replace("output_tokens: 16", "output_tokens: 16\n  ignore_eos: false")
        stored, output = run(tmp_path, text)
    assert "the server does not say how many tokens it sent in 6 of 6 answers" in said(stored, output)
    [line] = build(stored).lines
    assert line.get("tpot_p50") is None
    assert line.get("output_throughput") is None
    assert line.get("ttft_p50") > 0  # type: ignore[operator]


def test_files_that_a_process_may_open_are_looked_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    from harness.errors import MtpbenchError

    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 100))
    with pytest.raises(MtpbenchError, match="512 streams need 576 open files, and this process may have 100"):
        allow_files(512)
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: seen.append(limits))
    allow_files(20)
    assert seen == [(84, 100)]


def test_the_unforeseen_has_a_code_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*_: object) -> None:
        raise ZeroDivisionError("hf_abcdefghijklmnopqrstuvwxyz in the middle of\nnowhere")

    monkeypatch.setattr("harness.cli.environment.fingerprint", bug)
    done = mtpbench("environment", cwd=tmp_path, check=70, XDG_CACHE_HOME=str(tmp_path / "cache"))
    text = " ".join(done.stderr.split())
    assert (
        "this is a bug of mtpbench, or something that it does not know: ZeroDivisionError: *** in the middle of" in text
    )
    [saved] = (tmp_path / "cache" / "mtpbench" / "tracebacks").iterdir()
    assert saved.name in text.replace(" ", "")
    assert "ZeroDivisionError" in saved.read_text()
    assert "hf_abc" not in saved.read_text() + done.stderr
    assert "Traceback" not in done.stderr
