"""Can containers be reached from here? A stand-in for docker, whose containers are processes, some with no network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import mtpbench

from harness.engines.command import POD_DEVICES
from harness.machine.outside import unreachable

# `docker run … IMAGE -c CODE PORT FOLDER`: the last three words are the server's; FOLDER is what was mounted there.
DOCKER = """#!/usr/bin/env bash
echo "$*" >> "${0%/*}/calls"
case $1 in
version) [ ! -e "${0%/*}/no-daemon" ] || { echo "Cannot connect to the Docker daemon" >&2; exit 1; } ;;
image) [ ! -e "${0%/*}/no-image" ] ;;
pull) echo "manifest unknown" >&2; exit 1 ;;
run)
    [ ! -e "${0%/*}/broken" ] || { echo "no such device" >&2; exit 125; }
    for word in "$@"; do case $word in --volume=*) folder=${word#--volume=} ;; esac; done
    folder=${folder%%:*}
    [ ! -e "${0%/*}/other-host" ] || folder=$(mktemp -d)
    words=("${@: -4}")
    exec NETWORK PYTHON "${words[0]}" "${words[1]}" "${words[2]}" "$folder" ;;
esac
"""


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a stand-in whose containers share this machine's network."""
    install(tmp_path, "")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def install(folder: Path, network: str) -> None:
    (folder / "docker").write_text(DOCKER.replace("NETWORK", network).replace("PYTHON", sys.executable))
    (folder / "docker").chmod(0o755)


def test_a_container_that_can_be_reached(docker: Path) -> None:
    done = mtpbench("ci", "outside", "x@sha256:1", "--no-gpu", cwd=docker, check=0)
    assert "can be reached from here" in done.stdout
    *_, run, removed = (docker / "calls").read_text().splitlines()
    assert "--network=host" in run
    assert removed.startswith("rm --force mtpbench-outside-")


def test_a_container_of_another_network_is_told_in_seconds(docker: Path) -> None:
    """As in a pod whose containers are started by its host."""
    alone = "unshare --net bash -c 'ip link set lo up && exec \"$@\"' alone"
    try:
        subprocess.run(["unshare", "--net", "true"], check=True, capture_output=True, timeout=30)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespace may be made here: {error}")
    install(docker, alone)
    [problem] = unreachable("x", patience=4.0, need_gpu=False)
    assert "can't be reached on 127.0.0.1" in problem
    assert "ci/amd/container.sh" in problem
    assert mtpbench("ci", "outside", "x", "--no-gpu", "--patience", 1, cwd=docker).returncode == 1


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("no-daemon", "no daemon that answers (Cannot connect to the Docker daemon)"),
        ("no-image", "can't be pulled: manifest unknown"),
        ("broken", "does not start: no such device"),
        ("other-host", "the folders of this machine are not those of its containers"),
    ],
)
def test_what_is_in_the_way_is_told(docker: Path, fault: str, said: str) -> None:
    (docker / fault).touch()
    [problem] = unreachable("x", need_gpu=False)
    assert said in problem


def test_no_docker_and_a_device_file_without_devices(
    docker: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "devices").write_text("none\n")
    monkeypatch.setenv(POD_DEVICES, str(tmp_path / "devices"))
    assert "names no device of /dev/dri" in unreachable("x")[-1]
    (docker / "docker").unlink()
    monkeypatch.setenv("PATH", str(docker))
    [problem] = unreachable("x", need_gpu=False)
    assert problem.startswith("docker can't be run")
