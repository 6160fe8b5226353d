"""A server of ours whose timing, counts and faults are scripted: the ground truth for tests, not a model."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.access import Access
from harness.engines.base import LaunchContext, ask_outputs, ask_text, ask_tokens, first_model
from harness.engines.command import Command
from harness.engines.script import ScriptedSettings
from harness.fields import ServerSettings
from harness.http import ControlClient
from harness.model import Output


class Scripted:
    """See harness.engines.base.Engine."""

    name = "scripted"
    health_path = "/health"
    multi_gpu = False
    evaluates = False
    profiles = False

    def problems(self, settings: ScriptedSettings) -> list[tuple[str, str]]:
        return []

    def dialect(self, settings: ScriptedSettings, chat: bool) -> str:
        return "openai-chat" if chat else settings.api

    def speculative(self, settings: ScriptedSettings) -> bool:
        return settings.speculative

    def gpu_count(self, settings: ScriptedSettings, tp: int) -> int:
        return 0

    def meaningful_output(self, settings: ScriptedSettings) -> bool:
        return True

    def set_accept_length(self, settings: ScriptedSettings) -> None:
        return None

    def verify_arm(self, settings: ScriptedSettings) -> str | None:
        return None

    def prepare(self, settings: ScriptedSettings, cache_dir: Path) -> None:
        """Nothing."""

    def command(self, settings: ScriptedSettings, context: LaunchContext) -> Command:
        argv = [sys.executable, "-m", "harness.engines.scripted_server"]
        argv += ["--port", str(context.port), "--identity", context.identity]
        script = settings.model_dump(exclude={"env"})
        return Command((*argv, "--script", json.dumps(script)), settings.env)

    def base_url(self, settings: ScriptedSettings, context: LaunchContext) -> str:
        return f"http://{context.host}:{context.port}"

    def access(self, settings: ScriptedSettings) -> Access:
        return Access()

    def interpreter(self, settings: ScriptedSettings, context: LaunchContext) -> tuple[str, ...]:
        return (sys.executable,)

    def gsm8k(
        self, settings: ScriptedSettings, context: LaunchContext, questions: int, parallel: int, data: str | None
    ) -> tuple[str, ...]:
        return ()

    async def identity(self, http: ControlClient) -> str | None:
        return await first_model(http)

    async def describe(self, settings: ServerSettings, http: ControlClient) -> dict[str, Any]:
        return {"scripted": True}

    async def counters(self, settings: ServerSettings, http: ControlClient) -> dict[str, float]:
        answer = (await http.get("/counters")).json()
        found = answer if isinstance(answer, dict) else {}
        return {name: value for name, value in found.items() if type(value) in (int, float)}

    async def accept_length(self, settings: ServerSettings, http: ControlClient) -> float | None:
        return None  # each request says it

    async def tokenize(self, settings: ServerSettings, http: ControlClient, text: str) -> list[int]:
        return await ask_tokens(http, {"content": text})

    async def detokenize(self, settings: ServerSettings, http: ControlClient, ids: Sequence[int]) -> str:
        return await ask_text(http, ids, "content")

    async def answer(
        self, settings: ServerSettings, http: ControlClient, prompts: Sequence[Sequence[int]], output_tokens: int
    ) -> tuple[Output, ...]:
        sglang = isinstance(settings, ScriptedSettings) and settings.api == "sglang"
        return await ask_outputs(http, prompts, output_tokens, settings.request_timeout) if sglang else ()

    async def start_profile(self, settings: ServerSettings, http: ControlClient, folder: Path, steps: int) -> bool:
        return False

    def parse_log(self, lines: Sequence[str]) -> list[dict[str, float]]:
        return []
