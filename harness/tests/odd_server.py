"""A server whose streams are odd in one way each, as servers and proxies of the wild were seen to be. No model runs.

Unlike the scripted server it is no engine: a scenario attaches to it. It runs in a thread of the test.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

TTFT, STEP = 0.03, 0.01  # seconds
Piece = tuple[float, Any]  # when after the request, and an event: an object, or text as it is


@dataclass(frozen=True)
class Ask:
    """A request: tokens to make, tokens of the prompt, and which of the two APIs it came through."""

    tokens: int
    prompt: int
    chat: bool

    def usage(self, n: Any, **more: Any) -> dict[str, Any]:
        return {"prompt_tokens": self.prompt, "completion_tokens": n, **more}

    def event(self, text: Any = None, usage: Any = None, finish: str | None = None, **delta: Any) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
        if self.chat or delta:
            choice["delta"] = ({} if text is None else {"content": text}) | delta
        else:
            choice["text"] = text or ""
        return {"choices": [choice]} | ({} if usage is None else {"usage": usage})

    def last(self, n: Any = None, **more: Any) -> list[Piece]:
        """A usage of its own, and the end mark, at the moment of the last token."""
        at = TTFT + (self.tokens - 1) * STEP
        usage = self.usage(self.tokens if n is None else n, **more)
        return [(at, self.event("", None, "length")), (at, {"choices": [], "usage": usage}), (at, "[DONE]")]


def word(n: int) -> str:
    return f" {('alpha', 'beta', 'gamma', 'delta', 'eta', 'iota')[n * 7 % 6]}{n}"


def _each(ask: Ask, event: Callable[[int], Any]) -> list[Piece]:
    """One event a token."""
    return [(TTFT + n * STEP, event(n)) for n in range(ask.tokens)]


def _with(usage: Callable[[Ask, int], Any]) -> Callable[[Ask], list[Piece]]:
    """A word a token, with a usage where the function gives one; the whole at the end."""
    return lambda ask: _each(ask, lambda n: ask.event(word(n), usage(ask, n))) + ask.last()


def _instead(place: int, event: Any) -> Callable[[Ask], list[Piece]]:
    """A good stream in which one event is another."""

    def pieces(ask: Ask) -> list[Piece]:
        good = _each(ask, lambda n: ask.event(word(n), ask.usage(n + 1)))
        return [*good[:place], (good[place][0], event), *good[place + 1 :], *ask.last()]

    return pieces


def _fours(ask: Ask) -> list[Piece]:
    """One token, then four a chunk, and no count anywhere."""
    chunks = 1 - (-(ask.tokens - 1) // 4)
    good = [(TTFT + n * STEP, ask.event(word(n))) for n in range(chunks)]
    return [*good, (good[-1][0], ask.event("", None, "length")), (good[-1][0], "[DONE]")]


def _hidden(ask: Ask) -> list[Piece]:
    """Half of the text is held back while counts grow, and five tokens are only counted."""
    half, shown = ask.tokens // 2, ask.tokens - 5
    good = [(TTFT + n * STEP, ask.event("" if n < half else word(n), ask.usage(n + 1))) for n in range(shown)]
    return [*good, *ask.last()]


def _last_two(ask: Ask) -> list[Piece]:
    """No usage but in the closing chunk, one short, and in the one after it, 2 ms later."""
    at = TTFT + (ask.tokens - 1) * STEP
    good = _each(ask, lambda n: ask.event(word(n)))
    closing = (at, ask.event("", ask.usage(ask.tokens - 1), "length"))
    return [*good, closing, (at + 0.002, {"choices": [], "usage": ask.usage(ask.tokens)}), (at + 0.002, "[DONE]")]


def _late(ask: Ask) -> list[Piece]:
    """The last count comes 300 ms after the last token."""
    at = TTFT + (ask.tokens - 1) * STEP + 0.3
    good = _each(ask, lambda n: ask.event(word(n), ask.usage(n + 1) if n < ask.tokens - 1 else None))
    return [*good, (at, {"choices": [], "usage": ask.usage(ask.tokens)}), (at, "[DONE]")]


def _reasons(ask: Ask) -> list[Piece]:
    half = ask.tokens // 2
    return [
        *_each(
            ask,
            lambda n: ask.event(reasoning_content=word(n)) if n < half else ask.event(word(n), ask.usage(n + 1)),
        ),
        *ask.last(),
    ]


def _thinks_in_lists(ask: Ask) -> list[Piece]:
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]
    return _each(ask, lambda n: ask.event(parts if n < ask.tokens // 2 else word(n))) + ask.last()


def _calls_a_tool(ask: Ask) -> list[Piece]:
    call = lambda n: [{"index": 0, "function": {"arguments": word(n)}}]  # noqa: E731
    return _each(ask, lambda n: ask.event(tool_calls=call(n))) + ask.last()


DEEP = "[" * 60_000 + "]" * 60_000

# What is odd: name → the events of a stream.
MODES: dict[str, Callable[[Ask], list[Piece]]] = {
    "plain": _with(lambda ask, n: ask.usage(n + 1)),
    "final": _with(lambda ask, n: None),
    "first_last_usage": _with(lambda ask, n: ask.usage(1) if n == 0 else None),
    "every10_usage": _with(lambda ask, n: ask.usage(n + 1) if n % 10 == 9 else None),
    "usage_a_chunk": _with(lambda ask, n: ask.usage(1)),  # of the chunk, not of the stream
    "last_two_usage": _last_two,
    "late_usage": _late,
    "hidden": _hidden,
    "reasoning": _reasons,
    "list_content": _thinks_in_lists,
    "tool_call": _calls_a_tool,
    "no_usage": _fours,
    "zero_usage": lambda ask: _each(ask, lambda n: ask.event(word(n))) + ask.last(0),
    "null_choices": _instead(3, {"choices": None, "usage": {"completion_tokens": 4}}),
    "null_details": lambda ask: (
        _each(ask, lambda n: ask.event(word(n), ask.usage(n + 1, prompt_tokens_details=None)))
        + ask.last(prompt_tokens_details={"cached_tokens": None})
    ),
    "empty_details": _with(lambda ask, n: ask.usage(n + 1, prompt_tokens_details=[])),
    "float_counts": _with(lambda ask, n: ask.usage(float(n + 1))),
    # From here on the request has failed, and says why.
    "half_counts": _with(lambda ask, n: ask.usage(n + 0.5)),
    "usage_list": _with(lambda ask, n: [ask.usage(n + 1)]),
    "details_list": lambda ask: (
        _each(ask, lambda n: ask.event(word(n))) + ask.last(prompt_tokens_details=[{"cached_tokens": 0}])
    ),
    "negative_usage": lambda ask: _each(ask, lambda n: ask.event(word(n))) + ask.last(-1),
    "absurd_usage": lambda ask: _each(ask, lambda n: ask.event(word(n))) + ask.last(23_870),
    "backwards": _with(lambda ask, n: ask.usage(ask.tokens - n)),
    "more_reasoning": lambda ask: (
        _each(ask, lambda n: ask.event(word(n)))
        + ask.last(completion_tokens_details={"reasoning_tokens": ask.tokens + 1})
    ),
    "number_text": _instead(3, {"choices": [{"text": 7}]}),
    "number_choices": _instead(3, {"choices": 7}),
    "surrogate": _instead(3, '{"choices": [{"text": "\\ud800"}], "usage": "\\ud800"}'),
    "deep": _instead(3, DEEP),
    "digits": _instead(3, '{"usage": {"completion_tokens": %s}}' % ("9" * 5000)),
    "nan": _instead(3, '{"usage": {"completion_tokens": NaN}}'),
    "no_json": _instead(3, "<html>502 Bad Gateway</html>"),
    "no_tokens": lambda ask: ask.last(),
}

PAGES = {
    "good": "sglang:num_retracted_requests_total 0.0\nsglang:generation_tokens_total %d\n",
    "comma": "sglang:generation_tokens_total 12,5\nsglang:prompt_tokens_total 3\n",
    "html": "<html><body>metrics are off</body></html>",
    "nan": 'sglang:cached_tokens_total{model_name="m"} NaN\nsglang:generation_tokens_total %d\n',
    "garbage": "garbage line {\n# TYPE\n\x00\n",
}


@dataclass
class OddServer:
    """`mode`: of MODES. `page`: what /metrics says, of PAGES. `slots`: requests served at once, more wait."""

    mode: str = "plain"
    page: str = "good"
    slots: int = 1000
    silent: bool = False  # takes requests and never says anything, while /v1/models answers
    refuse_after: int = -1  # requests; then it closes its socket, as a server that died
    retracts: bool = False
    requests: int = 0
    port: int = 0
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _server: asyncio.AbstractServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _answer(self, method: str, path: str, body: dict[str, Any], write: asyncio.StreamWriter) -> None:
        if path == "/v1/models":
            await _reply(write, {"object": "list", "data": [{"id": "m"}]})
        elif path == "/tokenize":
            await _reply(write, {"tokens": list((body.get("prompt") or body.get("content") or "").encode())})
        elif path == "/detokenize":
            text = bytes(token % 256 for token in body["tokens"]).decode(errors="replace")
            await _reply(write, {"prompt": text, "text": text, "content": text})
        elif path == "/metrics":
            page = PAGES[self.page]
            text = page % self.requests if "%d" in page else page
            if self.retracts:
                text = f"sglang:num_retracted_requests_total {float(self.requests)}\n"
            await _reply(write, text.encode())
        elif path.endswith("completions"):
            self.requests += 1
            if 0 <= self.refuse_after < self.requests:
                assert self._server is not None
                self._server.close()
                return
            prompt = body.get("prompt") or body["messages"][0]["content"]
            async with self._free:
                await self._stream(Ask(body["max_tokens"], len(prompt), "chat" in path), write)
        else:
            await _reply(write, b"not found", 404)

    async def _stream(self, ask: Ask, write: asyncio.StreamWriter) -> None:
        write.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        await write.drain()
        if self.silent:
            await asyncio.sleep(3600)
        start = time.monotonic()
        for at, event in MODES[self.mode](ask):
            await asyncio.sleep(max(0.0, start + at - time.monotonic()))
            data = event if isinstance(event, str) else json.dumps(event)
            piece = f"data: {data}\n\n".encode()
            write.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            await write.drain()
        write.write(b"0\r\n\r\n")
        await write.drain()

    async def _handle(self, read: asyncio.StreamReader, write: asyncio.StreamWriter) -> None:
        try:
            await self._talk(read, write)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            write.close()

    async def _talk(self, read: asyncio.StreamReader, write: asyncio.StreamWriter) -> None:
        while True:
            head = (await read.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            method, path, _ = head[0].split()
            known = {key.lower(): value for key, _, value in (line.partition(": ") for line in head[1:])}
            body = await read.readexactly(int(known.get("content-length", "0")))
            await self._answer(method, path, json.loads(body) if body else {}, write)
            if known.get("connection", "").lower() == "close" or 0 <= self.refuse_after < self.requests:
                return

    async def _listen(self) -> None:
        self._free = asyncio.Semaphore(self.slots)
        self._server = await asyncio.start_server(self._handle, "127.0.0.1", self.port, limit=2**24)
        self.port = self._server.sockets[0].getsockname()[1]

    @contextlib.contextmanager
    def running(self) -> Iterator[OddServer]:
        self._loop.run_until_complete(self._listen())
        thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join(10)
            self._loop.close()

    async def _end(self) -> None:
        assert self._server is not None
        self._server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.05)  # transports close in the loop's next turns


async def _reply(write: asyncio.StreamWriter, value: object, status: int = 200) -> None:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    write.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    await write.drain()
