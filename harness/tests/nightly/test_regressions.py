"""Issues of confirmed slowdowns: one each, found again the next night, with an owner, and inert."""

from __future__ import annotations

import json
import os
import re
import subprocess
from datetime import date, timedelta
from pathlib import Path

import pytest
from commands import mtpbench
from launches import launch, run, save, scenario

from harness.model import LoadLevel
from harness.nightly.issues import Issue, issues
from harness.nightly.recovered import place_mark
from harness.nightly.series import build
from harness.nightly.told import Told, tell
from harness.store.runs import StoredRun
from harness.tests.nightly.test_trend import FIRST, LEDGER, commit
from harness.verdict.accepted import load as load_ledger
from harness.verdict.pairs import RowKey

ARMS = ("mtp", "plain", "third")
SCRIPT = Path(__file__).parents[3] / "ci" / "open_issues.sh"


def nights(levels: dict[str, list[float]]) -> list[StoredRun]:
    """A run a night, one launch an arm, at these TPOTs in milliseconds."""
    plan = scenario(arms={arm: {} for arm in levels}, launches=1)
    count = len(next(iter(levels.values())))
    wobble = [1.0, 1.0006, 0.9996, 1.0003]
    return [
        run(
            [launch(0, 1e-3 * levels[arm][n] * wobble[(n + k) % 4], arm=arm) for k, arm in enumerate(levels)],
            name=f"r{n:03d}", created_at=f"{FIRST + timedelta(n)}T02:00:00+00:00", of=plan,
            environment={"commit": commit(n)},
        )
        for n in range(count)
    ]  # fmt: skip


def told(levels: dict[str, list[float]], upto: int | None = None) -> list[Told]:
    runs = nights(levels)[:upto]
    return tell(build(runs, ("tpot_p50",)), FIRST + timedelta(len(runs) - 1))


STEPS = {
    "mtp": [10.0] * 20 + [10.6] * 20,
    "plain": [10.0] * 21 + [11.0] * 6 + [10.0] * 13,  # seen a night later, and undone
    "third": [10.0] * 32 + [10.5] * 8,  # another slowdown
}


def test_one_slowdown_is_one_issue_and_keeps_its_mark_for_ever() -> None:
    [first] = issues(told(STEPS, 25))
    assert first.marker == "<!-- mtpbench-regression:scripted-a-2026-01-21 -->"
    here = place_mark("a", "scripted")
    assert first.body.startswith(
        f"{first.marker}\n{here}\n**TPOT at concurrency 1 \\(TP1, plain\\), scripted on a changed by"
    )
    assert first.title == "scripted: TPOT +10.0 % and 1 more since 2026-01-21 on a"
    assert f"    mtpbench ab runs/r020/scenario.yaml --base {commit(19)} --head {commit(20)}" in first.body
    for night in range(25, 33):
        assert issues(told(STEPS, night))[0].marker == first.marker
    larger, smaller = issues(told(STEPS))
    assert larger.marker == first.marker
    assert larger.title == "scripted: TPOT +6.0 % since 2026-01-21 on a"
    assert smaller.marker == "<!-- mtpbench-regression:scripted-a-2026-02-02 -->"
    assert issues(told({"mtp": [10.0] * 40})) == []
    assert issues(told({"mtp": [10.0] * 20 + [10.6]})) == []  # an alert is not confirmed


def test_the_owner_is_the_ledgers(tmp_path: Path) -> None:
    file = tmp_path / "known.yaml"
    file.write_text(LEDGER + "owners: {scripted: ann, '*': ben}\n")
    ledger = load_ledger(file)
    entry = ledger.regressions[0]
    row = RowKey("tpot_p50", "mtp", 1, LoadLevel(concurrency=1))
    assert ledger.owner("scripted", row) == (entry.owner if entry.fits("scripted", row) else "ann")
    assert ledger.owner("other", row) == "ben"
    [issue] = issues(told(STEPS, 25), lambda _scenario, _row: "ann@x")
    assert issue.owner == "ann@x"
    assert "Owner: ann@&#8203;x" in issue.body
    [nobody] = issues(told(STEPS, 25))
    assert "Nobody is named for it" in nobody.body


def test_names_are_inert() -> None:
    from dataclasses import replace

    def hostile(one: Told) -> Told:
        key = replace(one.series.key, host="h|`x` @all <img>\n# H -->", scenario="s")
        return replace(one, series=replace(one.series, key=key, notes=("@someone <b>",)))

    [issue] = issues([hostile(one) for one in told(STEPS, 25)], site="https://x.example/<script>")
    assert issue.marker.count("-->") == 1
    assert "\n" not in issue.title
    assert re.fullmatch(r"s-h_x_all_img_H_-_-2026-01-21-[0-9a-f]{10}", issue.name)
    rest = issue.body.removeprefix(issue.marker)
    assert "<img" not in rest
    assert "<b>" not in rest
    assert "@all" not in rest
    assert "<https://x.example/script>" in rest


