"""Without a GPU the kernels run under Triton's interpreter, which must be set before the import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    from kernel.tests.interpreter import quicken

    quicken()

_compilers: dict[str, subprocess.Popen[str]] = {}


def _compile(arch: str) -> subprocess.Popen[str]:
    """A process of its own, because the interpreter replaces the compiler in this one."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    # Triton 3.9 warns when this is unset; the value is what 3.9 does anyway.
    environment["TRITON_DEFAULT_FP_FUSION"] = "1"
    if arch not in _compilers:
        _compilers[arch] = subprocess.Popen(
            [sys.executable, "-m", "kernel.offline", "--arch", arch, "--sample", "--json"],
            cwd=Path(__file__).resolve().parents[2],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
    return _compilers[arch]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the compilers that a test needs while the interpreter keeps this core busy.

    Not in a worker of pytest-xdist: its siblings do keep the other cores busy.
    """
    if session.config.option.collectonly or "PYTEST_XDIST_WORKER" in os.environ:
        return
    for item in session.items:
        if "offline_report" in getattr(item, "fixturenames", ()):
            _compile(item.callspec.params["arch"])  # type: ignore[attr-defined]


def pytest_sessionfinish() -> None:
    """Leave no compiler behind when the session ends early."""
    for process in _compilers.values():
        process.kill()
        process.wait()


@pytest.fixture
def offline_report(arch: str) -> str:
    """JSON of :mod:`kernel.offline` for the test's ``arch``."""
    return _compile(arch).communicate(timeout=300)[0]
