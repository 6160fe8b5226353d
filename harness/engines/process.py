"""An engine, its settings and a launch context → the server process that they describe, not yet started."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harness.engines.base import Engine, LaunchContext, S
from harness.engines.command import Command
from harness.server import ServerProcess


def server_process(
    engine: Engine[S],
    settings: S,
    context: LaunchContext,
    command: Command,
    log_path: Path,
    ready_timeout_s: float = 30.0,
    on_wait: Callable[[float, str], None] = lambda _seconds, _line: None,
) -> ServerProcess:
    """`command` is the engine's own for this context; it is handed in because callers record it too."""
    return ServerProcess(
        command,
        base_url=engine.base_url(settings, context),
        port=context.port,
        identity=context.identity,
        identify=engine.identity,
        health_path=engine.health_path,
        log_path=log_path,
        ready_timeout_s=ready_timeout_s,
        on_wait=on_wait,
    )
