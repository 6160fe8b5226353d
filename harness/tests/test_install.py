"""What installing does to a machine: a ROCm image's packages stay, and `.venv` is made anew where it has to be."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
# As SGLang's ROCm images have them; numpy and pandas as old as those of 2025. Stand-ins hold metadata alone.
IMAGE = {"torch": "2.9.1+rocm7.2", "triton": "3.7.1", "numpy": "1.26.4", "pandas": "2.2.3", "sglang": "0.5.23"}


def stand_in(folder: Path, name: str, version: str) -> Path:
    """A wheel of that name and version with nothing in it."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: mtpbench\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(text)}\n"
    files[f"{info}/RECORD"] = record + f"{info}/RECORD,,\n"
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return wheel


def pip(python: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """This environment's pip on another one, which needs none of its own."""
    command = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", *arguments]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=110)


def test_the_base_install_replaces_nothing_in_a_rocm_image(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "image"], check=True)
    python = tmp_path / "image" / "bin" / "python"
    wheels = [stand_in(tmp_path, name, version) for name, version in IMAGE.items()]
    assert pip(python, "install", "--no-index", *wheels).returncode == 0
    listed = json.loads(pip(python, "list", "--format", "json").stdout)
    assert {package["name"]: package["version"] for package in listed} == IMAGE

    # With what is there as constraints, as docs/arms.md says: a resolver told of nothing takes the newest scipy,
    # and on a Python of which that one wants a newer numpy, that numpy too.
    constraints = tmp_path / "image.txt"
    constraints.write_text("".join(f"{name}=={version}\n" for name, version in IMAGE.items()))
    base = [line for line in metadata.requires("mtpbench") or [] if "extra ==" not in line]
    report = tmp_path / "report.json"
    done = pip(python, "install", "--quiet", "--dry-run", "--report", report, "--constraint", constraints, *base)
    if done.returncode != 0 and "No matching distribution" in done.stderr:
        pytest.skip("no package index can be reached: nothing can be resolved")
    assert done.returncode == 0, done.stderr
    installed = {p["metadata"]["name"].lower() for p in json.loads(report.read_text())["install"]}
    assert {"pyarrow", "scipy"} <= installed
    assert installed & IMAGE.keys() == set()  # named here is what would be replaced


def install(clone: Path, what: str = "demo", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, clone / "ci" / "install.py", what],
        capture_output=True, text=True, timeout=110, env={**os.environ, **environment},
    )  # fmt: skip


def installer_of(clone: Path) -> ModuleType:
    """`ci/install.py` of a checkout, as a module."""
    spec = importlib.util.spec_from_file_location("install", clone / "ci" / "install.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def why_anew(clone: Path) -> str | None:
    return installer_of(clone).broken(platform.python_version())  # type: ignore[no-any-return]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A checkout of a project without dependencies, with our way to install it."""
    root = tmp_path / "clone"
    (root / "ci").mkdir(parents=True)
    shutil.copy(ROOT / "ci" / "install.py", root / "ci")
    (root / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "empty"\nversion = "1"\n[project.optional-dependencies]\nembedded = []\n'
    )
    shutil.copy(stand_in(tmp_path, "empty", "1"), root / "empty-1-py3-none-any.whl")
    (root / "backend.py").write_text(
        "import shutil\n"
        "def build_editable(folder, config_settings=None, metadata_directory=None):\n"
        "    shutil.copy('empty-1-py3-none-any.whl', folder)\n"
        "    return 'empty-1-py3-none-any.whl'\n"
    )
    return root


def test_a_venv_is_made_once_and_anew_where_it_can_not_serve(clone: Path) -> None:
    first = install(clone)
    assert first.returncode == 0, first.stderr
    assert "Installing mtpbench[embedded]" in first.stdout
    assert install(clone).stdout == ""  # nothing changed: nothing is done
    (clone / "pyproject.toml").write_text((clone / "pyproject.toml").read_text() + "\n")
    assert "Installing" in install(clone).stdout

    marker = clone / ".venv" / "installed.json"
    state = json.loads(marker.read_text())
    marker.write_text(json.dumps({**state, "python": "3.9.1"}))
    assert why_anew(clone) == "it holds Python 3.9.1, and this is " + platform.python_version()
    marker.unlink()  # as where the first attempt was interrupted
    assert why_anew(clone) == "it is half made"
    marker.write_text(json.dumps(state))
    assert why_anew(clone) is None
    (clone / ".venv" / "bin" / "python").unlink()
    (clone / ".venv" / "bin" / "python").symlink_to("/nowhere/python")
    assert why_anew(clone) == "it is half made"
    again = install(clone)
    assert ".venv is made anew: it is half made" in again.stdout
    assert again.returncode == 0, again.stderr


def test_a_failed_install_is_said_and_tried_again(clone: Path) -> None:
    backend = (clone / "backend.py").read_text()
    (clone / "backend.py").write_text("raise RuntimeError('no way')\n")
    failed = install(clone)
    assert failed.returncode == 1
    assert failed.stderr.rstrip().endswith("what it printed above says why.")
    (clone / "backend.py").write_text(backend)
    assert install(clone).returncode == 0


def test_a_python_that_is_too_old_is_told_what_to_type(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.18"\nexit 1\n')
    old.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}  # of an outer make
    command = ["make", "demo", f"PYTHON={old}"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    first = done.stderr.splitlines()[0]
    assert first.startswith("Python 3.9.18 is too old: Python 3.10 or newer is needed (make demo PYTHON=python3.1")


def test_lower_bounds_are_what_the_installer_reads() -> None:
    installer = installer_of(ROOT)
    assert installer.requirement("torch").startswith("torch>=")
    with pytest.raises(LookupError, match="does not name nothing"):
        installer.requirement("nothing")
