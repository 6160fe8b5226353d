"""Containers that we start: can what is in them be reached from here? Asked in seconds, before a model is loaded.

In a Kubernetes pod whose docker is the host's, a container's network is the host's and not the pod's, and folders are
the host's too. A small container tries it out: it serves a page on a free port, and reads a file that we wrote.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from harness.engines.command import Command, in_container
from harness.engines.server import free_port
from harness.errors import MtpbenchError
from harness.fields import Container
from harness.http import ApiClient

_PULL_S = 1800.0
_INSIDE = "/mtpbench-outside"
# Serves its folder on the loopback, as a measured server would, and ends by itself.
_SERVE = "import http.server as h, sys, threading, os; threading.Timer(120, os._exit, [0]).start(); "
_SERVE += "h.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), lambda *a: "
_SERVE += "h.SimpleHTTPRequestHandler(*a, directory=sys.argv[2])).serve_forever()"
Runtime = Literal["docker", "podman"]
INSTEAD = "measure inside the container instead: ci/amd/container.sh IMAGE ci/amd/nightly.sh"


def unreachable(image: str, runtime: Runtime = "docker", patience: float = 30.0, need_gpu: bool = True) -> list[str]:
    """Everything that is in the way of measuring servers in containers of `image`; each ends with what to do."""
    try:
        asked = subprocess.run(
            [runtime, "version", "--format", "{{.Server.Version}}"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [f"{runtime} can't be run ({error}): install it, or {INSTEAD}"]
    if asked.returncode:
        return [f"{runtime} has no daemon that answers ({_last(asked.stderr)}): start it, or be in its group"]
    found = list(_without_devices()) if need_gpu else []
    pulled = _pull(runtime, image)
    return [*found, pulled] if pulled else [*found, *_tried(image, runtime, patience, need_gpu)]


def _without_devices() -> Iterator[str]:
    if not os.path.exists("/dev/kfd"):
        yield "/dev/kfd is not there: the ROCm driver is not loaded on this machine, or this pod does not show it"


def _pull(runtime: Runtime, image: str) -> str:
    """Why an image is not there, after it was fetched where it was not yet."""
    there = subprocess.run([runtime, "image", "inspect", image], capture_output=True, timeout=60, check=False)
    if there.returncode == 0:
        return ""
    try:
        done = subprocess.run([runtime, "pull", image], capture_output=True, text=True, timeout=_PULL_S, check=False)
    except subprocess.TimeoutExpired:
        return f"{image} could not be pulled in {_PULL_S / 60:.0f} minutes: pull it beforehand"
    return f"{image} can't be pulled: {_last(done.stderr)}" if done.returncode else ""


def _tried(image: str, runtime: Runtime, patience: float, need_gpu: bool) -> list[str]:
    name, port, word = f"mtpbench-outside-{secrets.token_hex(4)}", free_port(), secrets.token_hex(8)
    with tempfile.TemporaryDirectory(prefix="mtpbench-outside-") as folder:
        (Path(folder) / "word").write_text(word, encoding="utf-8")
        os.chmod(folder, 0o755)
        container = Container(image=image, runtime=runtime)
        command = Command(("python3", "-c", _SERVE, str(port), _INSIDE))
        try:
            whole = in_container(command, container, "amd", name, (), [f"{folder}:{_INSIDE}:ro"])
        except MtpbenchError as error:
            return [f"{error}: {error.hint}"]
        argv = whole.argv if need_gpu else tuple(word for word in whole.argv if not word.startswith("--device="))
        with tempfile.TemporaryFile("w+", encoding="utf-8") as log, _running(argv, whole.cleanup, log) as process:
            return _asked(process, log, f"http://127.0.0.1:{port}", word, patience)


@contextlib.contextmanager
def _running(argv: tuple[str, ...], cleanup: tuple[str, ...], log: object) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(argv, stdout=log, stderr=log, text=True)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        subprocess.run(cleanup, capture_output=True, timeout=60, check=False)
        process.kill()
        process.wait()


def _asked(process: subprocess.Popen[str], log: object, url: str, word: str, patience: float) -> list[str]:
    client, deadline = ApiClient(url, {}, timeout_s=5.0), time.monotonic() + patience
    try:
        while time.monotonic() < deadline:
            reply = client.ask("GET", "/word")
            if reply.status == 200 and reply.text == word:
                return []
            if reply.status:
                what = "the folders of this machine are not those of its containers"
                return [f"{what} ({reply.status} for a file that we wrote): {INSTEAD}"]
            if process.poll() is not None:
                log.seek(0)  # type: ignore[attr-defined]
                return [f"a container of it does not start: {_last(log.read())}"]  # type: ignore[attr-defined]
            time.sleep(0.2)
    finally:
        client.close()
    what = "a container started here can't be reached on 127.0.0.1, though it runs with the network of its host"
    return [f"{what}: {INSTEAD}"]


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else "nothing was said"
