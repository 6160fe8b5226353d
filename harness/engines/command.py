"""What is started: an argument list, an environment, how to clean up after it; docker or podman around it.

Builds arguments only; nothing is started here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from harness.errors import MtpbenchError
from harness.fields import Container

# Names the job of whose containers none may stay, however it ended: `ci/teardown.sh` removes those with its label.
JOB, LABEL = "MTPBENCH_JOB", "mtpbench.job"
# Where a pod of SGLang's CI finds which render devices are its own: other jobs have the rest of the host's.
POD_DEVICES = "MTPBENCH_POD_DEVICES"
_POD_DEVICES = "/etc/podinfo/gha-render-devices"
_NODE = re.compile(r"/dev/dri/(?:renderD|card)\d+")
# What ROCm needs to reach its GPUs: device nodes, their group, and ptrace for its debugger interfaces.
_AMD = (
    "--device=/dev/kfd",
    "--group-add=video",
    "--cap-add=SYS_PTRACE",
    "--security-opt=seccomp=unconfined",
)


@dataclass(frozen=True)
class Command:
    """A server to start. `cleanup` is run when it ends, for what killing the process leaves behind."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cleanup: tuple[str, ...] = ()
    inherit_env: tuple[str, ...] = ()  # names handed to a container, never recorded
    cwd: str | None = None  # where it is started; None: where mtpbench was
    grace_s: float = 10.0  # between SIGTERM and SIGKILL


def in_container(
    command: Command,
    container: Container,
    vendor: Literal["amd", "nvidia"],
    name: str,
    gpus: tuple[int, ...],
    mounts: Sequence[str] = (),
) -> Command:
    """`command` as a container that is removed when it ends, and by force at teardown.

    The container shares the host's network, so the server listens on the host's 127.0.0.1 only. Its
    environment is passed by value; the names in `pass_env` by name, so that secrets are in no argument list.
    """
    argv = [container.runtime, "run", "--rm", "--init", f"--name={name}", "--network=host"]
    if job := os.environ.get(JOB):
        argv.append(f"--label={LABEL}={job}")
    argv += [f"--shm-size={container.shm_size}", *_devices(container, vendor, gpus)]
    argv += [f"--volume={mount}" for mount in (*container.mounts, *mounts)]
    env = dict(command.env)
    if vendor == "nvidia":
        # Only the chosen GPUs are visible inside, and they are numbered from 0 there.
        env["CUDA_VISIBLE_DEVICES"] = ",".join(str(n) for n in range(len(gpus)))
    argv += [f"--env={key}={value}" for key, value in env.items()]
    argv += [f"--env={key}" for key in container.pass_env]
    argv += [*container.extra_args, f"--entrypoint={command.argv[0]}", container.image]
    return Command(
        tuple(argv) + command.argv[1:],
        cleanup=(container.runtime, "rm", "--force", name),
        inherit_env=tuple(container.pass_env),
        grace_s=command.grace_s,
    )


def render_devices() -> tuple[str, ...]:
    """The AMD GPUs that may be used: those of the pod's device file where there is one, else all of /dev/dri.

    The file holds docker's options or bare paths. Raises MtpbenchError where it names no device.
    """
    file = Path(os.environ.get(POD_DEVICES, _POD_DEVICES))
    if not file.is_file():
        return ("/dev/dri",)
    found = tuple(sorted(set(_NODE.findall(file.read_text(encoding="utf-8", errors="replace")))))
    if not found:
        raise MtpbenchError(f"{file} names no device of /dev/dri", "It says which GPUs are this pod's.")
    return found


def _devices(container: Container, vendor: str, gpus: tuple[int, ...]) -> list[str]:
    if vendor == "amd":
        return [*_AMD, *(f"--device={node}" for node in render_devices())]
    if container.runtime == "podman":
        return [f"--device=nvidia.com/gpu={gpu}" for gpu in gpus]
    # docker parses the value as CSV, hence the quotes inside.
    return ['--gpus="device=' + ",".join(map(str, gpus)) + '"']
