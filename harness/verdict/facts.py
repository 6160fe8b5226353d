"""Which differences between two sides forbid comparing their numbers, and which are what the comparison is about.

Every fact that a run records is looked up in a table of a few rules, the first that fits decides. A fact that no rule
names matters: a new probe must not make unlike machines look alike.
"""

from __future__ import annotations

import fnmatch
import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from harness.store.runs import StoredRun


class Role(str, Enum):
    """What a difference in a fact means."""

    MATTERS = "matters"  # the numbers can't be compared
    TESTED = "tested"  # it is what a comparison is for
    IGNORED = "ignored"  # it can't change a number


# Pattern of the fact's name → role, and why.
_RULES: tuple[tuple[str, Role], ...] = (
    ("commit", Role.TESTED),
    ("kernel_hash", Role.TESTED),
    ("variables.MTPBENCH_*", Role.IGNORED),  # the host's name is a fact of its own
    ("variables.*_VISIBLE_DEVICES", Role.IGNORED),  # which GPUs, not what GPUs
    ("simulated.injected*", Role.TESTED),
    ("simulated.seed", Role.IGNORED),
    ("server.*_timeout", Role.IGNORED),
    ("server.gpus", Role.IGNORED),
    ("server.python", Role.IGNORED),  # a path; what is installed there is in `packages`
    ("workload.file", Role.IGNORED),  # a path; what it holds is in `prompts`
    ("*", Role.MATTERS),
)
# Of a scenario: what decides about the requests. More TP sizes or launches only mean more rows or pairs.
_SCENARIO = ("workload", "arrival", "factors", "passes")
# What a nightly series may change without becoming another one: the very things whose effect it shows.
# The newest image each night: its digest is what may have made the difference. Another ROCm is another machine.
_OF_THE_SOFTWARE = ("packages", "mtpbench", "image", "server.container.image", "server.version")
# Which other loads are in the sweep: a row's own load is part of its name.
_OF_THE_SWEEP = ("arrival.concurrency", "arrival.rates")


@dataclass(frozen=True)
class Difference:
    """A fact in which two sides differ; `role` says whether that forbids comparing."""

    fact: str
    base: str
    head: str
    role: Role

    def __str__(self) -> str:
        return f"{self.fact}: {self.base} → {self.head}"


def role_of(fact: str, allowed: Iterable[str] = ()) -> Role:
    """The role of a fact; those below an allowed name are what is tested."""
    if any(fact == name or fact.startswith((f"{name}.", f"{name}[")) for name in allowed):
        return Role.TESTED
    return _ruled(fact)


@functools.cache  # a year of nights asks for the same few facts a million times
def _ruled(fact: str) -> Role:
    return next(role for pattern, role in _RULES if fnmatch.fnmatchcase(fact, pattern))


def differences(base: Mapping[str, Any], head: Mapping[str, Any], allowed: Iterable[str] = ()) -> list[Difference]:
    """Every fact in which the sides differ, those that matter first. A fact known of one side only differs."""
    names = tuple(allowed)
    found = [
        Difference(fact, _show(base.get(fact)), _show(head.get(fact)), role_of(fact, names))
        for fact in sorted({*base, *head})
        if base.get(fact) != head.get(fact)
    ]
    return sorted((d for d in found if d.role is not Role.IGNORED), key=lambda d: d.role is not Role.MATTERS)


def facts(run: StoredRun, arm: str) -> dict[str, Any]:
    """All that a run records and on which an arm's numbers depend, flat: `gpus`, `server.flags.page-size`, …"""
    scenario = run.scenario.model_dump(mode="json")
    out: dict[str, Any] = {"scenario": run.scenario.name}
    for section in _SCENARIO:
        out |= _flat(section, scenario[section])
    for name, value in run.environment.items():
        out |= _flat(name, value) if isinstance(value, dict) else {name: _plain(value)}
    out |= _flat("server", run.scenario.arm(arm).server.model_dump(mode="json"))
    packages: dict[str, set[str]] = {}
    for launch in run.launches:
        if launch.arm == arm and launch.status == "ready":
            for name, version in launch.packages.items():
                packages.setdefault(name, set()).add(version)
    out |= {f"packages.{name}": ", ".join(sorted(versions)) for name, versions in packages.items()}
    return out


def fingerprint_class(known: Mapping[str, Any]) -> str:
    """Names all that must stay the same within a nightly series, and nothing that it is there to follow."""
    kept = {
        fact: value
        for fact, value in known.items()
        if fact not in ("scenario", *_OF_THE_SWEEP) and role_of(fact, _OF_THE_SOFTWARE) is Role.MATTERS
    }
    return hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest()[:12]


def _flat(prefix: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: _plain(value)}
    out: dict[str, Any] = {}
    for key, inner in value.items():
        out |= _flat(f"{prefix}.{key}", inner)
    return out


def _plain(value: Any) -> Any:
    """Lists of equal things (eight GPUs of a kind) are one of them: how many are used is the row's TP."""
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        return sorted({json.dumps(item, sort_keys=True) for item in value})
    return value


def _show(value: Any) -> str:
    if value is None:
        return "not recorded"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
