"""Secrets are in nothing that is written: by the name of their variable, and by their shape."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import mtpbench, only_run, run, write
from conftest import SCENARIO

from harness.redact import masked, masked_env, masked_json, masked_text, secret_name, secrets_in
from harness.scenario.problems import warnings
from harness.scenario.yaml_file import parse

HF = "hf_" + "aB3" * 11
TOKEN, PASSWORD = "a-plain-value-42", "s3cr3t-pw"
ENV = f"""\
  env:
    HF_TOKEN: {TOKEN}
    HTTPS_PROXY: https://user:{PASSWORD}@proxy:8080
    SOME_NOTE: "key is {HF}"
    SGLANG_MAX_TOKENS: "4096"
"""
WITH_SECRETS = SCENARIO.replace("  step: 5ms\n", f"  step: 5ms\n{ENV}")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"use {HF} now", "use *** now"),
        ("https://a:b@host/x", "https://***@host/x"),
        ("Authorization: Bearer abcdefgh12345", "Authorization: Bearer ***"),
        ("sk-abcdefghijklmnopqrstuvwx", "***"),
        ("AKIAIOSFODNN7EXAMPLE", "***"),
        ("ghp_" + "x" * 36, "***"),
        ("eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJSMeKK", "***"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nrest", "***\nrest"),
        ("nothing: task-force, skylight, https://host/a@b", "nothing: task-force, skylight, https://host/a@b"),
    ],
)
def test_shapes(text: str, shown: str) -> None:
    assert masked(text) == shown
    assert masked(masked(text)) == shown


def test_names() -> None:
    for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "DB_PASSWORD", "GITHUB_TOKEN", "AUTH"):
        assert secret_name(name)
    for name in ("MAX_TOKENS", "SGLANG_NUM_TOKENS", "TOKENIZERS_PARALLELISM", "GIT_AUTHOR_NAME", "KEYBOARD"):
        assert not secret_name(name)
    assert masked_env({"HF_TOKEN": TOKEN, "A_TOKEN": "1", "X": "y"}) == {"HF_TOKEN": "***", "A_TOKEN": "1", "X": "y"}
    assert secrets_in({"HF_TOKEN": TOKEN, "X": HF, "Y": "z"}) == ["HF_TOKEN", "X"]
    nested = {"server": {"env": {"HF_TOKEN": TOKEN}}, "list": [{"environment": {"MY_SECRET": TOKEN}}], "n": 1.5}
    assert masked_json(nested) == {
        "server": {"env": {"HF_TOKEN": "***"}}, "list": [{"environment": {"MY_SECRET": "***"}}], "n": 1.5,
    }  # fmt: skip
    assert masked_text(f"a: {TOKEN}\nb: '{TOKEN}'", {"HF_TOKEN": TOKEN}) == "a: ***\nb: '***'"


def test_a_scenario_with_a_secret_is_warned_about() -> None:
    [warning] = [text for text in warnings(parse(WITH_SECRETS, "x.yaml")) if "secret" in text]
    assert "HF_TOKEN, HTTPS_PROXY, SOME_NOTE" in warning
    assert "pass_env" in warning
    assert TOKEN not in warning


def test_a_run_writes_no_secret_anywhere_and_goes_on_with_it_all_the_same(tmp_path: Path) -> None:
    text = WITH_SECRETS.replace("  drafts: {chunk_tokens: [4], speculative: true}\n", "").replace("[1, 2]", "[1]")
    stored, output = run(tmp_path, text)
    written = {path: path.read_bytes() for path in only_run(tmp_path).rglob("*") if path.is_file()}
    for secret in (TOKEN, PASSWORD, HF):
        assert secret not in output
        assert [path.name for path, content in written.items() if secret.encode() in content] == []
    assert stored.scenario.server.env["HF_TOKEN"] == "***"
    assert stored.scenario.server.env["SGLANG_MAX_TOKENS"] == "4096"
    for made in only_run(tmp_path).glob("passes/*"):
        if made.is_file():
            made.unlink()
    without = mtpbench("run", "--no-page", "--resume", only_run(tmp_path), cwd=tmp_path, check=2)
    assert "is a secret, which is not written down" in " ".join(without.stderr.split())
    proxy = f"https://user:{PASSWORD}@proxy:8080"
    known = {"HF_TOKEN": TOKEN, "HTTPS_PROXY": proxy, "SOME_NOTE": HF}
    mtpbench("run", "--no-page", "--resume", only_run(tmp_path), cwd=tmp_path, check=0, **known)
    for path in only_run(tmp_path).rglob("*"):
        assert not path.is_file() or TOKEN.encode() not in path.read_bytes()


def test_validate_says_it(tmp_path: Path) -> None:
    done = mtpbench("validate", write(tmp_path, WITH_SECRETS), cwd=tmp_path, check=0)
    assert "server.env holds a secret" in " ".join(done.stdout.split())
