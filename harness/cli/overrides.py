"""What the command line changes in a scenario before it is run: the image of its containers, and which arms it has."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from harness.errors import MtpbenchError
from harness.fields import Container
from harness.scenario.format import Scenario

NO_CONTAINER = "none"
_SERVER_PYTHON = "MTPBENCH_SERVER_PYTHON"  # the interpreter that has SGLang, where servers run without a container
_DIGEST = re.compile(r"^[^\s@]+@sha256:[0-9a-f]{64}$")

# Of a scenario that names no image, run in one all the same: weights stay on the host, RCCL has its buffers.
_CONTAINER = Container(
    image="none",
    shm_size="32g",
    mounts=["/root/.cache/huggingface:/root/.cache/huggingface"],
    pass_env=["HF_TOKEN"],
)


def from_image(scenario: Scenario, image: str) -> Scenario:
    """The scenario with its containers' image replaced. Raises MtpbenchError for a tag, which may move."""
    if not image:
        return scenario
    if image == NO_CONTAINER:
        return _without_container(scenario)
    if not _DIGEST.match(image):
        raise MtpbenchError(
            f"--image {image!r} is not pinned by a digest", "NAME@sha256:…, as `docker pull` prints it."
        )
    if not hasattr(scenario.server, "container"):
        raise MtpbenchError(f"{scenario.name} runs no container", "Leave out --image.")
    container = scenario.server.container or _CONTAINER
    server = scenario.server.model_copy(update={"container": container.model_copy(update={"image": image})})
    return scenario.model_copy(update={"server": server})


def _without_container(scenario: Scenario) -> Scenario:
    """The scenario's servers on this machine, which may be inside an image itself, with that image's interpreter."""
    server = scenario.server
    update: dict[str, Any] = {"container": None} if getattr(server, "container", None) else {}
    python = os.environ.get(_SERVER_PYTHON)
    if python and hasattr(server, "python") and not server.python:
        update["python"] = python
    arms = {
        name: {key: value for key, value in changes.items() if key != "container"}
        for name, changes in scenario.arms.items()
    }
    return scenario.model_copy(update={"server": server.model_copy(update=update), "arms": arms})


def only_arms(scenario: Scenario, names: Sequence[str]) -> Scenario:
    """The scenario with some of its arms, in its own order; all of them where none is named."""
    for name in names:
        if name not in scenario.arms:
            raise MtpbenchError(f"{scenario.name} has no arm {name!r}", f"It has: {', '.join(scenario.arms)}")
    if not names:
        return scenario
    arms = {name: changes for name, changes in scenario.arms.items() if name in names}
    baseline = scenario.baseline if scenario.baseline in arms else None
    return scenario.model_copy(update={"arms": arms, "baseline": baseline})
