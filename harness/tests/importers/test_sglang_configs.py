"""SGLang's nightly configuration: everything comes along, or is refused by its name."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from harness.errors import ScenarioError
from harness.importers.sglang_configs import CONTEXT_MARGIN, read_configs

PUBLISHED = Path(__file__).parents[1] / "standin" / "benchmark-configs.yaml"
ENTRY = """
configs:
  - name: one
    model-prefix: qwen3.5
    precision: fp8
    runner: mi355x
    framework: sglang
    model: Qwen/Qwen3.5-397B-A17B-FP8
    variants: [base, mtp]
    tp: 2
    isl: 8192
    osl: 1024
    conc-list: "1 16"
    env: {SGLANG_USE_AITER: "1"}
    server-args: --attention-backend aiter --page-size 16 --disable-radix-cache
    mtp-server-args: --speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4
"""  # noqa: E501


def refused(text: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        read_configs(text, "f.yaml")
    return " ".join(str(problem) for problem in caught.value.problems)


def test_an_entry_becomes_a_scenario_with_two_arms() -> None:
    [one] = read_configs(ENTRY, "f.yaml")
    made = one.scenario
    assert list(made.arms) == ["base", "mtp"]
    assert made.tp == [2]
    assert made.arrival.concurrency == [1, 16]
    base, mtp = made.resolved_arms()
    assert base.server.env == {"SGLANG_USE_AITER": "1"}
    assert base.server.flags["attention-backend"] == "aiter"
    assert base.server.flags["disable-radix-cache"] is True
    assert base.server.flags["context-length"] == 8192 + 1024 + CONTEXT_MARGIN
    assert base.server.flags["max-running-requests"] == 16
    assert base.server.speculation is None
    assert (mtp.server.speculation.steps, mtp.server.speculation.topk, mtp.server.speculation.draft_tokens) == (3, 1, 4)
    assert made.labels["model-prefix"] == "qwen3.5"


def test_every_published_entry_comes_along() -> None:
    names = [one["name"] for one in yaml.safe_load(PUBLISHED.read_text())["configs"]]
    assert len(names) > 1
    assert [one.name for one in read_configs(PUBLISHED.read_text(), "f.yaml", recipes=PUBLISHED.parent)] == names


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        ("tp: 2", "tp: 2\n    surprise: 1", "surprise"),
        ("tp: 2", "tp: none", "tp"),
        ("framework: sglang", "framework: vllm", "only sglang is served here"),
        ('conc-list: "1 16"', 'conc-list: "many"', "conc-list"),
        ("variants: [base, mtp]", "variants: [base, turbo]", "turbo"),
        ("    precision: fp8\n", "", "precision"),
    ],
)
def test_what_has_no_place_is_refused_by_name(before: str, after: str, what: str) -> None:
    assert before in ENTRY
    assert what in refused(ENTRY.replace(before, after))


def test_what_is_no_list_of_entries() -> None:
    assert "a list of entries is expected" in refused("configs: 3\n")
    assert "a list of entries is expected" in refused("a: 1\n")
