"""A night of two jobs where nothing but the loopback is reachable, as in a pod's container: one job is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.engines.server import free_port

ROOT = Path(__file__).parents[3]
NIGHT = ROOT / "ci" / "amd" / "nightly.sh"
SCENARIO = """\
version: 1
name: shards
question: Does a night of two jobs know which of them died?
server: {engine: llamacpp}
arms: {plain: {}, mtp: {speculation: {draft_tokens: 3}}}
workload: {prompts: prose, input_tokens: 32, output_tokens: 16}
arrival: {concurrency: [1], requests_per_slot: 4, min_requests: 6}
primary: {metric: tpot, level: 1}
"""


@dataclass(frozen=True)
class Container:
    """A network of its own in which only the loopback is up, with an object storage of its own."""

    pid: int
    environment: dict[str, str]

    def words(self, *command: object) -> list[str]:
        return [str(word) for word in ("nsenter", "--target", self.pid, "--net", *command)]

    def run(self, *command: object) -> subprocess.CompletedProcess[str]:
        words = self.words(*command)
        return subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=250)


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    port = free_port()
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "MTPBENCH_HOST": "a-node",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "tester",
        "AWS_SECRET_ACCESS_KEY": "not-to-be-printed",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    alone = ["unshare", "--net", "bash", "-c", "ip link set lo up && echo up && exec sleep 900"]
    with contextlib.ExitStack() as stack:
        holder = subprocess.Popen(alone, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        stack.callback(end, holder)
        assert holder.stdout is not None
        if holder.stdout.readline() != "up\n":
            assert holder.stderr is not None
            pytest.skip(f"no network namespace may be made here: {holder.stderr.read()}")
        inside = Container(holder.pid, environment)
        log = stack.enter_context((tmp_path / "moto.log").open("w"))
        moto = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", port]
        storage = subprocess.Popen(inside.words(*moto), stdout=log, stderr=log)
        stack.callback(end, storage)
        deadline = time.monotonic() + 240
        while inside.run("bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{port}").returncode:
            assert storage.poll() is None, (tmp_path / "moto.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.2)
        make = "import fsspec; fsspec.filesystem('s3', skip_instance_cache=True).mkdir('nights')"
        made = inside.run(sys.executable, "-c", make)
        assert made.returncode == 0, made.stderr
        with pytest.raises(OSError, match="refused"):  # the pod, in which this runs, reaches nothing in there
            socket.create_connection(("127.0.0.1", port), timeout=5)
        yield inside


def end(process: subprocess.Popen[Any]) -> None:
    """With its pipes."""
    process.kill()
    process.communicate(timeout=20)


@pytest.mark.serial
@pytest.mark.timeout(900)
def test_a_night_of_two_jobs_is_red_and_says_which_one_was_killed(tmp_path: Path, container: Container) -> None:
    """The whole chain, with a real model and one store at s3://…: plan, two jobs, of which one dies, and the judge."""
    scenario, store, plan = tmp_path / "s.yaml", "s3://nights/amd", tmp_path / "plan.json"
    scenario.write_text(SCENARIO)
    planned = ("ci", "plan", scenario, "--store", store, "--limit", "80s", "--assume", "60s", "--output", plan)
    made = container.run(sys.executable, "-m", "harness", *planned)
    assert made.returncode == 0, made.stderr

    def night(part: str, *more: object) -> list[object]:
        words = [NIGHT, part, "--store", store, "--mtpbench", sys.executable, "--python", sys.executable]
        # This Python has no SGLang, which `inside` would rightly refuse.
        return [*words, "--no-gpu", "--skip", "inside", *more]

    first = night("measure", "--scenario", scenario, "--arms", "plain", "--out", tmp_path / "one")
    measured = container.run(*first)
    assert measured.returncode == 0, measured.stdout
    assert measured.stdout.rstrip().endswith("mtpbench night: MEASURED")
    assert list((tmp_path / "one" / "runs").glob("*-shards-*"))  # not in the checkout, whose owner is another

    second = night("measure", "--scenario", scenario, "--arms", "mtp", "--out", tmp_path / "two")
    killed = subprocess.Popen(
        container.words(*second), env=container.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    log = tmp_path / "two" / "run-s.log"
    deadline = time.monotonic() + 90
    while not (log.is_file() and "results: " in log.read_text()):
        assert killed.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(killed.pid, signal.SIGKILL)
    assert killed.wait(20) == -signal.SIGKILL

    judged = container.run(*night("judge", "--plan", plan, "--out", tmp_path / "three"))
    assert judged.returncode == 1  # never another: the wrapper around `docker exec` would run the night again
    assert judged.stdout.rstrip().endswith("mtpbench night: MISSING (failed: missing)"), judged.stdout
    summary = (tmp_path / "summary.md").read_text()
    for told in (judged.stdout, summary):
        assert "MISSING: shards.2: mtp at TP1 has no result" in told
        assert "shards.1" not in told
    row = "shards: in 1 of 2 rows nothing that counts was measured in the night of"
    assert row in summary
    assert row in " ".join((tmp_path / "three" / "site" / "index.html").read_text().split())  # the first page
    printed = measured.stdout + judged.stdout + summary
    assert "not-to-be-printed" not in printed


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
