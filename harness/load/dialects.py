"""How servers are asked and what their streams mean. Pure functions: bytes in, bytes or counts out.

A newcomer adds a dialect with one class and one entry in DIALECTS.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import orjson

from harness.model import CountSource, Event

DONE = b"[DONE]"
REPETITION_WINDOW = 64  # pieces: long enough to tell text from a loop, short enough for early loops
_SHOWN = 80  # bytes of an event that can't be read
_MAX_MESSAGE = 500  # characters of what a server says of an error
_MAX_COUNT = 10**9  # no prompt and no answer has more tokens
_MAX_NESTING = 8  # of content parts within content parts

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


class Arrival(NamedTuple):
    """What one event says. `text` or `ids`: new output; counts are cumulative, None where it does not say.

    `error` is what the server calls an error, or why the event can't be read. A tuple, because a pass has millions.
    """

    text: str = ""
    ids: tuple[int, ...] | None = None
    tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    verify_steps: int | None = None
    finish_reason: str = ""
    done: bool = False
    error: str = ""


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

    def read(self, data: bytes) -> Arrival:
        """What one event says. Never raises: an event that can't be read says so in `error`."""
        ...

    def decode(self, payloads: Sequence[Payload]) -> Decoded:
        """What the payloads of one stream say. Never raises: what can't be read is an error of the stream."""
        ...


class OpenAiCompletions:
    """`/v1/completions` of SGLang, vLLM and llama.cpp, with prompts as token ids.

    Tokens arrive when text, reasoning text or a tool call does; counts only say how many: usage or llama.cpp's
    `timings` in every event, in some of them, or at the end. See `_timeline`.
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

    def read(self, data: bytes) -> Arrival:
        return _read(data, self._said)

    def decode(self, payloads: Sequence[Payload]) -> Decoded:
        said, out = _stream(self, payloads)
        _timeline([(t, bool(one.text), one.tokens) for t, one in said], out)
        out.output_digest, out.repetition = _digest([one.text for _, one in said if one.text])
        return out

    @staticmethod
    def _said(message: Mapping[str, Any]) -> Arrival:
        usage, timings = _object(message, "usage"), _object(message, "timings")
        total, prompt = _count(usage, "completion_tokens"), _count(usage, "prompt_tokens")
        cached = _count(_object(usage, "prompt_tokens_details"), "cached_tokens")
        reasoning = _count(_object(usage, "completion_tokens_details"), "reasoning_tokens")
        if reasoning is not None and total is not None and reasoning > total > 0:
            raise _UnreadableError(f"it counts {reasoning} reasoning tokens among {total}")
        predicted, accepted = _count(timings, "predicted_n"), _count(timings, "draft_n_accepted")
        total = predicted if predicted is not None else total
        from_cache = _count(timings, "cache_n")
        # The first token comes from the prompt; each later pass yields its accepted drafts and one more.
        # Its drafts are counted before its tokens are sent one by one: only at a step's end do the two agree.
        steps = total - 1 - accepted if accepted is not None and total else None
        steps = steps if steps is None or steps >= 0 else None
        text, finish = _openai_choice(message)
        return Arrival(
            text=text,
            tokens=total,
            prompt_tokens=prompt,
            cached_tokens=from_cache if from_cache is not None else cached,
            verify_steps=steps,
            finish_reason=finish,
        )


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

    def read(self, data: bytes) -> Arrival:
        return _read(data, self._said)

    def decode(self, payloads: Sequence[Payload]) -> Decoded:
        said, out = _stream(self, payloads)
        ids: list[int] = []
        texts: list[str] = []
        arrivals: list[tuple[float, bool, int | None]] = []
        for t, one in said:
            # Streams are cumulative, or (--incremental-streaming-output) disjoint: both occur.
            if one.ids is not None:
                new = one.ids
                arrived = len(new) > (len(ids) if len(new) == one.tokens else 0)
                ids = list(new) if len(new) == one.tokens else [*ids, *new]
            elif one.text:
                whole = "".join(texts)
                arrived = one.text != whole
                texts = [*texts, one.text] if not one.text.startswith(whole) else [*texts, one.text[len(whole) :]]
            else:  # tells of its tokens by their number alone
                arrived = one.tokens is not None
            arrivals.append((t, arrived, one.tokens))
        _timeline(arrivals, out)
        out.output_digest, out.repetition = _digest(ids or [piece for piece in texts if piece])
        return out

    @staticmethod
    def _said(message: Mapping[str, Any]) -> Arrival:
        meta = _object(message, "meta_info")
        ids, text = message.get("output_ids"), message.get("text")
        if ids is not None and not (isinstance(ids, list) and all(type(token) is int for token in ids)):
            raise _UnreadableError("`output_ids` is no list of whole numbers")
        finish = meta.get("finish_reason")
        reason, error = _plain(finish), ""
        if isinstance(finish, dict):
            reason = _plain(finish.get("type"))
            if reason == "abort":
                error = _message(finish) if finish.get("message") else "aborted by the server"
        return Arrival(
            text=_text(text, "text"),
            ids=None if ids is None else tuple(ids),
            tokens=_count(meta, "completion_tokens"),
            prompt_tokens=_count(meta, "prompt_tokens"),
            cached_tokens=_count(meta, "cached_tokens"),
            verify_steps=_count(meta, "spec_verify_ct"),
            finish_reason=reason,
            error=error,
        )


DIALECTS: dict[str, Dialect] = {
    "openai": OpenAiCompletions(),
    "openai-chat": OpenAiChat(),
    "sglang": SglangGenerate(),
}


def why_no_stream(content_type: str, content_encoding: str) -> str:
    """Why an answer with these headers is no stream of events that can be timed; empty where it is one."""
    if content_encoding.strip().lower() not in ("", "identity"):
        return (
            f"the answer is compressed ({content_encoding.strip()[:20]}), which was not asked for: does a proxy stand "
            "between here and the server?"
        )
    if content_type.strip().lower().startswith(("application/json", "text/html")):
        return f"the answer is no stream of events but {content_type.strip()[:40]}: can the server stream?"
    return ""


class _UnreadableError(Exception):
    """An event says something that can't be; its message goes on after "an event can't be read: "."""


