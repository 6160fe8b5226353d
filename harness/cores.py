"""How many CPU cores this process may use: what counts for load processes and threads, not what the host has.

A container with a quota of 4 cores on a host of 128 is the normal case of a Kubernetes pod.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def usable_cores(root: Path = Path("/")) -> int:
    """Cores by affinity (taskset, cpuset) and by the cgroup's CPU quota, rounded down; at least 1.

    ``root`` is where ``proc`` and ``sys`` lie.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.floor(min([float(affinity), *_quotas(root)])))


def _quotas(root: Path) -> Iterator[float]:
    """The quota of each cgroup that this process is in, its parents' included, in cores.

    Documentation/admin-guide/cgroup-v2.rst (``cpu.max``) and scheduler/sched-bwc.rst (``cpu.cfs_*``) of Linux.
    """
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            mount, quota = root / "sys/fs/cgroup", _version_2
        elif "cpu" in controllers.split(","):
            mount, quota = root / "sys/fs/cgroup/cpu", _version_1
        else:
            continue
        # In a container the path may be the host's, and the mount the container's own folder: then only `/` is there.
        inside = PurePosixPath(path.lstrip("/"))
        for folder in (inside, *inside.parents):
            cores = quota(mount / folder) if ".." not in folder.parts else None
            if cores is not None:
                yield cores


def _version_2(folder: Path) -> float | None:
    """``cpu.max`` holds ``QUOTA PERIOD`` in µs, or ``max PERIOD``."""
    match _read(folder / "cpu.max").split():
        case [quota, period]:
            return _ratio(quota, period)
    return None


def _version_1(folder: Path) -> float | None:
    """``cpu.cfs_quota_us`` is -1 where there is none."""
    return _ratio(_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us"))


def _ratio(quota: str, period: str) -> float | None:
    try:
        part, whole = int(quota), int(period)
    except ValueError:  # `max`, or no such file
        return None
    return part / whole if part > 0 and whole > 0 else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""
