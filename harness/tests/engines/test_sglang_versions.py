"""What each version of SGLang accepts, and that the MI355X scenarios keep to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.engines.sglang_settings import SglangSettings
from harness.engines.sglang_versions import version_of_image, versions
from harness.scenario import yaml_file

FOLDER = Path(__file__).parents[3] / "scenarios"
SCENARIOS = [
    *sorted(FOLDER.glob("mi355x-*.yaml")),
    *sorted(FOLDER.glob("c16-*.yaml")),
]  # h200-c16 is for another machine


def test_versions_are_told_apart() -> None:
    known = versions()
    assert {"0.5.19", "0.5.20", "0.5.23"} <= known.keys()
    newest = known["0.5.23"]
    assert newest.problems(["attention-backend", "page-size"]) == []
    [(key, why)] = newest.problems(["attention-backends"])
    assert key == "flags.attention-backends"
    assert "did you mean 'attention-backend'?" in why
    assert newest.unread(["SGLANG_USE_AITER", "SGLANG_NO_SUCH_THING", "HIP_VISIBLE_DEVICES"]) == [
        "SGLANG_NO_SUCH_THING"
    ]


def test_the_assembly_switch_came_after_0_5_19() -> None:
    known = versions()
    assert known["0.5.19"].unread(["SGLANG_ASM_VERIFY_ATTN"]) == ["SGLANG_ASM_VERIFY_ATTN"]
    assert known["0.5.23"].unread(["SGLANG_ASM_VERIFY_ATTN"]) == []


def test_an_image_names_its_version() -> None:
    assert version_of_image("lmsysorg/sglang:v0.5.19-rocm720-mi35x-20260908") == "0.5.19"
    assert version_of_image("lmsysorg/sglang:latest") == ""


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_a_scenarios_flags_exist_in_its_version(path: Path) -> None:
    loaded = yaml_file.load(path)
    for arm in loaded.resolved_arms():
        settings = arm.server
        assert isinstance(settings, SglangSettings)
        assert settings.version in versions(), "an MI355X scenario names the version that it is for"
        assert settings.gpu_vendor == "amd"
        if settings.container is not None and settings.container.image:
            assert version_of_image(settings.container.image) == settings.version
        version = versions()[settings.version]
        assert version.problems(settings.flags) == []
        assert version.unread(settings.env) == []


def test_every_version_that_scenarios_are_for_is_among_them() -> None:
    named = {getattr(yaml_file.load(path).server, "version", "") for path in SCENARIOS}
    assert named == {"0.5.19", "0.5.20", "0.5.23"}
