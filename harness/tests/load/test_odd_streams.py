"""What odd streams are worth: the times of the pieces are known, so each has one right TTFT and TPOT, or a reason."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from odd_events import EVENT
from odd_server import MODES, STEP, TTFT, Ask

from harness.load.dialects import DIALECTS, Payload
from harness.load.requests import PlannedRequest, to_record
from harness.load.stream import RawStream
from harness.metrics.definitions import tpot, ttft
from harness.model import CountSource, RequestRecord, RequestStatus

TOKENS = 24


def played(mode: str, exact: bool = True) -> RequestRecord:
    """The stream of a mode, read as if each event had arrived when it was sent."""
    chat = mode in ("reasoning", "list_content", "tool_call")
    pieces = MODES[mode](Ask(TOKENS, 5, chat))
    payloads = [(at, (piece if isinstance(piece, str) else json.dumps(piece)).encode()) for at, piece in pieces]
    return record(payloads, "openai-chat" if chat else "openai", exact)


def record(payloads: list[Payload], dialect: str, exact: bool = True) -> RequestRecord:
    raw = RawStream(0.0, 0.0, payloads[-1][0] if payloads else 0.0, 200, "eof")
    for at, data in payloads:
        raw.body.add(at, b"data: " + data + b"\n\n")
    plan = PlannedRequest(0, b"", 5, TOKENS, exact_output=exact)
    return to_record(plan, 0, 0.0, raw, DIALECTS[dialect], RequestStatus.CANCELLED)


@pytest.mark.parametrize(
    "mode",
    ["plain", "final", "first_last_usage", "every10_usage", "usage_a_chunk", "last_two_usage", "late_usage",
     "reasoning", "list_content", "tool_call", "null_details", "empty_details", "float_counts"],
)  # fmt: skip
def test_pieces_say_when_and_counts_say_how_many(mode: str) -> None:
    r = played(mode)
    assert r.status is RequestStatus.OK, r.error
    assert r.tokens == TOKENS
    assert ttft(r) == pytest.approx(TTFT)
    assert tpot(r) == pytest.approx(STEP)


def test_text_that_is_held_back_arrives_when_it_does() -> None:
    r = played("hidden")
    assert r.status is RequestStatus.OK
    assert r.tokens == TOKENS  # five of which are only counted
    assert ttft(r) == pytest.approx(TTFT + TOKENS // 2 * STEP)
    assert tpot(r) == pytest.approx(STEP)


@pytest.mark.parametrize("mode", ["no_usage", "zero_usage"])
def test_what_nobody_counts_has_no_tpot(mode: str) -> None:
    r = played(mode, exact=False)
    assert r.status is RequestStatus.OK
    assert r.count_source is CountSource.NONE
    assert ttft(r) == pytest.approx(TTFT)
    assert tpot(r) is None


def test_an_answer_in_one_piece_has_no_tpot() -> None:
    event = {"choices": [{"text": "all of it"}], "usage": {"completion_tokens": TOKENS}}
    r = record([(0.5, json.dumps(event).encode()), (0.5, b"[DONE]")], "openai")
    assert (r.status, ttft(r), tpot(r)) == (RequestStatus.OK, 0.5, None)


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("half_counts", "`completion_tokens` is no whole number"),
        ("usage_list", "`usage` is not an object"),
        ("details_list", "`prompt_tokens_details` is not an object"),
        ("negative_usage", "`completion_tokens` can't be -1"),
        ("absurd_usage", "the server counts 23870 output tokens where at most 24 were asked for"),
        ("backwards", "the server's count of tokens goes back from 24 to 23"),
        ("more_reasoning", "it counts 25 reasoning tokens among 24"),
        ("number_text", '`text` is no text: b\'{"choices"'),
        ("number_choices", "`choices` is no list of objects"),
        ("surrogate", "`usage` is not an object"),
        ("deep", "it is nested too deeply: b'[[[["),
        ("digits", "not a JSON object"),
        ("nan", "`completion_tokens` is no whole number"),
        ("no_json", "it is not a JSON object: b'<html>502 Bad Gateway"),
    ],
)
def test_an_event_that_cannot_be_read_fails_its_request_and_says_why(mode: str, why: str) -> None:
    r = played(mode)
    assert r.status is RequestStatus.STREAM_ERROR
    assert why in r.error


def test_a_stream_without_output_is_no_answer() -> None:
    r = played("no_tokens")
    assert (r.status, r.error) == (RequestStatus.TRUNCATED, "the stream ended without a single token")


@pytest.mark.fuzz
@pytest.mark.parametrize("dialect", DIALECTS)
@given(events=st.lists(EVENT, max_size=8))
def test_any_stream_is_a_record(dialect: str, events: list[bytes]) -> None:
    """Any bytes and any JSON types: a record with one end, counts that can be, and times in order."""
    r = record([(0.1 * n, data) for n, data in enumerate(events)], dialect)
    assert isinstance(r.status, RequestStatus)
    assert r.ok or r.error
    assert RequestRecord.from_json(json.loads(json.dumps(r.to_json()))).status is r.status
    tokens = [event.tokens for event in r.events]
    assert tokens == sorted(set(tokens))
    assert all(n > 0 for n in tokens)
    for value in (r.prompt_tokens, r.completion_tokens, r.cached_tokens, r.verify_steps):
        assert value is None or (type(value) is int and value >= 0)
    assert tpot(r) is None or tpot(r) > 0  # type: ignore[operator]


@pytest.mark.fuzz
@given(data=st.binary(max_size=200))
def test_reading_one_event_never_raises(data: bytes) -> None:
    for dialect in DIALECTS.values():
        dialect.read(data)