class _Said(Protocol):
    def __call__(self, message: Mapping[str, Any]) -> Arrival: ...


def _read(data: bytes, said: _Said) -> Arrival:
    """One event's bytes → what it says; `said` takes a JSON object apart and may raise `_UnreadableError`."""
    if data.strip() == DONE:
        return Arrival(done=True)
    try:
        message = _load(data)
        if not isinstance(message, dict):
            raise _UnreadableError("it is not a JSON object")
        error = message.get("error")
        if error or message.get("object") == "error":
            return Arrival(error=_message(error or message))
        return said(message)
    except _UnreadableError as error:
        why = str(error)
    except RecursionError:
        why = "it is nested too deeply"
    except ValueError:  # no JSON, no UTF-8, or a number of thousands of digits
        why = "it is not a JSON object"
    return Arrival(error=f"an event can't be read: {why}: {data[:_SHOWN]!r}")


def _load(data: bytes) -> object:
    """JSON by orjson, a quarter of the time of the standard library's, which takes more: NaN, numbers of thousands of
    digits, half a surrogate pair. What the one refuses is left to the other. Raises ValueError and RecursionError.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return json.loads(data)


def _stream(dialect: Dialect, payloads: Sequence[Payload]) -> tuple[list[tuple[float, Arrival]], Decoded]:
    """Every event that could be read, and what holds for the whole stream: its end, first error and last counts."""
    out, said = Decoded(), []
    read = dialect.read
    for t, data in payloads:
        one = read(data)
        if one.done:
            out.done = True
        if one.error:
            out.error = out.error or one.error
        if one.finish_reason:
            out.finish_reason = one.finish_reason
        if one.prompt_tokens is not None:
            out.prompt_tokens = one.prompt_tokens
        if one.cached_tokens is not None:
            out.cached_tokens = one.cached_tokens
        if one.verify_steps is not None:
            out.verify_steps = one.verify_steps
        said.append((t, one))
    return said, out


def _timeline(said: Sequence[tuple[float, bool, int | None]], out: Decoded) -> None:
    """(when, did output arrive, cumulative count) of each event → `out.events`, the total, and where it comes from.

    A count belongs to the output that it comes with, or that came last before it without a count of its own. Output
    between two counts is spread evenly over them. Tokens that are only counted, after the last output, are in the
    total alone: when they arrived can't be told. Without a count of the last output nothing is said of tokens.
    """
    arrivals: list[float] = []
    counts: list[int | None] = []
    own = False  # has the last output a count that came with it?
    largest = 0
    for t, arrived, total in said:
        if arrived:
            arrivals.append(t)
            counts.append(None)
            own = bool(total)
        if not total:  # proxies end with a usage of zeros
            continue
        if total < largest:
            out.error = out.error or f"the server's count of tokens goes back from {largest} to {total}"
            return
        largest = total
        if counts and (arrived or not own):
            counts[-1] = total
    if len(counts) > 1 and len(set(counts)) == 1 and largest == counts[0]:
        # The same count with every piece and none larger: it is not a running total.
        counts[:-1] = [None] * (len(counts) - 1)
    elif len(counts) > 1 and len(set(counts)) == 1 and counts[0] is not None:
        counts = [None] * (len(counts) - 1) + [largest]
    if arrivals and counts[-1] is None:  # nothing was counted to the end
        out.events = [Event(t, n) for n, t in enumerate(arrivals, 1)]
        return
    if largest:
        out.completion_tokens = largest
    if arrivals:
        out.count_source = CountSource.FINAL if None in counts else CountSource.EVENT
        out.events = spread(arrivals, counts)


def spread(arrivals: Sequence[float], counts: Sequence[int | None]) -> list[Event]:
    """Events with the missing counts spread evenly between the known ones; the last one is known.

    Where the first is not, it holds one token, so that TPOT of a stream whose count comes at its end is
    (t_last - t_first) / (total - 1), the definition that other tools use.
    """
    known = [(place, count) for place, count in enumerate(counts) if count is not None]
    if known[0][0] > 0:
        known.insert(0, (0, 1))
    numbers = dict(known)
    for (a, low), (b, high) in pairwise(known):
        for place in range(a + 1, b):
            numbers[place] = low + (high - low) * (place - a) // (b - a)
    events: list[Event] = []
    for place, t in enumerate(arrivals):
        if numbers[place] > (events[-1].tokens if events else 0):
            events.append(Event(t, numbers[place]))
    return events


def _object(message: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The object under a key; empty where there is none. PHP and Lua write an empty one as a list."""
    value = message.get(key)
    if isinstance(value, dict):
        return value
    if value is not None and value != []:
        raise _UnreadableError(f"`{key}` is not an object")
    return {}


