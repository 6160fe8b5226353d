"""A ref as a person writes it → where its server comes from. A git ref gets a worktree, removed at the end."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import MtpbenchError
from harness.machine.fingerprint import commit_here, repository
from harness.run.launcher import Place
from harness.scenario.format import Scenario
from harness.store.ab_record import Party
from kernel.source import source_hash

HERE = "."
REF_HELP = (
    "a git ref of this repository, `.` (this working tree), `arm:NAME` of the scenario, `env:FOLDER` (another Python "
    "environment with SGLang) or `image:REFERENCE` (a container image)"
)
# Asks an interpreter which kernel it would import, without importing it.
_ASK_KERNEL = "import importlib.util, json; print(json.dumps(importlib.util.find_spec('kernel').origin))"


@dataclass(frozen=True)
class Origin:
    """A resolved ref: what an arm changes in `server`, and where its process is started (None: here)."""

    party: Party
    changes: dict[str, Any] = field(default_factory=dict)
    commit: str | None = None  # to check out
    python: str | None = None
    allowed: tuple[str, ...] = ()  # facts that differ because of it


def resolve(ref: str, scenario: Scenario) -> Origin:
    """What a ref means for a scenario. Raises MtpbenchError that says what is wrong with it."""
    kind, colon, value = ref.partition(":")
    engine = scenario.server.engine
    if colon and kind == "arm":
        if value not in scenario.arms:
            raise MtpbenchError(f"the scenario has no arm {value!r}", f"It has: {', '.join(scenario.arms)}")
        return Origin(Party(ref, "arm"), allowed=("server", "packages"))
    if engine == "attach":
        raise MtpbenchError(
            "a server that runs already is the same on both sides", "Compare two arms with their own url: --base arm:A"
        )
    if colon and kind == "env":
        return _environment(ref, value, engine)
    if colon and kind == "image":
        if engine != "sglang" or not value:
            raise MtpbenchError(f"{ref}: images are for the engine sglang, and need a reference", f"Use {REF_HELP}.")
        changes = {"container": {"image": value}}
        return Origin(Party(ref, "image"), changes, allowed=("packages", "server.container"))
    if ref == HERE:
        return Origin(Party(ref, "tree", commit_here() or "", source_hash()))
    return Origin(Party(ref, "git", commit := _commit(ref)), commit=commit)


def _environment(ref: str, folder: str, engine: str) -> Origin:
    path = Path(folder).expanduser().absolute()
    python = path if path.is_file() else path / "bin" / "python"
    if not python.is_file():
        raise MtpbenchError(f"{ref}: {python} is no interpreter", "Name a virtual environment's folder.")
    party, allowed = Party(ref, "env"), ("packages",)
    if engine == "sglang":
        return Origin(party, {"python": str(python)}, allowed=allowed)
    return Origin(party, python=str(python), allowed=allowed)


def _commit(ref: str) -> str:
    done = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    if done.returncode:
        raise MtpbenchError(
            f"{ref!r} is no git ref in {repository()}: {done.stderr.strip() or 'unknown'}", f"A side is {REF_HELP}."
        )
    return done.stdout.strip()


def _git(*args: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["git", *args], cwd=repository(), capture_output=True, text=True, timeout=120, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MtpbenchError(f"git {args[0]} failed: {error}", "A git ref needs git and a checkout.") from error


@contextlib.contextmanager
def places(origins: dict[str, Origin]) -> Iterator[dict[str, Place]]:
    """Checks out what is needed: name of a side → where its servers start; those not named start as in any run.

    The harness that measures is this one on both sides; the servers, the kernel and its plug-in are the checkout's.
    """
    folder = Path(tempfile.mkdtemp(prefix="mtpbench-ab-"))
    made: list[Path] = []
    try:
        _git("worktree", "prune")
        out = {}
        for name, origin in origins.items():
            if origin.commit:
                path = folder / name
                done = _git("worktree", "add", "--detach", str(path), origin.commit)
                if done.returncode:
                    raise MtpbenchError(f"can't check out {origin.party.ref}: {done.stderr.strip()}")
                made.append(path)
                out[name] = Place(path, origin.python)
            elif origin.python or origin.party.kind == "tree":
                out[name] = Place(repository(), origin.python)
        yield out
    finally:
        for path in made:
            _git("worktree", "remove", "--force", str(path))
        shutil.rmtree(folder, ignore_errors=True)


def checked(party: Party, place: Place, python: str) -> Party:
    """The party with its kernel's hash. Raises MtpbenchError where its Python would import another checkout's kernel:
    the same code would be measured twice."""
    command = [place.python or python, "-c", _ASK_KERNEL]
    env = {"PYTHONPATH": str(place.checkout), "PATH": "/usr/bin:/bin"}
    try:
        done = subprocess.run(
            command, cwd=place.checkout, env=env, capture_output=True, text=True, timeout=60, check=False
        )
        origin = Path(json.loads(done.stdout)) if done.returncode == 0 else None
    except (OSError, ValueError, TypeError, subprocess.TimeoutExpired):
        origin = None
    if origin is None or not origin.resolve().is_relative_to(place.checkout.resolve()):
        raise MtpbenchError(
            f"{party.ref}: {command[0]} does not import the kernel of its checkout but {origin}",
            "An installed kernel package hides it: uninstall that, or install this repository with `pip install -e`.",
        )
    return Party(party.ref, party.kind, party.commit, source_hash(origin.resolve().parent))
