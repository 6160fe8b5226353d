"""One command for a person on a node: each step, with a stand-in for the image's Python and servers of this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from harness.engines.sglang_versions import versions
from harness.fields import merge
from harness.scenario import yaml_file
from harness.scenario.format import Scenario

ROOT = Path(__file__).parents[3]
EVERYTHING = ROOT / "ci" / "amd" / "everything.sh"
STEPS = ["install", "inside", "precheck", "tools", "tests", "bench", "smoke", "c16", "explain"]
SCENARIO = """\
version: 1
name: {name}
question: Which arm is slower?
server: {{engine: scripted, ttft: 20ms, step: 5ms}}
arms: {arms}
workload: {{prompts: prose, input_tokens: 32, output_tokens: 16}}
arrival: {{concurrency: [{levels}], requests_per_slot: 4, min_requests: 6}}
primary: {{metric: tpot, level: 1}}
"""
# The image's Python, in which neither SGLang nor a GPU is: tests pass, the bench writes what a bench writes and fails.
IMAGE_PYTHON = """#!/usr/bin/env bash
echo "$*" >> "${0%/*}/calls"
case "$*" in
*"-m pytest"*) echo "12 passed in 3.4s" ;;
*"-m kernel.bench"*)
    while [ $# -gt 0 ]; do [ "$1" != --output ] || cp "${0%/*}/bench.json" "$2"; shift; done
    echo "with Bearer abcdefgh12345678"
    [ -e "${0%/*}/good" ] ;;
*"-m pip"*) ;;
*) exec PYTHON "$@" ;;
esac
"""
BENCH = {
    "rows": [
        {"arm": "ours", "shape": "16x8192", "status": "timed", "seconds": {"median": 31.2e-6}},
        {"arm": "asm", "shape": "16x8192", "status": "unavailable", "reason": "<b>no</b> assembly here"},
    ]
}


@pytest.fixture
def node(tmp_path: Path) -> list[str]:
    """The command line on a stand-in node."""
    python = tmp_path / "python3"
    python.write_text(IMAGE_PYTHON.replace("PYTHON", sys.executable))
    python.chmod(0o755)
    (tmp_path / "bench.json").write_text(json.dumps(BENCH))
    for name, arms in (("smoke", "{quick: {}}"), ("c16", "{quick: {}, slow: {step: 9ms}}")):
        (tmp_path / f"{name}.yaml").write_text(SCENARIO.format(name=name, arms=arms, levels="1"))
    command = [EVERYTHING, "--out", tmp_path / "out", "--python", python, "--mtpbench", sys.executable, "--no-gpu"]
    command += ["--smoke", tmp_path / "smoke.yaml", "--c16", tmp_path / "c16.yaml", "--base", "quick", "--head", "slow"]
    command += ["--pairs", "2", "--skip", "inside"]  # this Python has no SGLang, which `inside` would rightly refuse
    return [str(word) for word in command]


def started(command: list[str]) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)


def steps(folder: Path) -> dict[str, str]:
    rows = [row.split(" ") for row in (folder / "steps").read_text().splitlines()]
    return {row[0]: row[1] for row in rows}


@pytest.mark.serial
@pytest.mark.timeout(600)
def test_a_step_that_fails_is_on_the_page_and_the_next_call_does_the_rest(tmp_path: Path, node: list[str]) -> None:
    done = started(node)
    out = tmp_path / "out"
    assert done.returncode == 1, done.stdout + done.stderr
    assert steps(out) == {
        "install": "skipped",
        "inside": "skipped",
        **dict.fromkeys(
            ("precheck", "tools", "tests", "smoke", "c16", "explain"), "done"
        ),  # `slow` is slower: a result
        "bench": "failed",
    }
    assert "1 of 9 steps did not do their work: bench (FAILED)" in done.stdout
    page = (out / "index.html").read_text()
    for told in (
        "12 passed in 3.4s",
        "31.2",
        "&lt;b&gt;no&lt;/b&gt; assembly here",
        "TPOT at concurrency 1 (TP1, quick → slow)",
        "bench (FAILED)",
    ):
        assert told in page
    assert "<b>no" not in page
    assert "abcdefgh12345678" not in page
    with tarfile.open(tmp_path / "out.tar.gz") as archive:
        names = archive.getnames()
        log = archive.extractfile("out/bench.log")
        assert log is not None
        assert b"Bearer ***" in log.read()
    assert "out/index.html" in names
    assert sum(name.endswith("/run.json") for name in names) == 2

    (tmp_path / "good").touch()
    calls = (tmp_path / "calls").read_text().count("pytest -q")
    again = started(node)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "Every step did its work, but install, inside: skipped." in again.stdout
    assert (tmp_path / "calls").read_text().count("pytest -q") == calls  # what is done is not done again
    assert len(list((out / "runs").glob("*/run.json"))) == 2
    with tarfile.open(tmp_path / "out.tar.gz") as archive:
        assert not [name for name in archive.getnames() if name.startswith("out/tools/")]


@pytest.mark.serial
@pytest.mark.timeout(600)
def test_a_run_that_was_stopped_goes_on(tmp_path: Path, node: list[str]) -> None:
    (tmp_path / "c16.yaml").write_text(SCENARIO.format(name="c16", arms="{quick: {}, slow: {step: 9ms}}", levels="1"))
    command = [*node, *(word for step in ("tools", "tests", "bench", "smoke") for word in ("--skip", step))]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=env, start_new_session=True, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 90
        while not list(tmp_path.glob("out/runs/*/passes/*.json")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)  # as `docker stop` does, to this process alone
        assert process.wait(120) == 1
    [first, *_] = sorted(tmp_path.glob("out/runs/*/passes/*.json"))
    written = first.stat().st_mtime_ns
    assert (tmp_path / "out.tar.gz").is_file()
    assert steps(tmp_path / "out")["c16"] == "failed"
    done = started(command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert first.stat().st_mtime_ns == written  # what was measured is not measured again
    assert len(list((tmp_path / "out" / "runs").glob("*/run.json"))) == 1


def test_what_does_not_fit_is_left_and_said(tmp_path: Path, node: list[str]) -> None:
    done = started([*node, "--minutes", "0"])
    assert done.returncode == 1
    assert "tests: not begun: no time was left" in done.stdout
    assert steps(tmp_path / "out")["bench"] == "no-time"


def test_every_step_can_be_skipped_and_a_trial_writes_nothing(tmp_path: Path, node: list[str]) -> None:
    done = started([*node, "--dry-run"])
    assert done.returncode == 0
    assert [line.split(": ")[1] for line in done.stdout.splitlines()] == STEPS[1:]
    assert not (tmp_path / "out").exists()
    done = started([*node, *(word for step in STEPS for word in ("--skip", step))])
    assert done.returncode == 0, done.stdout
    assert set(steps(tmp_path / "out").values()) == {"skipped"}
    wrong = started([*node, "--skip", "nothing"])
    assert wrong.returncode == 1
    assert "no step is called nothing" in wrong.stderr


@pytest.mark.parametrize("version", versions())
@pytest.mark.parametrize("name", ["smoke", "c16"])
def test_its_scenarios_are_right_for_every_version(name: str, version: str) -> None:
    loaded = yaml_file.load(EVERYTHING.with_name(f"{name}.yaml"))
    document = loaded.model_dump(exclude_unset=True)
    Scenario.model_validate(merge(document, {"server": {"version": version}}))
