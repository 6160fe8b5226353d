"""Compiles for a device that is not there, in a process of its own: the interpreter replaces the compiler in this one.

With another Triton than the installed one, too: its wheel goes to a cache folder, by itself, once.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

HAS_TRITON = find_spec("triton") is not None
INSTALLED = "installed"
# What SGLang's ROCm images carry (3.7, 3.8), and the newest.
VERSIONS = ("3.7.1", "3.8.0", "3.9.0")
ROOT = Path(__file__).resolve().parents[2]


class NoTriton(Exception):
    """A version that can't be had here."""


def cache_folder() -> Path:
    """Where other Tritons lie: ``$MTPBENCH_TRITONS``, or a folder of the user's cache."""
    chosen = os.environ.get("MTPBENCH_TRITONS")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mtpbench" / "tritons"


@functools.cache
def triton_path(version: str) -> Path | None:
    """A folder to put first on ``PYTHONPATH``; None for the installed Triton.

    Raises:
        NoTriton: there is no wheel for this Python, or no way to get it.
    """
    if version == INSTALLED:
        return None
    folder = cache_folder() / f"triton-{version}-py{sys.version_info.major}{sys.version_info.minor}"
    if not (folder / "triton").is_dir():
        unfinished = folder.with_suffix(f".{os.getpid()}")
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--only-binary", ":all:", "--target",
             str(unfinished), f"triton=={version}"],
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        if done.returncode:
            raise NoTriton(f"triton {version} can't be installed here: {done.stderr.strip()[-200:]}")
        try:
            unfinished.rename(folder)
        except OSError:  # another process was first
            if not (folder / "triton").is_dir():
                raise
    return folder


@dataclass(frozen=True)
class Report:
    """What ``python -m kernel.offline`` said.

    Attributes:
        rows: resources of each kernel.
        listings: folder of listings, for gfx950.
        exit_code: 1 if a kernel must not ship.
    """

    rows: list[dict[str, Any]]
    listings: Path
    exit_code: int

    def only(self, kernel: str, *words: str) -> list[dict[str, Any]]:
        """Rows of a kernel whose label has all these words."""
        return [row for row in self.rows if row["kernel"] == kernel and set(words) <= set(row["label"].split())]


class Compiler:
    """One run of the compiler, started at once and waited for when it is asked."""

    def __init__(self, arch: str, folder: Path, *options: str, version: str = INSTALLED) -> None:
        """Start it.

        Args:
            arch: ISA name.
            folder: for listings.
            options: of :mod:`kernel.offline`.
            version: of Triton.

        Raises:
            NoTriton: that version can't be had here.
        """
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        environment["TRITON_DEFAULT_FP_FUSION"] = "1"  # Triton 3.9 warns when this is unset; it is what it does anyway
        other = triton_path(version)
        if other is not None:
            environment["PYTHONPATH"] = str(other)
        listings = ["--listings", str(folder)] if arch.startswith("gfx") else []
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kernel.offline", "--arch", arch, "--json", *listings, *options],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @functools.cached_property
    def report(self) -> Report:
        """Its report.  Raises AssertionError with its last words if it broke."""
        out, error = self._process.communicate()
        assert self._process.returncode in (0, 1), error[-2000:]
        try:
            return Report(json.loads(out), self._folder, self._process.returncode)
        except json.JSONDecodeError:
            raise AssertionError(error[-2000:]) from None

    def stop(self) -> None:
        """Leave nothing behind."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


_running: dict[tuple[str, str, str], Compiler] = {}


def compiler(folder: Path, arch: str, options: str = "--sample", version: str = INSTALLED) -> Compiler:
    """A run of the compiler, one for a session."""
    if not HAS_TRITON:
        pytest.skip("triton is not installed")
    key = (arch, options, version)
    if key not in _running:
        try:
            _running[key] = Compiler(arch, folder / "-".join(key).replace(" ", ""), *options.split(), version=version)
        except NoTriton as error:
            pytest.skip(str(error))
    return _running[key]


def stop_compilers() -> None:
    """Leave none behind."""
    for running in _running.values():
        running.stop()
