"""A server of ours whose timing, counts and faults are scripted: the ground truth for tests, not a model."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from harness.client import ControlClient
from harness.engines.base import LaunchContext, ask_outputs, ask_text, ask_tokens, first_model
from harness.engines.command import Command
from harness.model import Output
from harness.settings import Count, Duration, ServerSettings, Strict

FaultKind = Literal[
    "error_before_first",  # an error event in a 200 response, before any token
    "error_after",  # the same after `at` tokens
    "http_503",
    "drop",  # closes the connection after `at` tokens
    "no_done",  # ends without [DONE], after `at` tokens
    "only_done",  # [DONE] and nothing else
    "stop_early",  # ends properly after `at` tokens, finish reason "stop"
    "stall",  # goes silent after `at` tokens, for ever
    "exit",  # the process ends after `at` tokens
    "repeat",  # the same token throughout
]


class Fault(Strict):
    """Something that goes wrong with some requests."""

    kind: FaultKind
    """What happens."""

    requests: list[Annotated[int, Field(ge=0)]] | None = None
    """Which requests, in order of arrival from 0, warm-up included. Default: all."""

    at: Annotated[int, Field(ge=0)] = 0
    """After how many tokens."""


class ScriptedSettings(ServerSettings):
    """`server:` of the scripted server. It does not run a model: its results say nothing about any."""

    engine: Literal["scripted"]
    """The scripted server: no model runs."""

    ttft: Duration = 0.02
    """Time to the first chunk."""

    ttft_jitter: Duration = 0.0
    """Adds up to this to `ttft`, drawn for each request, so that streams do not run in step."""

    step: Duration = 0.005
    """Time between chunks of a stream."""

    step_per_stream: Duration = 0.0
    """Added to `step` for every stream in flight, so that a sweep has a shape."""

    chunk_tokens: list[Count] = [1]
    """Tokens a chunk, in turn: [4] for MTP-like chunks of four."""

    first_chunk_tokens: Count = 1
    """Tokens of the first chunk."""

    role_chunk: bool = False
    """Sends a chunk with a role and no token at once, as chat servers do."""

    speculative: bool = False
    """Reports verify steps: one a chunk."""

    usage: Literal["every_chunk", "final", "none"] = "every_chunk"
    """Where token counts are reported."""

    cached_tokens: Annotated[int, Field(ge=0)] = 0
    """Prompt tokens that it claims to have found in a cache."""

    prompt_tokens_off_by: int = 0
    """Added to the prompt length that it reports."""

    answer_shift: int = 0
    """Added to every token of its answers to the output check: another value is another model's text."""

    wire: Literal["plain", "bytewise", "crlf", "comments", "no_space", "coalesced"] = "plain"
    """How its bytes are cut and decorated."""

    faults: list[Fault] = []
    """What goes wrong, and with which requests."""

    api: Literal["openai", "sglang"] = "openai"
    """How it is asked: /v1/completions or /generate."""

    ready_after: Duration = 0.0
    """Time until /health says yes."""

    start_fails: bool = False
    """Exits with an error while starting."""


class Scripted:
    """See harness.engines.base.Engine."""

    name = "scripted"
    health_path = "/health"
    keep_alive = True
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
        return dict(answer) if isinstance(answer, dict) else {}

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
