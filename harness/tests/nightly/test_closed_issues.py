"""An issue that a person closed stays closed, night after night; one whose slowdown is gone is closed, by us."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import pytest
from launches import launch, run

from harness.model import LoadLevel
from harness.nightly.recovered import measured_places, place_mark
from harness.nightly.series import Night, Series, SeriesKey
from harness.nightly.told import Status, Told
from harness.verdict.pairs import RowKey

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


GONE = "<!-- mtpbench-gone -->"
HERE, ELSEWHERE = place_mark("a", "scripted"), place_mark("b", "scripted")


def after(tmp_path: Path, there: list[tuple[int, str, str]], measured: list[str], texts: bool) -> tuple[list[str], str]:
    """What is called of the forge and what was said, after a night with or without the text of MARK's slowdown."""
    (tmp_path / "gh").write_text(FAKE_GH)
    (tmp_path / "gh").chmod(0o755)
    listed = [{"number": number, "body": body, "state": state} for number, body, state in there]
    (tmp_path / "issues").write_text(json.dumps(listed))
    night = tmp_path / "night"
    night.mkdir()
    (night / "measured").write_text("".join(f"{mark}\n" for mark in measured))
    if texts:
        (night / "one").mkdir()
        for name, text in {"marker": MARK, "title": "slower", "owner": "", "body.md": f"{MARK}\n{HERE}\nnew"}.items():
            (night / "one" / name).write_text(text)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "FORGE": str(tmp_path)}
    ran = subprocess.run([SCRIPT, night], env=env, capture_output=True, text=True, timeout=30)
    assert ran.returncode == 0, ran.stderr
    return (tmp_path / "calls").read_text().splitlines()[1:], ran.stdout


@pytest.mark.parametrize(
    ("body", "measured", "texts", "done"),
    [
        (f"{MARK}\n{HERE}\ntext", [HERE], False, ["issue edit 7", "issue close 7"]),
        (f"{MARK}\n{HERE}\ntext", [ELSEWHERE], False, []),  # its place was not measured whole: nobody knows
        (f"{MARK}\n{HERE}\ntext", [HERE], True, ["issue edit 7"]),  # still there
        (f"{MARK}\ntext", [HERE], False, []),  # of an older version, which named no place
        (f"somebody else's\n{HERE}", [HERE], False, []),
    ],
)
def test_an_issue_is_closed_once_all_of_its_place_was_measured_without_it(
    tmp_path: Path, body: str, measured: list[str], texts: bool, done: list[str]
) -> None:
    calls, _ = after(tmp_path, [(7, body, "OPEN")], measured, texts)
    assert [call.rstrip() for call in calls] == done


def test_what_was_closed_here_is_opened_again_if_it_returns(tmp_path: Path) -> None:
    calls, _ = after(tmp_path, [(7, f"{MARK}\n{HERE}\ntext\n{GONE}", "CLOSED")], [HERE], True)
    assert [call.rstrip() for call in calls] == ["issue reopen 7", "issue edit 7"]


def series(scenario: str, last: date) -> Series:
    key = SeriesKey("a", "f", scenario, RowKey("tpot_p50", "mtp", 1, LoadLevel(1)))
    return Series(key, (Night(last, 0.01, 1, run([launch(0, 0.01)])),))


def test_a_place_counts_only_if_every_row_of_it_was_measured_last_night() -> None:
    today = date(2026, 1, 21)
    good = Told(series("scripted", today), Status.OK, "")
    other = replace(good, series=series("other", today))
    assert measured_places([good, replace(good, status=Status.ALERT), other], today) == [HERE, place_mark("a", "other")]
    for bad in (
        replace(good, status=Status.MISSING),
        replace(good, status=Status.STALE),
        replace(good, status=Status.YOUNG),
        replace(good, series=series("scripted", today - timedelta(2))),
    ):
        assert measured_places([good, bad], today) == []
    # What goes on as another series says nothing, in either direction.
    moved = Told(series("scripted", date(2025, 1, 1)), Status.MOVED, "")
    assert measured_places([good, moved], today) == [HERE]
