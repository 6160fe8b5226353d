"""Wheels of SGLang from the package index that pip is configured for, kept in a cache folder.

pip does the talking: it knows the index, its credentials and its certificates. Nothing is installed, no dependency is
fetched. A wheel's platform does not matter, because only its source is read.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.upstream.reader import UpstreamError

Say = Callable[[str], None]

_VERSION = re.compile(r"\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?")
_TIMEOUT_S = 900
# Tried when this interpreter or machine has no wheel of its own: what SGLang publishes.
_ANY_MACHINE = ("--python-version", "3.11", "--platform", "manylinux_2_34_x86_64", "--platform", "manylinux2014_x86_64")
_OFFLINE = (
    "Is there a network? With a mirror: set PIP_INDEX_URL. Without any: give wheels that you have, --wheel FILE. "
    "Wheels fetched before are in the cache and need no network when their version is named."
)


def fetch(version: str, cache_dir: Path, say: Say) -> Path:
    """The wheel of one version, from the cache where it is there. Raises UpstreamError."""
    if not _VERSION.fullmatch(version):
        raise UpstreamError(f"{version!r} is not a version", "Such as: mtpbench doctor --upstream 0.5.16 0.5.23")
    folder = cache_dir / version
    if found := sorted(folder.glob("sglang-*.whl")):
        say(f"sglang {version}: from the cache, {found[0]}")
        return found[0]
    say(f"sglang {version}: fetching (15–40 MB)")
    cache_dir.mkdir(parents=True, exist_ok=True)
    # Into a folder of its own and moved when whole: an interrupted download never looks like a wheel.
    with tempfile.TemporaryDirectory(dir=cache_dir, prefix=".partial-") as partial:
        command = ["download", f"sglang=={version}", "--no-deps", "--only-binary", ":all:", "--dest", partial]
        try:
            _pip(command, say)
        except UpstreamError:
            _pip([*command, *_ANY_MACHINE], say)
        wheels = sorted(Path(partial).glob("sglang-*.whl"))
        if not wheels:
            raise UpstreamError(f"pip fetched no wheel of sglang {version}", _OFFLINE)
        folder.mkdir(exist_ok=True)
        return wheels[0].replace(folder / wheels[0].name)


def newest(say: Say) -> str:
    """The newest version that the index has for this interpreter; nothing but metadata is fetched."""
    with tempfile.TemporaryDirectory() as nowhere:
        # --target: a dry run that an externally managed Python allows, too.
        command = ["install", "sglang", "--dry-run", "--no-deps", "--only-binary", ":all:", "--quiet"]
        command += ["--target", nowhere, "--report", f"{nowhere}/report.json"]
        try:
            _pip(command, say)
        except UpstreamError:
            _pip([*command, *_ANY_MACHINE], say)
        try:
            report = json.loads(Path(nowhere, "report.json").read_text(encoding="utf-8"))
            return str(report["install"][0]["metadata"]["version"])
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            raise UpstreamError(f"pip does not say which sglang is the newest: {error!r}", _OFFLINE) from error


def _pip(arguments: Sequence[str], say: Say) -> None:
    """Runs pip, passing its lines on as they come. Raises UpstreamError with its last ones."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    lines: list[str] = []
    try:
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line.rstrip())
                if line.strip().startswith(("Downloading", "Using cached")):
                    say(f"  {line.strip()}")
            code = process.wait(_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UpstreamError(f"pip can't be run: {error}", _OFFLINE) from error
    if code and any("No module named pip" in line for line in lines):
        raise UpstreamError(f"{sys.executable} has no pip", "python -m ensurepip, or give wheels: --wheel FILE.")
    if code:
        errors = [line for line in lines if "ERROR" in line] or lines[-2:]
        raise UpstreamError(f"pip could not fetch sglang: {' '.join(errors)[:500]}", _OFFLINE)
