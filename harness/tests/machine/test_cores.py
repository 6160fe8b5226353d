"""Cores that a process may use, by affinity and by both kinds of cgroup quota."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cores import usable_cores

AFFINITY = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, AFFINITY),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, AFFINITY),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "100000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "199000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "20000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "garbage"}, AFFINITY),
        # The parent's quota holds for its children.
        (
            {
                "proc/self/cgroup": "0::/pod/box\n",
                "sys/fs/cgroup/pod/cpu.max": "100000 100000\n",
                "sys/fs/cgroup/pod/box/cpu.max": "max 100000\n",
            },
            1,
        ),
        # The host's path, in a container that sees its own folder as the root.
        ({"proc/self/cgroup": "0::/host/path\n", "sys/fs/cgroup/cpu.max": "100000 100000\n"}, 1),
        (
            {
                "proc/self/cgroup": "5:memory:/\n4:cpu,cpuacct:/box\n",
                "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": "150000\n",
                "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "100000\n",
            },
            1,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            AFFINITY,
        ),
    ],
)
def test_quotas(tmp_path: Path, files: dict[str, str], cores: int) -> None:
    assert usable_cores(tree(tmp_path, files)) == cores


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no CPU affinity")
def test_a_process_pinned_to_one_core_says_one() -> None:
    script = (
        "import os, json; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from harness.machine.fingerprint import fingerprint; print(json.dumps(fingerprint(None)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["cores"] == 1
    assert found.get("host_cores", 1) == (os.cpu_count() if os.cpu_count() != 1 else 1)
