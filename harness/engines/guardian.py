"""Stands between the harness and a server, so that the server never outlives the harness.

Runs in a session of its own with the server as its child. When its standard input closes, because the
harness closed it or died (even by SIGKILL), it ends the whole process group: SIGTERM, a grace period,
SIGKILL. Then it runs the clean-up command (`docker rm --force …`). Its exit status is the server's.

    python harness/engines/guardian.py GRACE_SECONDS CLEANUP_JSON -- COMMAND…
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time

_POLL_S = 0.2
_GRACE_AFTER_DEATH_S = 2.0


def main() -> int:
    grace, cleanup = float(sys.argv[1]), json.loads(sys.argv[2])
    command = sys.argv[sys.argv.index("--") + 1 :]
    # A signal to the group is for the server; we stay to see it end and to clean up.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        print(f"can't start {command[0]}: {error}", file=sys.stderr, flush=True)
        return 127
    status = _wait(child)
    if status is None:
        status = _end(child, grace)
    else:
        grace = min(grace, _GRACE_AFTER_DEATH_S)  # the harness waits to hear of the death
    if cleanup:
        subprocess.run(cleanup, stdin=subprocess.DEVNULL, check=False, timeout=60)
    _end_group(grace)
    return status if status >= 0 else 128 - status


def _wait(child: subprocess.Popen[bytes]) -> int | None:
    """The child's exit status, or None when standard input closed first."""
    while True:
        status = child.poll()
        if status is not None:
            return status
        readable, _, _ = select.select([0], [], [], _POLL_S)
        if readable and not os.read(0, 1):
            return None


def _end(child: subprocess.Popen[bytes], grace: float) -> int:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(0, signal.SIGTERM)
    try:
        return child.wait(grace)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()


def _end_group(grace: float) -> None:
    """Ends what the server left behind in our group: worker processes of a launcher that died."""
    deadline = time.monotonic() + grace
    while _others() and time.monotonic() < deadline:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(0, signal.SIGTERM)
        time.sleep(_POLL_S)
    for pid in _others():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _others() -> list[int]:
    """Other living processes of our process group (Linux; elsewhere none are found)."""
    mine, group = os.getpid(), os.getpgrp()
    found = []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if not name.isdigit() or int(name) == mine:
            continue
        with contextlib.suppress(OSError, ValueError):
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                state, _, process_group = file.read().rpartition(")")[2].split()[:3]
            if int(process_group) == group and state != "Z":
                found.append(int(name))
    return found


if __name__ == "__main__":
    sys.exit(main())
