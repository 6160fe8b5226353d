"""Without a GPU the kernels run under Triton's interpreter, which must be set before the import.

Without torch, or without Triton, what needs it is left out; the header of the run says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from kernel.tests.compilers import HAS_TRITON, compiler, stop_compilers

NEEDS_TORCH = [
    "test_attention.py", "test_bench.py", "test_checks.py", "test_full_size.py", "test_hopper.py",
    "test_sglang_plugin.py",
]  # fmt: skip
HAS_TORCH = HAS_TRITON and find_spec("torch") is not None
collect_ignore = [] if HAS_TORCH else NEEDS_TORCH

if HAS_TORCH:
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"
        from kernel.tests.interpreter import quicken

        quicken()


def pytest_report_header() -> list[str]:
    """What is left out."""
    missing = "triton is" if not HAS_TRITON else "torch is" if not HAS_TORCH else ""
    return [f"kernel: {missing} not installed, so {', '.join(NEEDS_TORCH)} are left out"] if missing else []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes minutes unless it was asked for by its marker."""
    if "every_kernel" in (config.option.markexpr or ""):
        return
    for item in items:
        if item.get_closest_marker("every_kernel"):
            item.add_marker(pytest.mark.skip(reason="takes minutes: pytest kernel/tests -m every_kernel"))


@pytest.fixture(scope="session")
def listings_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where this session's listings go."""
    return tmp_path_factory.mktemp("listings")


@pytest.fixture(scope="session", autouse=True)
def _early(request: pytest.FixtureRequest) -> Iterator[None]:
    """Start the compilers that a test needs while the interpreter keeps this core busy.

    Not in a worker of pytest-xdist: its siblings do keep the other cores busy.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ and HAS_TRITON:
        names = {item.originalname for item in request.session.items if isinstance(item, pytest.Function)}
        folder = request.getfixturevalue("listings_folder")
        if names & {"test_every_configuration_ships", "test_a_short_call"}:
            compiler(folder, "gfx950")
        if "test_every_configuration_ships" in names:
            compiler(folder, "sm_90")
    yield
    stop_compilers()
