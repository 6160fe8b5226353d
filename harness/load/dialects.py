"""How servers are asked and what their streams mean. Pure functions: bytes in, bytes or counts out.

A newcomer adds a dialect with one class and one entry in DIALECTS.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from harness.model import CountSource, Event

DONE = b"[DONE]"
REPETITION_WINDOW = 64  # pieces: long enough to tell text from a loop, short enough for early loops

Payload = tuple[float, bytes]  # when its bytes arrived, and the data of one server-sent event


@dataclass(frozen=True)
class Prompt:
    """What a request sends: token ids where the server takes them, else text. `tokens` is the target."""

    tokens: int
    ids: tuple[int, ...] = ()
    text: str = ""


@dataclass(frozen=True)
class Sampling:
    """What is asked of every request of a workload."""

    model: str
    ignore_eos: bool = True
    temperature: float = 0.0


@dataclass
class Decoded:
    """What a stream said: tokens over time, the server's counts, and whether it ended as it should."""

    events: list[Event] = field(default_factory=list)
    done: bool = False
    error: str = ""
    finish_reason: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    verify_steps: int | None = None
    count_source: CountSource = CountSource.NONE
    output_digest: str = ""
    repetition: float = 0.0


class Dialect(Protocol):
    """One way of asking for a stream of tokens."""

    path: str

    def body(self, prompt: Prompt, output_tokens: int, sampling: Sampling) -> bytes:
        """The JSON body that asks for `output_tokens` tokens after `prompt`."""
        ...

    def decode(self, payloads: Sequence[Payload]) -> Decoded:
        """What the payloads of one stream say. Never raises: what can't be read is an error of the stream."""
        ...


class OpenAiCompletions:
    """`/v1/completions` of SGLang, vLLM and llama.cpp, with prompts as token ids.

    Counts come, best first, from: usage in every event (`continuous_usage_stats`; SGLang, vLLM), llama.cpp's
    `timings` in every event, the final usage, the number of events with text.
    """

    path = "/v1/completions"

    def body(self, prompt: Prompt, output_tokens: int, sampling: Sampling) -> bytes:
        return _dump(
            {"prompt": list(prompt.ids) if prompt.ids else prompt.text}
            | {"max_tokens": output_tokens}
            | self._common(sampling)
        )

    @staticmethod
    def _common(sampling: Sampling) -> dict[str, Any]:
        return {
            "model": sampling.model,
            "temperature": sampling.temperature,
            "ignore_eos": sampling.ignore_eos,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "timings_per_token": True,  # llama.cpp; others ignore it
            "cache_prompt": True,  # llama.cpp's default, said aloud: reuse must be seen, not hidden
        }

    def decode(self, payloads: Sequence[Payload]) -> Decoded:
        out = Decoded()
        pieces: list[str] = []
        arrivals: list[float] = []
        for t, message in _messages(payloads, out):
            text, finish = _openai_choice(message)
            out.finish_reason = finish or out.finish_reason
            if text:
                pieces.append(text)
                arrivals.append(t)
            total = self._read_counts(message, out)
            if total is not None and total > (out.events[-1].tokens if out.events else 0):
                out.events.append(Event(t, total))
        if len(out.events) > 1:
            out.count_source = CountSource.EVENT
        elif out.completion_tokens is not None and arrivals:
            out.count_source = CountSource.FINAL
            out.events = spread(arrivals, out.completion_tokens)
        elif not out.events:
            out.events = [Event(t, n) for n, t in enumerate(arrivals, 1)]
        out.output_digest, out.repetition = _digest(pieces)
        return out

    @staticmethod
    def _read_counts(message: dict[str, Any], out: Decoded) -> int | None:
        """Takes the counts of one event into `out`; returns its cumulative number of output tokens."""
        usage, timings = message.get("usage") or {}, message.get("timings") or {}
        total = usage.get("completion_tokens")
        if usage:
            out.prompt_tokens = usage.get("prompt_tokens", out.prompt_tokens)
            out.completion_tokens = usage.get("completion_tokens", out.completion_tokens)
            details = usage.get("prompt_tokens_details") or {}
            out.cached_tokens = details.get("cached_tokens", out.cached_tokens)
        if timings:
            total = timings.get("predicted_n", total)
            out.cached_tokens = timings.get("cache_n", out.cached_tokens)
            if "draft_n_accepted" in timings and total:
                # The first token comes from the prompt; each later pass yields its accepted drafts and one more.
                out.verify_steps = total - 1 - timings["draft_n_accepted"]
        return total if isinstance(total, int) else None


