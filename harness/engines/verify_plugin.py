"""A folder that makes a server find the verify kernel: its sources and the entry point that SGLang looks for.

The server's interpreter is often not ours (a container, another environment), so nothing is installed there:
the folder goes in front of its PYTHONPATH. It holds a copy and not a link, because a container sees only what
is mounted, and it is named after its content, so that two trees side by side never share one.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from kernel.source import ROOT, source_files, source_hash

_METADATA = "Metadata-Version: 2.1\nName: mtpbench-verify-plugin\nVersion: 0\n"
_ENTRY_POINTS = "[sglang.srt.plugins]\nmtpbench-verify = kernel.sglang_plugin:register\n"


def plugin_folder(cache_dir: Path, root: Path = ROOT) -> Path:
    """The folder for the kernel in `root`, made on first use, whole or not at all."""
    folder = cache_dir / f"verify-plugin-{source_hash(root)}"
    if folder.exists():
        return folder
    cache_dir.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=folder.name, dir=cache_dir))
    for path in source_files(root):
        target = partial / "kernel" / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    described = partial / "mtpbench_verify_plugin-0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(_METADATA, encoding="utf-8")
    (described / "entry_points.txt").write_text(_ENTRY_POINTS, encoding="utf-8")
    partial.chmod(0o755)
    try:
        partial.rename(folder)
    except OSError:  # another process was quicker
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def python_path(folder: Path, inherited: str) -> str:
    """The server's PYTHONPATH: ours first, so that no other `kernel` is found before it."""
    return os.pathsep.join(filter(None, [str(folder), inherited]))
