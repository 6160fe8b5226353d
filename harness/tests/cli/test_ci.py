"""The CI's scripts and workflows: linted, safe where a pull request's code runs, and the whole chain on two cores."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness.cli.overrides import from_image
from harness.engines.command import Command, in_container
from harness.errors import MtpbenchError
from harness.fields import Container
from harness.scenario.yaml_file import load, read_yaml
from harness.store.manifest import SENTINEL_FILE
from harness.store.runs import load_run

ROOT = Path(__file__).parents[3]
CI = ROOT / "ci"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TOOLS = Path(sys.executable).parent
# Pages come last, so that they tell how every other step ended; `night` sums up before and after them.
STEPS = [
    *("begin", "precheck", "aa", "run", "sentinel", "confirm", "trend", "issues", "verify", "upstream", "night"),
    "publish",
]


def tool(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, text=True, timeout=110)


def test_scripts_and_workflows_are_linted() -> None:
    scripts = [*CI.rglob("*.sh"), ROOT / ".ci" / "run"]
    for command in (
        (TOOLS / "shellcheck", *scripts),
        (TOOLS / "check-jsonschema", "--builtin-schema", "vendor.github-workflows", *WORKFLOWS),
        (TOOLS / "zizmor", "--offline", "--no-progress", ROOT / ".github"),
        *([(actionlint, *WORKFLOWS)] if (actionlint := shutil.which("actionlint")) else []),
    ):
        done = tool(*command)
        assert done.returncode == 0, done.stdout + done.stderr
    assert all(os.access(script, os.X_OK) for script in scripts)


def jobs(name: str) -> dict[str, Any]:
    text = (ROOT / ".github" / "workflows" / f"{name}.yml").read_text()
    value, _ = read_yaml(text.replace("\non:", '\n"on":'), name)  # YAML takes a bare `on` for true
    assert isinstance(value, dict)
    assert value["permissions"] == {}  # each job names what it needs
    return dict(value["jobs"])


def test_a_pull_requests_code_runs_without_secrets_and_can_write_nothing() -> None:
    found = jobs("ab")
    for name, job in found.items():
        text = json.dumps(job)
        assert "secrets." not in text
        if name != "measure":
            assert job["permissions"].keys() <= {"contents", "pull-requests", "checks"}
            assert "ref" not in json.dumps([step.get("with") for step in job["steps"]])
            assert job["runs-on"] == "ubuntu-latest"
    measure = found["measure"]
    assert measure["needs"] == "gate"
    assert measure["permissions"] == {"contents": "read"}
    assert "github.token" not in json.dumps(measure)
    assert found["answer"]["permissions"] == {"contents": "read", "pull-requests": "write"}
    assert found["tell"]["permissions"] == {"contents": "read", "checks": "write", "pull-requests": "write"}
    for word in ("OWNER", "MEMBER", "COLLABORATOR", "author_association", "issue.pull_request"):
        assert word in found["gate"]["if"]
    assert "pull_request_target" not in "".join(path.read_text() for path in WORKFLOWS)


@pytest.mark.parametrize("name", [path.stem for path in WORKFLOWS])
def test_workflows_are_thin_and_bounded(name: str) -> None:
    for job in jobs(name).values():
        assert job["timeout-minutes"]
        for step in job["steps"]:
            run = step.get("run", "")
            assert "${{" not in run  # values reach a shell through its environment only
            assert len(run.splitlines()) <= 4
            if str(step.get("uses", "")).startswith("actions/checkout"):
                assert step["with"]["persist-credentials"] is False


def on_the_node() -> list[dict[str, Any]]:
    """Every job that measures."""
    found = [jobs("ab")["measure"], jobs("nightly")["measure"], jobs("nightly")["confirm"]]
    everything = [job for path in WORKFLOWS for job in jobs(path.stem).values()]
    assert found == [job for job in everything if "concurrency" in job and job in found]
    assert len(found) == sum("teardown" in json.dumps(job) for job in everything)
    return found


def test_jobs_that_share_a_gpu_host_wait_for_each_other_and_cancel_nobody() -> None:
    for job in on_the_node():
        assert "vars.MTPBENCH_RUNNER" in job["runs-on"]
        down = [step for step in job["steps"] if "teardown" in step.get("run", "")]
        assert [step.get("if") for step in down] == [None, "always()"]
        waits = job["concurrency"]
        assert (waits["cancel-in-progress"], waits["queue"]) == (False, "max")
        # The same host or the same label is the same group, whichever workflow the job is of.
        assert waits["group"].startswith("mtpbench-${{ vars.MTPBENCH_HOST ||")
        label = job["runs-on"].removeprefix("${{ ").removesuffix(" }}")
        assert label in " ".join(waits["group"].split())


def test_a_night_is_planned_measured_in_jobs_and_judged_whatever_became_of_them() -> None:
    found = jobs("nightly")
    assert found["measure"]["strategy"] == {"fail-fast": False, "matrix": "${{ fromJSON(needs.plan.outputs.matrix) }}"}
    assert "ci/amd/nightly.sh measure" in json.dumps(found["measure"])
    judge = found["judge"]
    assert {"plan", "measure", "confirm"} == set(judge["needs"])
    assert judge["if"] == "always() && needs.plan.result != 'skipped'"
    assert "ci/amd/nightly.sh judge --plan plan.json" in json.dumps(judge)
    assert [name for name, job in found.items() if "secrets." in json.dumps(job)] == [
        "plan",
        "measure",
        "confirm",
        "judge",
    ]


def test_what_becomes_of_an_ab_is_told_in_every_case() -> None:
    found = jobs("ab")
    assert found["answer"]["needs"] == "gate"  # it waits for no node
    assert "ci answer measuring" in json.dumps(found["answer"])
    tell = found["tell"]
    assert tell["if"] == "always() && needs.gate.result != 'skipped'"
    ends = {step["run"]: step.get("if", "") for step in tell["steps"] if "ci/pr_" in step.get("run", "")}
    assert ends == {
        "ci/pr_tell.sh ab": "needs.measure.result == 'success'",
        "ci/pr_none.sh": "always() && (failure() || needs.measure.result != 'success')",
    }


@pytest.mark.parametrize("engine", ["sglang", "llamacpp"])
def test_a_dry_run_prints_every_step_and_runs_none(tmp_path: Path, engine: str) -> None:
    out = tmp_path / "out"
    done = tool(CI / "nightly.sh", "--engine", engine, "--dry-run", "--out", out, "--skip", "upstream")
    assert done.returncode == 0, done.stderr
    printed = [line.split(": ")[1].partition("-")[0] for line in done.stdout.splitlines()]
    assert list(dict.fromkeys(printed)) == STEPS
    assert not out.exists()
    if engine == "sglang":
        assert "harness run scenarios/mi355x-qwen35-fp8-tp2.yaml --store runs" in done.stdout
        assert "--need-gpu" in done.stdout
    assert "Options:" in tool(CI / "nightly.sh", "--help").stdout


def test_a_night_inside_an_image_shows_its_steps(tmp_path: Path) -> None:
    out = tmp_path / "out"
    night = (CI / "amd" / "nightly.sh", "--dry-run", "--no-gpu", "--skip", "install", "--mtpbench", sys.executable)
    done = tool(*night, "--scenario", "scenarios/quickstart.yaml", "--store", tmp_path / "store", "--out", out)
    assert done.returncode == 0, done.stderr
    steps = [line.split(": ")[1] for line in done.stdout.splitlines()]
    before = ["begin", "inside", "run-quickstart", "sentinel", "trend", "issues", "verify"]
    assert steps == [*before, "night", "publish", "night"]
    assert "--image none" in done.stdout
    assert not out.exists()
    assert (
        tool(CI / "amd" / "nightly.sh", "--no-such-option").returncode == 1
    )  # docker exec's wrapper repeats all others


def test_an_image_is_pinned_and_a_container_carries_its_jobs_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = load(ROOT / "scenarios" / "mi355x-qwen35-fp8-tp2.yaml")
    pinned = f"rocm/x@sha256:{'a' * 64}"
    for arm in from_image(scenario, pinned).resolved_arms():
        assert arm.server.container.image == pinned  # type: ignore[union-attr]
    assert from_image(scenario, "") is scenario
    for wrong in ("rocm/x:latest", "rocm/x@sha256:abc", f"a b@sha256:{'a' * 64}"):
        with pytest.raises(MtpbenchError, match="not pinned by a digest"):
            from_image(scenario, wrong)
    with pytest.raises(MtpbenchError, match="runs no container"):
        from_image(load(ROOT / "scenarios" / "quickstart.yaml"), pinned)

    def argv() -> tuple[str, ...]:
        return in_container(Command(("python3", "-m", "x")), Container(image=pinned), "amd", "name", (0,)).argv

    for wanted in ("--device=/dev/kfd", "--device=/dev/dri", "--shm-size=32g", "--security-opt=seccomp=unconfined",
                   "--cap-add=SYS_PTRACE", "--rm"):  # fmt: skip
        assert wanted in argv()
    assert not any("label" in word for word in argv())
    (tmp_path / "devices").write_text("--device /dev/dri/renderD136 --device /dev/dri/renderD144\n")
    monkeypatch.setenv("MTPBENCH_POD_DEVICES", str(tmp_path / "devices"))  # another pod's GPUs are not taken
    devices = [word for word in argv() if word.startswith("--device=")]
    assert devices == [f"--device=/dev/{node}" for node in ("kfd", "dri/renderD136", "dri/renderD144")]
    monkeypatch.setenv("MTPBENCH_JOB", "nightly-7-1")
    assert "--label=mtpbench.job=nightly-7-1" in argv()


FAKE_GH = """#!/usr/bin/env bash
case "$2" in
repos/o/r/collaborators/ann/permission) echo write ;;
repos/o/r/collaborators/bob/permission) echo read ;;
repos/o/r/pulls/7) [ "$4" = .head.sha ] && echo HEAD || echo TARGET ;;
repos/o/r/compare/TARGET...HEAD) echo BASE ;;
*) echo "unexpected: $*" >&2; exit 9 ;;
esac
"""
HEAD, TARGET, BASE = "a1b2c3d" + "0" * 33, "b" * 40, "c" * 40


@pytest.mark.parametrize(
    ("comment", "author", "said"),
    [
        ("/ab a1b2c3d", "ann", f"base={BASE}\nhead={HEAD}\nscenario=scenarios/pr-mi355x.yaml\n"),
        (f"/ab {HEAD} h200-smoke\r\nthanks", "ann", f"base={BASE}\nhead={HEAD}\nscenario=scenarios/h200-smoke.yaml\n"),
        ("/ab a1b2c3d", "bob", "bob may not write to this repository"),
        ("/ab a1b2c3e", "ann", "the pull request is at a1b2c3d00000 now, not at a1b2c3e: look at it again"),
        ("/ab", "ann", "name the commit that you have looked at"),
        ("/ab a1b2", "ann", "name the commit that you have looked at"),
        ("/ab a1b2c3d ../../etc/passwd", "ann", "no scenario is called so"),
        ("/ab a1b2c3d nothing", "ann", "there is no scenarios/nothing.yaml"),
        ("/ab a1b2c3d x y", "ann", "one scenario at a time"),
        ("/ab $(touch gotcha) x", "ann", "name the commit"),
        ("/abort a1b2c3d", "ann", "the comment is not"),
        ("/ab a1b2c3d", "a/../b", "that is no pull request or no author"),
    ],
)
def test_who_may_start_an_ab_of_what(tmp_path: Path, comment: str, author: str, said: str) -> None:
    gh = FAKE_GH.replace("TARGET", TARGET).replace("HEAD", HEAD).replace("BASE", BASE)
    (tmp_path / "gh").write_text(gh)
    (tmp_path / "gh").chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "REPOSITORY": "o/r", "PULL_REQUEST": "7", "COMMENT": comment,
           "COMMENT_AUTHOR": author}  # fmt: skip
    done = subprocess.run([CI / "pr_gate.sh"], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=30)
    assert said in done.stdout
    assert (done.returncode == 0) == said.startswith("base=")
    if done.returncode:
        assert done.stdout.startswith("refused=")  # what the pull request is told
        assert done.stdout.count("\n") == 1  # no second output can be made up
    assert not (tmp_path / "gotcha").exists()


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ("--device /dev/dri/renderD136 --device /dev/dri/renderD144\n", ["renderD136", "renderD144"]),
        ("/dev/dri/renderD128\n/dev/dri/card1\n", ["card1", "renderD128"]),
        (None, [""]),
    ],
)
def test_a_container_takes_the_pods_devices_and_no_others(
    tmp_path: Path, content: str | None, wanted: list[str]
) -> None:
    """What belongs to another pod's job on the same host is not touched."""
    pod = tmp_path / "devices"
    if content is not None:
        pod.write_text(content)
    env = {**os.environ, "MTPBENCH_POD_DEVICES": str(pod), "MTPBENCH_JOB": "n-1", "HF_TOKEN": "not-to-be-printed"}
    env |= {"MTPBENCH_STORE": "/srv/store", "MTPBENCH_DATA": str(tmp_path)}
    command = [CI / "amd" / "container.sh", "--dry-run", "x@sha256:1", "true"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=True)
    devices = [word.partition("=")[2] for word in done.stdout.split() if word.startswith("--device=")]
    assert devices == ["/dev/kfd", *(f"/dev/dri/{name}".rstrip("/") for name in wanted)]
    for word in ("--label=mtpbench.job=n-1", "--env=HF_TOKEN", "--volume=/srv/store:/srv/store", "--shm-size=32g"):
        assert word in done.stdout.split()
    assert "not-to-be-printed" not in done.stdout
    pod.write_text("nothing\n")
    refused = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30)
    assert refused.returncode == 1
    assert "names no device" in refused.stderr


