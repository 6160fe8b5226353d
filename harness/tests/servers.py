"""Real servers for tests: the scripted one started as a process, and load driven at it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from harness.engines.base import LaunchContext
from harness.engines.script import ScriptedSettings
from harness.engines.scripted import Scripted
from harness.engines.server import ServerProcess, free_port, server_process
from harness.load.dialects import DIALECTS, Prompt, Sampling
from harness.load.requests import PlannedRequest
from harness.load.workers import LoadJob, LoadResult, Workers

ENGINE = Scripted()


def launch_context(port: int = 30000, **values: object) -> LaunchContext:
    defaults: dict[str, object] = {
        "port": port,
        "identity": f"mtpbench-test-{port}",
        "tp": 1,
        "gpus": (),
        "max_concurrency": 4,
        "max_context": 256,
        "cache_dir": Path("cache"),
    }
    return LaunchContext(**{**defaults, **values})  # type: ignore[arg-type]


def server(settings: ScriptedSettings, log: Path, context: LaunchContext | None = None) -> ServerProcess:
    context = context or launch_context(free_port())
    return server_process(ENGINE, settings, context, ENGINE.command(settings, context), log, 20.0)


@contextlib.asynccontextmanager
async def scripted(tmp_path: Path, **settings: object) -> AsyncIterator[ServerProcess]:
    """A scripted server that is up."""
    script = ScriptedSettings.model_validate({"engine": "scripted", "ttft": 0.01, "step": 0.003, **settings})
    async with server(script, tmp_path / "server.log") as running:
        yield running


def requests(count: int, output_tokens: int = 8, api: str = "openai", **values: object) -> tuple[PlannedRequest, ...]:
    """Requests whose prompts begin with their index."""
    bodies = [
        DIALECTS[api].body(Prompt(5, ids=(n, 2, 3, 4, 5), text="12345"), output_tokens, Sampling("m"))
        for n in range(count)
    ]
    return tuple(PlannedRequest(n, body, 5, output_tokens, **values) for n, body in enumerate(bodies))  # type: ignore[arg-type]


async def drive(
    url: str, count: int = 4, slots: int = 2, output_tokens: int = 8, api: str = "openai", timeout_s: float = 20.0
) -> LoadResult:
    job = LoadJob(url, api, requests(count, output_tokens, api), slots, False, timeout_s)
    with Workers(slots) as workers:
        return await workers.run(job)


def measure(tmp_path: Path, count: int = 4, slots: int = 2, output_tokens: int = 8, **settings: object) -> LoadResult:
    """Requests to a scripted server, start to finish."""

    async def main() -> LoadResult:
        async with scripted(tmp_path, **settings) as running:
            api = str(settings.get("api", "openai"))
            return await drive(running.base_url, count, slots, output_tokens, api)

    return asyncio.run(main())
