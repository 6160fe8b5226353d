"""Whole runs through the command line, on the scripted server: what works, what fails, what is kept."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import psutil
import pytest
from commands import mtpbench, only_run, run, start, write
from conftest import SCENARIO

from harness.cli.measuring import with_prompts
from harness.engines.server import free_port, port_taken
from harness.machine.fingerprint import fingerprint
from harness.machine.telemetry import open_source
from harness.metrics.definitions import PassView, distribution
from harness.model import RequestStatus
from harness.results.report import build
from harness.scenario.yaml_file import parse
from harness.store.runs import RunStore, load_run


def children_of(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def assert_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 20
    while any(psutil.pid_exists(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


def test_a_run_from_scenario_to_report(tmp_path: Path) -> None:
    running = start("run", write(tmp_path), cwd=tmp_path)
    output, _ = running.communicate(timeout=100)
    assert running.returncode == 0, output
    stored = load_run(only_run(tmp_path))
    assert len(stored.passes) == 4
    assert {p.record.key.arm for p in stored.passes} == {"plain", "drafts"}
    # The script: 20 ms, then chunks every 5 ms of one token (plain) or four (drafts).
    for one in stored.passes:
        tpot = distribution("tpot", PassView.of(one)).percentiles[50]
        accepted = distribution("accept_length", PassView.of(one)).mean
        if one.record.key.arm == "plain":
            assert 0.005 <= tpot < 0.015  # type: ignore[operator]
            assert accepted is None
        else:
            assert 0.005 / 4 <= tpot < 0.015 / 4  # type: ignore[operator]
            assert accepted == pytest.approx(15 / 4)  # 15 tokens after the first in chunks of 4, 4, 4 and 3
    assert "SCRIPTED" in output
    assert "TP1 TPOT: drafts is better at every level measured (against plain)." in output
    assert stored.environment["host"]
    assert stored.launches[0].command[1:3] == ("-m", "harness.engines.scripted_server")
    assert stored.launches[0].packages["python"]
    frame = pd.read_parquet(tmp_path / "runs" / "rows")
    assert len(frame) == 4
    assert set(frame["arm"]) == {"plain", "drafts"}
    assert (frame["ok"] == 8).all()
    page = (only_run(tmp_path) / "report.html").read_text()
    assert "vegaEmbed" in page
    ours = page[: page.index("<script>")]  # what follows is vega's bundle, and a browser test looks at that
    assert not re.search(r'(src|href)="(?!data:)', ours)

    # Same prompts in both arms, and never the same in two passes.
    by_pass = {p.record.key.slug: [r.prompt_tokens for r in p.requests] for p in stored.passes}
    assert all(lengths == [32] * 8 for lengths in by_pass.values())

    json_report = json.loads(mtpbench("report", stored.path, "--format", "json", cwd=tmp_path, check=0).stdout)
    assert json_report["valid"] is True
    assert len(json_report["lines"]) == 4
    markdown = mtpbench("report", stored.path, "--format", "markdown", cwd=tmp_path, check=0).stdout
    assert markdown.startswith("**OK: all 32 requests succeeded in 4 passes**")
    assert mtpbench("report", stored.path, cwd=tmp_path, check=0).stdout.count("drafts") >= 2
    assert mtpbench("report", stored.path, "--format", "pdf", cwd=tmp_path, check=2).stderr.count("markdown")
    assert mtpbench("report", tmp_path, cwd=tmp_path, check=2).stderr.count("run.json")


SURPRISES = """\
arms:
  fails: {faults: [{kind: error_after, requests: [5], at: 3}]}
  cached: {cached_tokens: 30}
  loops: {faults: [{kind: repeat}]}
  longer: {prompt_tokens_off_by: 1}
  never: {speculative: true}
