"""Scenario files in any form: a scenario or a list of problems, and nothing that means other than it says."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import SCENARIO
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import ScenarioError
from harness.scenario.format import Scenario
from harness.scenario.problems import warnings
from harness.scenario.yaml_file import load, parse
from harness.verdict.accepted import load as load_ledger

ROOT = Path(__file__).parents[3]


def wrong(old: str, new: str) -> str:
    assert old in SCENARIO
    with pytest.raises(ScenarioError) as caught:
        parse(SCENARIO.replace(old, new), "x.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("output_tokens: 16", "output_tokens: 010", "x.yaml:14: workload.output_tokens: 010 is no plain whole number"),
        ("output_tokens: 16", "output_tokens: 1:30", "1:30 is no plain whole number"),
        ("output_tokens: 16", "output_tokens: 0x10", "0x10 is no plain whole number"),
        ("output_tokens: 16", "output_tokens: 1_000", "1_000 is no plain whole number"),
        ("output_tokens: 16", "output_tokens: " + "9" * 5000, "is no plain whole number"),
        ("output_tokens: 16", "output_tokens: 16\n  seed: yes", "YAML reads yes as a truth value"),
        ("output_tokens: 16", "output_tokens: 16\n  seed: true", "workload.seed: input should be a valid integer"),
        ("output_tokens: 16", 'output_tokens: 16\n  seed: "1"', "workload.seed: input should be a valid integer"),
        ("output_tokens: 16", "output_tokens: 16\n  chat: 1", "workload.chat: input should be a valid boolean"),
        ("output_tokens: 16", "output_tokens: 16\n  temperature: .inf", ".inf is no plain number"),
        ("output_tokens: 16", "output_tokens: 16\n  temperature: true", "input should be a valid number"),
        ("version: 1", "version: true", "x.yaml:1: version: a number is needed, not true"),
        ("version: 1", "version: 1.5", "version: input should be 1"),
        ("step: 5ms", "step: 5ms\n  request_timeout: 0s", "server.request_timeout: must be above zero"),
        ("step: 5ms", "step: 5ms\n  stall_timeout: 0ms", "server.stall_timeout: must be above zero"),
        ("engine: scripted", "engine: [scripted]", "['scripted'] is no engine"),
        ("engine: scripted", "engine: {}", "{} is no engine"),
        ("prompts: prose", "prompts: 2026-11-30", "workload.prompts: input should be 'prose'"),
        ("prompts: prose", "prompts: !!binary aGk=", "the tag !!binary is not allowed"),
        ("plain: {}", "plain: " + "{a: " * 60 + "1" + "}" * 60, "nested too deeply"),
        ("plain: {}", "plain: " + "[" * 5000, "not valid YAML"),
        ("prompts: prose", f"prompts: jsonl\n  file: {'x' * 5000}", "is not a file"),
        ("prompts: prose", 'prompts: jsonl\n  file: "a\\0b"', "is not a file"),
    ],
)
def test_what_would_be_misread_is_refused_with_its_line(old: str, new: str, said: str) -> None:
    assert said in wrong(old, new)


def test_what_means_what_it_says_is_taken() -> None:
    text = SCENARIO.replace("output_tokens: 16", "output_tokens: 16\n  temperature: 1e-1")
    assert parse(text, "x.yaml").workload.temperature == 0.1
    named = parse(SCENARIO.replace("name: scripted", "name: 2026-11-30"), "x.yaml")
    assert named.name == "2026-11-30"


def test_a_day_of_the_ledger_is_one(tmp_path: Path) -> None:
    entry = "{scenario: s, metric: tpot_p50, bound: 6%, owner: a, reason: a long reason, expires: 2027-01-31}"
    (tmp_path / "known.yaml").write_text(f"version: 1\nregressions:\n- {entry}\n")
    assert load_ledger(tmp_path / "known.yaml").regressions[0].expires.isoformat() == "2027-01-31"


VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates()
    | st.sampled_from(["5ms", "0s", "1/s", "prose", "jsonl", "tpot", "\x00", "\u202e", "scripted", "sglang"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
GOOD = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "scenarios").glob("*.yaml"))] + [
    yaml.safe_load(SCENARIO)
]


PIECE = st.text(max_size=6) | st.sampled_from(["!!set", "*a", "&a", "<<: ", "!!omap", "? ", "- - - "])


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, one in inner for place in places(one, (*path, key)))]


def read(text: str) -> None:
    try:
        scenario = parse(text, "x.yaml")
    except ScenarioError:
        return
    warnings(scenario)
    assert Scenario.model_validate(scenario.model_dump(mode="json")) == scenario
    assert scenario.levels()


@pytest.mark.fuzz
@given(data=st.data(), good=st.sampled_from(GOOD), value=VALUE)
def test_any_value_in_any_place(data: st.DataObject, good: dict[str, Any], value: Any) -> None:
    document: Any = copy.deepcopy(good)
    path = data.draw(st.sampled_from(places(document)[1:]))
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    read(yaml.safe_dump(document, allow_unicode=True))


@pytest.mark.fuzz
@given(
    data=st.data(),
    good=st.sampled_from(GOOD),
    piece=st.text(max_size=6) | st.sampled_from(["!!set", "*a", "&a", "<<: "]),
)
def test_any_text_in_any_place(data: st.DataObject, good: dict[str, Any], piece: str) -> None:
    text = yaml.safe_dump(good)
    at, length = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 8))
    read(text[:at] + piece + text[at + length :])


@pytest.mark.fuzz
@given(content=st.binary(max_size=60))
def test_any_bytes(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("odd") / "x.yaml"
    path.write_bytes(content)
    with pytest.raises(ScenarioError):
        load(path)
