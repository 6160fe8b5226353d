"""The embedded engine: llama.cpp's own server from PyPI (xllamacpp), on any CPU, with a real MTP head."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from harness.access import Access
from harness.cores import usable_cores
from harness.engines import tiny_gguf
from harness.engines.base import LaunchContext, ask_text, ask_tokens, first_model, prometheus_counters
from harness.engines.command import Command
from harness.errors import MissingPackageError
from harness.fields import Count, ServerSettings, Strict, is_file
from harness.http import ControlClient
from harness.model import Output

TINY_MODEL = "tiny-qwen3.5-mtp"

_COUNTERS = {
    "llamacpp:spec_decode_num_drafts_total": "drafts",
    "llamacpp:spec_decode_num_draft_tokens_total": "draft_tokens",
    "llamacpp:spec_decode_num_accepted_tokens_total": "accepted_tokens",
    "llamacpp:tokens_predicted_total": "output_tokens",
    "llamacpp:n_decode_total": "decode_calls",
}
_ACCEPTANCE = re.compile(
    r"draft acceptance = (?P<rate>[\d.]+).*?(?P<accepted>\d+) accepted /\s*(?P<drafted>\d+) generated"
)


class LlamaCppSpeculation(Strict):
    """MTP drafts by the model's own head."""

    draft_tokens: Annotated[int, Field(ge=1, le=8, strict=True)] = 3
    """Tokens drafted a step; a step yields at most one more."""

    synth_len: float | None = None
    """Forces this mean number of accepted drafts, whatever the model says: the text is then meaningless."""


class LlamaCppSettings(ServerSettings):
    """`server:` of the embedded engine."""

    engine: Literal["llamacpp"]
    """The embedded engine: llama.cpp on this CPU."""

    model: str = TINY_MODEL
    """A .gguf file, or `tiny-qwen3.5-mtp`: a 36M-parameter random model made on first use."""

    speculation: LlamaCppSpeculation | None = None
    """Absent or null: one token a step."""

    slots: Count | None = None
    """Requests served at once; more wait. Default: the largest concurrency of the scenario."""

    threads: Count | None = None
    """CPU threads. Default: all cores but one, which the load generator needs: llama.cpp's threads wait for each
    other by spinning, and one that has to share its core slows a step from milliseconds to seconds."""


class LlamaCpp:
    """See harness.engines.base.Engine."""

    name = "llamacpp"
    health_path = "/health"
    multi_gpu = False
    evaluates = False
    profiles = False

    def problems(self, settings: LlamaCppSettings) -> list[tuple[str, str]]:
        if settings.model != TINY_MODEL and not is_file(Path(settings.model)):
            return [("model", f"{settings.model} is neither a file nor {TINY_MODEL}")]
        return []

    def dialect(self, settings: LlamaCppSettings, chat: bool) -> str:
        return "openai-chat" if chat else "openai"

    def speculative(self, settings: LlamaCppSettings) -> bool:
        return settings.speculation is not None

    def gpu_count(self, settings: LlamaCppSettings, tp: int) -> int:
        return 0

    def meaningful_output(self, settings: LlamaCppSettings) -> bool:
        return settings.speculation is None or settings.speculation.synth_len is None

    def set_accept_length(self, settings: LlamaCppSettings) -> float | None:
        spec = settings.speculation
        return spec.synth_len + 1 if spec and spec.synth_len is not None else None  # and the bonus token

    def verify_arm(self, settings: LlamaCppSettings) -> str | None:
        return None

    def prepare(self, settings: LlamaCppSettings, cache_dir: Path) -> None:
        for package in ("xllamacpp", "gguf"):
            if importlib.util.find_spec(package) is None:
                raise MissingPackageError(package, "The embedded engine", "embedded")
        if settings.model == TINY_MODEL:
            tiny_gguf.cached(cache_dir)

    def command(self, settings: LlamaCppSettings, context: LaunchContext) -> Command:
        model = settings.model
        path = tiny_gguf.cache_path(context.cache_dir) if model == TINY_MODEL else Path(model)
        slots = settings.slots or context.max_concurrency
        threads = settings.threads or max(1, usable_cores() - 1)
        argv = [sys.executable, "-m", "harness.engines.llamacpp_server"]
        argv += ["--model", str(path), "--port", str(context.port), "--alias", context.identity]
        argv += [
            "--slots",
            str(slots),
            "--threads",
            str(threads),
            "--context",
            str(context.max_context),
        ]
        if settings.speculation:
            argv += ["--draft-tokens", str(settings.speculation.draft_tokens)]
            if settings.speculation.synth_len is not None:
                argv += ["--synth-len", str(settings.speculation.synth_len)]
        return Command(tuple(argv), settings.env)

    def base_url(self, settings: LlamaCppSettings, context: LaunchContext) -> str:
        return f"http://{context.host}:{context.port}"

    def access(self, settings: LlamaCppSettings) -> Access:
        return Access(keep_alive=False)  # it closes idle connections at any time

    def interpreter(self, settings: LlamaCppSettings, context: LaunchContext) -> tuple[str, ...]:
        return (sys.executable,)

    def gsm8k(
        self, settings: LlamaCppSettings, context: LaunchContext, questions: int, parallel: int, data: str | None
    ) -> tuple[str, ...]:
        return ()

    async def identity(self, http: ControlClient) -> str | None:
        return await first_model(http)

    async def describe(self, settings: ServerSettings, http: ControlClient) -> dict[str, Any]:
        models = (await http.get("/v1/models")).json()
        props = (await http.get("/props")).json()
        props = props if isinstance(props, dict) else {}
        listed = models.get("data") if isinstance(models, dict) else None
        first = listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], dict) else {}
        return {
            "model": first.get("meta", {}),
            "total_slots": props.get("total_slots"),
            "build": props.get("build_info"),
        }

    async def counters(self, settings: ServerSettings, http: ControlClient) -> dict[str, float]:
        reply = await http.get("/metrics")
        return prometheus_counters(reply.text, _COUNTERS) if reply.ok else {}

    async def accept_length(self, settings: ServerSettings, http: ControlClient) -> float | None:
        return None  # each request says it

    async def tokenize(self, settings: ServerSettings, http: ControlClient, text: str) -> list[int]:
        return await ask_tokens(http, {"content": text, "add_special": False})

    async def detokenize(self, settings: ServerSettings, http: ControlClient, ids: Sequence[int]) -> str:
        return await ask_text(http, ids, "content")

    async def answer(
        self, settings: ServerSettings, http: ControlClient, prompts: Sequence[Sequence[int]], output_tokens: int
    ) -> tuple[Output, ...]:
        """Its own endpoint, which can return tokens; probabilities of drafted ones it does not report."""
        body = {"n_predict": output_tokens, "temperature": 0, "ignore_eos": True, "return_tokens": True}
        answers = []
        for prompt in prompts:
            asked = {**body, "prompt": list(prompt), "cache_prompt": False}
            reply = await http.post("/completion", asked, timeout_s=settings.request_timeout)
            answer = reply.json()
            tokens = answer.get("tokens") if reply.ok and isinstance(answer, dict) else None
            if not tokens or not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
                return ()
            answers.append(Output(tuple(tokens)))
        return tuple(answers)

    async def start_profile(self, settings: ServerSettings, http: ControlClient, folder: Path, steps: int) -> bool:
        return False

    def parse_log(self, lines: Sequence[str]) -> list[dict[str, float]]:
        return [
            {name: float(value) for name, value in match.groupdict().items()}
            for line in lines
            if (match := _ACCEPTANCE.search(line))
        ]
