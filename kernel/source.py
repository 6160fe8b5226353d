"""Which kernel is this?  A hash of its source files, for runs to carry."""

from __future__ import annotations

import hashlib
from pathlib import Path

ROOT = Path(__file__).resolve().parent


def source_files(root: Path = ROOT) -> list[Path]:
    """Python files below ``root``, tests left out, in a stable order."""
    return [path for path in sorted(root.rglob("*.py")) if "tests" not in path.relative_to(root).parts]


def source_hash(root: Path = ROOT) -> str:
    """Of all source files and their places: 16 hex digits."""
    digest = hashlib.sha256()
    for path in source_files(root):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
