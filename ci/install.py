"""Makes `.venv` ready for `make demo` or `make test`, and says before a large download how large it is.

`python ci/install.py demo|test`, from the checkout; the Makefile calls it each time, and where nothing changed it does
nothing. Standard library only, since it runs before anything is installed.

Environment:

- ``KERNEL=0``: without torch and triton; the kernel's tests then do not run.
- ``TORCH_INDEX``: where pip finds a CPU build of torch: the URL of an index, or a folder of wheels.
- ``RESOLUTION=lowest-direct``: the lowest versions that `pyproject.toml` allows, resolved by uv.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
MARKER = VENV / "installed.json"
#: What is installed for each command: extras of `pyproject.toml`.
EXTRAS = {"demo": "embedded", "test": "test"}
#: Seen with torch 2.15 on x86-64 Linux, with the CUDA libraries that it needs: what is fetched, and what lies on disk.
CUDA_BUILD = "about 2.5 GB to download, 6 GB on disk"


def main() -> int:
    what = sys.argv[1] if len(sys.argv) == 2 else ""
    if what not in EXTRAS:
        print("usage: python ci/install.py demo|test", file=sys.stderr)
        return 2
    try:
        environment()
        install(what)
    except subprocess.CalledProcessError as error:
        command = " ".join(str(part) for part in error.cmd)
        print(f"\nStopped: {command} ended with {error.returncode}; what it printed above says why.", file=sys.stderr)
        return 1
    return 0


def environment() -> None:
    """A `.venv` of this Python; one that another Python made, or that is half made, is made anew."""
    wanted = platform.python_version()
    if VENV.exists():
        why = broken(wanted)
        if why is None:
            return
        print(f".venv is made anew: {why}", flush=True)
        shutil.rmtree(VENV)
    base = getattr(sys, "_base_executable", sys.executable)  # not the one in the .venv that was just removed
    try:
        subprocess.run([base, "-m", "venv", str(VENV)], check=True)
    except subprocess.CalledProcessError:
        print("Debian and Ubuntu keep venv in a package of its own: apt install python3-venv", file=sys.stderr)
        shutil.rmtree(VENV, ignore_errors=True)
        raise
    note({"python": wanted, "installed": {}})


def broken(wanted: str) -> str | None:
    """Why `.venv` can't be used with this Python; None if it can."""
    try:
        has = json.loads(MARKER.read_text(encoding="utf-8"))["python"]
        works = (
            subprocess.run([str(PYTHON), "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0
        )
    except (OSError, ValueError, KeyError, TypeError):
        return "it is half made"
    if not works:
        return "its Python does not run"
    if has != wanted:
        return f"it holds Python {has}, and this is {wanted}"
    return None


def install(what: str) -> None:
    """This checkout with the extra of a command, where it is not there in just this form."""
    kernel = what == "test" and os.environ.get("KERNEL", "1") != "0"
    resolution = os.environ.get("RESOLUTION", "")
    settings = [hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest(), kernel, resolution]
    state = json.loads(MARKER.read_text(encoding="utf-8"))
    if state["installed"].get(what) == settings:
        return
    extras = EXTRAS[what] + (",kernel" if kernel else "")
    target = f".[{extras}]"
    print(f"Installing mtpbench[{extras}] into .venv …", flush=True)
    if kernel:
        torch_first(resolution)
    if resolution:
        pip("uv")
        uv = [str(VENV / "bin" / "uv"), "pip", "install", "--python", str(PYTHON), "--resolution", resolution]
        subprocess.run([*uv, "-e", target], check=True, cwd=ROOT)
    else:
        pip("-e", target)
    note({**state, "installed": {**state["installed"], what: settings}})


def torch_first(resolution: str) -> None:
    """A CPU build of torch where one is at hand; else a word on what a build with CUDA costs."""
    if subprocess.run([str(PYTHON), "-c", "import torch"], capture_output=True, check=False).returncode == 0:
        return  # a torch that is there already stays
    index = os.environ.get("TORCH_INDEX", "")
    if index:
        place = ["--no-index", "--find-links", index] if Path(index).is_dir() else ["--index-url", index]
        pip("--no-deps", *place, requirement("torch"))
    elif not resolution and (build := cpu_build()):
        pip("--no-deps", f"torch=={build}")
    elif sys.platform == "linux" and platform.machine() == "x86_64":
        print(
            f"torch from PyPI brings CUDA's libraries here: {CUDA_BUILD}. TORCH_INDEX=URL-or-folder takes a CPU\n"
            "build (0.2 GB; PyTorch's page on how to install names an index), and KERNEL=0 does without torch and\n"
            "without the tests that need it.",
            flush=True,
        )


def cpu_build() -> str | None:
    """The newest CPU build of torch that pip is told of by its own settings, as a version; None if there is none."""
    command = [str(PYTHON), "-m", "pip", "index", "versions", "torch"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    lowest = tuple(int(part) for part in re.findall(r"\d+", requirement("torch")))
    for version in re.findall(r"\d[\w.]*\+cpu\b", listed):
        if tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])) >= lowest:
            return str(version)
    return None


def requirement(name: str) -> str:
    """What `pyproject.toml` asks of a package, as pip takes it."""
    found = re.search(rf'"({re.escape(name)}[<>=!~][^";]*)', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    if found is None:
        raise LookupError(f"pyproject.toml does not name {name}")
    return found[1].strip()


def pip(*arguments: str) -> None:
    # --no-compile: byte code is made for what is imported, not for everything, which saves a quarter of the time.
    command = [str(PYTHON), "-m", "pip", "install", "-q", "--no-compile", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True, cwd=ROOT)


def note(state: dict[str, object]) -> None:
    MARKER.write_text(json.dumps(state), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
