"""A slot's client: sends one request after the other to one server and says how each ended.

What a server does is never an exception here: it is the outcome of a request (harness/load/connection.py).
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from harness.access import PLAIN, Access, header_problem
from harness.load.connection import Connection, RawStream
from harness.load.recording import Compactor, Recording

CONNECT_TIMEOUT_S = 10.0
# Servers close connections that idle for some seconds (uvicorn after 5). One that idled for longer than this is not
# used again: the server's closing could cross our request, and look like a failure.
MAX_IDLE_S = 2.0

_OURS = {  # this machine's limits, which are not the server's fault
    errno.EMFILE: "this machine's client has no free file descriptor left: raise `ulimit -n`",
    errno.ENFILE: "this machine has no free file descriptor left",
    errno.EADDRNOTAVAIL: "this machine has no free port left for another connection",
    errno.ENOBUFS: "this machine has no buffer left for another connection",
}


@dataclass(frozen=True)
class Endpoint:
    """One server's address, ready for requests: names are resolved once, so that no look-up happens under load."""

    host: str
    port: int
    prefix: str  # of every path
    addresses: tuple[str, ...]  # in the order in which they are tried
    tls: ssl.SSLContext | None
    head: bytes  # of every request, between its first line and its length
    keep_alive: bool  # may a connection be used again?
    unresolved: str = ""  # why there are no addresses

    @classmethod
    async def of(cls, url: str, access: Access = PLAIN) -> Endpoint:
        """From a base URL. Raises ValueError for a header that can't be sent."""
        parts = urlsplit(url)
        host, tls = parts.hostname or "", parts.scheme == "https"
        port = parts.port or (443 if tls else 80)
        lines = {
            "Host": parts.netloc.rpartition("@")[2],
            "Content-Type": "application/json",
            "Accept": "*/*",
            "Accept-Encoding": "identity",
            "Connection": "keep-alive" if access.keep_alive else "close",
        }
        for name, value in access.headers:
            if problem := header_problem(name, value):
                raise ValueError(problem)
            lines[name] = value
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items()).encode("latin-1")
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
            addresses, unresolved = tuple(dict.fromkeys(str(info[4][0]) for info in found)), ""
        except (OSError, UnicodeError) as error:
            addresses, unresolved = (), f"{host!r} can't be resolved: {error}"
        context = access.ssl_context() if tls else None
        return cls(host, port, parts.path.rstrip("/"), addresses, context, head, access.keep_alive, unresolved)

    def request(self, path: str, body: bytes) -> bytes:
        """The bytes of a POST."""
        first = f"POST {self.prefix}{path} HTTP/1.1\r\n".encode("latin-1")
        return b"%b%bContent-Length: %d\r\n\r\n%b" % (first, self.head, len(body), body)


class StreamClient:
    """One slot's client, with at most one connection, which is used again while the server allows it."""

    def __init__(
        self,
        endpoint: Endpoint,
        timeout_s: float,
        compactor: Compactor | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._endpoint, self._timeout, self._compactor, self._clock = endpoint, timeout_s, compactor, clock
        self._connection: Connection | None = None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.abort()

    async def connect(self) -> None:
        """Opens the connection ahead of a request. Where that fails, the request will say so."""
        await self._connected(RawStream(t_start=self._clock()))

    async def stream(self, path: str, body: bytes, on_event: Callable[[float], None]) -> RawStream:
        """Sends `body` and reads the answer to its end.

        Never raises for what a server does: the outcome says it. `on_event` is called with the time of each network
        chunk that holds a part of an event. Cancelling it returns what was read so far, with the outcome "cancelled",
        so that nothing measured is lost.
        """
        raw = RawStream(t_start=self._clock(), body=Recording(self._compactor))
        request = self._endpoint.request(path, body)
        try:
            connection = await self._connected(raw)
            if connection is not None:
                await self._exchange(connection, request, raw, on_event)
        except asyncio.CancelledError:
            if self._connection is not None:
                self._connection.give_up("cancelled")
            raw.outcome = raw.outcome or "cancelled"
        raw.t_end = raw.t_end or self._clock()
        raw.t_send = raw.t_send or raw.t_start
        return raw

    async def _exchange(
        self, connection: Connection, request: bytes, raw: RawStream, on_event: Callable[[float], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        left = max(0.0, self._timeout - (self._clock() - raw.t_start))
        timer = loop.call_later(left, connection.give_up, "timeout", f"no end after {self._timeout:.1f} s")
        try:
            await connection.ask(request, raw, on_event)
        finally:
            timer.cancel()

    async def _connected(self, raw: RawStream) -> Connection | None:
        """An open connection; None where there is none, and then `raw` says why."""
        connection = self._connection
        if connection is not None and not connection.closed:
            if self._clock() - connection.idle_since < MAX_IDLE_S:
                return connection
            connection.abort()
        self._connection = None
        limit = min(CONNECT_TIMEOUT_S, self._timeout)
        where = f"{self._endpoint.host}:{self._endpoint.port}"
        try:
            self._connection = await asyncio.wait_for(self._connect(), limit)
        except asyncio.TimeoutError:
            raw.outcome, raw.error = "timeout", f"no connection to {where} after {limit:.1f} s"
        except ssl.SSLCertVerificationError as error:
            raw.outcome = "refused"
            raw.error = f"the certificate of {where} is not trusted: {error.verify_message} (server.ca_file names a CA)"
        except ssl.SSLError as error:
            raw.outcome, raw.error = "refused", f"no TLS with {where}: {error.reason or error}"
        except OSError as error:
            raw.outcome = "refused"
            raw.error = _OURS.get(error.errno or 0) or f"connection lost before it began: {_reason(error)} ({where})"
        return self._connection

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        failed: OSError = ConnectionError(self._endpoint.unresolved or "no address")
        for address in self._endpoint.addresses:
            connection = Connection(self._endpoint.keep_alive, self._clock)
            try:
                await loop.create_connection(lambda: connection, address, self._endpoint.port)  # noqa: B023
            except OSError as error:
                failed = error
                continue
            if self._endpoint.tls is not None:
                await self._start_tls(connection, self._endpoint.tls)
            connection.idle_since = self._clock()
            return connection
        raise failed

    async def _start_tls(self, connection: Connection, context: ssl.SSLContext) -> None:
        # Started on an open transport: that one then writes at once, as the connection told it.
        assert connection.transport is not None
        try:
            connection.transport = await asyncio.get_running_loop().start_tls(
                connection.transport, connection, context, server_hostname=self._endpoint.host
            )
        except BaseException:
            connection.abort()
            raise


def _reason(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, ConnectionResetError):
        return "connection reset"
    return f"{type(error).__name__}: {error}"
