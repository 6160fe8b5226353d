"""What can be made worse on purpose, by name and size: the known truth that an explanation is checked against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.errors import MtpbenchError


@dataclass(frozen=True)
class Cause:
    """A cause: its name, what its size means, and where it shows."""

    name: str
    size: str
    meaning: str


CAUSES: dict[str, Cause] = {
    cause.name: cause
    for cause in (
        Cause(
            "prefill_interference",
            "fraction",
            "prefill takes 1 + SIZE times as long, and holds up the running decodes for as much longer; a step is not",
        ),
        Cause(
            "acceptance_drift",
            "fraction",
            "the mean number of accepted drafts falls by SIZE; a step takes as long as before",
        ),
        Cause("slower_kernel", "fraction", "verify attention takes 1 + SIZE times as long"),
        Cause(
            "segment_overhead",
            "fraction",
            "each sequence writes and reads SIZE times the MTP kernel's segments more: grows with batch and padded "
            "context",
        ),
        Cause(
            "missing_graph_bucket",
            "batch size",
            "no graph of SIZE sequences or more was captured: larger batches than the next smaller graph run eagerly",
        ),
        Cause("ragged_lengths", "fraction", "prompt lengths spread evenly by ± SIZE around what was asked"),
        Cause("host_stall", "seconds", "the device waits SIZE seconds longer for the host in every step"),
        Cause("noise", "fraction", "launches differ by SIZE (coefficient of variation), and nothing else does"),
    )
}


@dataclass(frozen=True)
class Injection:
    """How much of a cause, and in which arms (empty: in all)."""

    size: float
    arms: tuple[str, ...] = ()


@dataclass(frozen=True)
class Effects:
    """What is injected in one arm, resolved: 0 is nothing."""

    prefill_interference: float = 0.0
    acceptance_drift: float = 0.0
    slower_kernel: float = 0.0
    segment_overhead: float = 0.0
    missing_graph_bucket: float = 0.0
    ragged_lengths: float = 0.0
    host_stall: float = 0.0
    noise: float | None = field(default=None)  # None: as the machine has it


_LIMITS = {"acceptance_drift": 1.0, "ragged_lengths": 0.95, "noise": 0.5}


def check(injected: Mapping[str, Injection], arms: Mapping[str, object]) -> None:
    """Raises MtpbenchError for an unknown cause or arm, or a size that means nothing."""
    for name, injection in injected.items():
        if name not in CAUSES:
            raise MtpbenchError(f"{name!r} is no cause", f"One of: {', '.join(CAUSES)}.")
        limit = _LIMITS.get(name, float("inf"))
        if not 0 <= injection.size <= limit:
            raise MtpbenchError(f"{name} = {injection.size:g}: its size ({CAUSES[name].size}) is 0 to {limit:g}")
        for arm in injection.arms:
            if arm not in arms:
                raise MtpbenchError(
                    f"{name} is for the arm {arm!r}, which the scenario lacks", f"It has: {', '.join(arms)}."
                )


def effects_in(arm: str, injected: Mapping[str, Injection]) -> Effects:
    """What of `injected` concerns an arm."""
    return Effects(**{name: one.size for name, one in injected.items() if not one.arms or arm in one.arms})
