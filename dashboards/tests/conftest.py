"""What the tests of pages share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the script bundle is kept: making it takes seconds."""
    return tmp_path_factory.mktemp("cache")
