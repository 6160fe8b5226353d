"""A night as a whole: a fault in any step, or a row that is not there, is red in exit code, summary and page."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from commands import mtpbench
from conftest import SCENARIO
from launches import run, save, scenario

from dashboards.overview import overview
from dashboards.scenario_page import scenario_page
from dashboards.site import gather
from harness.machine.fingerprint import host_name
from harness.nightly.night import Night, begin, read_nights, troubles, unknown
from harness.store.archive import read_archive
from harness.store.runs import NIGHTS, utc_now, write_below
from harness.verdict.accepted import Ledger

ROOT = Path(__file__).parents[3]
CHAIN = ["begin", "precheck", "aa", "run-x", "sentinel", "confirm", "trend", "issues", "verify", "upstream", "publish"]
GOOD = "".join(f"{step} 0\n" for step in CHAIN)
TPOT = [0.0100, 0.0101, 0.0099]


def save_night(root: Path, night: Night) -> None:
    write_below(root, night.file, night.to_bytes())


def night_store(root: Path, days: int = 12) -> Path:
    """Good nights up to this one, on this host; what tonight was told to measure is there."""
    now = datetime.now(timezone.utc)
    plan = scenario(launches=3)
    save_night(root, begin([plan], "job", host_name()))
    for ago in range(days, -1, -1):
        moment = (now - timedelta(ago) + timedelta(seconds=1)).isoformat(timespec="seconds")
        made = run(TPOT, created_at=moment, environment={"host": host_name()}, of=plan)
        save(root, made)
    return root


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return night_store(tmp_path_factory.mktemp("night") / "runs")


def page(store: Path) -> str:
    """The first page of a store's site, as text."""
    site = gather(read_archive(store), datetime.now(timezone.utc).date(), utc_now(), Ledger(version=1))
    return overview(site)


def ended(store: Path, folder: Path, steps: str) -> subprocess.CompletedProcess[str]:
    (folder / "steps").write_text(steps)
    return mtpbench("ci", "night", store, "--steps", folder / "steps", "--job", "job", cwd=folder)


def test_a_good_night_is_green_everywhere(store: Path, tmp_path: Path) -> None:
    done = ended(store, tmp_path, GOOD)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "**PASS: every step did its work.**")
    assert '<p class="word">PASS</p>' in page(store)
    [night] = read_nights(store)[0]
    assert [place.arm for place in night.expected] == ["mtp"]
    assert night.steps == dict.fromkeys(CHAIN, 0)


@pytest.mark.parametrize("step", [step for step in CHAIN if step != "publish"])
def test_a_fault_in_any_step_is_red_on_the_page_in_the_summary_and_in_the_exit_code(
    store: Path, tmp_path: Path, step: str
) -> None:
    done = ended(store, tmp_path, GOOD.replace(f"{step} 0", f"{step} 70"))
    assert done.returncode == 2
    assert done.stdout.startswith(f"**INVALID: The step {step} failed \\(exit code 70, a bug")
    html = page(store)
    assert '<p class="word">INVALID</p>' in html
    assert f"The step {step} failed (exit code 70, a bug of mtpbench): see {step}.log." in html


def test_pages_that_cannot_be_made_leave_no_green_one(store: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "index.html").write_text("PASS, of yesterday")
    (tmp_path / "steps").write_text(GOOD.replace("publish 0", "publish 2"))
    done = mtpbench("ci", "night", store, "--steps", tmp_path / "steps", "--job", "job", "--site", site, cwd=tmp_path)
    assert done.returncode == 2
    said = (site / "index.html").read_text()
    assert "INVALID: the pages of this night could not be made" in said
    assert "PASS, of yesterday" not in said


def test_a_row_that_is_not_there_tonight_is_missing_tonight(store: Path, tmp_path: Path) -> None:
    """Not after three days: the store knows what the night was told to measure."""
    archive = read_archive(store)
    more = scenario(arms={"mtp": {}, "other": {}}, launches=3)
    night = begin([more, scenario(name="never")], "job", host_name())
    night = Night(night.day, "job", night.host, (datetime.now(timezone.utc) - timedelta(hours=1)).isoformat(),
                  night.expected, {})  # fmt: skip
    first, second = troubles(night, archive)
    assert first.word.value == second.word.value == "MISSING"
    assert first.sentence.startswith("scripted: in 1 of 2 rows nothing that counts was measured in the night of")
    assert first.details == ("other, TP1, at 1: no run has it",)
    assert "never: nothing that counts" in second.sentence
    elsewhere = Night(night.day, "job", "another host", night.begun_at, night.expected[:1], {})
    assert [one.word.value for one in troubles(elsewhere, archive)] == ["MISSING"]


@pytest.mark.parametrize(
    ("value", "said"), [(float("nan"), "it measured nan as tpot_p50"), (None, "has no value of tpot")]
)
def test_a_night_of_nothing_is_missing(store: Path, value: float | None, said: str) -> None:
    """NaN in its rows, or a TPOT that can't be told in any request: the trend has no night of it and would say PASS."""
    archive = read_archive(store)
    night = Night.from_json(json.loads(next((store / NIGHTS).glob("*.json")).read_text()))
    last = archive.kept[-1]
    empty = [replace(one, derived={**(one.derived or {}), "tpot_p50": value}) for one in last.run.passes]
    gone = replace(archive, kept=(replace(last, run=replace(last.run, passes=tuple(empty))),))
    [trouble] = [one for one in troubles(night, gone) if one.word.value == "MISSING"]
    assert said in trouble.sentence


