"""An arm that was not engaged is not measured: evidence by hand, and whole runs on a stand-in SGLang."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from commands import run as run_scenario

from harness.checks.kernel_evidence import check_evidence, read_evidence
from harness.engines.verify_plugin import plugin_folder, python_path
from harness.store.runs import StoredRun
from kernel.source import source_hash

STANDIN = Path(__file__).parents[1] / "standin"


def entry(rank: int | None = 0, **values: Any) -> dict[str, Any]:
    return {
        "evidence_version": 1, "arm": "in-tree", "rank": rank, "kernel_hash": "aa", "kernel_file": "/k/__init__.py",
        "served": {"captured": 10}, "passed": {}, "captured_batches": [1, 2, 16], **values,
    }  # fmt: skip


def codes(*entries: dict[str, Any], arm: str = "in-tree", tp: int = 1, concurrency: int = 16) -> list[tuple[str, bool]]:
    return [(f.code, f.invalid) for f in check_evidence(entries, arm, tp, "aa", concurrency)]


# The stand-in for SGLang computes its attention.
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed (make test KERNEL=0)")


def test_good_evidence_says_nothing() -> None:
    assert codes(entry(), entry(None)) == []
    assert codes(entry(0), entry(1), tp=2) == []
    assert codes(entry(arm="upstream", served={}, passed={"upstream": 4}), arm="upstream") == []


@pytest.mark.parametrize(
    ("entries", "arm", "code"),
    [
        ([], "in-tree", "evidence_missing"),
        ([entry(None)], "in-tree", "evidence_missing"),
        ([entry(arm="generic")], "in-tree", "evidence_arm"),
        ([entry(kernel_hash="bb")], "in-tree", "evidence_kernel"),
        ([entry(served={}, passed={"kv_dtype": 8})], "in-tree", "verify_rejected"),
        ([entry(served={}, passed={})], "in-tree", "verify_rejected"),
        ([entry(arm="upstream", passed={})], "upstream", "evidence_unused"),
        ([entry(served="many", passed=None)], "in-tree", "verify_rejected"),
        ([{"error": "process-1.json: broken"}], "in-tree", "evidence_unreadable"),
    ],
)
def test_contradictions_invalidate(entries: list[dict[str, Any]], arm: str, code: str) -> None:
    assert codes(*entries, arm=arm) == [(code, True)]


def test_a_rank_without_evidence_is_named() -> None:
    [found] = check_evidence([entry(0)], "in-tree", 2, "aa", 1)
    assert "on rank 1 of 2" in found.message


def test_remarks_do_not_invalidate() -> None:
    assert codes(entry(passed={"batch": 3})) == [("verify_partly_rejected", False)]
    assert codes(entry(), concurrency=32) == [("beyond_graphs", False)]


def test_damaged_files_are_read_as_such(tmp_path: Path) -> None:
    (tmp_path / "process-1.json").write_text('{"evidence_version": 1, "rank"')
    (tmp_path / "process-2.json").write_text("[]")
    (tmp_path / "process-3.json").write_text(json.dumps(entry(evidence_version=9)))
    found = read_evidence(tmp_path)
    assert len(found) == 3
    assert all("error" in each for each in found)
    assert read_evidence(tmp_path / "absent") == ()


def test_the_plugin_folder_follows_its_content(tmp_path: Path) -> None:
    root = tmp_path / "kernel"
    shutil.copytree(Path(__file__).parents[3] / "kernel", root, ignore=shutil.ignore_patterns("__pycache__"))
    first = plugin_folder(tmp_path / "cache", root)
    assert source_hash(first / "kernel") == source_hash(root)
    assert not (first / "kernel" / "tests").exists()
    (root / "gate.py").write_text((root / "gate.py").read_text() + "\n# changed\n")
    second = plugin_folder(tmp_path / "cache", root)
    assert second != first
    assert plugin_folder(tmp_path / "cache", root) == second


def scenario(arms: str, tp: int = 1, more: str = "") -> str:
    return f"""\
version: 1
name: standin
question: Is an arm that was not engaged refused?
server:
  engine: sglang
  gpu_vendor: nvidia
  model: ./no-model
  python: {json.dumps(sys.executable)}
  ready_timeout: 40s
  env: {{PYTHONPATH: {json.dumps(str(STANDIN))}, TRITON_INTERPRET: "1"}}
  flags: {{attention-backend: triton, kv-cache-dtype: fp8_e4m3}}
  speculation: {{}}
