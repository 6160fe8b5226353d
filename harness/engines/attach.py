"""A server that is already running, by URL: measured, never started or stopped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from harness.engines.base import LaunchContext, ask_text, ask_tokens, first_model
from harness.engines.command import Command
from harness.engines.llamacpp import LlamaCpp
from harness.engines.sglang import Sglang
from harness.fields import ServerSettings
from harness.http import ControlClient
from harness.model import Output


class AttachSettings(ServerSettings):
    """`server:` of a running server."""

    engine: Literal["attach"]
    """A server that runs already."""

    url: Annotated[str, Field(pattern=r"^https?://[^/@\s]+/?$")]
    """Base URL, such as http://127.0.0.1:30000"""

    api: Literal["sglang", "llamacpp", "openai"] = "openai"
    """Which server it is. `openai`: any with /v1/completions and /tokenize, such as vLLM."""

    model: str | None = None
    """The model's name, if the server serves several. Default: the first that it lists."""

    speculative: bool | None = None
    """Say whether it drafts tokens, so that an accept length of 1 is noticed."""

    gpus_used: Annotated[int, Field(ge=0, strict=True)] = 0
    """For throughput a GPU; 0 leaves that out."""


class Attach:
    """See harness.engines.base.Engine. Reads what the server's kind exposes through that kind's engine."""

    name = "attach"
    health_path = "/v1/models"
    keep_alive = False
    multi_gpu = False
    evaluates = False
    profiles = False

    def problems(self, settings: AttachSettings) -> list[tuple[str, str]]:
        return [("env", "a server that runs already can't be given an environment")] if settings.env else []

    def dialect(self, settings: AttachSettings, chat: bool) -> str:
        if chat:
            return "openai-chat"
        return "sglang" if settings.api == "sglang" else "openai"

    def speculative(self, settings: AttachSettings) -> bool | None:
        return settings.speculative

    def gpu_count(self, settings: AttachSettings, tp: int) -> int:
        return settings.gpus_used

    def meaningful_output(self, settings: AttachSettings) -> bool:
        return True

    def verify_arm(self, settings: AttachSettings) -> str | None:
        return None

    def prepare(self, settings: AttachSettings, cache_dir: Path) -> None:
        """Nothing: it runs."""

    def command(self, settings: AttachSettings, context: LaunchContext) -> Command | None:
        return None

    def base_url(self, settings: AttachSettings, context: LaunchContext) -> str:
        return settings.url.rstrip("/")

    def interpreter(self, settings: AttachSettings, context: LaunchContext) -> tuple[str, ...]:
        return ()

    def gsm8k(
        self, settings: AttachSettings, context: LaunchContext, questions: int, parallel: int, data: str | None
    ) -> tuple[str, ...]:
        return ()

    async def identity(self, http: ControlClient) -> str | None:
        return await first_model(http)

    async def describe(self, settings: ServerSettings, http: ControlClient) -> dict[str, Any]:
        known = _known(settings)
        return await known.describe(settings, http) if known else {}

    async def counters(self, settings: ServerSettings, http: ControlClient) -> dict[str, float]:
        known = _known(settings)
        return await known.counters(settings, http) if known else {}

    async def accept_length(self, settings: ServerSettings, http: ControlClient) -> float | None:
        known = _known(settings)
        return await known.accept_length(settings, http) if known else None

    async def tokenize(self, settings: ServerSettings, http: ControlClient, text: str) -> list[int]:
        known = _known(settings)
        if known:
            return await known.tokenize(settings, http, text)
        model = await first_model(http)
        return await ask_tokens(http, {"model": model, "prompt": text, "add_special_tokens": False})

    async def detokenize(self, settings: ServerSettings, http: ControlClient, ids: Sequence[int]) -> str:
        known = _known(settings)
        return await known.detokenize(settings, http, ids) if known else await ask_text(http, ids, "prompt")

    async def answer(
        self, settings: ServerSettings, http: ControlClient, prompts: Sequence[Sequence[int]], output_tokens: int
    ) -> tuple[Output, ...]:
        known = _known(settings)
        return await known.answer(settings, http, prompts, output_tokens) if known else ()

    async def start_profile(self, settings: ServerSettings, http: ControlClient, folder: Path, steps: int) -> bool:
        return False

    def parse_log(self, lines: Sequence[str]) -> list[dict[str, float]]:
        return []


def _known(settings: ServerSettings) -> Sglang | LlamaCpp | None:
    """The engine that knows this kind of server, if one does."""
    api = settings.api if isinstance(settings, AttachSettings) else "openai"
    known: dict[str, Sglang | LlamaCpp] = {"sglang": Sglang(), "llamacpp": LlamaCpp()}
    return known.get(api)
