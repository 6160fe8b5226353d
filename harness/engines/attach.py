"""A server that is already running, by URL: measured, never started or stopped."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from harness.access import Access, header_problem
from harness.engines.base import LaunchContext, ask_text, ask_tokens, first_model
from harness.engines.command import Command
from harness.engines.llamacpp import LlamaCpp
from harness.engines.sglang import Sglang
from harness.errors import WorkloadError
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

    api_key_env: str = ""
    """The environment variable that holds an API key, such as OPENAI_API_KEY: sent as `Authorization: Bearer …` with
    every request, and written down nowhere."""

    header_env: dict[str, str] = {}
    """Further headers of every request, each from an environment variable: {X-Team-Key: TEAM_KEY}."""

    ca_file: str = ""
    """Certificates to trust for an https URL (PEM). Default: $SSL_CERT_FILE, else those that certifi ships."""

    speculative: bool | None = None
    """Say whether it drafts tokens, so that an accept length of 1 is noticed."""

    gpus_used: Annotated[int, Field(ge=0, strict=True)] = 0
    """For throughput a GPU; 0 leaves that out."""


class Attach:
    """See harness.engines.base.Engine. Reads what the server's kind exposes through that kind's engine."""

    name = "attach"
    health_path = "/v1/models"
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

    def set_accept_length(self, settings: AttachSettings) -> None:
        return None

    def verify_arm(self, settings: AttachSettings) -> str | None:
        return None

    def prepare(self, settings: AttachSettings, cache_dir: Path) -> None:
        """Nothing: it runs."""

    def command(self, settings: AttachSettings, context: LaunchContext) -> Command | None:
        return None

    def base_url(self, settings: AttachSettings, context: LaunchContext) -> str:
        return settings.url.rstrip("/")

    def access(self, settings: AttachSettings) -> Access:
        headers = {name: _variable(variable) for name, variable in settings.header_env.items()}
        if settings.api_key_env:
            headers["Authorization"] = f"Bearer {_variable(settings.api_key_env)}"
        for name, value in headers.items():
            if problem := header_problem(name, value):
                raise WorkloadError(problem, "See server.header_env and server.api_key_env.")
        access = Access(settings.api != "llamacpp", tuple(headers.items()), settings.ca_file)
        if settings.url.startswith("https:"):
            try:
                access.ssl_context()
            except OSError as error:
                name = settings.ca_file or "$SSL_CERT_FILE"
                raise WorkloadError(f"can't read certificates from {name}: {error}", "It has to hold PEM.") from error
        return access

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


def _variable(name: str) -> str:
    value = os.environ.get(name, "")
    if not value:
        raise WorkloadError(f"the environment variable {name} is not set", f"export {name}=…, then run again.")
    return value


def _known(settings: ServerSettings) -> Sglang | LlamaCpp | None:
    """The engine that knows this kind of server, if one does."""
    api = settings.api if isinstance(settings, AttachSettings) else "openai"
    known: dict[str, Sglang | LlamaCpp] = {"sglang": Sglang(), "llamacpp": LlamaCpp()}
    return known.get(api)
