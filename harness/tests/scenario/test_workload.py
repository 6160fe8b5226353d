"""Prompts: exact, distinct, reproducible; users' own files."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from conftest import SCENARIO

from harness.errors import WorkloadError
from harness.scenario.format import Scenario
from harness.scenario.prompts import HEAD, PromptBook, corpus_digest, items_of, make_book, plan_blocks, poisson_offsets
from harness.scenario.yaml_file import parse


async def by_word(text: str) -> list[int]:
    """A toy tokeniser: one token a word, numbered by its letters."""
    return [sum(map(ord, word)) * 31 + len(word) for word in text.split()]


async def to_text(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids))


def book(scenario: Scenario) -> PromptBook:
    return asyncio.run(make_book(scenario, by_word, to_text))


def scenario(**changes: str) -> Scenario:
    text = SCENARIO
    for old, new in changes.items():
        text = text.replace({"prompts": "prompts: prose", "inputs": "input_tokens: 32"}[old], new)
    return parse(text, "x.yaml")


@pytest.mark.parametrize("kind", ["prose", "code", "random"])
def test_exact_and_distinct_over_the_whole_run(kind: str) -> None:
    plan = scenario(prompts=f"prompts: {kind}")
    prompts = book(plan)
    items = [item for block in plan_blocks(plan).values() for item in items_of(prompts, block)]
    # Warm-ups 1 and 2, then 8 measured at each level.
    assert len(items) == 1 + 8 + 2 + 8
    assert {len(item.prompt.ids) for item in items} == {32}
    assert {item.output_tokens for item in items} == {16}
    assert len({item.prompt.ids[:HEAD] for item in items}) == len(items)


def test_same_seed_same_prompts() -> None:
    plan = scenario()
    other = plan.model_copy(update={"workload": plan.workload.model_copy(update={"seed": 2})})
    assert book(plan).item(3) == book(plan).item(3)
    assert book(plan).item(3) != book(other).item(3)


def test_shared_prefix_is_shared_and_the_rest_is_not() -> None:
    prompts = book(scenario(inputs="input_tokens: 64\n  shared_prefix_tokens: 20"))
    first, second = prompts.item(0).prompt.ids, prompts.item(1).prompt.ids
    assert len(first) == len(second) == 64
    assert first[:20] == second[:20]
    assert first[20 : 20 + HEAD] != second[20 : 20 + HEAD]


def test_ranges_of_lengths() -> None:
    prompts = book(scenario(inputs="input_tokens: {min: 30, max: 40}"))
    lengths = {prompts.item(n).prompt.tokens for n in range(19)}
    assert lengths <= set(range(30, 41))
    assert len(lengths) > 4


def test_longer_than_the_corpus() -> None:
    prompts = book(scenario(inputs="input_tokens: 300000"))
    assert len(prompts.item(0).prompt.ids) == 300000


def test_chat_sends_text() -> None:
    prompt = book(scenario(inputs="input_tokens: 32\n  chat: true")).item(0).prompt
    assert prompt.ids == ()
    assert len(prompt.text.split()) == prompt.tokens == 32


def from_file(tmp_path: Path, content: str, more: str = "") -> PromptBook:
    path = tmp_path / "mine.jsonl"
    path.write_text(content, encoding="utf-8")
    text = SCENARIO.replace("prompts: prose\n  input_tokens: 32", f"prompts: jsonl\n  file: mine.jsonl{more}")
    return book(parse(text, str(tmp_path / "scenario.yaml")))


LINES = [
    {"prompt": "one two three"},
    {"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "why"}], "max_tokens": 5},
    {"conversations": [{"from": "human", "value": "a b"}, {"from": "gpt", "value": "c d"}]},
    {"input_ids": [7, 8, 9], "output_tokens": 3},
]


@pytest.mark.parametrize("form", ["lines", "array"])
def test_own_prompts(tmp_path: Path, form: str) -> None:
    entries = LINES * 5
    lines = "\n".join(json.dumps(entry) for entry in entries) + "\n\n"
    prompts = from_file(tmp_path, lines if form == "lines" else json.dumps(entries))
    items = [prompts.item(n) for n in range(4)]
    assert [item.prompt.tokens for item in items] == [3, 3, 2, 3]  # the assistant's turn is not part of a prompt
    assert [item.output_tokens for item in items] == [16, 5, 16, 3]
    assert items[3].prompt.ids == (7, 8, 9)


def test_input_tokens_caps_own_prompts(tmp_path: Path) -> None:
    prompts = from_file(tmp_path, json.dumps([{"prompt": "a b c d"}] * 20), "\n  input_tokens: 2")
    assert prompts.item(0).prompt.tokens == 2


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"prompt": "a"}\n{broken', "mine.jsonl:2: not JSON"),
        ('{"text": "a"}', "mine.jsonl:1: no prompt found; one of these keys is needed: prompt, messages"),
        ('{"prompt": "a", "max_tokens": 0}', "mine.jsonl:1: the number of output tokens"),
        ('{"input_ids": ["a"]}', "mine.jsonl:1: `input_ids` must be a list of whole numbers"),
        ("[1, 2]", "mine.jsonl entry 1: a JSON object is needed"),
        ('{"prompt": "a"}', "holds 1 prompts, the scenario needs 19"),
    ],
)
def test_bad_files_name_the_line(tmp_path: Path, content: str, expected: str) -> None:
    with pytest.raises(WorkloadError, match="^.*" + expected.replace(".", r"\.")):
        from_file(tmp_path, content)


def test_missing_file_is_a_scenario_error(tmp_path: Path) -> None:
    text = SCENARIO.replace("prompts: prose\n  input_tokens: 32", "prompts: jsonl\n  file: absent.jsonl")
    with pytest.raises(Exception, match=r"workload\.file: 'absent\.jsonl' is not a file beside "):
        parse(text, str(tmp_path / "scenario.yaml"))


def test_poisson_arrivals() -> None:
    offsets = poisson_offsets(10.0, 4000, seed=1)
    assert offsets == sorted(offsets)
    assert offsets == poisson_offsets(10.0, 4000, seed=1)
    # The mean gap is 0.1 s with a standard error of 0.1 / sqrt(4000) = 0.0016 s.
    assert offsets[-1] / 4000 == pytest.approx(0.1, abs=4 * 0.0016)


def test_corpus_is_identified() -> None:
    assert corpus_digest(scenario().workload) == corpus_digest(scenario().workload)
    assert corpus_digest(scenario().workload) != corpus_digest(scenario(prompts="prompts: code").workload)


def test_swept_lengths_have_their_own_prompts() -> None:
    plan = scenario(inputs="input_tokens: [64, 40]")
    prompts = book(plan)
    seen = {}
    for (level, _, _), block in plan_blocks(plan).items():
        lengths = {item.prompt.tokens for item in items_of(prompts, block)}
        assert lengths == {len(item.prompt.ids) for item in items_of(prompts, block)} == {level.input_tokens}
        seen[level.input_tokens] = seen.get(level.input_tokens, 0) + block.count
    assert seen[40] == seen[64] > 0


def test_factors_come_last_and_have_lengths_of_their_own() -> None:
    """A scenario's own passes have the same prompts with and without factors."""
    plain = scenario()
    plan = parse(SCENARIO + "factors:\n  ragged: {input_tokens: {min: 8, max: 56}}\n  burst: {burst: true}\n", "x.yaml")
    prompts, without = book(plan), book(plain)
    blocks = plan_blocks(plan)
    for key, block in plan_blocks(plain).items():
        assert (blocks[key].first, blocks[key].count) == (block.first, block.count)
        assert [i.prompt.tokens for i in items_of(prompts, block)] == [
            i.prompt.tokens for i in items_of(without, block)
        ]
    ragged, burst = plan.levels()[2:]
    lengths = {item.prompt.tokens for item in items_of(prompts, blocks[ragged, 0, False])}
    assert min(lengths) >= 8
    assert len(lengths) > 3
    assert {item.prompt.tokens for item in items_of(prompts, blocks[burst, 0, False])} == {32}
    assert blocks[burst, 0, False].count == 2
