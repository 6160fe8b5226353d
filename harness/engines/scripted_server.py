"""The scripted server: streams tokens when its script says so. Times are checked with the truth server (selftest)."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from harness.engines.script import Fault, ScriptedSettings

# With characters of two and three bytes, and U+2028, at which `str.splitlines` would break.
_WORDS = (
    "the",
    "page",
    "tablé",
    "maps",
    "each",
    "to\u2028ken",
    "to",
    "its",
    "slot",
    "€",
    "pool",
    "of",
)


@dataclass(frozen=True)
class Ask:
    """A request, whichever API it came through."""

    prompt: Sequence[Any]
    output_tokens: int
    api: str  # "completions", "chat" or "generate"


class EventStream(Response):
    """Sends pieces as they come. Starlette's own StreamingResponse runs a task group for each stream, which costs
    more than the tokens and delays the others' time stamps."""

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        super().__init__(media_type="text/event-stream")
        del self.headers["content-length"]
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class ScriptedServer:
    """Holds the script; one instance a process."""

    def __init__(self, script: ScriptedSettings, identity: str) -> None:
        self.script, self.identity = script, identity
        self.requests = 0
        self.random = random.Random(0)
        self.in_flight = 0
        self.output_tokens = 0
        self.ready_at = time.monotonic() + script.ready_after

    def app(self) -> Starlette:
        post = ["POST"]
        return Starlette(
            routes=[
                Route("/health", self.health),
                Route("/v1/models", self.models),
                Route("/counters", self.counters),
                Route("/tokenize", self.tokenize, methods=post),
                Route("/detokenize", self.detokenize, methods=post),
                Route("/v1/completions", self.completions, methods=post),
                Route("/v1/chat/completions", self.chat, methods=post),
                Route("/generate", self.generate, methods=post),
            ]
        )

    async def health(self, _: Request) -> Response:
        return Response(status_code=200 if time.monotonic() >= self.ready_at else 503)

    async def models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": self.identity, "object": "model"}]})

    async def counters(self, _: Request) -> Response:
        return JSONResponse({"output_tokens": self.output_tokens, "requests": self.requests})

    async def tokenize(self, request: Request) -> Response:
        """One token a character: its code, kept below 2048."""
        body = await request.json()
        text = body.get("content") or body.get("prompt") or ""  # llama.cpp's key and SGLang's
        return JSONResponse({"tokens": [ord(character) % 2048 for character in text]})

    async def detokenize(self, request: Request) -> Response:
        return JSONResponse({"content": "".join(map(chr, (await request.json())["tokens"]))})

    async def completions(self, request: Request) -> Response:
        body = await request.json()
        return self._answer(Ask(body["prompt"], body["max_tokens"], "completions"))

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        text = "".join(message["content"] for message in body["messages"])
        return self._answer(Ask(text, body["max_tokens"], "chat"))

    def _greedy(self, prompt: list[int], body: dict[str, Any]) -> dict[str, Any]:
        """An answer that depends on the prompt alone: the numbers after its last token."""
        first = prompt[-1] + 1 + self.script.answer_shift
        ids = range(first, first + body["sampling_params"]["max_new_tokens"])
        chosen: list[list[Any]] = [[-0.5, token, None] for token in ids]
        best: list[list[list[Any]]] = [[[-0.5, token, None], [-1.5, token + 1000, None]] for token in ids]
        return {"meta_info": {"output_token_logprobs": chosen, "output_top_logprobs": best}}

    async def generate(self, request: Request) -> Response:
        body = await request.json()
        if not body.get("stream"):
            return JSONResponse([self._greedy(ids, body) for ids in body["input_ids"]])
        prompt = body.get("input_ids") or body.get("text")
        return self._answer(Ask(prompt, body["sampling_params"]["max_new_tokens"], "generate"))

    def _answer(self, ask: Ask) -> Response:
        number, self.requests = self.requests, self.requests + 1
        fault = next((f for f in self.script.faults if f.requests is None or number in f.requests), None)
        if fault and fault.kind == "http_503":
            return JSONResponse({"error": {"message": "overloaded, as scripted"}}, status_code=503)
        return EventStream(self._stream(ask, fault))

    async def _stream(self, ask: Ask, fault: Fault | None) -> AsyncIterator[bytes]:
        self.in_flight += 1
        try:
            held = ""
            async for event in self._events(ask, fault):
                if self.script.wire == "coalesced" and not held and event != DONE:
                    held = event
                    continue
                for piece in _on_the_wire(event, self.script.wire, held):
                    yield piece
                    if self.script.wire == "bytewise":
                        await asyncio.sleep(0)
                held = ""
        finally:
            self.in_flight -= 1

    async def _events(self, ask: Ask, fault: Fault | None) -> AsyncIterator[str]:
        kind, at = (fault.kind, fault.at) if fault else ("", 0)
        if self.script.role_chunk and ask.api == "chat":
            yield _dump(_openai(ask, "", None, role=True) | self._usage(ask, 0))
        await asyncio.sleep(self.script.ttft + self.script.ttft_jitter * self.random.random())
        if kind == "error_before_first":
            yield _dump({"error": {"message": "scripted failure", "code": 500}})
            return
        if kind == "only_done":
            yield DONE
            return
        total = steps = 0
        finish = "length"
        for size in _sizes(self.script, ask.output_tokens):
            if total:
                await asyncio.sleep(self.script.step + self.script.step_per_stream * self.in_flight)
            size = min(size, at - total) if kind in _ENDING and total < at else size
            if kind in _ENDING and total >= at:
                finish = "stop"
                break
            steps += total > 0
            total += size
            self.output_tokens += size
            text = self._text(total - size, size, kind == "repeat")
            yield self._chunk(ask, text, total, steps)
        if kind == "error_after":
            yield _dump({"error": {"message": f"scripted failure after {total} tokens"}})
            return
        if kind == "exit":
            os._exit(3)
        if kind == "stall":
            await asyncio.sleep(3600)
        if kind == "drop":
            raise ConnectionResetError("scripted drop")  # uvicorn closes the connection in mid-response
        if kind == "no_done":
            return
        yield self._last(ask, finish, total, steps)
        yield DONE

    def _text(self, start: int, size: int, repeat: bool) -> list[int]:
        return [0 if repeat else number for number in range(start, start + size)]

    def _chunk(self, ask: Ask, numbers: list[int], total: int, steps: int) -> str:
        if ask.api == "generate":
            return _dump({"output_ids": numbers, "meta_info": self._meta(ask, total)})
        text = "".join(f" {_WORDS[n % len(_WORDS)]}{n // len(_WORDS) or ''}" for n in numbers)
        event = _openai(ask, text, None)
        if self.script.usage == "every_chunk":
            event |= self._usage(ask, total)
        if self.script.speculative:
            # llama.cpp's form: one accepted draft less a step than tokens, the first token apart.
            event["timings"] = {"predicted_n": total, "draft_n_accepted": total - 1 - steps}
        return _dump(event)

    def _last(self, ask: Ask, finish: str, total: int, steps: int) -> str:
        if ask.api == "generate":
            meta = self._meta(ask, total) | {"finish_reason": {"type": finish}}
            if self.script.speculative:
                meta["spec_verify_ct"] = steps
            return _dump({"output_ids": [], "meta_info": meta})
        usage = {} if self.script.usage == "none" else self._usage(ask, total)
        return _dump(_openai(ask, "", finish) | usage)

    def _meta(self, ask: Ask, total: int) -> dict[str, Any]:
        return {
            "prompt_tokens": len(ask.prompt) + self.script.prompt_tokens_off_by,
            "completion_tokens": total,
            "cached_tokens": self.script.cached_tokens,
        }

    def _usage(self, ask: Ask, total: int) -> dict[str, Any]:
        meta = self._meta(ask, total)
        cached = meta.pop("cached_tokens")
        return {"usage": {**meta, "prompt_tokens_details": {"cached_tokens": cached}}}