arms:
{arms}
tp: [{tp}]
workload: {{prompts: prose, input_tokens: 32, output_tokens: 16}}
arrival: {{concurrency: [2], requests_per_slot: 4, min_requests: 8}}
{more}"""


def run(folder: Path, text: str, check: int, **env: str) -> tuple[StoredRun, str]:
    stored, output = run_scenario(folder, text, check=check, XDG_CACHE_HOME=str(folder / "cache"), **env)
    return stored, " ".join(output.split())


@needs_torch
def test_an_engaged_arm_is_measured_and_its_evidence_is_stored(tmp_path: Path) -> None:
    stored, output = run(tmp_path, scenario("  no-mtp: {speculation: null}\n  in-tree: {verify: in-tree}\n", tp=2), 0)
    assert "OK: all 16 requests succeeded" in output
    by_arm = {launch.arm: launch for launch in stored.launches}
    plain, engaged = by_arm["no-mtp"], by_arm["in-tree"]
    assert plain.evidence == ()
    ranks = [e for e in engaged.evidence if e["rank"] is not None]
    assert [e["rank"] for e in ranks] == [0, 1]
    assert all(e["served"] == {"eager": 2} for e in ranks)
    assert all(e["kernel_hash"] == source_hash() for e in ranks)
    assert "verify-plugin-" in ranks[0]["kernel_file"]
    assert engaged.environment["MTPBENCH_VERIFY"] == "in-tree"


@needs_torch
def test_arms_that_were_not_engaged_are_refused_by_name(tmp_path: Path) -> None:
    arms = (
        "  rejected: {verify: in-tree, env: {STANDIN_FAULT: no-gpu}}\n"
        "  renamed: {verify: in-tree, env: {STANDIN_FAULT: renamed}}\n"
    )
    stored, output = run(tmp_path, scenario(arms), 2)
    assert stored.passes == ()
    by_arm = {launch.arm: launch for launch in stored.launches}
    rejected, renamed = by_arm["rejected"], by_arm["renamed"]
    assert [f.code for f in rejected.findings] == ["verify_rejected"]
    assert "the in-tree kernel served no call, 2 went to SGLang's own path (arch 2)" in output
    assert "ended while starting" in renamed.status
    assert "forward_extend is not there" in output
    assert "INVALID: rank 0" in output


@needs_torch
def test_a_plugin_that_can_not_be_imported_invalidates_the_run(tmp_path: Path) -> None:
    folder = plugin_folder(tmp_path / "cache" / "mtpbench")
    (folder / "kernel" / "sglang_plugin.py").write_text("import a_module_that_does_not_exist\n")
    stored, output = run(tmp_path, scenario("  in-tree: {verify: in-tree}\n"), 2)
    assert stored.passes == ()
    assert [f.code for launch in stored.launches for f in launch.findings] == ["evidence_missing"]
    assert "INVALID: nothing proves that `verify: in-tree` was engaged" in output


@pytest.mark.parametrize("deleted", [False, True])
def test_without_its_entry_point_the_plugin_leaves_no_evidence(tmp_path: Path, deleted: bool) -> None:
    folder = plugin_folder(tmp_path)
    if deleted:
        shutil.rmtree(folder / "mtpbench_verify_plugin-0.dist-info")
    # A plug-in of its own, so that nothing needs torch: only whether SGLang's loader finds it is asked.
    (folder / "kernel" / "sglang_plugin.py").write_text(
        "from pathlib import Path\nfrom kernel.evidence import Evidence\n"
        f"def register():\n    Evidence('in-tree', {{}}, Path({str(tmp_path / 'evidence')!r})).write()\n"
    )
    (tmp_path / "evidence").mkdir()
    subprocess.run(
        # -S: an installed mtpbench has an entry point of the same name.
        [sys.executable, "-S", "-c", "from sglang.srt.plugins import load_plugins; load_plugins()"],
        env={"PYTHONPATH": python_path(folder, str(STANDIN))}, cwd=tmp_path, check=True,
    )  # fmt: skip
    assert len(read_evidence(tmp_path / "evidence")) == (0 if deleted else 1)


def test_gsm8k_is_asked_before_measuring(tmp_path: Path) -> None:
    """Once an arm, and the answer holds for its other launches."""
    arms = "  good: {speculation: null}\n  bad: {speculation: null, env: {STANDIN_ACCURACY: '0.31'}}\n"
    text = scenario(arms, more="accuracy: {gsm8k: {least: 0.9, questions: 5}}\nlaunches: 2\n")
    stored, output = run(tmp_path, text, 2, STANDIN_COUNT=str(tmp_path / "count"))
    assert {p.record.key.arm for p in stored.passes} == {"good"}
    assert [(launch.arm, launch.accuracy) for launch in stored.launches] == [
        ("bad", 0.31), ("good", 0.95), ("bad", 0.31), ("good", 0.95)
    ]  # fmt: skip
    assert (tmp_path / "count").read_text() == "xx"
    assert "GSM8K accuracy 0.310 is below 0.9" in output
