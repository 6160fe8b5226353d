"""The script of the scripted server. Apart from the engine, so that the server's process starts without a client."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from harness.fields import Count, Duration, ServerSettings, Strict

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
