"""A/B from the command line, end to end: two arms, two git refs, an interruption, and a real handicap."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from commands import mtpbench, start, write

from harness.ab.checkout import resolve
from harness.ab.looks import BASE, HEAD, evaluate, save, scenario_of, session_of
from harness.errors import MtpbenchError
from harness.results.report import build
from harness.run.launcher import Place
from harness.scenario.yaml_file import parse
from harness.store.ab_record import Session, load_session
from harness.store.runs import AB_FILE, load_run
from harness.verdict.aa_floor import floors
from harness.verdict.compare import Verdict, compare
from harness.verdict.pairs import runs_of

SCENARIO = """\
version: 1
name: ab
question: Is the slower arm found?
server: {engine: scripted, ttft: 10ms, step: 4ms}
arms:
  plain: {}
  slow: {step: 20ms}
workload: {prompts: prose, input_tokens: 32, output_tokens: 12}
arrival: {concurrency: [1], requests_per_slot: 6, min_requests: 6, warmup_per_slot: 0}
primary: {metric: tpot, level: 1}
"""
SGLANG = """\
version: 1
name: s
question: Which side is it?
server: {engine: sglang, model: some/model, gpu_vendor: amd, container: {image: "a:1", mounts: ["/m:/m"]}}
arms: {no-mtp: {}, mtp: {speculation: {steps: 3, topk: 1, draft_tokens: 4}}}
workload: {prompts: prose, input_tokens: 64, output_tokens: 8}
arrival: {concurrency: [1]}
"""
EMBEDDED = Path(__file__).parents[3] / "scenarios" / "ab-handicap.yaml"


def ab_run(folder: Path) -> Path:
    [path] = [p.parent for p in folder.glob(f"runs/*/{AB_FILE}")]
    return path


def test_two_arms_interrupted_and_resumed(tmp_path: Path) -> None:
    """A slower arm FAILs at the first look; Ctrl-C before it loses nothing; the stored A/B says the same again."""
    write(tmp_path, SCENARIO)
    asked = ("ab", "scenario.yaml", "--base", "arm:plain", "--head", "arm:slow", "--pairs", 4, "--first", 3)
    running = start(*asked, cwd=tmp_path)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("runs/*/passes/*.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    output, _ = running.communicate(timeout=40)
    assert running.returncode == 130, output
    assert f"mtpbench ab --resume runs/{ab_run(tmp_path).name}" in output
    before = {p.record.key: p.record.started_at for p in load_run(ab_run(tmp_path)).passes}
    assert before

    done = mtpbench("ab", "--resume", ab_run(tmp_path), "--format", "json", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    found = json.loads(done.stdout)  # progress is on stderr
    assert found["verdict"] == "FAIL"
    assert found["pairs"] in (3, 4)
    assert found["looks"] == [3, 4]
    primary = next(row for row in found["rows"] if row["primary"])
    assert primary["change"] > 0.5
    stored = load_run(ab_run(tmp_path))
    assert {p.record.key: p.record.started_at for p in stored.passes}.items() >= before.items()
    # ABBA: base first in even pairs, head first in odd ones.
    order = [p.record.key.arm for p in stored.passes]
    assert order[:6] == ["base.plain", "head.slow", "head.slow", "base.plain", "base.plain", "head.slow"]
    prompts = {tuple(r.output_digest for r in p.requests) for p in stored.passes}
    assert len(prompts) == 1
    assert load_session(stored.path).verdict == "FAIL"

    again = evaluate(stored.path, load_session(stored.path))
    assert again.headline == found["headline"]
    assert build(stored).valid  # decided early is not incomplete
    same = runs_of([f"{stored.path}@base.plain"], "base")
    assert compare(same, same, metrics=("tpot_p50",)).verdict is Verdict.PASS


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A clone of this repository's committed state would lack what is being changed: a copy, committed twice."""
    root, copy = Path(__file__).parents[3], tmp_path / "repository"
    copy.mkdir()
    for name in ("harness", "kernel", "dashboards"):
        subprocess.run(["cp", "-r", str(root / name), str(copy)], check=True)

    def git(*args: str) -> None:
        subprocess.run(
            ["git", "-c", "user.name=t", "-c", "user.email=t@t", *args], cwd=copy, check=True, capture_output=True
        )

    git("init", "-b", "main")
    git("add", ".")
    git("commit", "-m", "base")
    (copy / "kernel" / "new.py").write_text("CHANGED = True\n")
    git("add", ".")
    git("commit", "-m", "head")
    return copy


