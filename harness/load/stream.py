"""The client that is measured with: requests whose answers are streamed, over transport.py.

Streams are kept raw while the load runs (a time stamp and the bytes of each event) and decoded after it,
because JSON decoding at thousands of events a second would delay the time stamps of others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx

from harness.http import HEADERS
from harness.load.dialects import Payload, why_no_stream
from harness.load.sse import EventParser
from harness.load.transport import StampedTransport, Stamps


@dataclass
class RawStream:
    """One request as it happened: nothing interpreted yet."""

    t_start: float
    t_send: float = 0.0
    t_end: float = 0.0
    http_status: int = 0
    payloads: list[Payload] = field(default_factory=list)
    outcome: str = ""  # "eof", "refused", "broken", "timeout" or "cancelled"
    error: str = ""


class StreamClient:
    """One slot's client: httpx's connection pool costs least when nobody shares it (docs/client.md)."""

    def __init__(
        self,
        base_url: str,
        timeout_s: float,
        keep_alive: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._timeout = timeout_s
        self._stamps = Stamps(clock)
        self._http = httpx.AsyncClient(
            base_url=base_url,
            headers=HEADERS | ({} if keep_alive else {"Connection": "close"}),
            transport=StampedTransport(self._stamps, keep_alive=keep_alive, tls=not base_url.startswith("http://")),
            timeout=httpx.Timeout(timeout_s, connect=10.0),
            trust_env=False,  # no proxy between us and the server, no surprise from ~/.netrc
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def stream(self, path: str, body: bytes, on_event: Callable[[float], None]) -> RawStream:
        """Sends `body` and reads the stream to its end.

        Never raises for what a server does: the outcome says it. `on_event` is called with the time of
        each network chunk that completed an event. Cancelling it returns what was read so far, with the
        outcome "cancelled", so that nothing measured is lost.
        """
        raw = RawStream(t_start=self._clock())
        try:
            await asyncio.wait_for(self._read(path, body, raw, on_event), self._timeout)
        except (asyncio.TimeoutError, httpx.TimeoutException):
            raw.outcome, raw.error = "timeout", f"no end after {self._clock() - raw.t_start:.1f} s"
        except asyncio.CancelledError:
            raw.outcome = "cancelled"
        except httpx.ConnectError as error:
            raw.outcome, raw.error = "refused", f"connection lost before it began: {error}"
        except httpx.HTTPError as error:
            raw.outcome = "broken"
            raw.error = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raw.t_end = self._clock()
        raw.t_send = self._stamps.first_write or raw.t_start
        return raw

    async def _read(self, path: str, body: bytes, raw: RawStream, on_event: Callable[[float], None]) -> None:
        parser = EventParser()
        self._stamps.first_write = 0.0
        request = self._http.build_request("POST", path, content=body)
        response = await self._http.send(request, stream=True)
        try:
            raw.http_status = response.status_code
            if response.status_code != 200:
                text = (await response.aread())[:500].decode(errors="replace")
                raw.outcome, raw.error = "refused", f"HTTP {response.status_code}: {text}"
                return
            headers = response.headers
            if why := why_no_stream(headers.get("content-type", ""), headers.get("content-encoding", "")):
                raw.outcome, raw.error = "refused", why
                return
            async for chunk in response.aiter_raw():
                now = self._stamps.read
                events = parser.feed(chunk)
                if events:
                    on_event(now)
                    raw.payloads += [(now, event) for event in events]
            raw.payloads += [(self._stamps.read, event) for event in parser.close()]
            raw.outcome = "eof"
        finally:
            await response.aclose()
