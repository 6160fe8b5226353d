"""A server's life, with real processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from servers import ENGINE, launch_context, scripted, server

from harness.engines.command import Command
from harness.engines.script import ScriptedSettings
from harness.engines.server import ServerProcess, check_wedged, free_port
from harness.errors import ServerDiedError, ServerStartError, ServerWedgedError
from harness.redact import harmless, harmless_command

SETTINGS = ScriptedSettings(engine="scripted")


def start(running: ServerProcess) -> None:
    async def main() -> None:
        async with running:
            raise AssertionError("it must not become ready")

    asyncio.run(main())


def plain(argv: list[str], log: Path, **values: object) -> ServerProcess:
    """A server process of any command."""
    port = free_port()
    defaults: dict[str, object] = {
        "base_url": f"http://127.0.0.1:{port}",
        "port": port,
        "identity": "ours",
        "identify": ENGINE.identity,
        "health_path": "/health",
        "log_path": log,
        "ready_timeout_s": 5.0,
    }
    return ServerProcess(Command(tuple(argv)), **{**defaults, **values})  # type: ignore[arg-type]


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def wait_until(condition, seconds: float = 15.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


def test_ready_and_torn_down(tmp_path: Path) -> None:
    async def main() -> list[int]:
        async with scripted(tmp_path) as running:
            assert running.exit_status is None
            assert running.ready_seconds > 0
            return [running.pid, *(child.pid for child in psutil.Process(running.pid).children(recursive=True))]

    pids = asyncio.run(main())
    assert len(pids) >= 2
    assert wait_until(lambda: all(gone(pid) for pid in pids))


def test_torn_down_after_an_exception(tmp_path: Path) -> None:
    seen = []

    async def main() -> None:
        async with scripted(tmp_path) as running:
            seen.append(running.pid)
            raise ValueError("a bug of ours")

    with pytest.raises(ValueError, match="a bug of ours"):
        asyncio.run(main())
    assert wait_until(lambda: gone(seen[0]))


def test_start_failure_shows_the_log(tmp_path: Path) -> None:
    settings = ScriptedSettings(engine="scripted", start_fails=True)
    with pytest.raises(ServerStartError, match=r"ended while starting, .*exit status 1") as caught:
        start(server(settings, tmp_path / "log"))
    assert any("no such model" in line for line in caught.value.log_tail)
    assert caught.value.log_path == tmp_path / "log"


def test_command_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ServerStartError) as caught:
        start(plain(["/no/such/program"], tmp_path / "log"))
    assert any("can't start /no/such/program" in line for line in caught.value.log_tail)


def test_never_ready(tmp_path: Path) -> None:
    waited = []
    running = plain(
        [sys.executable, "-c", "import time; print('loading weights'); time.sleep(60)"],
        tmp_path / "log",
        ready_timeout_s=1.5,
        on_wait=lambda seconds, line: waited.append(line),
    )
    with pytest.raises(ServerStartError, match="not ready after 2 s") as caught:
        start(running)
    assert "ready_timeout" in caught.value.hint
    assert "loading weights" in waited  # progress while starting


def test_port_in_use_is_refused(tmp_path: Path) -> None:
    """Nothing is started where somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServerStartError, match=f"port {port} is in use"):
            start(plain([sys.executable, "-c", "pass"], tmp_path / "log", port=port))
    assert not (tmp_path / "log").exists()


