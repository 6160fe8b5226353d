"""Server-sent events from bytes, however they are cut (WHATWG HTML, section "Server-sent events").

Works on bytes because a network chunk may end inside a UTF-8 character, and because `str.splitlines`
breaks on U+2028 and U+0085, which are legal inside JSON.
"""

from __future__ import annotations


class EventParser:
    """Feed it network chunks; it returns the data of each event completed by them."""

    def __init__(self) -> None:
        self._buffer = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """Events completed by `chunk`, in order; comments and other fields are dropped."""
        self._buffer += chunk
        events: list[bytes] = []
        while True:
            end = self._buffer.find(b"\n")
            if end < 0:
                return events
            line = self._buffer[:end].removesuffix(b"\r")
            self._buffer = self._buffer[end + 1 :]
            self._take(line, events)

    def close(self) -> list[bytes]:
        """What is left at the end of the stream: servers often omit the last blank line."""
        events: list[bytes] = []
        if self._buffer:
            self._take(self._buffer.removesuffix(b"\r"), events)
            self._buffer = b""
        self._take(b"", events)
        return events

    def _take(self, line: bytes, events: list[bytes]) -> None:
        if not line:
            if self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        elif line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