def _count(values: Mapping[str, Any], key: str) -> int | None:
    """A count of tokens; `12.0` is one."""
    value = values.get(key)
    if value is None or (type(value) is int and 0 <= value <= _MAX_COUNT):
        return value
    whole = type(value) is int or (isinstance(value, float) and math.isfinite(value) and value == int(value))
    if not whole:
        raise _UnreadableError(f"`{key}` is no whole number")
    if not 0 <= value <= _MAX_COUNT:
        raise _UnreadableError(f"`{key}` can't be {value if abs(value) <= _MAX_COUNT else 'so large'}")
    return int(value)


def _text(value: object, key: str, depth: int = 0) -> str:
    """Text, or the text of content parts: `[{"type": "text", "text": …}]`, `[{"thinking": [...]}]`."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, list) and depth < _MAX_NESTING:
        return "".join(_part(part, key, depth) for part in value)
    raise _UnreadableError(f"`{key}` is no text")


def _part(part: object, key: str, depth: int) -> str:
    if isinstance(part, dict):
        for name in ("text", "thinking"):
            if name in part:
                return _text(part[name], key, depth + 1)
    elif isinstance(part, str):
        return part
    raise _UnreadableError(f"`{key}` is no text")


def _plain(value: object) -> str:
    """A short word of the server's, such as a finish reason."""
    return value[:64] if isinstance(value, str) else ""


def _message(error: object) -> str:
    """What a server says of an error, whatever its form."""
    detail = error.get("message", error) if isinstance(error, dict) else error
    return str(detail)[:_MAX_MESSAGE]


def _openai_choice(message: Mapping[str, Any]) -> tuple[str, str]:
    """Text and finish reason of an event; text includes reasoning and tool calls, which cost as much as an answer."""
    choices = message.get("choices")
    if not choices:
        return "", ""
    if not isinstance(choices, list) or not isinstance(choices[0], dict):
        raise _UnreadableError("`choices` is no list of objects")
    choice = choices[0]
    text, finish = _text(choice.get("text"), "text"), _plain(choice.get("finish_reason"))
    delta = _object(choice, "delta")
    if not delta:
        return text, finish
    parts = [text]
    parts += [_text(delta.get(key), key) for key in ("reasoning_content", "reasoning", "content")]
    parts += _tool_calls(delta.get("tool_calls"))
    return "".join(parts), finish


def _tool_calls(calls: object) -> list[str]:
    """The pieces of tool calls: their names and arguments are what the model writes."""
    if not calls:
        return []
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise _UnreadableError("`tool_calls` is no list of objects")
    functions = [_object(call, "function") for call in calls]
    return [_text(of.get(key), f"function.{key}") for of in functions for key in ("name", "arguments")]


def _digest(pieces: Sequence[object]) -> tuple[str, float]:
    """A digest of the output, and how repetitive its end is: 1 - distinct pieces / pieces."""
    if not pieces:
        return "", 0.0
    # Texts are joined: the same output cut differently must have the same digest.
    text = "".join(map(str, pieces)) if isinstance(pieces[0], str) else ",".join(map(str, pieces))
    tail = pieces[-REPETITION_WINDOW:]
    # JSON can hold half a surrogate pair, which no encoding takes.
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return digest, 1 - len(set(tail)) / len(tail)


def _dump(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
