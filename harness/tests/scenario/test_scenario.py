"""Scenario files: every error names file, line and key and says what is allowed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml
from conftest import SCENARIO

from harness.engines.registry import ENGINES
from harness.errors import ScenarioError
from harness.model import LoadLevel, PassKey
from harness.scenario.format import Scenario
from harness.scenario.launch_plan import choose_gpus, launch_context, plan_launches
from harness.scenario.problems import warnings
from harness.scenario.yaml_file import load, parse
from harness.units import format_duration, parse_duration, parse_rate

ROOT = Path(__file__).parents[3]

SGLANG = """\
version: 1
name: s
question: Does the gate refuse it?
server:
  engine: sglang
  model: some/model
  gpu_vendor: amd
  flags: {page-size: 16}
arms:
  no-mtp: {}
  mtp: {speculation: {steps: 3, topk: 1, draft_tokens: 4}}
tp: [1, 2]
workload: {prompts: prose, input_tokens: 64, output_tokens: 8}
arrival: {concurrency: [1]}
"""


def problems(text: str) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        parse(text, "file.yaml")
    return [str(problem) for problem in caught.value.problems]


def test_shipped_scenarios_are_valid() -> None:
    paths = sorted((ROOT / "scenarios").glob("*.yaml"))
    assert {path.stem for path in paths} >= {"quickstart", "h200-smoke", "h200-smoke-tp2"}
    schema = Scenario.model_json_schema()
    for path in paths:
        scenario = load(path)
        tp = re.search(r"-tp(\d+)", path.stem)
        assert tp is None or scenario.tp == [int(tp[1])], f"{path.name} does not run at the TP of its name"
        jsonschema.validate(yaml.safe_load(path.read_text()), schema)


def test_schema_file_is_current() -> None:
    """scenarios/schema.json, which editors use, is what `mtpbench schema` prints."""
    assert json.loads((ROOT / "scenarios" / "schema.json").read_text()) == Scenario.model_json_schema()


def test_every_key_is_documented() -> None:
    schema = Scenario.model_json_schema()
    for name, definition in {"Scenario": schema, **schema["$defs"]}.items():
        for key, field in definition["properties"].items():
            assert "description" in field, f"{name}.{key}"


def test_arms_are_differences() -> None:
    plain, drafts = parse(SCENARIO, "x.yaml").resolved_arms()
    assert plain.server.chunk_tokens == [1]  # type: ignore[union-attr]
    assert drafts.server.chunk_tokens == [4]  # type: ignore[union-attr]
    assert plain.server.ttft == drafts.server.ttft == 0.02  # type: ignore[union-attr]
    assert drafts.changes(plain.server) == {"chunk_tokens": [4], "speculative": True}


def test_round_trip_through_json() -> None:
    scenario = parse(SCENARIO, "x.yaml")
    back = Scenario.model_validate(json.loads(json.dumps(scenario.model_dump(mode="json"))))
    assert back == scenario
    assert back.resolved_arms() == scenario.resolved_arms()


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("ttft: 20ms", "ttft: 20", "file.yaml:6: server.ttft: 20 is not a duration: write a number and a unit"),
        (
            "step: 5ms",
            "stepp: 5ms",
            "file.yaml:7: server.stepp: unknown key; did you mean 'step'? allowed: answer_shift, api,",
        ),
        ("engine: scripted", "engine: vllm", "file.yaml:5: server.engine: 'vllm' is no engine; allowed: attach, llama"),
        ("chunk_tokens: [4]", "chunk_token: [4]", "file.yaml:10: arms.drafts.chunk_token: unknown key; did you mean"),
        ("plain: {}", "plain: none", "file.yaml:9: arms.plain: an arm is a mapping of what it changes"),
        ("[1, 2]", "[1, 1]", "file.yaml:15: arrival: the same level stands there twice"),
        ("[1, 2]", "[1, 0]", "file.yaml:16: arrival.concurrency.1: input should be greater than or equal to 1"),
        ("requests_per_slot: 4", "requests_per_slot: 2", "`requests_per_slot` must be at least 3"),
        ("output_tokens: 16", "output_tokens: {min: 9, max: 3}", "min = 9 exceeds max = 3"),
        ("  input_tokens: 32\n", "", "`input_tokens` is required"),
        ("prompts: prose", "prompts: jsonl", "`file` goes with `prompts: jsonl`"),
        ("name: scripted", "name: ../evil", "file.yaml:2: name: string should match pattern"),
        ("name: scripted", "name: a\nname: b", "file.yaml:3: name: this key stands there twice"),
        ("name: scripted", "name: &n a\nbaseline: *n\nx: &y [1]\nz: *y", "YAML aliases (*name) are not allowed"),
        ("name: scripted", "name: !!python/name:os.system x", "could not determine a constructor"),
        ("name: scripted", "name: [a", "not valid YAML"),
        ("  plain: {}", "  no: {}", "the key 'no' must be text; quote it"),
        ("arrival:", "baseline: absent\narrival:", "baseline: 'absent' is not an arm: plain, drafts"),
        ("arrival:", "tp: [2]\narrival:", "tp: the engine scripted runs at TP1 only"),
        ("arrival:", "primary: {metric: tpot, level: 3}\narrival:", "primary.level: 3 is not in `arrival`: 1, 2"),
        ("arrival:", "primary: {metric: tpott, level: 1}\narrival:", "'tpott' is no metric; known: ttft, tpot"),
        (
            "arrival:",
            "primary: {metric: ttft, level: 2, percentile: 99}\narrival:",
            "primary.percentile: p99 needs 500 requests in the steady state, a pass at 2 has about 5",
        ),
        ("  concurrency: [1, 2]\n", "", "give either `concurrency` (closed loop) or `rates`"),
        ("concurrency: [1, 2]", "rates: [0.5]", "0.5 is not a rate: write a number and a unit, such as 0.5/s"),
    ],
)
def test_errors_name_the_place(old: str, new: str, expected: str) -> None:
    assert old in SCENARIO
    found = problems(SCENARIO.replace(old, new))
    assert any(expected in problem for problem in found), found


def test_all_errors_at_once() -> None:
    text = SCENARIO.replace("ttft: 20ms", "ttft: 20").replace("input_tokens: 32", "input: 32")
    assert len(problems(text)) >= 2


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("page-size: 16", "stream-interval: 4", "server.flags.stream-interval: must be 1"),
        ("page-size: 16", "tp-size: 4", "server.flags.tp-size: --tp-size can't be set here; use `tp`"),
        ("page-size: 16", "host: 0.0.0.0", "servers listen on 127.0.0.1 only"),
        ("page-size: 16", "--page-size: 16", "write flags without their dashes"),
        ("page-size: 16", "context-length: $isl", "$isl is unknown: $max_concurrency, $max_context"),
        ("draft_tokens: 4", "draft_tokens: 3", "arms.mtp.speculation.draft_tokens: must be steps + 1 = 4"),
        ("draft_tokens: 4", "draft_tokens: 4, simulate_accept_length: 5", "can't exceed draft_tokens = 4"),
        ("gpu_vendor: amd", "gpu_vendor: amd\n  gpus: [3]", "TP2 needs 2 GPUs, `gpus` has 1"),
        ("gpu_vendor: amd", 'gpu_vendor: amd\n  env: {SGLANG_SIMULATE_ACC_LEN: "3"}', "use `speculation.simulate"),
        (
            "gpu_vendor: amd",
            "gpu_vendor: amd\n  env: {SGLANG_USE_AITER: 1}",
            "env.SGLANG_USE_AITER: input should be a v",
        ),
        ("some/model", "tiny-qwen3.5-moe-32-2", "server.load_format: tiny-qwen3.5-moe-32-2 has no weights: use dummy"),
        ("some/model", "some/model\n  verify: in-tree", "server.verify: needs `speculation`"),
        ("draft_tokens: 4}", "draft_tokens: 4}, verify: in-tree", "attention-backend: must be aiter: the plug-in"),
        (
            "draft_tokens: 4}",
            "draft_tokens: 4}, verify: generic",
            "kv-cache-dtype: must be fp8_e4m3: `auto` is bf16",
        ),
        ("page-size: 16", "page-size: 64}\n  verify: in-tree #", "page-size: must be 16: the gate would reject"),
        (
            "page-size: 16",
            "attention-backend: aiter, prefill-attention-backend: fa3}\n  verify: in-tree #",
            "speculative-attention-mode: must be decode: SGLang's default sends target-verify to fa3",
        ),
        (
            "page-size: 16",
            "attention-backend: aiter, decode-attention-backend: fa3}\n  verify: in-tree #",
            "flags.decode-attention-backend: must be aiter",
        ),
        (
            "steps: 3, topk: 1, draft_tokens: 4}",
            "steps: 3, topk: 2, draft_tokens: 8}, verify: in-tree",
            "topk: must be 1",
        ),
        ("steps: 3, topk: 1, draft_tokens: 4}", "steps: 4, draft_tokens: 5}, verify: in-tree", "must be at most 4"),
        ("gpu_vendor: amd", "gpu_vendor: amd\n  env: {MTPBENCH_VERIFY: x}\n  verify: upstream", "use `verify`"),
        (
            "page-size: 16",
            "attention-backend: aiter, enable-deterministic-inference: true",
            "not allow it with the aiter backend",
        ),
    ],
)
def test_impossible_sglang_settings(old: str, new: str, expected: str) -> None:
    assert old in SGLANG
    found = problems(SGLANG.replace(old, new))
    assert any(expected in problem for problem in found), found


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="can't be read"):
        load(tmp_path / "absent.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9")
    with pytest.raises(ScenarioError, match="can't be read"):
        load(tmp_path / "latin.yaml")
    (tmp_path / "empty.yaml").write_text("")
    with pytest.raises(ScenarioError, match="empty"):
        load(tmp_path / "empty.yaml")
    (tmp_path / "big.yaml").write_text("#" * 1_000_001)
    with pytest.raises(ScenarioError, match="larger than"):
        load(tmp_path / "big.yaml")


def test_random_tokens_with_drafts_are_warned_of() -> None:
    text = SCENARIO.replace("prompts: prose", "prompts: random")
    assert any("acceptance on them means little" in w for w in warnings(parse(text, "x.yaml")))
    assert not any("acceptance" in w for w in warnings(parse(SCENARIO, "x.yaml")))


def test_launches_alternate_abba() -> None:
    scenario = parse(SGLANG.replace("tp: [1, 2]", "tp: [1, 2]\nlaunches: 2"), "x.yaml")
    order = [(plan.launch, plan.arm.name, plan.tp) for plan in plan_launches(scenario)]
    assert order == [
        (0, "no-mtp", 1), (0, "no-mtp", 2), (0, "mtp", 1), (0, "mtp", 2),
        (1, "mtp", 1), (1, "mtp", 2), (1, "no-mtp", 1), (1, "no-mtp", 2),
    ]  # fmt: skip


def test_gpu_choice() -> None:
    scenario = parse(SGLANG, "x.yaml")
    arm = scenario.arm("mtp")
    assert choose_gpus(arm, 2, ()) == (0, 1)
    assert choose_gpus(arm, 1, (5, 6)) == (5,)
    with pytest.raises(Exception, match="needs 2 GPUs at TP2"):
        choose_gpus(arm, 2, (5,))
    assert choose_gpus(parse(SCENARIO, "x.yaml").arm("plain"), 1, ()) == ()


def test_units() -> None:
    assert [parse_duration(t) for t in ("12ms", "1.5s", "2min", "1h", "250us")] == [0.012, 1.5, 120.0, 3600.0, 2.5e-4]
    assert [parse_rate(t) for t in ("0.5/s", "30/min")] == [0.5, 0.5]
    for wrong in ("12", "ms", "-1s", "1 s", "nan s", 3, None, "1d"):
        with pytest.raises(ValueError, match="is not a duration"):
            parse_duration(wrong)
    with pytest.raises(ValueError, match="above zero"):
        parse_rate("0/s")
    assert [format_duration(s) for s in (2e-5, 0.0123, 4.2, 185)] == ["20 us", "12.3 ms", "4.2 s", "3 min 05 s"]
    assert format_duration(119.7) == "2 min 00 s"


def test_levels() -> None:
    with pytest.raises(ValueError, match="either"):
        LoadLevel()
    assert LoadLevel(rate=0.5).label == "0.5/s"
    assert LoadLevel(concurrency=4).label == "4"


def test_a_list_of_prompt_lengths_is_swept() -> None:
    text = SCENARIO.replace("input_tokens: 32", "input_tokens: [64, 32]") + "primary: {metric: tpot, level: 2}\n"
    loaded = parse(text, "s.yaml")
    assert [(level.input_tokens, level.concurrency) for level in loaded.levels()] == [
        (32, 1),
        (32, 2),
        (64, 1),
        (64, 2),
    ]
    assert loaded.max_context == 64 + 16
    assert loaded.primary_level == LoadLevel(concurrency=2, input_tokens=64)
    assert loaded.levels()[1].label == "2 (32 in)"
    assert PassKey(0, "a", 1, loaded.levels()[3], 0).slug == "00-a-tp1-p00-c0002-i64"
    for wrong in ("[]", "[32, 32]", "[0]"):
        with pytest.raises(ScenarioError):
            parse(SCENARIO.replace("input_tokens: 32", f"input_tokens: {wrong}"), "s.yaml")


FACTORS = """\
primary: {metric: tpot, level: 2}
factors:
  burst: {burst: true, concurrency: [1, 2], warmup_per_slot: 0}
  ragged: {input_tokens: {min: 16, max: 48}}
  long: {input_tokens: 64, requests_per_slot: 5}
