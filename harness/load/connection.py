"""One HTTP/1.1 connection that knows when bytes left and when they came.

An `asyncio.Protocol` is called by the event loop with the bytes that it has just read: nothing lies between the read
and the time stamp but the loop itself. The body is de-chunked by llhttp (httptools, about 1 µs a piece), which is also
what says that an answer is over; events are parsed and decoded after the pass.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import httptools

from harness.load.dialects import why_no_stream
from harness.load.recording import Recording

MAX_HEAD_BYTES = 64 * 1024  # of an answer's headers: no server of this kind sends a tenth of it
MAX_BODY_BYTES = 1 << 30  # of one stream
_SHOWN_BYTES = 80  # of an answer that can't be read
_ERROR_BYTES = 500  # of the body of an HTTP error
_SHORT_BYTES = 8
# A write takes 20-50 µs. In a longer one the process has lost its core, often to the very server that the bytes have
# woken: then they left soon after the stamp before it, and the stamp after it says when the core came back.
_LONG_WRITE_S = 2e-4


@dataclass
class RawStream:
    """One request as it happened: nothing interpreted yet. Times are CLOCK_MONOTONIC seconds.

    `t_send` is when its first bytes had left, 0.0 if none did. `outcome` is "eof" (the answer is whole), "refused" (no
    stream began), "broken" (the connection went away), "garbled" (what came is not HTTP), "timeout" or "cancelled".
    """

    t_start: float
    t_send: float = 0.0
    t_end: float = 0.0
    http_status: int = 0
    outcome: str = ""
    error: str = ""
    body: Recording = field(default_factory=Recording)


class Connection(asyncio.Protocol):
    """Carries one request at a time. `closed` says that it can carry no further one."""

    def __init__(self, keep_alive: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        self._keep_alive, self._clock = keep_alive, clock
        self.transport: asyncio.Transport | None = None
        self.closed = False
        self.idle_since = 0.0
        self._raw: RawStream | None = None  # the request in flight

    # From the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # With nothing to be buffered a write goes to the socket at once, and not after the loop's next poll: the stamp
        # after it is then the time at which bytes had left.
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=0)

    def data_received(self, data: bytes) -> None:
        self._now = self._clock()
        raw = self._raw
        if raw is None:
            self.abort()  # nobody asked: whatever comes would be taken for the next answer
            return
        if not self._status:
            self._head += data
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._garbled(raw, "it wants to speak another protocol", self._head)
        except httptools.HttpParserError as error:
            self._garbled(raw, f"not HTTP: {error}", data if self._status else self._head)
        if not self._status and len(self._head) > MAX_HEAD_BYTES:
            self._garbled(raw, f"more than {MAX_HEAD_BYTES >> 10} KiB of headers", self._head)
        if raw.outcome:
            self._finish(raw)

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        raw = self._raw
        if raw is None:
            return
        self._now = self._clock()
        if self._status and not self._framed and error is None:
            raw.outcome = "eof"  # HTTP/1.0: the end of the connection is the end of the body
        else:
            raw.outcome = "broken"
            how = "closed by the server" if error is None else "reset by the server"
            if error is not None and not isinstance(error, ConnectionError):
                how = f"{type(error).__name__}: {error}"
            raw.error = f"{how} {'in the middle of its answer' if self._head else 'before it answered'}"
        self._finish(raw)

    # For the slot that owns it.

    def ask(self, request: bytes, raw: RawStream, on_event: Callable[[float], None]) -> asyncio.Future[None]:
        """Sends `request` and fills `raw`. The future is done when `raw.outcome` says how it went."""
        assert self.transport is not None, "not connected"
        assert self._raw is None, "one request at a time"
        self._raw, self._on_event = raw, on_event
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._head = self._error = b""
        self._status = 0
        self._framed = self._keep = False
        self._encoding = self._content_type = b""
        self._parser = httptools.HttpResponseParser(self)  # a new one: trailers would leak into the next answer
        before = self._clock()
        self.transport.write(request)
        after = self._clock()
        raw.t_send = after if after - before < _LONG_WRITE_S else before
        return self._over

    def give_up(self, outcome: str, error: str = "") -> None:
        """Ends the request in flight from our side, and the connection with it."""
        if self._raw is not None:
            self._now = self._clock()
            self._raw.outcome, self._raw.error = outcome, error
            self._finish(self._raw)
        self.abort()

    def abort(self) -> None:
        """Closes at once; what was not sent is not sent."""
        self.closed = True
        if self.transport is not None:
            self.transport.abort()

    # From the parser, within data_received.

    def on_message_begin(self) -> None:
        if self._raw is not None and self._raw.outcome:
            self._keep = False  # what follows a whole answer spoils the connection, not the answer

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._status:  # a trailer
            return
        name, value = name.lower(), value.lower()
        if name == b"content-length" or (name == b"transfer-encoding" and value.endswith(b"chunked")):
            self._framed = True
        elif name == b"content-encoding":
            self._encoding = value
        elif name == b"content-type":
            self._content_type = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._raw is None or self._raw.outcome:
            return
        if status < 200:  # "100 Continue": the answer is still to come
            self._framed, self._encoding, self._content_type = False, b"", b""
            return
        self._status = self._raw.http_status = status

    def on_body(self, piece: bytes) -> None:
        raw = self._raw
        if raw is None or raw.outcome:
            return
        if self._status != 200:
            self._error = (self._error + piece)[:_ERROR_BYTES]
            return
        raw.body.add(self._now, piece)
        # Comments keep a connection open and are no progress; a very short piece may be a part of anything.
        if b"data" in piece or len(piece) < _SHORT_BYTES:
            self._on_event(self._now)
        if raw.body.size > MAX_BODY_BYTES:
            self._garbled(raw, f"more than {MAX_BODY_BYTES >> 20} MiB in one stream", raw.body.head(_SHOWN_BYTES))

    def on_message_complete(self) -> None:
        if self._raw is not None and not self._raw.outcome and self._status:
            self._keep = self._keep_alive and self._parser.should_keep_alive()
            self._raw.outcome = "eof"

    def _garbled(self, raw: RawStream, reason: str, data: bytes) -> None:
        self._keep = False
        if not raw.outcome:
            raw.outcome, raw.error = "garbled", f"{reason}; the bytes: {data[:_SHOWN_BYTES]!r}"

    def _finish(self, raw: RawStream) -> None:
        self._raw = None
        raw.t_end = self._now
        if self._status not in (0, 200):
            raw.outcome = "refused"
            raw.error = f"HTTP {self._status}: {self._error.decode(errors='replace')}"
        elif raw.outcome == "eof" and (why := self._why_no_stream()):
            raw.outcome, raw.error = "refused", why
        if self._keep and not self.closed:
            self.idle_since = self._now
        else:
            self.abort()
        if not self._over.done():
            self._over.set_result(None)

    def _why_no_stream(self) -> str:
        return why_no_stream(self._content_type.decode("latin-1"), self._encoding.decode("latin-1"))
