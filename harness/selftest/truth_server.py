"""A server that streams on an absolute schedule and writes down when: the ground truth for a client.

One thread, one loop, no framework: a token costs one `send` and little more, so that on a core of its own it keeps
1024 streams at 30 events/s on time. Its own lateness, the time from when a token was due to its `send`, is in its log
beside every token: the server is part of what is checked. Works with any client of OpenAI's completions and chat.

    python -m harness.selftest.truth_server --port 8000 --log truth.npz        then SIGTERM, and read_truth("truth.npz")

All times are CLOCK_MONOTONIC seconds, which the processes of one machine share.
"""

from __future__ import annotations

import argparse
import errno
import gc
import heapq
import json
import os
import random
import resource
import select
import signal
import socket
import time
from array import array
from collections import deque
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import httptools
import numpy as np
from numpy.typing import NDArray

_MARK = "QID"  # of a prompt: the digits after it are its number
# What is done before the sockets are looked at again: a request that comes meanwhile is stamped so much later.
_AT_ONCE = 64  # due tokens that are sent
_ANSWERED_AT_ONCE = 4  # answers that are begun


@dataclass(frozen=True)
class Schedule:
    """When tokens are due: the first `ttft` and up to `jitter` after the request's arrival, then one chunk a `gap`.

    In lockstep all streams send at the same moments, multiples of the gap, as a server does that decodes a batch.
    """

    ttft: float = 0.2
    jitter: float = 0.033
    gap: float = 0.033
    chunk_tokens: int = 1  # of each chunk but the first, which has one
    lockstep: bool = False


@dataclass(frozen=True)
class Truth:
    """What was done, one entry a request in order of arrival, and one an event.

    `number` is the prompt's, -1 without one. `arrived`: its last bytes were read. `request`: which request an event
    belongs to; `due` and `sent`: when it should have been sent, and was (just before the system call); `tokens` counts
    up to and with it. `blocked` events did not fit into a full socket.
    """

    number: NDArray[np.int64]
    arrived: NDArray[np.float64]
    request: NDArray[np.int64]
    due: NDArray[np.float64]
    sent: NDArray[np.float64]
    tokens: NDArray[np.int64]
    blocked: int

    @property
    def new_tokens(self) -> NDArray[np.int64]:
        """Tokens that each event brought."""
        order = np.lexsort((self.tokens, self.request))
        new = np.empty_like(self.tokens)
        new[order] = np.diff(self.tokens[order], prepend=0)
        return np.where(self.tokens == 1, 1, new)  # the first of an answer has one

    @property
    def late(self) -> NDArray[np.float64]:
        """How late each event was sent, in seconds."""
        return self.sent - self.due


def read_truth(path: Path) -> Truth:
    """What a server wrote at its end."""
    with np.load(path) as data:
        values = {name: data[name] for name in data.files}
    return Truth(**{**values, "blocked": int(values["blocked"])})


class _Log:
    def __init__(self) -> None:
        self.number, self.arrived = array("q"), array("d")
        self.request, self.due, self.sent, self.tokens = array("q"), array("d"), array("d"), array("q")
        self.blocked = 0

    def write(self, path: Path) -> None:
        # `Any`, since numpy's types take the names of arrays for its own options.
        values: dict[str, Any] = {name: np.asarray(own) for name, own in vars(self).items() if isinstance(own, array)}
        partial = path.with_suffix(".partial.npz")
        np.savez(partial, blocked=self.blocked, **values)
        partial.replace(path)


class _Stream:
    """An answer on its way out. `due` is the time of its next chunk, `frames` what is to be sent then."""

    __slots__ = ("base", "connection", "due", "frames", "gap", "next", "number")

    def __init__(self, connection: _Connection, number: int, base: float, gap: float, frames: list[tuple[int, bytes]]):
        self.connection, self.number, self.base, self.gap, self.frames = connection, number, base, gap, frames
        self.next, self.due = 0, base

    def __lt__(self, other: _Stream) -> bool:
        return self.due < other.due


