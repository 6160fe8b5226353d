"""The parser of server-sent events, however bytes are cut."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.load.sse import MAX_LINE, EventParser

STREAM = (
    b': ping\n\ndata: {"text":" na\xc3\xafve\xe2\x80\xa8line"}\n\ndata:{"a":1}\r\n\r\n'
    b"event: x\nid: 7\ndata: one\ndata: two\n\n: ping\n\ndata: [DONE]\n\n"
)
EVENTS = [b'{"text":" na\xc3\xafve\xe2\x80\xa8line"}', b'{"a":1}', b"one\ntwo", b"[DONE]"]


def parse(chunks: list[bytes]) -> list[bytes]:
    parser = EventParser()
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    return events + parser.close()


def test_whole() -> None:
    assert parse([STREAM]) == EVENTS


def test_byte_by_byte() -> None:
    assert parse([STREAM[n : n + 1] for n in range(len(STREAM))]) == EVENTS


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_any_cut(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    assert parse([STREAM[a:b] for a, b in pairwise(edges)]) == EVENTS


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=5), st.integers(1, 7))
def test_any_text(texts: list[str], size: int) -> None:
    events = [json.dumps({"t": text}, ensure_ascii=False).encode() for text in texts]
    stream = b"".join(b"data: " + event + b"\n\n" for event in events)
    assert parse([stream[n : n + size] for n in range(0, len(stream), size)]) == events


@pytest.mark.parametrize("tail", [b"data: last", b"data: last\n", b"data: last\r\n"])
def test_end_without_a_blank_line(tail: bytes) -> None:
    assert parse([b"data: a\n\n" + tail]) == [b"a", b"last"]


def test_a_line_without_end_is_cut_and_the_stream_goes_on() -> None:
    """A server that never ends its line costs no more memory than one event may, and no time that grows with it."""
    parser = EventParser()
    assert parser.feed(b"data: ") == []
    for _ in range(2 * MAX_LINE // 2**16):
        assert parser.feed(b"x" * 2**16) == []
    [long, short] = parser.feed(b"\n\ndata: next\n\n")
    assert len(long) == MAX_LINE - len(b"data: ")
    assert short == b"next"
