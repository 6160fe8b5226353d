"""A server's life: started in its own process group, ready only if it is ours, watched, always torn down."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType

from harness.access import PLAIN, Access
from harness.engines import guardian
from harness.engines.base import Engine, LaunchContext, S
from harness.engines.command import Command
from harness.errors import ServerDiedError, ServerStartError, ServerWedgedError
from harness.http import ControlClient

_POLL_S = 0.25
_DEATH_S = 1.5
_TAIL_LINES = 15
_TAIL_BYTES = 64_000
_KILL_S = 15.0  # that a guardian may take to kill a server and remove its container
_ASKS = 3  # of a server that does not answer: one lost connection is no death
_LOG_BYTES = 16 * 2**20  # of a pass: a server that logs a gigabyte is read from its end
_HEALTH_TIMEOUT_S = 1.5  # with the stall timeout of 8 s, a wedged server is noticed within 10 s

# What a server may inherit: enough to find libraries, caches and GPUs; the rest is the scenario's business.

Identify = Callable[[ControlClient], Awaitable[str | None]]


def free_port() -> int:
    """A TCP port on 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def port_taken(port: int) -> bool:
    """Does anybody answer on 127.0.0.1:port?"""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


class ServerProcess:
    """A server that we start. Use as an async context manager: entering waits until it is ready."""

    def __init__(
        self,
        command: Command,
        *,
        base_url: str,
        port: int,
        identity: str,
        identify: Identify,
        health_path: str,
        log_path: Path,
        ready_timeout_s: float,
        on_wait: Callable[[float, str], None] = lambda _seconds, _line: None,
    ) -> None:
        self.command, self.base_url, self.log_path = command, base_url, log_path
        self._port, self._identity, self._identify = port, identity, identify
        self._health_path, self._ready_timeout = health_path, ready_timeout_s
        self._on_wait = on_wait
        self._process: subprocess.Popen[bytes] | None = None
        self._mark = secrets.token_hex(8)
        self.ready_seconds = 0.0

    async def __aenter__(self) -> ServerProcess:
        if port_taken(self._port):
            raise ServerStartError(
                f"port {self._port} is in use: a server is already running there",
                "End it (see `ss -ltnp`), or leave the choice of the port to mtpbench.",
            )
        self._start()
        try:
            await self._until_ready()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    def _start(self) -> None:
        # By its path and isolated: the server's PYTHONPATH may name another checkout, the guardian is always ours.
        argv = [
            sys.executable,
            "-I",
            guardian.__file__,
            str(self.command.grace_s),
            json.dumps(self.command.cleanup),
            "--",
        ]
        argv += self.command.argv
        environment = os.environ | dict(self.command.env) | {"PYTHONUNBUFFERED": "1", guardian.MARK: self._mark}
        try:
            log = self.log_path.open("ab")
        except OSError as error:
            raise ServerStartError(
                f"can't write {self.log_path}: {error.strerror}", "Choose another --store."
            ) from error
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=self.command.cwd,
                start_new_session=True,
            )
        finally:
            log.close()

    async def _until_ready(self) -> None:
        started = time.monotonic()
        async with ControlClient(self.base_url) as http:
            while True:
                waited = time.monotonic() - started
                self._check_alive(f"while starting, after {waited:.1f} s", ServerStartError)
                healthy = (await http.get(self._health_path, timeout_s=5.0)).ok
                if healthy:
                    await self._check_identity(http)
                    self.ready_seconds = time.monotonic() - started
                    return
                if waited > self._ready_timeout:
                    raise ServerStartError(
                        f"the server is not ready after {waited:.0f} s",
                        "If it is only slow, raise server.ready_timeout; otherwise its log says why.",
                        log_path=self.log_path,
                        log_tail=self.tail(),
                    )
                self._on_wait(waited, self.last_line())
                await asyncio.sleep(_POLL_S)

    async def _check_identity(self, http: ControlClient) -> None:
        name = await self._identify(http)
        if name != self._identity:
            raise ServerStartError(
                f"another server answers at {self.base_url}: it serves {name!r}, ours would serve {self._identity!r}",
                "End the stale server and start again.",
                log_path=self.log_path,
                log_tail=self.tail(),
            )

    def _check_alive(self, when: str, error: type[ServerStartError] | type[ServerDiedError]) -> None:
        status = self.exit_status
        if status is not None:
            raise error(
                f"the server ended {when} (exit status {status})",
                "The last lines of its log are below.",
                log_path=self.log_path,
                log_tail=self.tail(),
            )

    @property
    def exit_status(self) -> int | None:
        """None while it runs."""
        assert self._process is not None, "not started"
        return self._process.poll()

    def check(self) -> None:
        """Raises ServerDiedError if the process has ended."""
        self._check_alive("in the middle of the run", ServerDiedError)

    async def death(self, within_s: float = _DEATH_S) -> ServerDiedError | None:
        """Why answers fail, if the server is ending: its connections break a moment before its process is gone."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            try:
                self.check()
            except ServerDiedError as error:
                return error
            await asyncio.sleep(_POLL_S / 5)
        return None

    async def stop(self) -> None:
        """Ends the process group and waits for it. Safe to call twice."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()  # the guardian ends the group
        deadline = time.monotonic() + 2 * self.command.grace_s + 60  # its own clean-up may take as long
        while self._process.poll() is None and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        self.kill()

    def kill(self) -> None:
        """All that came of this server, its container too, at once: the second Ctrl-C. Safe to call twice."""
        if self._process is None:
            return
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGUSR1)  # the guardian kills, and removes the container
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_KILL_S)
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._process.returncode < 0:  # somebody killed the guardian: what it would have done is left to us
            for pid in guardian.with_mark(self._mark):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            if self.command.cleanup:
                with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                    subprocess.run(self.command.cleanup, stdin=subprocess.DEVNULL, check=False, timeout=60)

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def log_size(self) -> int:
        return self.log_path.stat().st_size if self.log_path.exists() else 0

    def log_since(self, offset: int) -> list[str]:
        """Lines written to the log after `offset` bytes, of more than 16 MB the last."""
        with self.log_path.open("rb") as log:
            start = max(offset, self.log_size() - _LOG_BYTES)
            log.seek(start)
            lines = log.read(_LOG_BYTES).decode(errors="replace").splitlines()
        return lines[1:] if start > offset else lines

    def tail(self) -> tuple[str, ...]:
        """The last lines of the log."""
        if not self.log_path.exists():
            return ()
        lines = self.log_since(max(0, self.log_size() - _TAIL_BYTES))
        return tuple(line for line in lines if line.strip())[-_TAIL_LINES:]

    def last_line(self) -> str:
        tail = self.tail()
        return tail[-1].strip() if tail else ""


