"""What is sent to GitHub, against a small server that keeps comments, checks and files as GitHub does."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from commands import mtpbench
from launches import launch, run, save, scenario

from harness.ab import looks as ab
from harness.store.ab_record import Party, Session
from harness.store.manifest import seal
from harness.tests.verdict.test_verdict import noisy, tpot
from harness.verdict.compare import Verdict
from harness.verdict.github import BOT, CONCLUSIONS, GitHub, GitHubError
from harness.verdict.pr_comment import marker, to_comment

TOKEN = "not-to-be-printed"


class Forge:
    """What the server holds: comments of pull request 7, checks, files of the branch `pictures`."""

    def __init__(self) -> None:
        self.comments: list[dict[str, Any]] = []
        self.checks: list[dict[str, Any]] = []
        self.files: dict[str, str] = {}
        self.refuse = False
        self.url = ""

    def write(self, body: str, login: str = BOT) -> dict[str, Any]:
        number = len(self.comments) + 1
        self.comments.append({"id": number, "body": body, "user": {"login": login}, "html_url": f"x#{number}"})
        return self.comments[-1]

    def answer(self, method: str, path: str, query: dict[str, list[str]], value: Any) -> tuple[int, Any]:
        if self.refuse:
            return 403, {"message": "Resource not accessible by integration"}
        if path == "/repos/o/r/issues/7/comments" and method == "GET":
            page, size = int(query["page"][0]), int(query["per_page"][0])
            return 200, self.comments[(page - 1) * size : page * size]
        if path == "/repos/o/r/issues/7/comments" and method == "POST":
            return 201, self.write(value["body"])
        if (match := re.fullmatch(r"/repos/o/r/issues/comments/(\d+)", path)) and method == "PATCH":
            found = self.comments[int(match[1]) - 1]
            found["body"] = value["body"]
            return 200, found
        if path == "/repos/o/r/check-runs" and method == "POST":
            self.checks.append(value)
            return 201, {}
        if path.startswith("/repos/o/r/contents/"):
            name = path.rpartition("/")[2]
            if method == "GET":
                return (200, {"sha": "abc"}) if name in self.files else (404, {"message": "Not Found"})
            if (name in self.files) != ("sha" in value):
                return 422, {"message": "sha"}
            self.files[name] = value["content"]
            return 201, {"content": {"download_url": f"https://raw.example/{value['branch']}/{name}"}}
        return 404, {"message": "Not Found"}


@pytest.fixture
def forge() -> Iterator[Forge]:
    state = Forge()

    class Handler(BaseHTTPRequestHandler):
        def serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            value = json.loads(self.rfile.read(length)) if length else None
            place = urlsplit(self.path)
            if self.headers["Authorization"] != f"Bearer {TOKEN}":
                status, answer = 401, {"message": "Bad credentials"}
            else:
                status, answer = state.answer(self.command, place.path, parse_qs(place.query), value)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PATCH = do_PUT = serve

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_comment_is_written_once_and_then_updated(forge: Forge) -> None:
    first, second = tpot(noisy(0.01), noisy(0.0106, seed=2)), tpot(noisy(0.01), noisy(0.01, seed=2))
    mark = marker(first.scenario)
    # Others' comments, one of which pretends to be ours, fill the first page.
    forge.write(f"{mark} all is well", login="somebody")
    for n in range(120):
        forge.write(f"comment {n}", login="somebody")
    with GitHub("o/r", TOKEN, forge.url) as github:
        written = github.comment(7, mark, to_comment(first))
        assert (written.id, written.updated) == (122, False)
        forge.write("a later one", login="somebody")
        updated = github.comment(7, mark, to_comment(second))
        assert (updated.id, updated.updated) == (122, True)
        other = github.comment(7, marker("other"), to_comment(replace(second, scenario="other")))
        assert (other.id, other.updated) == (124, False)
    assert len(forge.comments) == 124
    assert forge.comments[0]["body"] == f"{mark} all is well"
    assert "### ✅ PASS" in forge.comments[121]["body"]


def test_the_check_says_what_the_verdict_means(forge: Forge) -> None:
    assert set(CONCLUSIONS) == set(Verdict)
    found = tpot(noisy(0.01), noisy(0.0106, seed=2))
    with GitHub("o/r", TOKEN, forge.url) as github:
        github.check("c" * 40, found, to_comment(found), "https://job.example")
    [check] = forge.checks
    assert (check["head_sha"], check["conclusion"]) == ("c" * 40, "failure")
    assert check["output"]["title"] == found.headline
    assert check["details_url"] == "https://job.example"


def test_a_refusal_says_what_is_needed_and_no_token(forge: Forge) -> None:
    forge.refuse = True
    with GitHub("o/r", TOKEN, forge.url) as github, pytest.raises(GitHubError, match="403: Resource not") as refused:
        github.comment(7, "m", "b")
    assert "pull-requests and checks: write" in refused.value.hint
    with GitHub("o/r", "wrong", forge.url) as github, pytest.raises(GitHubError, match="401: Bad cred") as wrong:
        github.comment(7, "m", "b")
    with GitHub("o/r", TOKEN, "http://127.0.0.1:9") as github, pytest.raises(GitHubError, match="no answer") as silent:
        github.comment(7, "m", "b")
    assert TOKEN not in f"{refused.value}{wrong.value}{silent.value}"
    with pytest.raises(GitHubError, match="GITHUB_TOKEN is not set"):
        GitHub.from_environment("o/r", {})
    with pytest.raises(GitHubError, match="is no repository"):
        GitHub("o/r/../x", TOKEN)


@pytest.fixture
def ab_run(tmp_path: Path) -> Path:
    """An A/B run on disk whose head is slower."""
    plan = scenario(arms={"base.mtp": {}, "head.mtp": {}}, launches=6)
    passes = [launch(n, value, arm=arm) for arm, mean, seed in (("base.mtp", 0.01, 1), ("head.mtp", 0.0106, 2))
              for n, value in enumerate(noisy(mean, 6, seed))]  # fmt: skip
    folder = save(tmp_path / "runs", run(passes, of=plan))
    sides = Party("main", "git", "1" * 40), Party(".", "tree", "2" * 40)
    arms = {"mtp": ("base.mtp", "head.mtp")}
    ab.save(folder, Session("ab", *sides, arms, 6, 4, ("tpot_p50", "ttft_p50"), finished_pairs=6, verdict="FAIL"))
    return folder


def test_the_verb(tmp_path: Path, forge: Forge, ab_run: Path) -> None:
    there = {"GITHUB_TOKEN": TOKEN, "GITHUB_API_URL": forge.url, "GITHUB_REPOSITORY": "o/r"}
    why = tmp_path / "why.json"
    why.write_text(json.dumps({"sentence": "More verify work."}))
    words = ("ci", "comment", ab_run, "--output", tmp_path / "out", "--why", why)
    printed = mtpbench(*words, "--picture-url", "ab", cwd=tmp_path, check=0, **there).stdout
    assert not forge.comments
    assert not forge.checks
    assert printed == (tmp_path / "out" / "comment.md").read_text()
    assert "**Why:** More verify work." in printed
    assert 'src="ab-light.png"' in printed
    light, dark = ((tmp_path / "out" / f"ab-{theme}.png").read_bytes() for theme in ("light", "dark"))
    assert light[:8] == dark[:8] == b"\x89PNG\r\n\x1a\n"
    assert light != dark

    sent = ("--pr", 7, "--commit", "c" * 40, "--pictures-branch", "pictures")
    first, second = (mtpbench(*words, *sent, cwd=tmp_path, check=0, **there) for _ in range(2))
    [posted] = forge.comments
    assert f"https://raw.example/pictures/{ab_run.name}-dark.png" in posted["body"]
    assert base64.b64decode(forge.files[f"{ab_run.name}-light.png"]) == light
    assert [check["conclusion"] for check in forge.checks] == ["failure", "failure"]
    assert "comment written: x#1" in first.stderr
    assert "comment updated: x#1" in second.stderr
    assert TOKEN not in first.stdout + first.stderr
    mtpbench("compare", ab_run, "--format", "markdown", cwd=tmp_path, check=1)


def test_the_script_that_tells_a_pull_request(tmp_path: Path, forge: Forge, ab_run: Path) -> None:
    """From an artifact to the comment and the check; a record that was tampered with is told to nobody."""
    seal(ab_run)
    script = Path(__file__).parents[3] / "ci" / "pr_tell.sh"
    env = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(script.parents[1]), "GITHUB_TOKEN": TOKEN,
           "GITHUB_API_URL": forge.url, "REPOSITORY": "o/r", "PULL_REQUEST": "7", "HEAD": "c" * 40,
           "DETAILS": "https://job.example"}  # fmt: skip
    command = [script, ab_run.parent, "--output", tmp_path / "comment"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    [posted], [check] = forge.comments, forge.checks
    assert posted["body"].startswith("<!-- mtpbench-ab:scripted -->\n### ❌ FAIL")
    assert (check["conclusion"], check["details_url"]) == ("failure", "https://job.example")
    next(ab_run.glob("passes/*.json")).write_text("{}")
    assert subprocess.run(command, env=env, capture_output=True, text=True, timeout=110).returncode == 1
    assert len(forge.checks) == 1


QUICK = """\
version: 1
name: scripted
question: How long?
server: {engine: scripted}
arms: {mtp: {}}
workload: {prompts: prose, input_tokens: 32, output_tokens: 16}
arrival: {concurrency: [1]}
"""


def test_a_pull_request_is_answered_at_once_and_in_the_verdicts_place(
    tmp_path: Path, forge: Forge, ab_run: Path
) -> None:
    there = {"GITHUB_TOKEN": TOKEN, "GITHUB_API_URL": forge.url, "GITHUB_REPOSITORY": "o/r"}
    (tmp_path / "s.yaml").write_text(QUICK)
    words = ("ci", "answer", "measuring", "--scenario", "s.yaml", "--base", "1" * 40, "--head", "2" * 40, "--pr", 7)
    words = (*words, "--details-url", "https://job.example/1")
    mtpbench(*words, cwd=tmp_path, check=0, **there)
    # 4 pairs before the first look and at most 10, two launches each, half an hour a launch that nobody knows.
    assert forge.comments[0]["body"] == (
        "<!-- mtpbench-ab:scripted -->\n### ⏳ Measuring\n"
        "222222222222 against 111111111111, scripted: about 240 minutes once the node is free, or up to 600 "
        "if it stays undecided. The job ends after 230: name a scenario with fewer "
        "arms or loads.\n\n[The job](https://job.example/1)\n"
    )
    mtpbench("ci", "comment", ab_run, "--pr", 7, cwd=tmp_path, check=0, **there)
    [verdict] = forge.comments
    assert "### ❌ FAIL" in verdict["body"]
    assert "which scenario" in mtpbench("ci", "answer", "measuring", cwd=tmp_path, check=2).stderr


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"GATE": "failure", "REFUSED": "no <b>scenario</b> is called so"}, ["🚫 Not measured", "&lt;b&gt;"]),
        (
            {"GATE": "success", "SCENARIO": "scenarios/h200-smoke.yaml", "MEASURE": "failure"},
            ["❌ The measurement failed"],
        ),
        (
            {"GATE": "success", "SCENARIO": "scenarios/h200-smoke.yaml", "MEASURE": "cancelled"},
            ["⚠️ The measurement was"],
        ),
        ({"GATE": "failure"}, ["❌ The measurement failed", "The job's log"]),
    ],
)
def test_that_there_is_no_verdict_is_told(forge: Forge, said: dict[str, str], told: list[str]) -> None:
    script = Path(__file__).parents[3] / "ci" / "pr_none.sh"
    env = {**os.environ, "PYTHON": sys.executable, "GITHUB_TOKEN": TOKEN, "GITHUB_API_URL": forge.url,
           "GITHUB_REPOSITORY": "o/r", "PULL_REQUEST": "7", "DETAILS": "https://job.example", "MEASURE": "skipped",
           **said}  # fmt: skip
    before = forge.write(f"{marker('h200-smoke')} measuring") if "SCENARIO" in said else None
    done = subprocess.run([script], env=env, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    [posted] = forge.comments
    assert before is None or posted is before
    for word in (*told, "[The job](https://job.example)"):
        assert word in posted["body"]
    assert "<b>" not in posted["body"]
