"""What servers say of themselves, in any form: counters, their description, tokens, answers to the output check."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from odd_events import JSON

from harness.engines.attach import Attach, AttachSettings
from harness.engines.base import ask_outputs, prometheus_counters
from harness.engines.registry import ENGINES
from harness.errors import InvalidLaunchError, MtpbenchError, ServerDiedError
from harness.http import Reply

PIECES = ["a:b_total", "{", "}", '"', "=", " ", "1", "e9", "\n", "#"]
NAMES = {"a:b_total": "b", "a:c_total": "c_{kind}"}


def test_a_line_that_cannot_be_read_takes_no_other_with_it() -> None:
    page = 'a:b_total 12,5\ngarbage {\n# TYPE\na:b_total{x="my model"} 3 1790000000000\n\x00\na:b_total 4\n'
    assert prometheus_counters(page, NAMES) == {"b": 7.0}
    assert prometheus_counters("<html><body>metrics are off</body></html>", NAMES) == {}
    assert prometheus_counters('a:b_total NaN\na:c_total 5\na:c_total{kind="x"} 6\n', NAMES) == {"c_x": 6.0}


@pytest.mark.fuzz
@given(
    text=st.text()
    | st.lists(st.sampled_from(["a:b_total", "{", "}", '"', "=", " ", "1", "e9", "\n", "#"])).map("".join)
)
def test_any_page_of_metrics(text: str) -> None:
    assert all(isinstance(value, float) for value in prometheus_counters(text, NAMES).values())


class Says:
    """Answers every question with the same thing."""

    base_url = "http://127.0.0.1:1"

    def __init__(self, text: str, status: int = 200) -> None:
        self.reply = Reply(status, text)

    async def get(self, *_: Any, **__: Any) -> Reply:
        return self.reply

    post = get


def asked(http: Any) -> None:
    """Every question of every engine: a value of the right type, or our own error."""
    settings = AttachSettings(engine="attach", url="http://127.0.0.1:1")

    def ask(question: Any, right: Callable[[Any], bool]) -> None:
        with contextlib.suppress(MtpbenchError):
            value = asyncio.run(question)
            assert right(value), value

    def numbers(value: Any) -> bool:
        return all(type(one) in (int, float) for one in value.values())

    for name in ("sglang", "llamacpp", "scripted"):
        engine: Any = ENGINES[name]
        ask(engine.describe(settings, http), lambda value: isinstance(value, dict))
        ask(engine.counters(settings, http), numbers)
        ask(engine.accept_length(settings, http), lambda value: value is None or value > 0)
        ask(engine.identity(http), lambda value: value is None or isinstance(value, str))
        ask(engine.answer(settings, http, [[1]], 4), lambda value: isinstance(value, tuple))
        ask(engine.tokenize(settings, http, "text"), lambda value: all(type(token) is int for token in value))
        ask(engine.detokenize(settings, http, [1]), lambda value: isinstance(value, str))
    ask(ask_outputs(http, [[1]], 1, 1.0), lambda value: isinstance(value, tuple))


@pytest.mark.fuzz
@given(value=JSON)
def test_any_json_from_a_server(value: Any) -> None:
    asked(Says(json.dumps(value)))
    asked(Says(json.dumps({"data": [value], "internal_states": value, "tokens": value, "meta_info": value})))
    asked(Says(json.dumps([{"meta_info": {"output_token_logprobs": value, "output_top_logprobs": [value]}}])))


def test_a_dead_server_is_called_dead() -> None:
    gone: Any = Says("ConnectError", 0)
    settings = AttachSettings(engine="attach", url="http://127.0.0.1:1")
    with pytest.raises(ServerDiedError, match="does not answer"):
        asyncio.run(Attach().tokenize(settings, gone, "text"))
    with pytest.raises(InvalidLaunchError, match="can't be read"):
        asyncio.run(ask_outputs(Says('[{"meta_info": {"output_token_logprobs": [1]}}]'), [[1]], 1, 1.0))  # type: ignore[arg-type]