def test_two_git_refs_run_two_checkouts(tmp_path: Path, repository: Path) -> None:
    """Servers of each side come from its own worktree, which is gone afterwards."""
    write(repository, SCENARIO.replace("  slow: {step: 20ms}\n", ""))
    env = {**os.environ, "PYTHONPATH": str(repository)}
    asked = ("ab", "scenario.yaml", "--base", "main~1", "--head", "main", "--pairs", "2", "--format", "json")
    done = subprocess.run(
        [sys.executable, "-m", "harness", *asked],
        cwd=repository, capture_output=True, text=True, timeout=100, env=env,
    )  # fmt: skip
    assert done.returncode in (0, 3), done.stdout + done.stderr
    session = load_session(ab_run(repository))
    assert session.base.kernel_hash != session.head.kernel_hash
    assert session.base.commit != session.head.commit
    launches = load_run(ab_run(repository)).launches
    paths = {launch.arm: launch.environment["PYTHONPATH"].split(os.pathsep)[0] for launch in launches}
    assert paths["base.plain"].endswith("/base")
    assert paths["head.plain"].endswith("/head")
    assert not any(Path(path).exists() for path in paths.values())
    listed = subprocess.run(["git", "worktree", "list"], cwd=repository, capture_output=True, text=True, check=True)
    assert len(listed.stdout.splitlines()) == 1

    # Were it an A/A, its pairs would be the floor of this host and scenario, and of no other.
    save(ab_run(repository), replace(session, kind="aa"))
    found = floors(repository / "runs", str(load_run(ab_run(repository)).environment["host"]), "ab")
    assert {key.metric for key in found} == {"tpot_p50", "ttft_p50", "output_throughput"}
    assert all(sd > 0 and df == 1 for sd, df in found.values())
    assert floors(repository / "runs", "another host", "ab") == {}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["ab", "scenario.yaml"], "give a scenario and --base"),
        (["ab", "scenario.yaml", "--base", "arm:none"], "the scenario has no arm 'none'"),
        (["ab", "scenario.yaml", "--base", "arm:plain"], "an arm can only be compared with an arm"),
        (["ab", "scenario.yaml", "--base", "no-such-ref"], "'no-such-ref' is no git ref in"),
        (["ab", "scenario.yaml", "--base", "env:/nowhere"], "/nowhere/bin/python is no interpreter"),
        (["ab", "scenario.yaml", "--base", "image:x"], "images are for the engine sglang"),
        (["ab", "scenario.yaml", "--base", ".", "--pairs", "1"], "at least two pairs"),
        (["ab", "--resume", "nowhere"], "is not an A/B run"),
        (["compare", "nowhere"], "name two runs"),
        (["compare", "nowhere", "elsewhere"], "can't be read"),
        (["ab", "scenario.yaml", "--base", ".", "--metric", "speed"], "'speed' is no metric"),
        (["ab", "scenario.yaml", "--base", ".", "--format", "xml"], "--format 'xml' is unknown"),
        (["trend", "--format", "xml"], "--format 'xml' is unknown"),
        (["trend", "--renamed", "x"], "OLD=NEW is needed"),
        (["trend", "--today", "soon"], "'soon' is no day"),
    ],
)
def test_wrong_calls_say_what_to_do(tmp_path: Path, args: list[str], said: str) -> None:
    write(tmp_path, SCENARIO)
    error = mtpbench(*args, cwd=tmp_path, check=2).stderr
    assert said in error
    assert "next:" in error
    assert not list(tmp_path.glob("runs/*"))


def test_sides_of_sglang() -> None:
    scenario = parse(SGLANG, "s.yaml")
    base, head = resolve("image:a:2", scenario), resolve(".", scenario)
    session = session_of(scenario, base, head, kind="ab", pairs=6, first=4, metrics=("tpot_p50",))
    assert session.arms == {"no-mtp": ("base.no-mtp", "head.no-mtp"), "mtp": ("base.mtp", "head.mtp")}
    assert session.allowed == ("packages", "server.container")
    made = scenario_of(scenario, base, head, session)
    images = {arm.name: arm.server.container.image for arm in made.resolved_arms()}  # type: ignore[union-attr]
    assert images == {"base.no-mtp": "a:2", "head.no-mtp": "a:1", "base.mtp": "a:2", "head.mtp": "a:1"}
    assert made.arm("base.mtp").server.speculation is not None  # type: ignore[union-attr]
    assert Session.from_json(json.loads(session.to_json())) == session

    placed = Place(Path("/w")).settings(made.arm("head.mtp").server)
    assert placed.env["PYTHONPATH"] == "/w"
    assert placed.container.mounts == ["/m:/m", "/w:/w:ro"]  # type: ignore[union-attr]

    python = resolve(f"env:{sys.prefix}", scenario)
    arms = scenario_of(
        scenario, python, head, session_of(scenario, python, head, kind="ab", pairs=4, first=4, metrics=())
    )
    assert arms.arm("base.mtp").server.python == f"{sys.prefix}/bin/python"  # type: ignore[union-attr]
    with pytest.raises(MtpbenchError, match="no interpreter"):
        resolve("env:/nowhere", scenario)
    assert {BASE, HEAD} == {"base", "head"}


@pytest.mark.serial
def test_the_embedded_engine_with_a_handicap(tmp_path: Path) -> None:
    """The documented check, shortened: a real model that is really slower FAILs, an A/A does not."""
    text = EMBEDDED.read_text().replace("requests: 12", "requests: 6").replace("slot: 12", "slot: 6")
    text = text.replace("output_tokens: 32", "output_tokens: 20")
    write(tmp_path, text)
    fast = ("--pairs", 4, "--first", 4, "--format", "json")
    found = mtpbench("ab", "scenario.yaml", "--base", "arm:plain", "--head", "arm:handicapped", *fast, cwd=tmp_path)
    assert found.returncode == 1, found.stdout + found.stderr
    assert json.loads(found.stdout)["verdict"] == "FAIL"
    assert next(row["change"] for row in json.loads(found.stdout)["rows"] if row["primary"]) > 0.2
    equal = mtpbench(
        "ab", "scenario.yaml", "--base", "arm:plain", "--head", "arm:plain", *fast, "--pairs", 2, cwd=tmp_path
    )
    assert json.loads(equal.stdout)["verdict"] in ("PASS", "INCONCLUSIVE"), equal.stdout