"""


def test_failures_and_surprises_are_told_first_and_by_name(tmp_path: Path) -> None:
    """A cache hit, another prompt length, a failure, garbage, and drafts that are never accepted."""
    before, after = SCENARIO.split("arms:\n")
    text = before.replace("5ms", "1ms") + SURPRISES + after[after.index("workload:") :]
    text = text.replace("output_tokens: 16", "output_tokens: 40").replace("concurrency: [1, 2]", "concurrency: [2]")
    stored, output = run(tmp_path, text, check=2)
    headline = build(stored).headline
    assert headline == "INVALID: 1 of 40 requests failed; only the others are counted"
    assert output.index(headline) < output.index("TTFT ms")
    [bad] = [r for p in stored.passes for r in p.requests if not r.ok]
    assert bad.status is RequestStatus.STREAM_ERROR

    found = {(p.record.key.arm, f.code, f.invalid) for p in stored.passes for f in p.record.findings}
    for expected in (
        ("fails", "requests_failed", True),
        ("cached", "cached_tokens", True),
        ("loops", "repeated_output", True),
        ("longer", "prompt_length", False),
        ("never", "no_draft_accepted", True),
    ):
        assert expected in found
    words = " ".join(output.split())
    for said in (
        "found up to 30 prompt tokens in a cache",
        "repeat a few tokens",
        "another length than asked: 33 for 32",
        "speculation is on and not one drafted token was accepted",
    ):
        assert said in words


def test_dead_server_costs_its_own_launch_only(tmp_path: Path) -> None:
    """The first arm's server dies in its second pass; the second arm is measured all the same."""
    text = SCENARIO.replace("plain: {}", "plain: {faults: [{kind: exit, requests: [14], at: 2}]}")
    stored, output = run(tmp_path, text, check=2)
    assert [p.record.key.slug[:10] for p in stored.passes] == ["00-plain-t", "00-drafts-", "00-drafts-"]
    assert "INCOMPLETE: 3 of 4 passes are complete" in output
    assert "the server ended in the middle of the run (exit status 3)" in output
    [failed] = stored.failed
    assert failed.key.level.concurrency == 2
    assert "exit status 3" in failed.status
    lines = (only_run(tmp_path) / "passes" / "failed").glob("*.requests.jsonl.gz")
    assert list(lines)

    # Resuming starts a second server for that launch alone; it serves fewer requests, so request 14 never comes.
    again = mtpbench("run", "--resume", only_run(tmp_path), cwd=tmp_path, check=0)
    assert "[1/2] plain" in again.stdout
    assert "[2/2]" not in again.stdout
    assert "OK: all 32 requests succeeded in 4 passes" in again.stdout
    assert {launch.server_start for launch in load_run(only_run(tmp_path)).launches} == {0, 1}


def test_stalled_server_is_noticed(tmp_path: Path) -> None:
    text = SCENARIO.replace(
        "step: 5ms", "step: 5ms\n  stall_timeout: 2s\n  faults: [{kind: stall, requests: [4], at: 2}]"
    )
    began = time.monotonic()
    stored, output = run(tmp_path, text, "--fail-fast", check=2)
    assert time.monotonic() - began < 30
    assert re.search(r"nothing arrived for 2\.\d s while 1 of 1 requests were decoding", output)
    assert "stall_timeout" in output
    assert stored.failed[0].key.arm == "plain"
    assert len(stored.launches) == 1  # --fail-fast


# The second pass never ends by itself: what interrupts a run comes in the middle of it.
HANGS = SCENARIO.replace("step: 5ms", "step: 5ms\n  stall_timeout: 60s").replace(
    "plain: {}", "plain: {faults: [{kind: stall, requests: [14], at: 2}]}"
)


def hanging(folder: Path) -> subprocess.Popen[str]:
    """A run whose first pass is saved and whose second hangs."""
    running = start("run", "--no-page", write(folder, HANGS), cwd=folder)
    deadline = time.monotonic() + 60
    while not list(folder.glob("runs/*/passes/*.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    return running


def test_ctrl_c_ends_servers_and_resume_finishes(tmp_path: Path) -> None:
    running = hanging(tmp_path)
    family = children_of(running.pid)
    running.send_signal(signal.SIGINT)
    output, _ = running.communicate(timeout=40)
    assert running.returncode == 130, output
    assert "interrupted; finished passes are saved" in output
    assert f"mtpbench run --resume runs/{only_run(tmp_path).name}" in output
    assert_gone(family)
    before = {p.record.key: p.record.started_at for p in load_run(only_run(tmp_path)).passes}
    assert len(before) == 1

    # The new server serves fewer requests: the one that stalls never comes.
    done = mtpbench("run", "--resume", only_run(tmp_path), cwd=tmp_path, check=0)
    assert "OK: all" in done.stdout
    after = load_run(only_run(tmp_path)).passes
    assert len(after) == 4
    assert {p.record.key: p.record.started_at for p in after}.items() >= before.items()  # kept, not measured again


def test_resume_refuses_another_environment(tmp_path: Path) -> None:
    scenario = parse(SCENARIO, "scenario.yaml")
    here = with_prompts(fingerprint(open_source()), scenario)
    RunStore.create(tmp_path / "runs", scenario, SCENARIO, {**here, "host": "elsewhere"}).close()
    refused = mtpbench("run", "--resume", only_run(tmp_path), cwd=tmp_path, check=2)
    assert "no longer the environment in which the run began (host: elsewhere →" in refused.stderr


def test_killed_client_loses_at_most_the_pass_in_flight(tmp_path: Path) -> None:
    running = hanging(tmp_path)
    family = children_of(running.pid)
    running.kill()
    running.communicate()
    assert_gone(family)  # neither servers nor load processes are left
    stored = load_run(only_run(tmp_path))
    assert len(stored.passes) == 1
    assert all(r.ok for p in stored.passes for r in p.requests)
    assert build(stored).headline.startswith("INCOMPLETE")


def test_killed_load_process_is_a_clear_error(tmp_path: Path) -> None:
    running = hanging(tmp_path)
    loaders = [
        child
        for child in psutil.Process(running.pid).children()
        if "multiprocessing.spawn" in " ".join(child.cmdline())
    ]
    assert loaders
    loaders[0].kill()
    output, _ = running.communicate(timeout=40)
    assert running.returncode == 2
    assert "a load-generating process was killed in the middle of a pass" in output
    assert "--resume" in output
    assert load_run(only_run(tmp_path)).passes


def test_full_disk_is_a_clear_error(tmp_path: Path) -> None:
    """A limit on file size stands for a full disk: the second pass no longer fits, the first is readable."""
    # 4 requests, then 240: the second does not fit, however few chunks a busy machine tells apart.
    text = SCENARIO.replace("concurrency: [1, 2]", "concurrency: [1, 60]").replace("min_requests: 8", "min_requests: 4")
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000));"
        "from harness.cli.app import main; sys.argv = ['mtpbench', 'run', 'scenario.yaml']; main()"
    )
    write(tmp_path, text)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "no space left while writing" in done.stderr
    assert "Passes saved before are complete and readable" in done.stderr
    stored = load_run(only_run(tmp_path))
    assert [p.record.key.level.concurrency for p in stored.passes] == [1]
    assert not list(only_run(tmp_path).rglob("*.partial"))


