"""What is started: an argument list, an environment, and how to clean up after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Command:
    """A server to start. `cleanup` is run when it ends, for what killing the process leaves behind."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cleanup: tuple[str, ...] = ()
    inherit_env: tuple[str, ...] = ()  # names handed to a container, never recorded
    cwd: str | None = None  # where it is started; None: where mtpbench was
    grace_s: float = 10.0  # between SIGTERM and SIGKILL
