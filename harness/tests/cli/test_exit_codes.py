"""One table of exit codes for all verbs, and the ways in which a verb ends that does not end well."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import listed_verbs, mtpbench, start, write
from conftest import SCENARIO

from harness.cli.common import EXIT_INTERRUPTED, EXIT_INVALID, EXIT_PIPE, EXIT_UNFORESEEN
from harness.errors import Interrupted
from harness.verdict.compare import EXIT_CODES

TABLE = (Path(__file__).parents[3] / "docs" / "exit-codes.md").read_text()


VERBS = [" ".join(path) for path, _ in listed_verbs()]
ROWS = {
    verb: set(map(int, codes.split())) for verb, codes in re.findall(r"^\| `([a-z ]+)` \| ([\d ]+) \|", TABLE, re.M)
}


def test_the_table_has_every_verb_and_every_code() -> None:
    assert sorted(ROWS) == sorted(VERBS)
    meanings = {int(code): word for code, word in re.findall(r"^\| (\d+) \| ([^|]+) \|", TABLE, re.M)}
    for verdict, code in EXIT_CODES.items():
        assert verdict.value in meanings[code]
    for code in (EXIT_INVALID, EXIT_UNFORESEEN, EXIT_INTERRUPTED, EXIT_PIPE):
        assert code in meanings
    assert all(codes <= set(EXIT_CODES.values()) for codes in ROWS.values())
    assert all(0 in codes for codes in ROWS.values())


@pytest.mark.parametrize("verb", VERBS)
def test_a_wrong_call_exits_with_2_and_an_unknown_option_is_named(verb: str, tmp_path: Path) -> None:
    if verb.startswith("kernel"):
        return  # passes its options on
    done = mtpbench(*verb.split(), "--no-such-option", cwd=tmp_path)
    assert done.returncode == 2
    assert "no-such-option" in done.stderr.replace("\n", "")


def test_names_that_are_no_metric_are_a_wrong_call(tmp_path: Path) -> None:
    write(tmp_path)
    for call in (("compare", "a", "b"), ("trend", "runs"), ("ab", "scenario.yaml", "--base", "arm:plain"),
                 ("aa", "scenario.yaml")):  # fmt: skip
        done = mtpbench(*call, "--metric", "mean:5.4%", cwd=tmp_path)
        assert done.returncode == 2, call
        if call[0] != "compare":
            assert "'mean:5.4%' is no metric" in done.stderr


def test_an_interrupt_anywhere_is_130(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise Interrupted  # what SIGINT and SIGTERM raise

    monkeypatch.setattr("harness.cli.environment.fingerprint", interrupted)
    done = mtpbench("environment", cwd=tmp_path)
    assert (done.returncode, done.stderr.strip()) == (130, "interrupted")


def test_what_the_machine_refuses_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(28, "No space left on device", "/store/x")

    monkeypatch.setattr("harness.cli.environment.fingerprint", refused)
    done = mtpbench("environment", cwd=tmp_path, check=2)
    assert "/store/x: No space left on device" in done.stderr
    assert "df -i" in done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_a_sentence(tmp_path: Path) -> None:
    write(tmp_path)
    tmp_path.chmod(0o555)
    done = mtpbench("run", "scenario.yaml", cwd=tmp_path, check=2)
    assert "can't write" in done.stderr


def test_a_place_that_cannot_be_a_store_is_a_sentence(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "file").write_text("x")
    done = mtpbench("run", "scenario.yaml", "--store", "file/runs", cwd=tmp_path, check=2)
    assert "can't write" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("after", [0.1, 0.5, 1.2, 2.5])
def test_ctrl_c_at_any_time_is_no_traceback(tmp_path: Path, after: float) -> None:
    """Also in the second in which Python still imports; once there is a run, how to go on is said."""
    running = start("run", write(tmp_path, SCENARIO.replace("ttft: 20ms", "ttft: 400ms")), "--no-page", cwd=tmp_path)
    time.sleep(after)
    running.send_signal(signal.SIGINT)
    output, _ = running.communicate(timeout=60)
    assert "Traceback" not in output or after < 0.3  # before our first line runs, Python itself is interrupted
    assert running.returncode == 130 or after < 0.3, output
    if running.returncode == 130 and "results:" in output:  # Python's own start can swallow a signal
        assert "next: mtpbench run --resume runs/" in output


def test_every_way_to_show_text_is_inert(tmp_path: Path) -> None:
    """Names with escape sequences and marks that turn the text around reach no terminal, Markdown or page."""
    from dashboards.markup import text as html
    from harness.cli.common import InertConsole
    from harness.text import escape, inert

    evil = "a\x1b[31mred\x07\u202egnp.exe\u2066\x00\x9b1m\ud800"
    for shown in (inert(evil), html(evil), escape(evil)):
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", shown)
        assert "red" in shown
    assert inert("zwei Zeilen\n\tund €, 日本, عربي") == "zwei Zeilen\n\tund €, 日本, عربي"
    with (tmp_path / "out").open("w") as file:
        InertConsole(file=file, force_terminal=True).print(evil, markup=False)
    printed = (tmp_path / "out").read_text()
    assert "\u202e" not in printed
    assert "\x1b[31m" not in printed
    code = "from harness.cli.common import err; err.print('\\x1b]0;title\\x07x')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert b"\x1b" not in done.stderr
