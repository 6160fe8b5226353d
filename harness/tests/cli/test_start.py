"""What is imported before a verb has anything to do: `--help` and the verbs that only read scenarios start at once."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest
from commands import listed_verbs

ROOT = Path(__file__).parents[3]
# Each takes a tenth of a second or more to import, most of them much more.
HEAVY = {
    *("altair", "asyncio", "duckdb", "fsspec", "great_tables", "httpcore", "httptools", "httpx", "jinja2"),
    *("multiprocessing", "numpy", "pandas", "psutil", "pyarrow", "scipy", "starlette", "torch", "triton", "uvicorn"),
    "vl_convert",
}
# Prints, as the last line on standard error, what the command line before it has imported.
PROGRAM = """
import json, sys
from harness.__main__ import main
try:
    main()
except SystemExit as end:
    code = end.code
sys.stderr.write("\\n" + json.dumps({"code": code or 0, "modules": sorted(sys.modules)}) + "\\n")
"""


def imported(*words: object) -> set[str]:
    """What `mtpbench WORDS…` has imported once it is done, in a Python of its own."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, words)], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    told = json.loads(done.stderr.splitlines()[-1])
    assert told["code"] == 0, done.stderr
    return set(told["modules"])


@pytest.mark.parametrize("words", [("--help",), ("selftest", "--help"), ("ci", "--help")], ids=" ".join)
def test_a_group_is_listed_without_importing_any_of_its_verbs(words: tuple[str, ...]) -> None:
    verbs = {f"harness.cli.{verb.place.partition(':')[0]}" for _, verb in listed_verbs()}
    assert not imported(*words) & (HEAVY | verbs)


@pytest.mark.parametrize(
    "words",
    [
        ("version",), ("schema",), ("validate", "--help"), ("list",), ("list", "docs/results"),
        ("validate", "scenarios/quickstart.yaml", "scenarios/mi355x-qwen35-70k.yaml"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_reading_scenarios_and_listing_runs_needs_nothing_heavy(words: tuple[str, ...]) -> None:
    assert not imported(*words) & HEAVY


def test_what_a_group_lists_is_the_first_paragraph_of_the_verbs_own_help() -> None:
    for path, listed in listed_verbs():
        verb = listed.load()
        paragraph = inspect.cleandoc(verb.help).split("\n\n")[0]
        assert (verb.name, " ".join(paragraph.split())) == (path[-1], listed.help)
