"""What streams mean: counts, ends, errors."""

from __future__ import annotations

import json

import pytest

from harness.load.dialects import DIALECTS, Prompt, Sampling, spread
from harness.model import CountSource, Event

OPENAI, CHAT, SGLANG = DIALECTS["openai"], DIALECTS["openai-chat"], DIALECTS["sglang"]


def stream(*messages: object, step: float = 1.0) -> list[tuple[float, bytes]]:
    """Payloads one second apart, from t = 1."""
    datas = [m if isinstance(m, str) else json.dumps(m) for m in messages]
    return [(step * n, data.encode()) for n, data in enumerate(datas, 1)]


def text(t: str, **more: object) -> dict:
    return {"choices": [{"text": t, "finish_reason": None}], **more}


def usage(n: int, cached: int = 0) -> dict:
    details = {"cached_tokens": cached}
    return {"usage": {"completion_tokens": n, "prompt_tokens": 7, "prompt_tokens_details": details}}


def test_bodies() -> None:
    sampling = Sampling("m")
    body = json.loads(OPENAI.body(Prompt(2, ids=(5, 6)), 9, sampling))
    assert (body["prompt"], body["max_tokens"], body["ignore_eos"], body["stream"]) == ([5, 6], 9, True, True)
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    chat = json.loads(CHAT.body(Prompt(2, text="hi"), 9, sampling))
    assert chat["messages"] == [{"role": "user", "content": "hi"}]
    native = json.loads(SGLANG.body(Prompt(2, ids=(5, 6)), 9, Sampling("m", ignore_eos=False)))
    assert native["input_ids"] == [5, 6]
    assert native["sampling_params"] == {"temperature": 0.0, "max_new_tokens": 9, "ignore_eos": False}


def test_counts_in_every_event() -> None:
    out = OPENAI.decode(stream(text("a", **usage(1)), text("bcd", **usage(4)), text("", **usage(4, 3)), "[DONE]"))
    assert out.events == [Event(1.0, 1), Event(2.0, 4)]
    assert (out.completion_tokens, out.prompt_tokens, out.cached_tokens) == (4, 7, 3)
    assert out.done
    assert out.count_source is CountSource.EVENT


def test_count_at_the_end_only() -> None:
    out = OPENAI.decode(stream(text("a"), text("b"), text("c"), {"choices": [], **usage(9)}, "[DONE]"))
    assert out.events == [Event(1.0, 1), Event(2.0, 5), Event(3.0, 9)]
    assert out.count_source is CountSource.FINAL


def test_no_count_at_all() -> None:
    out = OPENAI.decode(stream(text("a"), text("b"), "[DONE]"))
    assert out.events == [Event(1.0, 1), Event(2.0, 2)]
    assert out.count_source is CountSource.NONE
    assert out.completion_tokens is None


def test_role_only_chunk_is_no_token() -> None:
    """The chunk at 1 s only names the role: the first token comes at 2 s."""
    role = {"choices": [{"delta": {"role": "assistant", "content": ""}}], **usage(0)}
    first = {"choices": [{"delta": {"content": "a"}}], **usage(1)}
    second = {"choices": [{"delta": {"reasoning_content": "b"}, "finish_reason": "length"}], **usage(2)}
    out = CHAT.decode(stream(role, first, second, "[DONE]"))
    assert out.events == [Event(2.0, 1), Event(3.0, 2)]
    assert out.finish_reason == "length"


def test_done_only() -> None:
    out = OPENAI.decode(stream("[DONE]"))
    assert out.events == []
    assert out.done


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"error": {"message": "out of memory", "code": 500}}, "out of memory"),
        ({"error": "plain words"}, "plain words"),
        ({"object": "error", "message": "vLLM's form"}, "vLLM's form"),
        ("{broken", "not a JSON object"),
        ("[1, 2]", "not a JSON object"),
    ],
)
def test_errors_inside_a_200(message: object, expected: str) -> None:
    """An error in the middle of a stream whose status was 200 is told, not taken for the end."""
    for dialect in DIALECTS.values():
        out = dialect.decode(stream(text("a", **usage(1)), message, "[DONE]"))
        assert expected in out.error


def test_llama_cpp_timings() -> None:
    """12 tokens: the first from the prompt, then steps of 4, 4 and 3 with 3, 3 and 2 accepted drafts."""
    counts = [(1, None), (2, 3), (5, 3), (6, 6), (9, 6), (10, 8), (12, 8)]
    messages = []
    for n, accepted in counts:
        timings = {"predicted_n": n, "cache_n": 2}
        if accepted is not None:
            timings |= {"draft_n": accepted, "draft_n_accepted": accepted}
        messages.append(text("x", timings=timings))
    out = OPENAI.decode(stream(*messages, text("", **usage(12)), "[DONE]"))
    assert out.error == ""
    assert out.verify_steps == 3
    assert out.events[-1].tokens == 12
    assert out.cached_tokens == 0  # of the last event that says so


def generate(n: int, ids: list[int], **meta: object) -> dict:
    return {"output_ids": ids, "meta_info": {"completion_tokens": n, "prompt_tokens": 5, "cached_tokens": 0, **meta}}


def test_sglang_incremental_and_cumulative_streams_are_one() -> None:
    last = {"finish_reason": {"type": "length"}, "spec_verify_ct": 2}
    incremental = SGLANG.decode(stream(generate(1, [8]), generate(4, [9, 10, 11]), generate(5, [12], **last), "[DONE]"))
    cumulative = SGLANG.decode(
        stream(generate(1, [8]), generate(4, [8, 9, 10, 11]), generate(5, [8, 9, 10, 11, 12], **last), "[DONE]")
    )
    assert incremental == cumulative
    assert incremental.events == [Event(1.0, 1), Event(2.0, 4), Event(3.0, 5)]
    assert (incremental.verify_steps, incremental.finish_reason) == (2, "length")


def test_sglang_abort_is_an_error() -> None:
    finish = {"finish_reason": {"type": "abort", "message": "KV cache pool is full"}}
    assert SGLANG.decode(stream(generate(1, [8], **finish), "[DONE]")).error == "KV cache pool is full"


def test_spread_ends_at_the_total() -> None:
    assert spread([1.0], [7]) == [Event(1.0, 7)]
    assert spread([1.0, 2.0, 3.0, 4.0], [None, None, None, 4]) == [Event(float(n), n) for n in (1, 2, 3, 4)]
    assert spread([1.0, 2.0, 3.0], [None, None, 2])[-1].tokens == 2  # more arrivals than tokens
    between = spread([1.0, 2.0, 3.0, 4.0, 5.0], [1, None, 7, None, 9])
    assert between == [Event(float(t), n) for t, n in ((1, 1), (2, 4), (3, 7), (4, 8), (5, 9))]


def test_repetition_and_digest() -> None:
    loop = SGLANG.decode(stream(generate(64, [7] * 64), "[DONE]"))
    words = SGLANG.decode(stream(generate(64, list(range(64))), "[DONE]"))
    assert loop.repetition > 0.98
    assert words.repetition == 0
    assert loop.output_digest != words.output_digest
    cut = OPENAI.decode(stream(text("ab"), text("c")))
    assert cut.output_digest == OPENAI.decode(stream(text("a"), text("bc"))).output_digest