FAKE_GH = r"""#!/usr/bin/env bash
# Stands for GitHub: issues are files of $FAKE_ISSUES, calls are written down.
printf '%q ' "$@" >> "$FAKE_ISSUES/calls"; echo >> "$FAKE_ISSUES/calls"
case "$1 $2" in
"issue list")
    while [ $# -gt 0 ]; do [ "$1" = --jq ] && query=$2; shift; done
    for file in "$FAKE_ISSUES"/*.md; do
        [ -e "$file" ] && printf '{"number":%s,"body":%s}\n' "$(basename "$file" .md)" "$(jq -Rs . "$file")"
    done | jq -s . | jq -r "$query" ;;
"issue create")
    while [ $# -gt 0 ]; do
        case "$1" in --body-file) body=$2 ;; --assignee) [ "$2" = nobody-here ] && exit 1 ;; esac; shift
    done
    number=$(($(find "$FAKE_ISSUES" -name '*.md' | wc -l) + 1))
    cp "$body" "$FAKE_ISSUES/$number.md"; echo "https://forge.example/$number" ;;
"issue edit")
    number=$3; while [ $# -gt 0 ]; do [ "$1" = --body-file ] && body=$2; shift; done
    cp "$body" "$FAKE_ISSUES/$number.md" ;;
"label create") ;;
*) exit 9 ;;
esac
"""


def write(folder: Path, found: list[Issue]) -> None:
    for issue in found:
        (folder / issue.name).mkdir(parents=True, exist_ok=True)
        texts = {"body.md": issue.body, "title": issue.title, "marker": issue.marker, "owner": issue.owner}
        for name, text in texts.items():
            (folder / issue.name / name).write_text(text)


@pytest.mark.parametrize("owner", ["ann", "nobody-here", ""])
def test_the_script_opens_an_issue_once_and_updates_it(tmp_path: Path, owner: str) -> None:
    tools, forge = tmp_path / "bin", tmp_path / "forge"
    tools.mkdir()
    forge.mkdir()
    (tools / "gh").write_text(FAKE_GH)
    (tools / "gh").chmod(0o755)
    env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "FAKE_ISSUES": str(forge)}

    def night(number: int) -> None:
        folder = tmp_path / f"night-{number}"
        write(folder, issues(told(STEPS, number), lambda _scenario, _row: owner))
        done = subprocess.run([SCRIPT, folder], env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr

    night(25)
    (forge / "2.md").write_text("an issue of somebody else")
    night(26)
    night(40)
    bodies = {path.stem: path.read_text() for path in forge.glob("*.md")}
    assert set(bodies) == {"1", "2", "3"}
    first, second = issues(told(STEPS), lambda _scenario, _row: owner)
    assert bodies == {"1": first.body, "2": "an issue of somebody else", "3": second.body}
    calls = (forge / "calls").read_text()
    assert calls.count("issue create") == (4 if owner == "nobody-here" else 2)
    assert ("--assignee ann" in calls) == (owner == "ann")


def test_the_verb(tmp_path: Path) -> None:
    for one in nights({"mtp": [10.0] * 12 + [10.6] * 4}):
        save(tmp_path / "runs", one)
    out = tmp_path / "issues"
    done = mtpbench("ci", "issues", "runs", out, "--today", date(2026, 1, 16), cwd=tmp_path, check=0)
    [listed] = json.loads((out / "issues.json").read_text())
    assert listed["marker"] == "<!-- mtpbench-regression:scripted-a-2026-01-13 -->"
    assert (out / listed["name"] / "body.md").read_text().startswith(listed["marker"])
    assert listed["title"] in done.stdout
    assert "no unconfirmed alert" in mtpbench("ci", "confirm", "runs", cwd=tmp_path, check=0).stdout


def test_each_alert_is_confirmed_by_its_own_ab(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Commits that this repository does not have: what is called, and that a failure stops nothing."""
    for one in nights({"mtp": [10.0] * 12 + [10.6]}):
        save(tmp_path / "runs", one)
    words = ("ci", "confirm", "runs", "--today", FIRST + timedelta(12))
    left = mtpbench(*words, "--at-most", 0, cwd=tmp_path, check=0).stderr
    assert "left for another night: mtpbench ab " in left
    done = mtpbench(*words, cwd=tmp_path, check=0).stderr
    assert f"scenario.yaml --base {commit(11)} --head {commit(12)}" in done
    assert done.rstrip().endswith("it exited with 2")
    assert f"'{commit(11)}' is no git ref" in capfd.readouterr().err
