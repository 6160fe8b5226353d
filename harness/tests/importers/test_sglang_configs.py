"""SGLang's nightly configuration: everything comes along, or is refused by its name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from commands import mtpbench

from harness.engines.sglang_settings import SglangSettings
from harness.engines.sglang_versions import versions
from harness.errors import ScenarioError
from harness.importers.sglang_configs import CONTEXT_MARGIN, read_configs
from harness.scenario import yaml_file

ROOT = Path(__file__).parents[3]
PUBLISHED = Path(__file__).parents[1] / "standin" / "benchmark-configs.yaml"
OURS = ROOT / "ci" / "amd" / "benchmark-configs.yaml"
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


SPECULATIVE = {
    "speculative-algorithm": "algorithm",
    "speculative-num-steps": "steps",
    "speculative-eagle-topk": "topk",
    "speculative-num-draft-tokens": "draft_tokens",
}


def written_flags(text: str) -> dict[str, str]:
    """Flag → value as it stands in the file, `True` where none does; read here in another way than by the importer."""
    found = re.findall(r"--([a-z0-9-]+)(?:[ =](?!--)(\S+))?", " ".join(text.split()))
    return {name: value or "True" for name, value in found}


@pytest.mark.parametrize("file", [PUBLISHED, OURS], ids=["published", "ours"])
def test_no_flag_no_variable_and_no_load_of_an_entry_is_lost(file: Path) -> None:
    entries = yaml.safe_load(file.read_text())["configs"]
    made = read_configs(file.read_text(), "f.yaml", recipes=file.parent)
    for entry, one in zip(entries, made, strict=True):
        assert list(one.scenario.arms) == entry["variants"]
        assert one.scenario.tp == [entry["tp"]]
        assert one.scenario.arrival.concurrency == [int(word) for word in entry["conc-list"].split()]
        assert one.scenario.workload.max_input == entry["isl"]
        assert one.scenario.workload.max_output == entry["osl"]
        for arm in one.scenario.resolved_arms():
            flags, env = written_flags(entry["server-args"]), dict(entry.get("env", {}))
            if arm.name == "mtp":
                flags |= written_flags(entry["mtp-server-args"])
                env |= entry.get("mtp-env", {})
            server = arm.server
            assert isinstance(server, SglangSettings)
            assert server.model == entry["model"]
            assert server.env == env
            speculation = {SPECULATIVE[name]: value for name, value in flags.items() if name in SPECULATIVE}
            carried = server.speculation.model_dump() if server.speculation else {}
            assert {name: str(carried[name]) for name in speculation} == speculation
            assert bool(carried) == bool(speculation)
            plain = {name: value for name, value in flags.items() if name not in SPECULATIVE}
            assert {name: str(server.flags[name]) for name in plain} == plain
            # Beyond what is written there: what run_benchmark.sh adds.
            added = {"context-length", "max-running-requests", "chat-template"}
            assert server.flags.keys() - plain.keys() <= added
            assert server.flags["context-length"] == entry["isl"] + entry["osl"] + CONTEXT_MARGIN


@pytest.mark.parametrize("version", versions())
def test_our_entries_of_qwen35_ask_what_our_scenario_asks(version: str) -> None:
    """The same flags but for those that follow the load, where our own scenario has placeholders; all of them known."""
    [short, long] = read_configs(OURS.read_text(), "f.yaml", version=version)
    assert [short.notes, long.notes] == [("--use-chat-template became `chat: true` of all variants",)] * 2
    ours = yaml_file.load(ROOT / "scenarios" / "mi355x-qwen35-fp8-tp2.yaml")
    by_harness = {"context-length", "max-running-requests", "cuda-graph-max-bs-decode"}
    for one in (short, long):
        base, mtp = (arm.server for arm in one.scenario.resolved_arms())
        assert isinstance(ours.server, SglangSettings)
        for server in (base, mtp):
            assert isinstance(server, SglangSettings)
            theirs, wanted = (
                {k: str(v) for k, v in each.flags.items() if k not in by_harness} for each in (server, ours.server)
            )
            assert theirs == wanted
            assert (server.model, server.env) == (ours.server.model, ours.server.env)
        assert mtp.speculation == ours.server.speculation
        assert one.scenario.tp == ours.tp
        assert one.scenario.workload.chat
    assert short.scenario.arrival.concurrency == ours.arrival.concurrency


def test_what_the_published_entries_do_not_use() -> None:
    """Expert parallelism, attention with data parallelism, and flags and variables of one variant alone."""
    text = ENTRY.replace("tp: 2", "tp: 4\n    ep: 2\n    dp-attn: true\n    mtp-env: {SGLANG_X: 0}")
    text = text.replace("--speculative-algorithm EAGLE", "--enable-odd --level 3 --speculative-algorithm EAGLE")
    [one] = read_configs(text, "f.yaml")
    base, mtp = (arm.server for arm in one.scenario.resolved_arms())
    for server in (base, mtp):
        expected = {"ep-size": 2, "dp": 4, "enable-dp-attention": True, "enable-prefill-delayer": True}
        assert {name: server.flags[name] for name in expected} == expected
    assert mtp.flags == base.flags | {"enable-odd": True, "level": 3}
    assert mtp.env == base.env | {"SGLANG_X": "0"}
    assert one.scenario.labels["dp-attn"] == "true"


def test_what_is_left_out_is_said_and_what_is_not_there_has_no_label() -> None:
    text = ENTRY.replace("tp: 2", 'tp: 2\n    client-args: "--odd 1"')
    assert "--odd" in refused(text)
    [one] = read_configs(text, "f.yaml", leave_out=["odd"])
    assert one.notes == ("left out as asked: --odd",)
    assert "runs-on" not in one.scenario.labels
    assert one.scenario.labels["ep"] == "1"


def test_a_refusal_writes_nothing_and_a_file_that_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(ENTRY + ENTRY.replace("configs:\n", "").replace("name: one", "name: ../up"))
    assert "name: string should match" in mtpbench("scenarios", "import", "c.yaml", cwd=tmp_path, check=2).stderr
    assert [path.name for path in tmp_path.iterdir()] == ["c.yaml"]
    (tmp_path / "c.yaml").write_text(ENTRY)
    mtpbench("scenarios", "import", "c.yaml", cwd=tmp_path, check=0)
    made = tmp_path / "scenarios" / "one.yaml"
    assert yaml_file.load(made) == read_configs(ENTRY, "f.yaml")[0].scenario
    made.write_text("mine")
    assert "there already" in mtpbench("scenarios", "import", "c.yaml", cwd=tmp_path, check=2).stderr
    assert made.read_text() == "mine"
    mtpbench("scenarios", "import", "c.yaml", "--force", cwd=tmp_path, check=0)
    assert made.read_text() != "mine"


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        ("tp: 2", "tp: 2\n    surprise: 1", "surprise"),
        ("tp: 2", "tp: none", "tp"),
        ("framework: sglang", "framework: vllm", "only sglang is served here"),
        ('conc-list: "1 16"', 'conc-list: "many"', "conc-list"),
        ("variants: [base, mtp]", "variants: [base, turbo]", "turbo"),
        ('env: {SGLANG_USE_AITER: "1"}', "env: {SGLANG_X: null}", "SGLANG_X"),
        ('env: {SGLANG_USE_AITER: "1"}', "env: {SGLANG_X: [1]}", "SGLANG_X"),
        ("--page-size 16", "--page-size 16 --page-size 32", "--page-size"),
        ("--speculative-algorithm EAGLE", "--speculative-algorithm NGRAM", "NGRAM"),
        ("--attention-backend aiter", "stray --attention-backend aiter", "stray"),
        ("    precision: fp8\n", "", "precision"),
    ],
)
def test_what_has_no_place_is_refused_by_name(before: str, after: str, what: str) -> None:
    assert before in ENTRY
    assert what in refused(ENTRY.replace(before, after))


def test_what_is_no_list_of_entries() -> None:
    assert "a list of entries is expected" in refused("configs: 3\n")
    assert "a list of entries is expected" in refused("a: 1\n")
