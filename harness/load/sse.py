"""Server-sent events from bytes, however they are cut (WHATWG HTML, section "Server-sent events").

Works on bytes because a network chunk may end inside a UTF-8 character, and because `str.splitlines`
breaks on U+2028 and U+0085, which are legal inside JSON. Time is linear in the bytes, also for one endless line.
"""

from __future__ import annotations

from collections.abc import Iterable

MAX_LINE = 8 * 2**20  # bytes; a whole answer of a million tokens is shorter
_BOM = b"\xef\xbb\xbf"


def events(pieces: Iterable[tuple[float, bytes]]) -> list[tuple[float, bytes]]:
    """The events of one stream, each with the time of the piece that completed it."""
    parser = EventParser()
    out, last = [], 0.0
    for last, piece in pieces:
        out += [(last, event) for event in parser.feed(piece)]
    return out + [(last, event) for event in parser.close()]


class EventParser:
    """Feed it network chunks; it returns the data of each event completed by them."""

    def __init__(self) -> None:
        self._line: list[bytes] = []  # parts of a line that has not ended
        self._held = 0  # bytes in them
        self._data: list[bytes] = []  # data lines of an event that has not ended
        self._skip_newline = False  # the chunk before ended in CR: a LF that follows belongs to it
        self._first = True

    def feed(self, chunk: bytes) -> list[bytes]:
        """Events completed by `chunk`, in order; comments and other fields are dropped.

        A longer line than MAX_LINE is cut, which makes its event one that can't be read.
        """
        end = len(chunk) - 2
        whole = chunk.endswith(b"\n\n") and chunk.find(b"\n") == end and chunk.startswith(b"data: ")
        if whole and b"\r" not in chunk and self._between:  # as servers send them: five times as fast
            self._first = False
            return [chunk[6:end]]
        if b"\r" in chunk or self._skip_newline:
            chunk = self._with_newlines(chunk)
        if b"\n" not in chunk:
            self._keep(chunk)
            return []
        *lines, rest = chunk.split(b"\n")
        self._keep(lines[0])
        lines[0] = b"".join(self._line)
        self._line, self._held = [], 0
        self._keep(rest)
        if self._first:
            self._first = False
            lines[0] = lines[0].removeprefix(_BOM)
        events: list[bytes] = []
        for line in lines:
            self._take(line[:MAX_LINE], events)
        return events

    @property
    def _between(self) -> bool:
        """Is no event and no line begun?"""
        return not (self._line or self._data or self._skip_newline)

    def close(self) -> list[bytes]:
        """What is left at the end of the stream: servers often omit the last blank line."""
        events: list[bytes] = []
        if self._line:
            line = b"".join(self._line)
            self._take(line.removeprefix(_BOM) if self._first else line, events)
            self._line = []
        self._take(b"", events)
        return events

    def _keep(self, part: bytes) -> None:
        part = part[: MAX_LINE - self._held]
        if part:
            self._line.append(part)
            self._held += len(part)

    def _with_newlines(self, chunk: bytes) -> bytes:
        """CR, LF and CRLF all end a line; a CRLF may be cut in two."""
        if self._skip_newline:
            chunk = chunk.removeprefix(b"\n")
        self._skip_newline = chunk.endswith(b"\r")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _take(self, line: bytes, events: list[bytes]) -> None:
        if not line:
            if self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        elif line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
