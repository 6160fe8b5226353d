"""What is written down of series, and what people say of them: appended, never rewritten, and read by every surface."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from commands import mtpbench
from launches import save

from harness.nightly.diary import new_events
from harness.nightly.issues import issues
from harness.nightly.judged import Judged, judge
from harness.nightly.series import night_of
from harness.nightly.told import Status
from harness.store.archive import Archive, Kept, read_archive
from harness.store.events import Event, append, read_events
from harness.store.runs import StoredRun
from harness.tests.nightly.test_trend import FIRST, ONE, ab, nights

BY = ("--by", "ann", "--why", "because")


def seen_by(root: Path, runs: list[StoredRun], *sessions: Kept) -> Judged:
    """Judges these nights with the events below a folder, and writes down what is new."""
    judged = judge(Archive(root, (*map(Kept, runs), *sessions)), night_of(runs[-1])[0], ONE)
    append(root, new_events(judged.told, judged.events), f"{night_of(runs[-1])[0]}T06:00:00+00:00")
    return judge(Archive(root, (*map(Kept, runs), *sessions)), night_of(runs[-1])[0], ONE)


def kinds(root: Path) -> list[str]:
    return [event.kind for event in read_events(root)[0]]


def marker(judged: Judged) -> str:
    [issue] = issues(judged.told)
    return issue.marker


def test_each_thing_is_written_down_once_and_nothing_is_rewritten(tmp_path: Path) -> None:
    runs = nights([10.0] * 20 + [12.0, 12.0] + [10.0] * 6)
    files: dict[str, bytes] = {}
    for upto in range(19, len(runs) + 1):
        seen_by(tmp_path, runs[:upto])
        now = {path.name: path.read_bytes() for path in (tmp_path / "events").glob("*")}
        assert files.items() <= now.items()
        files = now
    assert kinds(tmp_path) == ["alert", "undone"]  # told once, and once that it is gone
    assert json.loads(next(iter(files.values())).decode())["facts"]["night"] == "2026-01-21"


def test_a_slowdown_keeps_its_name_when_nights_come_late_or_go(tmp_path: Path) -> None:
    """The marker of an issue changed with a late upload, and there was a second issue of the same slowdown."""
    runs = nights([10.0] * 20 + [10.6] * 8)
    late = runs[:20] + runs[21:24]  # the first slow night is uploaded days later
    name = marker(seen_by(tmp_path, late))
    assert "2026-01-22" in name
    assert marker(seen_by(tmp_path, runs[:25])) == name
    gone = [replace(one, quarantine="its A/A drifted") if n in (20, 21) else one for n, one in enumerate(runs)]
    assert marker(seen_by(tmp_path, gone)) == name
    assert kinds(tmp_path).count("confirmed") == 1
    assert marker(seen_by(tmp_path / "other", runs)) != name  # without events it is named anew


def test_a_second_slowdown_soon_after_the_first_has_a_name_of_its_own(tmp_path: Path) -> None:
    runs = nights([10.0] * 20 + [10.6] * 4 + [10.0] * 5 + [10.6] * 4)
    first = marker(seen_by(tmp_path, runs[:24]))
    seen_by(tmp_path, runs[:29])
    assert marker(seen_by(tmp_path, runs)) != first
    assert kinds(tmp_path).count("confirmed") - kinds(tmp_path).count("undone") <= 2


def test_an_ab_that_closes_is_named_in_the_event(tmp_path: Path) -> None:
    runs = nights([10.0] * 20 + [10.6] * 4)
    seen_by(tmp_path, runs)
    [told] = seen_by(tmp_path, runs, ab(19, 20, 1.0)).told
    assert told.status is Status.OK
    closed = [event for event in read_events(tmp_path)[0] if event.kind == "closed"]
    assert [event.why for event in closed] == ["the A/B ab-19-20-a-mtp says PASS, so the host a did, not the commit"]


def test_a_damaged_file_of_events_is_named_and_the_others_count(tmp_path: Path) -> None:
    append(tmp_path, [Event("retired", {"arm": "x"}, by="ann", why="old", facts={"since": "2026-01-01"})])
    for number, text in enumerate(("{", '{"event_version": 9}', "[]", "\x00")):
        (tmp_path / "events" / f"{number}.jsonl").write_text(text)
    found, left_out = read_events(tmp_path)
    assert [event.kind for event in found] == ["retired"]
    assert len(left_out) == 4
    assert all("is damaged" in text for text in left_out)


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    """A store whose last four of 16 nights are slower."""
    for one in nights([10.0] * 12 + [10.6] * 4):
        save(tmp_path / "runs", replace(one, passes=one.passes[:1]))
    return tmp_path


TODAY = ("--today", FIRST + timedelta(15))


def test_a_person_closes_retires_and_renames_by_the_command_line(slow: Path) -> None:
    said = mtpbench("trend", "runs", *TODAY, "--record", cwd=slow, check=1)
    assert "events written down: " in said.stderr
    why = mtpbench("trend", "runs", *TODAY, "--why", "tpot", cwd=slow, check=0).stdout
    assert "FAIL: TPOT at concurrency 1" in why
    assert "confirmed +6." in why.replace("\n", " ")
    for wrong in (("retire",), ("retire", "--arm", "x"), ("close", "--night", "2026-01-02"), ("rename", "x=y")):
        assert mtpbench("store", wrong[0], "runs", *wrong[1:], *BY, cwd=slow).returncode == 2

    mtpbench("store", "close", "runs", "--metric", "tpot_p50", *BY, *TODAY, cwd=slow, check=0)
    assert "ann closed it" in mtpbench("trend", "runs", *TODAY, "--metric", "tpot_p50", cwd=slow, check=0).stdout
    assert "ann closed it on 20" in mtpbench("trend", "runs", *TODAY, "--why", "tpot", cwd=slow).stdout

    mtpbench("store", "rename", "runs", "scripted=better", "better@mtp=ours", *BY, cwd=slow, check=0)
    shown = json.loads(mtpbench("trend", "runs", *TODAY, "--format", "json", cwd=slow).stdout)
    assert {(one["scenario"], one["arm"]) for one in shown["series"]} == {("better", "ours")}

    mtpbench("store", "retire", "runs", "--scenario", "better", *BY, *TODAY, cwd=slow, check=0)
    later = mtpbench("trend", "runs", "--today", "2026-03-01", cwd=slow, check=0).stdout
    assert "retired by ann" in later


def test_what_is_pruned_leaves_its_levels_behind(tmp_path: Path) -> None:
    """25 slow nights, 30 kept: the slowdown was forgotten with the last fast night."""
    for one in nights([10.0] * 12 + [10.6] * 34):
        save(tmp_path / "runs", replace(one, passes=one.passes[:1]))
    words = ("--today", FIRST + timedelta(45), "--metric", "tpot_p50")
    before = mtpbench("trend", "runs", *words, "--format", "json", cwd=tmp_path, check=1).stdout
    for dry in (True, False):
        mtpbench("store", "prune", "runs", "--keep", 30, "--by", "ann", *words[:2], *(["--dry-run"] if dry else []),
                 cwd=tmp_path, check=0)  # fmt: skip
    assert len(read_archive(tmp_path / "runs").kept) == 31
    after = mtpbench("trend", "runs", *words, "--format", "json", cwd=tmp_path, check=1).stdout
    [old], [new] = (json.loads(text)["series"] for text in (before, after))
    assert new["since"] == old["since"] == "2026-01-13"
    assert new["change"] == pytest.approx(old["change"], abs=0.002)