class _Connection:
    """One client's connection: reads requests, and sends what does not fit later."""

    def __init__(self, server: TruthServer, link: socket.socket) -> None:
        self.server, self.link = server, link
        self.parser = httptools.HttpRequestParser(self)
        self.url = self.body = b""
        self.asked: deque[tuple[float, bytes, bytes, bool]] = deque()  # whole requests, with their arrival
        self.open, self.streaming = True, False
        self.left = bytearray()  # of what was to be sent
        self.close_after = False

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"expect":
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, piece: bytes) -> None:
        self.body += piece

    def on_message_complete(self) -> None:
        self.asked.append((time.monotonic(), self.url, self.body, self.parser.should_keep_alive()))
        self.url = self.body = b""

    def readable(self) -> None:
        try:
            data = self.link.recv(65536)
            if data:
                self.parser.feed_data(data)
        except BlockingIOError:
            return
        except (OSError, httptools.HttpParserError, httptools.HttpParserUpgrade):
            data = b""
        if not data:
            self.drop()
        elif self.asked:
            self.server.waiting.append(self)

    def next_answer(self) -> None:
        """Begins to answer the request that came first, unless an answer is on its way."""
        if self.asked and self.open and not self.streaming:
            arrived, url, body, keep_alive = self.asked.popleft()
            self.close_after = not keep_alive
            self.server.answer(self, arrived, url, body)

    def send(self, data: bytes) -> None:
        """At once, as far as the socket takes it."""
        if self.left:
            self.left += data
            return
        try:
            sent = self.link.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.drop()
            return
        if sent < len(data):
            self.server.log.blocked += 1
            self.left += data[sent:]
            self.server.poll.modify(self.link.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def writable(self) -> None:
        data = bytes(self.left)
        self.left.clear()
        self.server.poll.modify(self.link.fileno(), select.EPOLLIN)
        self.send(data)
        if not self.left and self.close_after and not self.streaming:
            self.drop()

    def over(self) -> None:
        """An answer is whole."""
        self.streaming = False
        if self.close_after and not self.left:
            self.drop()
        if self.asked:
            self.server.waiting.append(self)

    def drop(self) -> None:
        if self.open:
            self.open = False
            del self.server.connections[self.link.fileno()]
            self.link.close()


class TruthServer:
    """See the module. `serve` returns after SIGTERM or SIGINT."""

    def __init__(self, port: int, schedule: Schedule) -> None:
        self.schedule, self.log = schedule, _Log()
        self.poll = select.epoll()
        self.connections: dict[int, _Connection] = {}
        self.waiting: deque[_Connection] = deque()  # for their answers to begin
        self._due: list[_Stream] = []
        self._random = random.Random(0)
        self._stop = False
        self._listener = socket.create_server(("127.0.0.1", port), backlog=4096)
        self._listener.setblocking(False)
        self.poll.register(self._listener.fileno(), select.EPOLLIN)

    def stop(self, *_: object) -> None:
        self._stop = True

    def serve(self) -> None:
        listener, poll, due = self._listener.fileno(), self.poll, self._due
        while not self._stop:
            # epoll's own timeout counts milliseconds; select's, on the descriptor of the epoll, microseconds.
            wait = min(0.2, due[0].due - time.monotonic()) if due else 0.2
            if wait > 0 and not self.waiting:
                select.select([poll], [], [], wait)
            self._send_due()
            for _ in range(min(_ANSWERED_AT_ONCE, len(self.waiting))):
                self.waiting.popleft().next_answer()
            for descriptor, event in poll.poll(0):
                if descriptor == listener:
                    self._accept()
                elif (connection := self.connections.get(descriptor)) is not None:
                    if event & select.EPOLLOUT:
                        connection.writable()
                    if event & ~select.EPOLLOUT and connection.open:
                        connection.readable()

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    raise SystemExit("the truth server has no file descriptor left: raise `ulimit -n`") from error
                return
            link.setblocking(False)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections[link.fileno()] = _Connection(self, link)
            self.poll.register(link.fileno(), select.EPOLLIN)

    def _send_due(self) -> None:
        due, log, clock = self._due, self.log, time.monotonic
        for _ in range(_AT_ONCE):
            if not due:
                return
            stream = due[0]
            now = clock()
            if stream.due > now:
                return
            if not stream.connection.open:  # its client has gone
                heapq.heappop(due)
                continue
            tokens, frame = stream.frames[stream.next]
            log.request.append(stream.number)
            log.due.append(stream.due)
            log.tokens.append(tokens)
            log.sent.append(now)
            stream.connection.send(frame)
            stream.next += 1
            if stream.next < len(stream.frames):
                stream.due = stream.base + stream.next * stream.gap  # from the start: lateness does not add up
                heapq.heapreplace(due, stream)
            else:
                heapq.heappop(due)
                stream.connection.over()

    def answer(self, connection: _Connection, arrived: float, url: bytes, body: bytes) -> None:
        """Begins to answer one request."""
        path = url.partition(b"?")[0]
        chat = path == b"/v1/chat/completions"
        if not chat and path != b"/v1/completions":
            known = path in (b"/health", b"/v1/models", b"/")
            models = {"object": "list", "data": [{"id": "truth", "object": "model", "created": 1, "owned_by": "truth"}]}
            self._reply(connection, 200 if known else 404, models if known else {"detail": "Not Found"})
            return
        try:
            ask = json.loads(body)
            tokens = int(ask.get("max_completion_tokens") or ask.get("max_tokens") or 16)
        except (ValueError, TypeError, AttributeError):
            self._reply(connection, 400, {"error": {"message": "not a request"}})
            return
        prompt = json.dumps(ask.get("messages")) if chat else _text(ask.get("prompt"))
        if not ask.get("stream"):  # a client that looks whether the server works
            choice = {"index": 0, "text": " ok", "message": {"role": "assistant", "content": " ok"}}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            choice["finish_reason"] = "length"
            self._reply(connection, 200, {"id": "x", "choices": [choice], "usage": usage})
            return
        options = ask.get("stream_options")
        options = options if isinstance(options, dict) else {}
        final, each = bool(options.get("include_usage")), bool(options.get("continuous_usage_stats"))
        self._begin(connection, arrived, prompt, Answer(max(1, tokens), self.schedule.chunk_tokens, chat, final, each))

    def _begin(self, connection: _Connection, arrived: float, prompt: str, answer: Answer) -> None:
        plan, number = self.schedule, len(self.log.number)
        self.log.number.append(_number(prompt))
        self.log.arrived.append(arrived)
        base = arrived + plan.ttft + plan.jitter * self._random.random()
        if plan.lockstep:
            base = (base // plan.gap + 1) * plan.gap
        first, *others = answer.frames()
        # The first token's text names the request, so that a client's records can be matched by their text.
        frames = [(1, _chunk(answer.event(f" R{number:08d}", 1)) + first[1]), *others]
        connection.streaming = True
        connection.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n"
            + (b"Connection: close\r\n" if connection.close_after else b"")
            + b"\r\n"
        )
        heapq.heappush(self._due, _Stream(connection, number, base, plan.gap, frames))

    def _reply(self, connection: _Connection, status: int, value: Any) -> None:
        body = json.dumps(value).encode()
        words = {200: "OK", 400: "Bad Request", 404: "Not Found"}
        close = "Connection: close\r\n" if connection.close_after else ""
        head = f"HTTP/1.1 {status} {words[status]}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        connection.send(f"{head}{close}\r\n".encode() + body)
        connection.over()


@dataclass(frozen=True)
class Answer:
    """What is asked for. `final_usage` and `each_usage`: where token counts are to be reported."""

    tokens: int
    chunk_tokens: int
    chat: bool
    final_usage: bool
    each_usage: bool

    @cache  # noqa: B019 - a run asks for very few different ones
    def frames(self) -> list[tuple[int, bytes]]:
        """(cumulative tokens, bytes) of each chunk, but for the first's event. The end goes with the last."""
        counts = [1, *range(1 + self.chunk_tokens, self.tokens, self.chunk_tokens)]
        counts += [self.tokens] if self.tokens > counts[-1] else []
        frames = [(1, b"")]
        frames += [(total, _chunk(self.event(" tok" * (total - before), total))) for before, total in pairwise(counts)]
        final = self._envelope() | {"choices": [], "usage": self._usage(self.tokens)}
        end = _chunk(f"data: {json.dumps(final)}\n\n".encode()) if self.final_usage else b""
        end += _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
        frames[-1] = (frames[-1][0], frames[-1][1] + end)
        return frames

    def event(self, text: str, total: int) -> bytes:
        """One server-sent event; `total` counts the tokens up to and with it."""
        choice: dict[str, Any] = {"index": 0, "logprobs": None}
        choice["finish_reason"] = "length" if total == self.tokens else None
        choice |= {"delta": {"content": text}} if self.chat else {"text": text}
        message = self._envelope() | {"choices": [choice]}
        if self.each_usage:
            message["usage"] = self._usage(total)
        return f"data: {json.dumps(message)}\n\n".encode()

    def _envelope(self) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return {"id": "cmpl-00000000", "object": kind, "created": 1760000000, "model": "truth"}

    def _usage(self, tokens: int) -> dict[str, int]:
        return {"prompt_tokens": 16, "completion_tokens": tokens, "total_tokens": 16 + tokens}


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _text(prompt: Any) -> str:
    """A prompt as text; token ids are taken for characters."""
    if isinstance(prompt, list):
        return "".join(chr(token % 0x110000) for token in prompt if isinstance(token, int))
    return str(prompt)


def _number(prompt: str) -> int:
    digits = prompt.partition(_MARK)[2][:12]
    digits = digits[: len(digits) - len(digits.lstrip("0123456789"))]
    return int(digits) if digits else -1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--log", type=Path, required=True, help="what to write at the end (.npz)")
    parser.add_argument("--ttft", type=float, default=0.2, help="seconds to the first token")
    parser.add_argument("--jitter", type=float, default=0.033, help="up to so much more, drawn for each request")
    parser.add_argument("--gap", type=float, default=0.033, help="seconds between chunks")
    parser.add_argument("--chunk-tokens", type=int, default=1)
    parser.add_argument("--lockstep", action="store_true", help="all streams send at the same moments")
    parser.add_argument("--core", type=int, help="run on this core alone")
    args = parser.parse_args()
    if args.core is not None:
        os.sched_setaffinity(0, {args.core})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard) if soft != hard else (soft, hard))
    server = TruthServer(args.port, Schedule(args.ttft, args.jitter, args.gap, args.chunk_tokens, args.lockstep))
    signal.signal(signal.SIGTERM, server.stop)
    signal.signal(signal.SIGINT, server.stop)
    gc.freeze()
    gc.disable()
    server.serve()
    server.log.write(args.log)


if __name__ == "__main__":
    main()
