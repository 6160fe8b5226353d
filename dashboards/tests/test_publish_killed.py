"""A publish that is killed: the site that was there is there, or the new one, and the next publish works."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dashboards.publish import MARK, _recover, _swap
from harness.selftest.year import write_year

DEAD = 2**22 + 1  # above any process id


def site(path: Path, text: str) -> Path:
    path.mkdir(parents=True)
    (path / MARK).write_text("{}")
    (path / "index.html").write_text(text)
    return path


def test_a_swap_that_fails_puts_the_old_site_back(tmp_path: Path) -> None:
    out = site(tmp_path / "site", "old")
    with pytest.raises(OSError, match="partial"):
        _swap(tmp_path / "partial", out, tmp_path / "aside")
    assert (out / "index.html").read_text() == "old"
    _swap(site(tmp_path / "partial", "new"), out, tmp_path / "aside")
    assert (out / "index.html").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["site"]


def test_what_a_killed_publish_left_is_swept_and_its_old_site_comes_back(tmp_path: Path) -> None:
    out = tmp_path / "site"
    site(tmp_path / f".site.{DEAD}.00ff.aside", "old")  # killed between the two renames
    site(tmp_path / f".site.{DEAD}.00ff.partial", "half")
    alive = site(tmp_path / f".site.{os.getppid()}.00ff.partial", "of a publish that runs")
    others = site(tmp_path / ".other.1.00ff.partial", "of another site")
    _recover(out)
    assert (out / "index.html").read_text() == "old"
    assert alive.exists()
    assert others.exists()
    site(tmp_path / f".site.{DEAD}.01ff.aside", "older")
    _recover(out)
    assert (out / "index.html").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([alive.name, others.name, "site"])


@pytest.mark.timeout(300)
def test_killed_at_any_moment(tmp_path: Path, cache: Path) -> None:
    """Never a half site, and always repeatable."""
    draw = random.Random(15)
    write_year(tmp_path / "store", nights=1)
    command = [sys.executable, "-m", "harness", "publish", "store", "site"]
    env = {**os.environ, "XDG_CACHE_HOME": str(cache.parent)}
    subprocess.run(command, cwd=tmp_path, env=env, check=True, capture_output=True, timeout=100)
    pages = sorted(path.relative_to(tmp_path) for path in (tmp_path / "site").rglob("*"))
    for _ in range(int(os.environ.get("MTPBENCH_KILLS", "1"))):
        running = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(draw.uniform(1.5, 5.0))
        running.send_signal(signal.SIGKILL)
        running.wait()
        found = tmp_path / "site"
        if not found.exists():  # exactly between two renames
            assert list(tmp_path.glob(".site.*.aside"))
        else:
            assert sorted(path.relative_to(tmp_path) for path in found.rglob("*")) == pages
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert sorted(path.relative_to(tmp_path) for path in (tmp_path / "site").rglob("*")) == pages
    assert not list(tmp_path.glob(".site.*"))
    shutil.rmtree(tmp_path / "site")
