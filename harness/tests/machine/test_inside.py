"""What is in the way of measuring inside an image: an interpreter, AITER, devices, folders."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness.machine import inside
from harness.machine.inside import inspect_image


def aiter_of(folder: Path, monkeypatch: pytest.MonkeyPatch, *parts: str) -> None:
    """A package called aiter that the interpreter finds."""
    for part in ("", *parts):
        (folder / "aiter" / part).mkdir(parents=True, exist_ok=True)
        (folder / "aiter" / part / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(folder))


def test_an_interpreter_that_is_none() -> None:
    seen = inspect_image("/no/such/python", need_gpu=False, environment={})
    assert seen.problems == ("/no/such/python can't be run: name the image's interpreter with --python",)


def test_an_interpreter_without_sglang() -> None:
    [problem] = inspect_image(sys.executable, need_gpu=False, environment={}).problems
    assert "has no SGLang" in problem


def test_the_package_that_is_called_aiter_is_not_amds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    aiter_of(tmp_path, monkeypatch)
    problems = inspect_image(sys.executable, need_gpu=False, environment={}).problems
    assert "the package `aiter` here is not AMD's: pip uninstall aiter, then pip install amd-aiter" in problems
    aiter_of(tmp_path, monkeypatch, "ops")
    assert not any("aiter" in one for one in inspect_image(sys.executable, need_gpu=False, environment={}).problems)


def test_devices_that_are_not_there_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inside, "_KFD", tmp_path / "kfd")
    monkeypatch.setattr(inside, "_DRI", tmp_path / "dri")
    monkeypatch.setattr(inside, "_SHM", tmp_path / "shm")
    seen = inspect_image(sys.executable, need_gpu=True, environment={})
    told = " ".join(seen.problems)
    assert "--device=/dev/kfd" in told
    assert "no GPU in" in told
    assert "--shm-size=32g" in told
    assert seen.facts["GPUs"] == "0"
    (tmp_path / "kfd").touch()
    for number in (128, 129):
        (tmp_path / "dri").mkdir(exist_ok=True)
        (tmp_path / "dri" / f"renderD{number}").touch()
    seen = inspect_image(sys.executable, need_gpu=True, environment={"MTPBENCH_IMAGE": "an-image"})
    assert "--device" not in " ".join(seen.problems)
    assert (seen.facts["GPUs"], seen.facts["image"]) == ("2", "an-image")


def test_a_model_cache_that_can_not_be_written(tmp_path: Path) -> None:
    environment = {"HF_HOME": str(tmp_path / "none")}
    told = inspect_image(sys.executable, need_gpu=False, environment=environment).problems
    assert any(one.endswith("can't be written: mount the model cache there") for one in told)
