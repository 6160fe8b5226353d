"""The newest image each night: its series goes on, and an alert's A/B is between the two images on one host."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from harness.ab.checkout import resolve
from harness.nightly import images
from harness.nightly.told import Status
from harness.scenario import yaml_file
from harness.store.ab_record import Party
from harness.store.archive import Kept
from harness.store.runs import StoredRun
from harness.tests.nightly.test_trend import FIRST, ab, commit, judged, nights, told

OLD, NEW = (f"rocm/sgl-dev:v0.5.{n}-rocm720-mi35x-2026010{n}@sha256:{str(n) * 64}" for n in (1, 2))
SETTLE = f"mtpbench ab runs/r{FIRST + timedelta(20)}/scenario.yaml"


def stored(before: str, after: str, kernel: str = "k") -> list[StoredRun]:
    """Twenty nights of one image, the next of another, on which it got slower; SGLang's commit changed with it."""
    values = nights([10.0] * 20 + [11.0])
    out = []
    for number, run in enumerate(values):
        new = number == 20
        here = {**run.environment, "image": after if new else before, "kernel_hash": kernel if new else "k"}
        packages = {"sglang-commit": commit(number // 20), "aiter-commit": commit(number // 20)}
        launches = tuple(replace(launch, packages=packages) for launch in run.launches)
        out.append(replace(run, environment=here, launches=launches))
    return out


def test_a_series_goes_on_over_images_and_its_alert_is_settled_between_them() -> None:
    [one] = told(stored(OLD, NEW))
    assert len(one.series.nights) == 21
    assert (
        one.command == f"mtpbench ab runs/r{FIRST + timedelta(20)}/scenario.yaml --base image:{OLD} --head image:{NEW}"
    )
    scenario = yaml_file.load(Path(__file__).parents[3] / "scenarios" / "mi355x-qwen35-fp8-tp2.yaml")
    sides = [resolve(f"image:{image}", scenario) for image in (OLD, NEW)]
    assert [side.changes["container"]["image"] for side in sides] == [OLD, NEW]


def test_the_stored_ab_of_two_images_settles_their_alert() -> None:
    def between(base: str, head: str, factor: float) -> Kept:
        found = ab(19, 20, factor)
        assert found.session is not None
        parties = (Party(f"image:{image}", "image") for image in (base, head))
        return replace(found, session=replace(found.session, base=next(parties), head=next(parties)))

    runs = stored(OLD, NEW)
    assert judged(runs).status is Status.ALERT
    closed = judged(runs, between(OLD, NEW, 1.0))
    assert closed.status is Status.OK
    assert "says PASS, so the host a did, not the image" in closed.sentence
    assert judged(runs, between(OLD, NEW, 1.1)).status is Status.REGRESSED
    assert judged(runs, between(NEW, OLD, 1.1)).status is Status.ALERT  # another question


@pytest.mark.parametrize(
    ("before", "after", "kernel"),
    [
        (OLD, OLD, "k"),
        ("rocm/sgl-dev:latest", NEW, "k"),  # a tag may have moved since: nobody can run that night's image again
        (OLD, NEW, "another"),  # two things changed; images alone would not tell
    ],
)
def test_what_is_no_question_between_two_images(before: str, after: str, kernel: str) -> None:
    [one] = told(stored(before, after, kernel))
    assert (
        one.command
        == f"mtpbench ab runs/r{FIRST + timedelta(20)}/scenario.yaml --base {commit(19)} --head {commit(20)}"
    )
    assert images.sides(*one.series.nights[-2:]) is None