"""


def test_factors_are_further_levels() -> None:
    loaded = parse(SCENARIO + FACTORS, "s.yaml")
    own, further = loaded.levels()[:2], loaded.levels()[2:]
    assert own == loaded.own_levels() == [LoadLevel(1), LoadLevel(2)]
    assert further == [
        LoadLevel(1, factor="burst", burst=True),
        LoadLevel(2, factor="burst", burst=True),
        LoadLevel(2, factor="ragged"),  # at the primary endpoint's load
        LoadLevel(2, factor="long", input_tokens=64),
    ]
    assert [level.label for level in further] == ["1 (burst)", "2 (burst)", "2 (ragged)", "2 (64 in, long)"]
    assert PassKey(0, "a", 1, further[3], 0).slug == "00-a-tp1-p00-c0002-i64-long"
    assert loaded.primary_level == own[1]
    requests = [loaded.arrival_of(level).requests(level) for level in loaded.levels()]
    assert requests == [8, 8, 1, 2, 8, 10]
    assert [loaded.arrival_of(level).warmups(level) for level in loaded.levels()] == [1, 2, 0, 0, 2, 2]
    assert loaded.max_context == 64 + 16
    lengths = [loaded.workload_of(level).input_tokens for level in further]
    assert lengths[:2] == [32, 32]
    assert (lengths[2].min, lengths[2].max) == (16, 48)  # type: ignore[union-attr]
    assert lengths[3] == 64


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("burst: {burst: true, concurrency: [1, 2], warmup_per_slot: 0}", "burst: {}", "a factor changes something"),
        ("requests_per_slot: 5", "requests_per_slot: 2", "`requests_per_slot` must be at least 3"),
        ("long: {", "a/b: {", "factors.a/b"),
        ("long: {input_tokens: 64", "long: {input_token: 64", "unknown key; did you mean 'input_tokens'?"),
        ("concurrency: [1, 2]\n", "rates: [1/s]\n", "factors go with `arrival.concurrency`"),
    ],
)
def test_factors_that_say_nothing(old: str, new: str, expected: str) -> None:
    text = SCENARIO + FACTORS.replace("primary: {metric: tpot, level: 2}\n", "")
    assert old in text
    assert any(expected in problem for problem in problems(text.replace(old, new))), problems(text.replace(old, new))


def test_a_flag_with_several_values() -> None:
    text = SGLANG.replace("{page-size: 16}", "{page-size: 16, cuda-graph-bs: [1, 2, 24]}")
    loaded = parse(text, "s.yaml")
    context = launch_context(loaded, plan_launches(loaded)[0], (), 1, Path("cache"))
    command = ENGINES["sglang"].command(loaded.arm("no-mtp").server, context)
    assert command is not None
    at = command.argv.index("--cuda-graph-bs")
    assert command.argv[at + 1 : at + 4] == ("1", "2", "24")
