"""Stands between the harness and a server, so that the server never outlives the harness.

Runs in a session of its own with the server as its child. When its standard input closes, because the
harness closed it or died (even by SIGKILL), it ends the server and all that came of it: SIGTERM, a grace period,
SIGKILL. On SIGUSR1 (the second Ctrl-C) there is no grace. Then it runs the clean-up command (`docker rm --force …`).
Its exit status is the server's.

What came of a server is found in three ways: by process group, by descent (orphans of the server become our children,
as we are their subreaper), and by a variable in its environment, which a daemon that left both still has. The server
itself is killed by the kernel if we are.

    python harness/engines/guardian.py GRACE_SECONDS CLEANUP_JSON -- COMMAND…
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time

MARK = "MTPBENCH_LAUNCH"  # in the environment of a server and all that it starts: which launch they belong to
_POLL_S = 0.2
_GRACE_AFTER_DEATH_S = 2.0
_CLEANUPS, _CLEANUP_S = 2, 60.0  # twice: a container that was just being made is there a moment later
_SET_DEATH_SIGNAL, _SET_SUBREAPER = 1, 36  # of prctl(2)

_now = False  # no grace: SIGUSR1 came


def main() -> int:
    grace, cleanup = float(sys.argv[1]), json.loads(sys.argv[2])
    command = sys.argv[sys.argv.index("--") + 1 :]
    # A signal to the group is for the server; we stay to see it end and to clean up.
    for ignored in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ignored, lambda *_: None)
    signal.signal(signal.SIGUSR1, _at_once)
    _prctl(_SET_SUBREAPER, 1)
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_die_with_parent)
    except OSError as error:
        print(f"can't start {command[0]}: {error}", file=sys.stderr, flush=True)
        return 127
    status = _wait(child)
    if status is None:
        status = _end(child, grace)
    else:
        grace = min(grace, _GRACE_AFTER_DEATH_S)  # the harness waits to hear of the death
    for number in range(_CLEANUPS if cleanup else 0):
        time.sleep(_POLL_S * number)
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(cleanup, stdin=subprocess.DEVNULL, check=False, timeout=_CLEANUP_S)
    _end_rest(grace)
    return status if status >= 0 else 128 - status


def _at_once(_number: int, _frame: object) -> None:
    global _now
    _now = True


def _prctl(option: int, value: int) -> None:
    """Linux; elsewhere nothing."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _die_with_parent() -> None:
    _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)


def _wait(child: subprocess.Popen[bytes]) -> int | None:
    """The child's exit status, or None when it is to end."""
    while not _now:
        status = child.poll()
        if status is not None:
            return status
        readable, _, _ = select.select([0], [], [], _POLL_S)
        if readable and not os.read(0, 1):
            return None
    return None


def _end(child: subprocess.Popen[bytes], grace: float) -> int:
    if not _now:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(0, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while child.poll() is None and not _now and time.monotonic() < deadline:
        time.sleep(_POLL_S / 4)
    if child.poll() is None:
        child.kill()
    return child.wait()


def _end_rest(grace: float) -> None:
    """Ends what the server left behind: worker processes of a launcher that died, daemons."""
    deadline = time.monotonic() + grace
    while (rest := _others()) and not _now and time.monotonic() < deadline:
        _signal(rest, signal.SIGTERM)
        time.sleep(_POLL_S)
        _reap()
    for _ in range(5):  # one that forks while it is killed leaves another
        rest = _others()
        if not rest:
            return
        _signal(rest, signal.SIGKILL)
        time.sleep(_POLL_S / 4)
        _reap()


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _reap() -> None:
    """Orphans that became ours."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _others() -> list[int]:
    """Other living processes of our group, below us, or with our mark."""
    mine, group = os.getpid(), os.getpgrp()
    found = processes()
    ours = {mine}
    while more := {pid for pid, (parent, _) in found.items() if parent in ours} - ours:
        ours |= more
    marked = with_mark(os.environ.get(MARK, ""))
    of_group = {pid for pid, (_, its_group) in found.items() if its_group == group}
    return sorted((ours | of_group | marked) - {mine})


def processes() -> dict[int, tuple[int, int]]:
    """Living processes: pid → (its parent, its process group). Linux; elsewhere none are found."""
    found: dict[int, tuple[int, int]] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError):
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                state, parent, group = file.read().rpartition(")")[2].split()[:3]
            if state != "Z":
                found[int(name)] = int(parent), int(group)
    return found


def with_mark(mark: str) -> set[int]:
    """Living processes in whose environment a launch's mark is, but for the caller's own."""
    wanted, found = f"{MARK}={mark}".encode(), set[int]()
    for pid in processes() if mark else ():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            if wanted in file.read().split(b"\0"):
                found.add(pid)
    return found - {os.getpid()}


if __name__ == "__main__":
    sys.exit(main())