@pytest.mark.serial  # a load generator that has to share its core sends late, which is INVALID
def test_open_loop(tmp_path: Path) -> None:
    text = SCENARIO.replace("concurrency: [1, 2]", "rates: [40/s]").replace("min_requests: 8", "min_requests: 60")
    text = text.replace("  requests_per_slot: 4\n", "")
    stored, output = run(tmp_path, text.replace("  drafts: {chunk_tokens: [4], speculative: true}\n", ""))
    assert "40/s" in output
    one = stored.passes[0]
    assert len(one.requests) == 60
    gaps = one.requests[-1].t_send - one.requests[0].t_send
    assert 60 / 40 * 0.5 < gaps < 60 / 40 * 2
    assert all(r.t_send >= r.t_scheduled for r in one.requests)


def test_attach(tmp_path: Path) -> None:
    port = free_port()
    script = json.dumps({"engine": "scripted", "ttft": 0.01, "step": 0.002})
    command = [sys.executable, "-m", "harness.engines.scripted_server", "--port", str(port)]
    server = subprocess.Popen([*command, "--identity", "theirs", "--script", script])
    try:
        text = SCENARIO.split("server:")[0]
        text += f"server: {{engine: attach, url: 'http://127.0.0.1:{port}', api: llamacpp}}\n"
        text += "arms: {theirs: {}}\n" + SCENARIO[SCENARIO.index("workload:") :]
        deadline = time.monotonic() + 20
        while not port_taken(port) and time.monotonic() < deadline:
            time.sleep(0.05)
        stored, output = run(tmp_path, text)
        assert "attached" in output
        assert len(stored.passes) == 2
        assert stored.launches[0].command == ()
        assert server.poll() is None  # never stopped
    finally:
        server.terminate()
        server.wait()


def test_attach_to_nothing(tmp_path: Path) -> None:
    text = SCENARIO.split("server:")[0] + "server: {engine: attach, url: 'http://127.0.0.1:9'}\n"
    text += "arms: {theirs: {}}\n" + SCENARIO[SCENARIO.index("workload:") :]
    done = mtpbench("run", write(tmp_path, text), cwd=tmp_path, check=2)
    assert "http://127.0.0.1:9" in done.stdout + done.stderr


def test_dry_run_starts_nothing(tmp_path: Path) -> None:
    done = mtpbench("run", write(tmp_path), "--dry-run", cwd=tmp_path, check=0)
    assert "harness.engines.scripted_server" in done.stdout
    assert "concurrency 2: 2 warm-up, 8 measured requests" in done.stdout
    assert "19 requests a launch, 38 in all" in done.stdout
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["run"], "give either a scenario file or --resume RUN"),
        (["run", "absent.yaml"], "absent.yaml: can't be read"),
        (["run", "--resume", "nowhere"], "can't be read"),
        (["validate", "absent.yaml"], "absent.yaml"),
        (["list", "nowhere"], "no *.yaml in nowhere"),
        (["report", "nowhere"], "can't be read"),
    ],
)
def test_wrong_calls_say_what_to_do(tmp_path: Path, args: list[str], words: str) -> None:
    error = mtpbench(*args, cwd=tmp_path, check=2).stderr
    assert words in error
    assert "next:" in error


def test_help_teaches(tmp_path: Path) -> None:
    done = mtpbench("--help", cwd=tmp_path, check=0)
    for verb in ("run", "report", "validate", "list", "schema", "selftest"):
        assert verb in done.stdout
    assert "scenarios/quickstart.yaml" in done.stdout


def test_an_arm_that_never_starts_is_given_up(tmp_path: Path) -> None:
    """Twice is enough: a third start would take its minutes and fail as well. The other arm goes on."""
    text = SCENARIO.replace("  drafts: {chunk_tokens: [4], speculative: true}", "  broken: {start_fails: true}")
    stored, output = run(tmp_path, text.replace("concurrency: [1, 2]", "concurrency: [1]") + "launches: 3\n", check=2)
    assert [launch.launch for launch in stored.launches if launch.arm == "broken"] == [0, 1]
    assert "broken, TP1: left out, its first 2 launches failed" in output
    assert [p.record.key.launch for p in stored.passes] == [0, 1, 2]
