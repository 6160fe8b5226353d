"""A night of two jobs where nothing but the loopback is reachable, as in a pod's container: one job is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NIGHT = ROOT / "ci" / "amd" / "nightly.sh"
SCENARIO = """\
version: 1
name: shards
question: Does a night of two jobs know which of them died?
server: {engine: scripted, ttft: 20ms, step: 5ms}
arms: {plain: {}, drafts: {chunk_tokens: [4], speculative: true}}
workload: {prompts: prose, input_tokens: 32, output_tokens: 16}
arrival: {concurrency: [1], requests_per_slot: 4, min_requests: 6}
primary: {metric: tpot, level: 1}
"""
# A network of its own, in which only the loopback is up; then the command in place of the shell.
ALONE = ("unshare", "--net", "bash", "-c", 'ip link set lo up && exec "$@"', "alone")


@pytest.mark.serial
@pytest.mark.timeout(600)
def test_a_night_of_two_jobs_is_red_and_says_which_one_was_killed(tmp_path: Path) -> None:
    try:
        subprocess.run([*ALONE, "true"], check=True, capture_output=True, timeout=30)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespace may be made here: {error}")
    scenario, store, plan = tmp_path / "s.yaml", tmp_path / "store", tmp_path / "plan.json"
    scenario.write_text(SCENARIO)
    summary = tmp_path / "summary.md"
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "MTPBENCH_HOST": "a-node",
        "GITHUB_STEP_SUMMARY": str(summary),
    }
    command = [sys.executable, "-m", "harness", "ci", "plan", scenario, "--store", store, "--limit", "80s"]
    command += ["--assume", "60s", "--output", plan]
    subprocess.run(command, env=env, check=True, capture_output=True, timeout=60)

    def night(part: str, *more: object) -> list[str]:
        words = [*ALONE, NIGHT, part, "--store", store, "--mtpbench", sys.executable, "--python", sys.executable]
        # This Python has no SGLang, which `inside` would rightly refuse.
        words += ["--no-gpu", "--skip", "inside", *more]
        return [str(word) for word in words]

    measured = subprocess.run(
        night("measure", "--scenario", scenario, "--arm", "plain", "--out", tmp_path / "one"),
        env=env, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert measured.returncode == 0, measured.stdout
    assert measured.stdout.rstrip().endswith("mtpbench night: MEASURED")

    words = night("measure", "--scenario", scenario, "--arm", "drafts", "--out", tmp_path / "two")
    killed = subprocess.Popen(
        words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    log = tmp_path / "two" / "run-s.log"
    deadline = time.monotonic() + 60
    while not (log.is_file() and "results: " in log.read_text()):
        assert killed.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(killed.pid, signal.SIGKILL)
    assert killed.wait(20) == -signal.SIGKILL

    judged = subprocess.run(
        night("judge", "--plan", plan, "--out", tmp_path / "three"),
        env=env, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert judged.returncode == 1  # never another: the wrapper around `docker exec` would run the night again
    assert judged.stdout.rstrip().endswith("mtpbench night: MISSING (failed: missing)")
    for told in (judged.stdout, summary.read_text()):
        assert "MISSING: shards.2: drafts at TP1 has no result" in told
        assert "shards.1" not in told
    row = "shards: in 1 of 2 rows nothing that counts was measured in the night of"
    assert row in summary.read_text()
    assert row in " ".join((tmp_path / "three" / "site" / "index.html").read_text().split())  # the first page


def test_installing_leaves_an_images_packages_as_they_are(tmp_path: Path) -> None:
    """In an environment of its own, though the image pins its torch for all that its pip installs."""
    image = tmp_path / "image"
    venv.create(image, with_pip=True)
    python = image / "bin" / "python"
    [packages] = image.glob("lib/python3*/site-packages")
    (packages / "torch-2.11.0+rocm7.2.dist-info").mkdir()
    (packages / "torch-2.11.0+rocm7.2.dist-info" / "METADATA").write_text("Name: torch\nVersion: 2.11.0+rocm7.2\n")
    (packages / "amdsmi").mkdir()
    (packages / "amdsmi" / "__init__.py").write_text("")
    (tmp_path / "constraints.txt").write_text("mtpbench==0.0\ntorch==2.11.0+rocm7.2\n")
    wheel = tmp_path / "mtpbench-9.9-py3-none-any.whl"
    about = "Metadata-Version: 2.1\nName: mtpbench\nVersion: 9.9\nProvides-Extra: s3\n"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("harness/__init__.py", "")
        file.writestr("mtpbench-9.9.dist-info/METADATA", about)
        file.writestr("mtpbench-9.9.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr("mtpbench-9.9.dist-info/RECORD", "")

    def freeze() -> str:
        asked = subprocess.run([python, "-m", "pip", "freeze", "--all"], check=True, capture_output=True, timeout=60)
        return asked.stdout.decode()

    before = freeze()
    assert "torch==2.11.0+rocm7.2" in before
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PYTHON": str(python),
        "PYTHONPATH": str(packages),
        "PIP_CONSTRAINT": str(tmp_path / "constraints.txt"),
        "MTPBENCH_WHEEL": str(wheel),
        "PIP_OPTIONS": "--no-index --no-deps",
    }
    for _ in range(2):  # a second night finds it there
        done = subprocess.run(
            [NIGHT.with_name("install.sh"), tmp_path / "own"], env=env, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == str(tmp_path / "own" / "bin" / "python")
    assert freeze() == before
    [ours] = (tmp_path / "own").glob("lib/python3*/site-packages")
    assert {path.name for path in ours.iterdir()} >= {"harness", "mtpbench-9.9.dist-info", "amdsmi"}
    assert not (packages / "harness").exists()