async def check_answers(base_url: str, health_path: str) -> None:
    """Of a server that is not ours to watch, once a request has failed: raises ServerDiedError if nobody answers."""
    async with ControlClient(base_url) as http:
        for _ in range(_ASKS):
            reply = await http.get(health_path, timeout_s=_HEALTH_TIMEOUT_S)
            if reply.status:
                return
            await asyncio.sleep(_POLL_S)
    raise ServerDiedError(
        f"the server at {base_url} no longer answers: {reply.text[:200]}", "Start it again, then run with --resume."
    )


def check_silence(silent_s: float, limit_s: float, in_flight: int, server: ServerProcess | None) -> None:
    """Whatever a server says of its health: from one that sends nothing for so long nothing will come."""
    if silent_s > limit_s:
        raise ServerWedgedError(
            f"nothing at all arrived for {silent_s:.0f} s while {in_flight} requests waited",
            "If one prefill really takes that long, raise server.silence_timeout.",
            log_path=server.log_path if server else None,
            log_tail=server.tail() if server else (),
        )


async def check_wedged(
    base_url: str,
    health_path: str,
    silent_s: float,
    decoding: int,
    in_flight: int,
    server: ServerProcess | None,
    access: Access = PLAIN,
) -> None:
    """Called when nothing has arrived for longer than the stall timeout: raises ServerWedgedError if that
    can't be right.

    Silence while a stream decodes is wrong by itself. While all requests wait for their first token a long
    prefill may be under way, so there the server's health decides.
    """
    log_path, tail = (server.log_path, server.tail()) if server else (None, ())
    if decoding:
        raise ServerWedgedError(
            f"nothing arrived for {silent_s:.1f} s while {decoding} of {in_flight} requests were decoding",
            "If one prefill step really takes that long, raise server.stall_timeout.",
            log_path=log_path,
            log_tail=tail,
        )
    async with ControlClient(base_url, access) as http:
        reply = await http.get(health_path, timeout_s=_HEALTH_TIMEOUT_S)
    if not reply.ok:
        raise ServerWedgedError(
            f"nothing arrived for {silent_s:.1f} s and {health_path} does not answer "
            f"({reply.status}: {reply.text[:100]})",
            log_path=log_path,
            log_tail=tail,
        )


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
