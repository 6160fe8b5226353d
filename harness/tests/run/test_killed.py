"""Runs and A/Bs that are killed at random points: nothing survives, nothing finished is lost, and they go on.

`MTPBENCH_KILLS=60` kills so many of each; without it a few, always at the same points.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import psutil
import pytest
from commands import mtpbench, start, write
from conftest import SCENARIO

from harness.engines.guardian import MARK
from harness.store.archive import read_archive
from harness.store.runs import load_run

KILLS = int(os.environ.get("MTPBENCH_KILLS", "1"))
ONE_ARM = SCENARIO.replace("  drafts: {chunk_tokens: [4], speculative: true}\n", "  other: {}\n")


def left_behind(root: Path) -> list[int]:
    """Processes that a killed harness left: servers below its folder, load processes."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and str(root) in process.cwd() and process.pid != os.getpid():
                found.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return found


@pytest.mark.timeout(120 * max(1, KILLS))
@pytest.mark.parametrize("number", range(KILLS))
@pytest.mark.parametrize("verb", ["run", "ab"])
def test_killed_at_a_random_point(tmp_path: Path, verb: str, number: int) -> None:
    assert MARK not in os.environ
    draw = random.Random(f"{verb}{number}")
    call = ["run", write(tmp_path, ONE_ARM), "--no-page"]
    if verb == "ab":
        call = ["ab", write(tmp_path, ONE_ARM), "--base", "arm:plain", "--head", "arm:other", "--pairs", "2"]
    running = start(*call, cwd=tmp_path)
    time.sleep(draw.uniform(2.0, 9.0))
    running.send_signal(signal.SIGKILL)
    output, _ = running.communicate(timeout=60)
    deadline = time.monotonic() + 30
    while left_behind(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left_behind(tmp_path) == [], output

    archive = read_archive(tmp_path / "runs")
    for text in archive.left_out:  # killed before its first file was whole
        assert "run.json" in text or "ab.json" in text
    finished = {one.run.path: [p.record.started_at for p in load_run(one.run.path).passes] for one in archive.kept}
    for path, passes in finished.items():
        code = {"run": {0}, "ab": {0, 1, 3, 7, 10}}[verb]
        if verb == "ab" and not (path / "ab.json").is_file():
            continue
        again = mtpbench(verb, "--resume", path, *(["--no-page"] if verb == "run" else []), cwd=tmp_path)
        assert again.returncode in code, again.stdout + again.stderr
        after = [p.record.started_at for p in load_run(path).passes]
        assert set(passes) <= set(after)
