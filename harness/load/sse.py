MAX_LINE = 8 * 2**20  # bytes; a whole answer of a million tokens is shorter


class EventParser:
    """Feed it network chunks; it returns the data of each event completed by them."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []  # of a line that has not ended: joined once, not at every chunk
        self._length = 0
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """Events completed by `chunk`, in order; comments and other fields are dropped. A longer line than MAX_LINE is
        cut, which makes its event one that can't be read."""
        events: list[bytes] = []
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            self._keep(line)
            self._take(self._line(), events)
        self._keep(rest)
        return events

    def close(self) -> list[bytes]:
        """What is left at the end of the stream: servers often omit the last blank line."""
        events: list[bytes] = []
        if self._parts:
            self._take(self._line(), events)
        self._take(b"", events)
        return events

    def _keep(self, part: bytes) -> None:
        room = MAX_LINE - self._length
        if part and room > 0:
            self._parts.append(part[:room])
            self._length += len(self._parts[-1])

    def _line(self) -> bytes:
        line = b"".join(self._parts).removesuffix(b"\r")
        self._parts, self._length = [], 0
        return line

    def _take(self, line: bytes, events: list[bytes]) -> None:
        if not line:
            if self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        elif line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