DONE = "[DONE]"

# Faults that take effect after `at` tokens; the others replace the stream or change its text.
_ENDING = ("error_after", "drop", "no_done", "stop_early", "stall", "exit")


def _sizes(script: ScriptedSettings, total: int) -> Iterator[int]:
    """Tokens of each chunk, until `total` is reached."""
    for size in itertools.chain([script.first_chunk_tokens], itertools.cycle(script.chunk_tokens)):
        size = min(size, total)
        if not size:
            return
        total -= size
        yield size


def _openai(ask: Ask, text: str, finish: str | None, role: bool = False) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
    if ask.api == "chat":
        choice["delta"] = {"role": "assistant", "content": ""} if role else {"content": text}
    else:
        choice["text"] = text
    return {"choices": [choice]}


def _dump(event: dict[str, Any]) -> str:
    return json.dumps(event, separators=(",", ":"), ensure_ascii=False)


def _on_the_wire(data: str, wire: str, held: str) -> Iterator[bytes]:
    """One event's bytes, cut into the pieces in which they are sent; `held` is an event to send with it."""
    text = f"data: {data}\n\n"
    if wire == "crlf":
        text = text.replace("\n", "\r\n")
    elif wire == "no_space":
        text = f"data:{data}\n\n"
    elif wire == "comments":
        yield b": ping\n\n"
    elif wire == "coalesced":
        text = f"data: {held}\n\n{text}" if held else text
    encoded = text.encode()
    if wire == "bytewise":
        yield from (encoded[n : n + 1] for n in range(len(encoded)))
    else:
        yield encoded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--identity", required=True)
    parser.add_argument("--script", required=True, help="ScriptedSettings as JSON, durations in seconds")
    args = parser.parse_args()
    script = ScriptedSettings.model_validate(json.loads(args.script))
    if script.start_fails:
        raise SystemExit("scripted failure while starting: no such model")
    app = ScriptedServer(script, args.identity).app()
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=args.port,
        http="httptools",
        log_level="warning",
        access_log=False,
        ws="none",
        lifespan="off",
        timeout_graceful_shutdown=1,
    )


if __name__ == "__main__":
    main()