class OpenAiChat(OpenAiCompletions):
    """`/v1/chat/completions`: the server applies its chat template, so only text can be sent."""

    path = "/v1/chat/completions"

    def body(self, prompt: Prompt, output_tokens: int, sampling: Sampling) -> bytes:
        return _dump(
            {"messages": [{"role": "user", "content": prompt.text}], "max_tokens": output_tokens}
            | self._common(sampling)
        )


class SglangGenerate:
    """SGLang's own `/generate`: exact prompts, cumulative counts in every event, verify counts at the end."""

    path = "/generate"

    def body(self, prompt: Prompt, output_tokens: int, sampling: Sampling) -> bytes:
        ask: dict[str, Any] = {"input_ids": list(prompt.ids)} if prompt.ids else {"text": prompt.text}
        ask["stream"] = True
        ask["sampling_params"] = {
            "temperature": sampling.temperature,
            "max_new_tokens": output_tokens,
            "ignore_eos": sampling.ignore_eos,
        }
        return _dump(ask)

    def decode(self, payloads: Sequence[Payload]) -> Decoded:
        out = Decoded(count_source=CountSource.EVENT)
        ids: list[int] = []
        for t, message in _messages(payloads, out):
            meta = message.get("meta_info") or {}
            total = meta.get("completion_tokens")
            new = message.get("output_ids") or []
            # Streams are cumulative, or (--incremental-streaming-output) disjoint: both occur.
            ids = list(new) if len(new) == total else ids + list(new)
            if isinstance(total, int) and total > (out.events[-1].tokens if out.events else 0):
                out.events.append(Event(t, total))
            out.completion_tokens = total if isinstance(total, int) else out.completion_tokens
            out.prompt_tokens = meta.get("prompt_tokens", out.prompt_tokens)
            out.cached_tokens = meta.get("cached_tokens", out.cached_tokens)
            out.verify_steps = meta.get("spec_verify_ct", out.verify_steps)
            finish = meta.get("finish_reason")
            if isinstance(finish, dict):
                out.finish_reason = str(finish.get("type", ""))
                if out.finish_reason == "abort":
                    out.error = str(finish.get("message") or "aborted by the server")
        out.output_digest, out.repetition = _digest(ids)
        return out


DIALECTS: dict[str, Dialect] = {
    "openai": OpenAiCompletions(),
    "openai-chat": OpenAiChat(),
    "sglang": SglangGenerate(),
}


def spread(arrivals: Sequence[float], total: int) -> list[Event]:
    """Events for a stream whose token count is known only in total: evenly spread over its arrivals.

    The first arrival holds one token and the last all of them, so that TPOT is
    (t_last - t_first) / (total - 1), the definition that other tools use.
    """
    steps = max(len(arrivals) - 1, 1)
    events: list[Event] = []
    for position, t in enumerate(arrivals):
        tokens = total if position == steps or len(arrivals) == 1 else 1 + (total - 1) * position // steps
        if tokens > (events[-1].tokens if events else 0):
            events.append(Event(t, tokens))
    return events


def _messages(payloads: Sequence[Payload], out: Decoded) -> list[tuple[float, dict[str, Any]]]:
    """The JSON objects of a stream; marks its end and the first error in `out`."""
    messages = []
    for t, data in payloads:
        if data.strip() == DONE:
            out.done = True
            continue
        try:
            message = json.loads(data)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            out.error = out.error or f"an event is not a JSON object: {data[:80]!r}"
            continue
        error = message.get("error")
        if error or message.get("object") == "error":
            detail = error if error else message
            out.error = out.error or str(detail.get("message", detail) if isinstance(detail, dict) else detail)
            continue
        messages.append((t, message))
    return messages


def _openai_choice(message: dict[str, Any]) -> tuple[str, str]:
    """Text and finish reason of an event; text includes reasoning, which costs as much as an answer."""
    choices = message.get("choices") or []
    if not choices or not isinstance(choices[0], dict):
        return "", ""
    choice = choices[0]
    delta = choice.get("delta") or {}
    parts = (
        choice.get("text"),
        delta.get("reasoning_content"),
        delta.get("reasoning"),
        delta.get("content"),
    )
    return "".join(part for part in parts if part), str(choice.get("finish_reason") or "")


def _digest(pieces: Sequence[object]) -> tuple[str, float]:
    """A digest of the output, and how repetitive its end is: 1 - distinct pieces / pieces."""
    if not pieces:
        return "", 0.0
    # Texts are joined: the same output cut differently must have the same digest.
    text = "".join(map(str, pieces)) if isinstance(pieces[0], str) else ",".join(map(str, pieces))
    tail = pieces[-REPETITION_WINDOW:]
    return hashlib.sha256(text.encode()).hexdigest()[:16], 1 - len(set(tail)) / len(tail)


def _dump(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