def test_a_model_that_does_not_exist_on_a_store_of_good_nights(tmp_path: Path) -> None:
    """`aa` and `run` exit with 2: the trend alone would say PASS."""
    root = night_store(tmp_path / "runs", days=12)
    late = (datetime.now(timezone.utc) + timedelta(seconds=5)).isoformat()
    save_night(root, replace(begin([scenario()], "job", host_name()), begun_at=late))
    told = mtpbench("trend", root, cwd=tmp_path)  # as the chain does, before all steps have ended
    assert told.returncode == 6
    assert "MISSING: scripted: nothing that counts was measured" in " ".join(told.stdout.split())
    steps = GOOD.replace("aa 0", "aa 2").replace("run-x 0", "run-x 2").replace("trend 0", "trend 6")
    done = ended(root, tmp_path, steps)
    assert done.returncode == 2
    for said in ("INVALID: The step aa failed", "INVALID: The step run-x failed", "MISSING: scripted: nothing"):
        assert said in done.stdout
    assert "MISSING" in page(root)
    assert mtpbench("trend", root, cwd=tmp_path).returncode == 2


def test_young_rows_are_no_pass_on_any_page(tmp_path: Path) -> None:
    root = night_store(tmp_path / "runs", days=2)
    site = gather(read_archive(root), datetime.now(timezone.utc).date(), utc_now(), Ledger(version=1))
    for html in (overview(site), scenario_page(site, site.scenarios[0])):
        assert "NO_BASELINE" in html
        assert "No row is wrong" not in html
    assert re.search(r"0 rows judged, \d+ too young to be judged", overview(site))
    assert re.search(r"\d+ of \d+ rows have too few nights to be judged", scenario_page(site, site.scenarios[0]))


def test_a_night_that_could_not_be_noted_is_judged_by_its_steps(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    done = ended(tmp_path / "runs", tmp_path, "begin 2\ntrend 5\n")
    assert done.returncode == 2
    assert "The step begin failed" in done.stdout
    assert mtpbench("ci", "night", tmp_path, "--steps", tmp_path / "absent", cwd=tmp_path).returncode == 2


def test_a_damaged_night_is_left_out_by_name(store: Path, tmp_path: Path) -> None:
    (tmp_path / NIGHTS).mkdir()
    for number, text in enumerate(("{", "[]", '{"night_version": 1}', json.dumps({"night_version": 2}))):
        (tmp_path / NIGHTS / f"{number}.json").write_text(text)
    save_night(tmp_path, unknown("job", "h", {"aa": 3}))
    nights, left_out = read_nights(tmp_path)
    assert [night.job for night in nights] == ["job"]
    assert len(left_out) == 4
    assert troubles(nights[0], read_archive(store)) == []  # INCONCLUSIVE is an answer


def test_a_wrong_scenario_is_told_and_the_others_are_expected(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(SCENARIO)
    done = mtpbench("ci", "begin", "runs", "good.yaml", "absent.yaml", "--job", "a b/c", cwd=tmp_path)
    assert done.returncode == 2
    assert "absent.yaml: can't be read" in done.stderr
    [night] = read_nights(tmp_path / "runs")[0]
    assert (night.job, len(night.expected)) == ("a-b-c", 4)


STUB = """#!/usr/bin/env bash
# Stands in for Python: fails in the step that FAULT names, and says which steps ran.
words="$*"
case $words in
*"ci night"*) grep -qv " 0$" "$OUT/steps" && exit 2; exit 0 ;;
*"$FAULT"*) echo "scripted failure"; exit 9 ;;
esac
"""
VERBS = {"begin": "ci begin", "precheck": "ci precheck", "aa": "harness aa", "run-x": "harness run",
         "trend": "harness trend",
         "sentinel": "ci sentinel", "confirm": "ci confirm", "issues": "ci issues", "verify": "store verify",
         "upstream": "doctor --upstream", "publish": "harness publish"}  # fmt: skip


@pytest.mark.parametrize("step", CHAIN)
def test_the_script_goes_on_after_a_fault_and_ends_with_it(tmp_path: Path, step: str) -> None:
    stub = tmp_path / "python"
    stub.write_text(STUB)
    stub.chmod(0o755)
    (tmp_path / "x.yaml").write_text(SCENARIO)
    env = {**os.environ, "PYTHON": str(stub), "FAULT": VERBS[step], "OUT": str(tmp_path / "out")}
    done = subprocess.run(
        [ROOT / "ci" / "nightly.sh", "--engine", "llamacpp", "--scenario", tmp_path / "x.yaml",
         "--store", tmp_path / "s",
         "--out", tmp_path / "out"], env=env, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2, done.stdout + done.stderr
    ran = dict(line.split() for line in (tmp_path / "out" / "steps").read_text().splitlines())
    skipped = {"precheck": {"aa", "run-x", "sentinel", "confirm"}, "sentinel": {"confirm"}}.get(step, set())
    assert list(ran) == [name for name in CHAIN if name not in skipped]
    assert {name for name, code in ran.items() if code != "0"} == {step}
    assert "scripted failure" in (tmp_path / "out" / f"{step}.log").read_text()