@pytest.mark.parametrize(("job", "label"), [(["nightly-7-1"], "mtpbench.job=nightly-7-1"), ([], "mtpbench.job")])
def test_teardown_removes_the_containers_of_a_job(tmp_path: Path, job: list[str], label: str) -> None:
    docker = """#!/usr/bin/env bash
echo "$*" >> "${0%/*}/calls"
[ "$1" != ps ] || printf 'one\\ntwo\\n'
"""
    (tmp_path / "docker").write_text(docker)
    (tmp_path / "docker").chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run([CI / "teardown.sh", *job], env=env, check=True, timeout=30)
    listed, removed = (tmp_path / "calls").read_text().splitlines()
    assert listed == f"ps --all --quiet --filter label={label}"
    assert removed == "rm --force one two"


@pytest.mark.serial
@pytest.mark.timeout(300)
def test_the_whole_chain_on_the_embedded_engine(tmp_path: Path) -> None:
    """Every step of a night for real: a model, an A/A, a sweep, the trend, pages, issues' texts, all files checked."""
    store, out = tmp_path / "runs", tmp_path / "out"
    env = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    skip = ("--skip", "upstream")
    done = subprocess.run(
        [CI / "nightly.sh", "--engine", "llamacpp", "--store", store, "--out", out, "--pairs", "2", *skip],
        env=env, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    Console(stderr=True).print(done.stdout[-4000:], markup=False)
    assert done.returncode == 5, done.stdout + done.stderr  # NO_BASELINE: one night is no series
    assert re.search(r"skipped: no GPU|GPU +memory", done.stdout)
    runs = [load_run(path.parent) for path in sorted(store.glob("*/run.json"))]
    assert [len(run.passes) for run in runs] == [4, 1]
    assert len(list(store.glob(f"*/{SENTINEL_FILE}"))) == 1
    assert (out / "trend.log").read_text().startswith("**NO\\_BASELINE: ")
    assert json.loads((out / "issues" / "issues.json").read_text()) == []
    assert "files of 2 runs are as they were written" in (out / "verify.log").read_text()
    assert len(list(store.glob("rows/*/*.parquet"))) == 2
    assert "nightly-cpu" in (out / "site" / "index.html").read_text()
