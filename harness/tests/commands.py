"""The command line for tests: in this process, and as a process of its own where signals or limits are the subject."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import SCENARIO

from harness.cli import app
from harness.cli.app import main
from harness.cli.group import Group, ListedVerb
from harness.store.runs import StoredRun, load_run


def mtpbench(*args: object, cwd: Path, check: int | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """`mtpbench ARGS…` in this process: a new Python would import for two seconds each time."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(cwd)
        patch.setattr(sys, "argv", ["mtpbench", *map(str, args)])
        for name, value in env.items():
            patch.setenv(name, value)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as exit_:
            main()
    code = exit_.value.code
    assert isinstance(code, int), code
    if check is not None:
        assert code == check, out.getvalue() + err.getvalue()
    return subprocess.CompletedProcess(["mtpbench", *args], code, out.getvalue(), err.getvalue())


def listed_verbs(
    group: Group = app.mtpbench, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], ListedVerb]]:
    """Every verb of the command line and what a person types for it."""
    for name, member in group.commands.items():
        if isinstance(member, Group):
            yield from listed_verbs(member, (*path, name))
        else:
            yield (*path, name), member


def start(*args: object, cwd: Path) -> subprocess.Popen[str]:
    """The same as a process, both outputs in one pipe."""
    return subprocess.Popen(
        [sys.executable, "-m", "harness", *map(str, args)],
        cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def write(folder: Path, text: str = SCENARIO) -> Path:
    path = folder / "scenario.yaml"
    path.write_text(text)
    return path


def only_run(folder: Path) -> Path:
    [path] = [p for p in (folder / "runs").iterdir() if p.name != "rows"]
    return path


def run(folder: Path, text: str = SCENARIO, *args: str, check: int = 0, **env: str) -> tuple[StoredRun, str]:
    """A whole run of a scenario: what it stored, and all that it printed."""
    done = mtpbench("run", write(folder, text), "--no-page", *args, cwd=folder, check=check, **env)
    return load_run(only_run(folder)), done.stdout + done.stderr
