"""The fingerprint of a run: everything outside the scenario on which its numbers depend, and no secrets.

A table of probes: a newcomer adds one entry. A probe that finds nothing returns None and is left out.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from harness import __version__
from harness.cores import usable_cores
from harness.machine.telemetry import Source
from harness.redact import harmless
from kernel.source import source_hash

_ENVIRONMENT = re.compile(
    r"^(AITER|AMD|CUDA|GPU|HF_HUB_OFFLINE|HIP|HSA|MTPBENCH|NCCL|OMP|PYTORCH|RCCL|ROCM|ROCR|SGLANG|TORCH|TRITON)(_|$)"
)
# Packages whose version can change a result, under all the names that they have had.
_PACKAGES = [
    "sglang",
    "sglang-kernel",
    "sgl-kernel",
    "aiter",
    "amd-aiter",
    "triton",
    "pytorch-triton-rocm",
    "torch",
    "flashinfer-python",
    "transformers",
    "numpy",
    "xllamacpp",
]
# Commits: images of SGLang install it, and AITER, from checkouts; a version alone does not say which state it was.
_ASK_PACKAGES = """
import importlib.util, json, os, platform, subprocess, sys
from importlib import metadata
found = {"python": platform.python_version()}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
for name in ("sglang", "aiter"):
    try:
        origin = importlib.util.find_spec(name).origin
        asked = ["git", "-c", "safe.directory=*", "-C", os.path.dirname(origin), "rev-parse", "HEAD"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=10)
        if done.returncode == 0 and "site-packages" not in origin:
            found[name + "-commit"] = done.stdout.strip()
    except Exception:
        pass
print(json.dumps(found))
"""


def packages(interpreter: tuple[str, ...]) -> dict[str, str]:
    """Versions in a server's own interpreter, asked without importing any package; empty where it can't run."""
    if not interpreter:
        return {}
    text = _output([*interpreter, "-c", _ASK_PACKAGES, *_PACKAGES])
    try:
        answer = json.loads(text or "{}")
    except ValueError:
        return {}
    return {str(key): str(value) for key, value in answer.items()}


def image_digest(runtime: str, image: str) -> str | None:
    """The content digest of a container image: a tag may move."""
    return _output([runtime, "image", "inspect", "--format", "{{.Id}}", image])


def image_python_path(runtime: str, image: str) -> str:
    """The PYTHONPATH that an image sets (ROCm images of SGLang find AITER by it); empty if none or not pulled yet."""
    text = _output([runtime, "image", "inspect", "--format", "{{json .Config.Env}}", image])
    try:
        variables = json.loads(text or "[]") or []
    except ValueError:
        return ""
    return next((v.removeprefix("PYTHONPATH=") for v in variables if str(v).startswith("PYTHONPATH=")), "")


def fingerprint(source: Source | None) -> dict[str, Any]:
    """All probes that find something."""
    found = {name: probe() for name, probe in _PROBES.items()}
    found["gpus"] = source.inventory() if source else None
    return {name: value for name, value in found.items() if value not in (None, "", {}, [])}


def _output(command: list[str], cwd: Path | None = None) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, cwd=cwd)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def repository() -> Path:
    return Path(__file__).resolve().parents[2]


def commit_here() -> str | None:
    # In a container the checkout is somebody else's, which git would refuse to look at.
    git = ["git", "-c", f"safe.directory={repository()}"]
    commit = _output([*git, "rev-parse", "HEAD"], repository())
    if not commit:
        return None
    return f"{commit}-dirty" if _output([*git, "status", "--porcelain"], repository()) else commit


def _first_line(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()[0].strip()
    except (OSError, IndexError):
        return None


def _cpu() -> str | None:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or None
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1] if match else platform.processor() or None


def _variables() -> Mapping[str, str]:
    return harmless({key: value for key, value in os.environ.items() if _ENVIRONMENT.match(key)})


def host_name() -> str:
    """MTPBENCH_HOST names a host where its own name is not to be published or changes at every boot."""
    return os.environ.get("MTPBENCH_HOST") or platform.node()


_PROBES: dict[str, Callable[[], Any]] = {
    "host": host_name,
    "os": lambda: f"{platform.system()} {platform.release()}",
    "cpu": _cpu,
    "cores": usable_cores,
    "host_cores": lambda: os.cpu_count() if os.cpu_count() != usable_cores() else None,
    "memory_gb": lambda: round(psutil.virtual_memory().total / 2**30),
    # What MTPBENCH_IMAGE says where this runs inside an image, which can't tell by itself: NAME@sha256:…
    "image": lambda: os.environ.get("MTPBENCH_IMAGE"),
    "rocm": lambda: _first_line("/opt/rocm/.info/version"),
    "mtpbench": lambda: __version__,
    "commit": commit_here,
    "kernel_hash": source_hash,
    "variables": _variables,
}