def test_stale_server_does_not_satisfy_readiness(tmp_path: Path) -> None:
    """An old server that answers at the port of the new one does not have its name, and is not taken for it."""

    async def main() -> None:
        async with scripted(tmp_path) as stale:
            ours = plain(
                [sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "log", base_url=stale.base_url
            )
            async with ours:
                raise AssertionError("it must not become ready")

    with pytest.raises(ServerStartError, match=r"another server answers .* it serves 'mtpbench-test"):
        asyncio.run(main())


def test_death_is_noticed(tmp_path: Path) -> None:
    async def main() -> float:
        async with scripted(tmp_path) as running:
            [child] = psutil.Process(running.pid).children()
            child.kill()
            killed = time.monotonic()
            while True:
                if running.exit_status is not None:
                    with pytest.raises(ServerDiedError, match="exit status 137"):
                        running.check()
                    return time.monotonic() - killed
                await asyncio.sleep(0.05)

    assert asyncio.run(main()) < 10


def test_server_does_not_outlive_a_killed_harness(tmp_path: Path) -> None:
    """SIGKILL leaves us no chance to clean up: the guardian does."""
    code = f"""
import asyncio, sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from pathlib import Path
from servers import scripted
async def main():
    async with scripted(Path({str(tmp_path)!r})) as running:
        print(running.pid, flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""
    harness = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert harness.stdout is not None
    guardian = psutil.Process(int(harness.stdout.readline()))
    [child] = guardian.children()
    harness.kill()
    harness.wait()
    harness.stdout.close()
    assert wait_until(lambda: gone(child.pid) and gone(guardian.pid))


def test_stubborn_server_is_killed_with_its_children(tmp_path: Path) -> None:
    code = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); print(p.pid, flush=True);"
        "time.sleep(60)"
    )
    log = tmp_path / "log"
    with log.open("wb") as file:
        guardian = subprocess.Popen(
            [sys.executable, "-m", "harness.engines.guardian", "0.5", "[]", "--", sys.executable, "-c", code],
            stdin=subprocess.PIPE, stdout=file, start_new_session=True,
        )  # fmt: skip
    assert wait_until(lambda: log.read_text().strip() != "")
    grandchild = int(log.read_text())
    assert guardian.stdin is not None
    guardian.stdin.close()
    assert guardian.wait(15) == 128 + signal.SIGKILL
    assert wait_until(lambda: gone(grandchild))


def test_cleanup_command_runs(tmp_path: Path) -> None:
    mark = tmp_path / "cleaned"
    guardian = subprocess.Popen(
        [sys.executable, "-m", "harness.engines.guardian", "1", json.dumps(["touch", str(mark)]), "--", "sleep", "0.2"],
        stdin=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert guardian.wait(20) == 0
    assert guardian.stdin is not None
    guardian.stdin.close()
    assert mark.exists()


def leaves_a_daemon(log: Path, mark: Path) -> ServerProcess:
    """A server that forks a daemon into a session of its own and never becomes ready."""
    daemon = "import os, sys, time; os.setsid() if os.fork() == 0 else sys.exit();"
    daemon += " open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(60)"
    code = "import subprocess, sys, time;"
    code += f" subprocess.run([sys.executable, '-c', {daemon!r}, {str(mark)!r}]); time.sleep(60)"
    return plain([sys.executable, "-c", code], log, ready_timeout_s=60.0)


async def until_it_has_forked(running: ServerProcess, mark: Path) -> int:
    task = asyncio.ensure_future(running.__aenter__())
    while not (mark.exists() and mark.read_text()):
        await asyncio.sleep(0.05)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, ServerStartError):
        await task
    return int(mark.read_text())


def test_a_daemon_of_the_server_does_not_survive(tmp_path: Path) -> None:
    running = leaves_a_daemon(tmp_path / "log", tmp_path / "pid")
    daemon = asyncio.run(until_it_has_forked(running, tmp_path / "pid"))
    assert wait_until(lambda: gone(daemon))


def test_nothing_survives_a_killed_guardian(tmp_path: Path) -> None:
    """The kernel kills the server; what it forked is found by its mark, and the container is removed by us."""
    removed = tmp_path / "removed"

    async def main() -> tuple[int, int]:
        running = leaves_a_daemon(tmp_path / "log", tmp_path / "pid")
        running.command = replace(running.command, cleanup=("touch", str(removed)))
        task = asyncio.ensure_future(running.__aenter__())
        while not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text()):
            await asyncio.sleep(0.05)
        [server] = [child.pid for child in psutil.Process(running.pid).children() if child.pid != daemon_of(tmp_path)]
        os.kill(running.pid, signal.SIGKILL)
        with pytest.raises(ServerStartError, match=r"ended while starting, .*exit status -9"):
            await task
        return server, daemon_of(tmp_path)

    server, daemon = asyncio.run(main())
    assert wait_until(lambda: gone(server) and gone(daemon))
    assert removed.exists()


def daemon_of(folder: Path) -> int:
    return int((folder / "pid").read_text())


def test_the_second_interrupt_kills_at_once_and_cleans_up(tmp_path: Path) -> None:
    """A stubborn server and its container: no grace, and the clean-up command runs all the same."""
    removed = tmp_path / "removed"
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    command = Command((sys.executable, "-c", code), cleanup=("touch", str(removed)), grace_s=60.0)

    async def main() -> float:
        running = plain([], tmp_path / "log")
        running.command = command
        task = asyncio.ensure_future(running.__aenter__())
        await asyncio.sleep(1.0)
        pids = [running.pid, *(child.pid for child in psutil.Process(running.pid).children(recursive=True))]
        began = time.monotonic()
        running.kill()
        took = time.monotonic() - began
        with pytest.raises(ServerStartError):
            await task
        assert all(gone(pid) for pid in pids)
        return took

    assert asyncio.run(main()) < 20  # not the grace of a minute
    assert removed.exists()


def test_a_log_of_gigabytes_is_read_from_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        file.truncate(3 * 2**30)  # sparse: it takes no room
        file.seek(0, 2)
        file.write(b"\nthe last line\n")
    running = plain(["x"], log)
    assert running.log_since(5)[-1] == "the last line"
    assert sum(map(len, running.log_since(5))) <= 16 * 2**20
    assert running.last_line().endswith("the last line")


def test_wedged_while_decoding(tmp_path: Path) -> None:
    """Silence while a stream decodes is wrong, whatever /health says."""
    with pytest.raises(ServerWedgedError, match=r"nothing arrived for 9\.0 s while 2 of 3 requests were decoding"):
        asyncio.run(check_wedged("http://127.0.0.1:9", "/health", 9.0, 2, 3, None))


def test_wedged_in_prefill_is_decided_by_health(tmp_path: Path) -> None:
    async def main() -> None:
        async with scripted(tmp_path) as running:
            await check_wedged(running.base_url, "/health", 9.0, 0, 3, running)  # alive: a long prefill is fine
            [child] = psutil.Process(running.pid).children()
            os.kill(child.pid, signal.SIGSTOP)
            try:
                began = time.monotonic()
                with pytest.raises(ServerWedgedError, match="/health does not answer"):
                    await check_wedged(running.base_url, "/health", 9.0, 0, 3, running)
                assert time.monotonic() - began < 2
            finally:
                os.kill(child.pid, signal.SIGCONT)

    asyncio.run(main())


def test_nothing_secret_is_recorded() -> None:
    environment = {
        "HF_TOKEN": "hf_x", "AWS_SECRET_ACCESS_KEY": "y", "OPENAI_API_KEY": "z", "DB_PASSWORD": "p",
        "HTTP_PROXY": "http://user:pass@proxy:1", "SGLANG_USE_AITER": "1",
    }  # fmt: skip
    assert harmless(environment) == {"HTTP_PROXY": "http://***@proxy:1", "SGLANG_USE_AITER": "1"}
    command = ("python", "--api-key", "k", "--admin-api-key=k2", "--env=HF_TOKEN=t", "--env=A=1", "http://u:p@h/")
    masked = ("python", "--api-key", "***", "--admin-api-key=***", "--env=HF_TOKEN=***", "--env=A=1", "http://***@h/")
    assert harmless_command(command) == masked
    assert launch_context().host == "127.0.0.1"
