"""Which two images an alert is between: of the night before it and of its first one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from harness.nightly.series import Night
from harness.verdict.facts import facts

KIND = "image:"  # as `mtpbench ab` takes such a side
_PINNED = re.compile(r"[^\s@]+@sha256:[0-9a-f]{64}")


def sides(before: Night, since: Night) -> tuple[str, str] | None:
    """(base, head) as `mtpbench ab` takes them, where the image changed and the kernel of this repository did not."""
    known, then = facts(before.run, before.arm), facts(since.run, since.arm)
    base, head = _image(known), _image(then)
    if not base or not head or base == head or known.get("kernel_hash") != then.get("kernel_hash"):
        return None
    return KIND + base, KIND + head


def side(night: Night) -> str:
    """A night's image as a side of an A/B; empty where it had none that is pinned."""
    image = _image(facts(night.run, night.arm))
    return KIND + image if image else ""


def _image(known: Mapping[str, Any]) -> str:
    """What the server ran from, if it is pinned: the container that it was in, or the image around everything."""
    for fact in ("server.container.image", "image"):
        text = str(known.get(fact) or "")
        if _PINNED.fullmatch(text):
            return text
    return ""
