"""Ctrl-C while Python imports, when there is nothing to end and nothing to save. Imports next to nothing itself."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator


def leave_at_once() -> None:
    """From here on Ctrl-C and SIGTERM end the process, until other handlers are set."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)


@contextlib.contextmanager
def leaving_at_once() -> Iterator[None]:
    """For a block that imports: an exception raised in the midst of it could land in any library, which may drop it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _leave) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(_number: int, _frame: object) -> None:
    os.write(2, b"interrupted before anything began\n")
    os._exit(130)
