"""Inside an image of SGLang: what is there, and what would make a night of measuring fail hours later.

Nothing of the image's is imported. Asked are its interpreter's metadata, device nodes and folders.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.machine.fingerprint import packages

_KFD, _DRI, _SHM = Path("/dev/kfd"), Path("/dev/dri"), Path("/dev/shm")
_LEAST_SHM_GB = 8  # RCCL's buffers; docker's own default is 64 MB, SGLang's CI gives 32 GB
_LEAST_FREE_GB = 20
# AMD's package is `amd-aiter` on PyPI; plain `aiter` there is something else. AMD's has its operators in aiter/ops.
_ASK_AITER = """
import importlib.util, json, os
spec = importlib.util.find_spec("aiter")
folder = os.path.dirname(spec.origin) if spec and spec.origin else ""
print(json.dumps([bool(spec), os.path.isdir(os.path.join(folder, "ops"))]))
"""


@dataclass(frozen=True)
class Inside:
    """What was seen. `problems`: sentences, each ending with what to do."""

    facts: dict[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def inspect_image(python: str, need_gpu: bool = True, environment: Mapping[str, str] = os.environ) -> Inside:
    """Looks around for servers that `python` is to run."""
    found = packages((python,))
    facts = {"interpreter": shutil.which(python) or python, **found}
    facts["image"] = environment.get("MTPBENCH_IMAGE", "not said: set MTPBENCH_IMAGE")
    facts["GPUs"] = str(len(list(_DRI.glob("renderD*")))) if _DRI.is_dir() else "0"
    facts["/dev/shm"] = f"{_gigabytes(_SHM, free=False):.0f} GB"
    cache = environment.get("HF_HOME", "")
    if cache:
        facts["model cache"] = f"{cache}, {_gigabytes(Path(cache), free=True):.0f} GB free"
    return Inside(facts, tuple(_problems(python, found, need_gpu, cache)))


def _problems(python: str, found: Mapping[str, str], need_gpu: bool, cache: str) -> Iterator[str]:
    if not found:
        yield f"{python} can't be run: name the image's interpreter with --python"
        return
    if "sglang" not in found:
        yield f"{python} has no SGLang: name the interpreter that has it with --python"
    there, right = _aiter(python)
    if there and not right:
        yield "the package `aiter` here is not AMD's: pip uninstall aiter, then pip install amd-aiter"
    if not there and need_gpu and "sglang" in found:
        yield "AITER is not there: ROCm images of SGLang have it; on PyPI it is called amd-aiter"
    if need_gpu and not os.access(_KFD, os.R_OK | os.W_OK):
        yield f"{_KFD} can't be opened: start the container with --device=/dev/kfd and its group"
    if need_gpu and not (_DRI.is_dir() and any(_DRI.glob("renderD*"))):
        yield f"no GPU in {_DRI}: start the container with the pod's render devices, or --device=/dev/dri"
    if need_gpu and _gigabytes(_SHM, free=False) < _LEAST_SHM_GB:
        yield f"/dev/shm has {_gigabytes(_SHM, free=False):.1f} GB: start the container with --shm-size=32g"
    if cache and not os.access(cache, os.W_OK):
        yield f"HF_HOME={cache} can't be written: mount the model cache there"
    elif cache and _gigabytes(Path(cache), free=True) < _LEAST_FREE_GB:
        yield f"HF_HOME={cache} has {_gigabytes(Path(cache), free=True):.0f} GB free: what is fetched must fit"


def _aiter(python: str) -> tuple[bool, bool]:
    """Is an `aiter` there, and is it AMD's?"""
    try:
        done = subprocess.run(
            [python, "-c", _ASK_AITER], capture_output=True, text=True, timeout=30, check=False, cwd="/"
        )
        there, right = json.loads(done.stdout)
    except (OSError, ValueError, TypeError, subprocess.TimeoutExpired):
        return False, False
    return bool(there), bool(right)


def _gigabytes(folder: Path, free: bool) -> float:
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return 0.0
    return (usage.free if free else usage.total) / 1e9
