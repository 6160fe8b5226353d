"""One connection under httpx that knows when bytes left and arrived: time stamps at the socket, not after parsing.

httpx hands out a chunk only after its HTTP parser and its own layers are done, a few tenths of a millisecond
later. This transport wraps httpcore's network stream, which is public API, and stamps each read and write.
"""

from __future__ import annotations

import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

import httpcore
import httpx


class Stamps:
    """When bytes were last read, and when the first of a request were written. One for each connection."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.read = 0.0
        self.first_write = 0.0

    def on_read(self) -> None:
        self.read = self._clock()

    def on_write(self) -> None:
        if not self.first_write:
            self.first_write = self._clock()


class _Stream(httpcore.AsyncNetworkStream):
    def __init__(self, inner: httpcore.AsyncNetworkStream, stamps: Stamps) -> None:
        self._inner, self._stamps = inner, stamps

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = await self._inner.read(max_bytes, timeout)
        self._stamps.on_read()
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stamps.on_write()
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        return _Stream(await self._inner.start_tls(ssl_context, server_hostname, timeout), self._stamps)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class _Backend(httpcore.AsyncNetworkBackend):
    def __init__(self, stamps: Stamps) -> None:
        self._inner, self._stamps = httpcore.AnyIOBackend(), stamps

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        inner = await self._inner.connect_tcp(host, port, timeout, local_address, socket_options)
        return _Stream(inner, self._stamps)

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


class _Body(httpx.AsyncByteStream):
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _httpx_errors():
            async for part in self._inner:
                yield part

    async def aclose(self) -> None:
        await self._inner.aclose()


_CORE_ERRORS = (
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.ProxyError,
    httpcore.TimeoutException,
    httpcore.UnsupportedProtocol,
)


@contextlib.contextmanager
def _httpx_errors() -> Iterator[None]:
    """httpcore's errors as httpx's, by name: the trees are the same."""
    try:
        yield
    except _CORE_ERRORS as error:
        translated = getattr(httpx, type(error).__name__, httpx.TransportError)
        raise translated(str(error)) from error


class StampedTransport(httpx.AsyncBaseTransport):
    """At most one connection at a time; `stamps` tells when its bytes moved."""

    def __init__(self, stamps: Stamps, *, keep_alive: bool, tls: bool) -> None:
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=httpx.create_ssl_context() if tls else None,
            max_connections=1,
            max_keepalive_connections=1 if keep_alive else 0,
            network_backend=_Backend(stamps),
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        ask = httpcore.Request(
            method=request.method,
            url=httpcore.URL(
                scheme=request.url.raw_scheme,
                host=request.url.raw_host,
                port=request.url.port,
                target=request.url.raw_path,
            ),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        with _httpx_errors():
            answer = await self._pool.handle_async_request(ask)
        return httpx.Response(
            status_code=answer.status,
            headers=answer.headers,
            stream=_Body(answer.stream),
            extensions=answer.extensions,
        )

    async def aclose(self) -> None:
        await self._pool.aclose()
