"""An issue that a person closed stays closed, night after night; an open one with the same mark is still updated."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "ci" / "open_issues.sh"
MARK = "<!-- mtpbench-regression:scripted-a-2026-01-21 -->"
FAKE_GH = """#!/usr/bin/env bash
echo "$1 $2 $3" >> "$FORGE/calls"
[ "$2" != list ] || { while [ $# -gt 0 ]; do [ "$1" = --jq ] && query=$2; shift; done; jq -r "$query" "$FORGE/issues"; }
"""


@pytest.mark.parametrize(
    ("there", "done"),
    [
        ([(7, MARK, "CLOSED")], []),
        ([(7, MARK, "CLOSED"), (9, MARK, "OPEN")], ["issue edit 9"]),
        ([(7, "<!-- mtpbench-regression:scripted-a-2026-03-01 -->", "CLOSED")], ["label create", "issue create"]),
        ([], ["label create", "issue create"]),
    ],
)
def test_what_a_person_closed_stays_closed(tmp_path: Path, there: list[tuple[int, str, str]], done: list[str]) -> None:
    (tmp_path / "gh").write_text(FAKE_GH)
    (tmp_path / "gh").chmod(0o755)
    listed = [{"number": number, "body": f"{mark}\ntext", "state": state} for number, mark, state in there]
    (tmp_path / "issues").write_text(json.dumps(listed))
    folder = tmp_path / "night" / "one"
    folder.mkdir(parents=True)
    for name, text in {"marker": MARK, "title": "slower", "owner": "", "body.md": f"{MARK}\nnew"}.items():
        (folder / name).write_text(text)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "FORGE": str(tmp_path)}
    ran = subprocess.run([SCRIPT, folder.parent], env=env, capture_output=True, text=True, timeout=30)
    assert ran.returncode == 0, ran.stderr
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[0].startswith("issue list")
    assert [call for call, wanted in zip(calls[1:], done, strict=True) if not call.startswith(wanted)] == []
    assert ("#7 was closed by a person" in ran.stdout) == (there == [(7, MARK, "CLOSED")])
