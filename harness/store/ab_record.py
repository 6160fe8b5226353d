"""What an A/B run is about, kept beside it as `ab.json`: its sides, which arm belongs to which, and when to look.

The run itself is an ordinary one, whose arms are called `base.<arm>` and `head.<arm>`: all that is measured is in the
store, so an interrupted A/B goes on from there, and any other verb can read it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from harness.errors import StoreError
from harness.scenario.format import Scenario
from harness.stats.decision import Plan
from harness.store import shapes
from harness.store.runs import AB_FILE, StoredRun

SESSION_VERSION = 1  # 1: first
_MOST_PAIRS = 10_000


@dataclass(frozen=True)
class Side:
    """Runs of one side. `arms`: what a row is called → the name of the arm in the runs."""

    name: str
    runs: tuple[StoredRun, ...]
    arms: Mapping[str, str]

    @property
    def scenario(self) -> Scenario:
        return self.runs[0].scenario


@dataclass(frozen=True)
class Party:
    """One side as it was asked for, and what it turned out to be."""

    ref: str  # as given: main, arm:mtp, env:/opt/sglang, image:…
    kind: str  # git, tree, arm, env, image or same
    commit: str = ""
    kernel_hash: str = ""

    @property
    def label(self) -> str:
        if not self.commit or self.commit.startswith(self.ref):
            return self.ref
        dirty = ", with changes" if self.commit.endswith("-dirty") else ""
        return f"{self.ref} ({self.commit[:10]}{dirty})"


@dataclass(frozen=True)
class Session:
    """An A/B, or an A/A where `kind` is aa. `arms`: what a row is called → (arm of base, arm of head)."""

    kind: str
    base: Party
    head: Party
    arms: Mapping[str, tuple[str, str]]
    pairs: int
    first_look: int
    metrics: tuple[str, ...]
    allowed: tuple[str, ...] = ()
    finished_pairs: int | None = None  # how many it took, once it is decided
    verdict: str = ""  # the last one given

    @property
    def plan(self) -> Plan:
        return Plan.sequential(self.pairs, self.first_look) if self.kind == "ab" else Plan.once(self.pairs)

    def to_json(self) -> str:
        return json.dumps({"session_version": SESSION_VERSION, **asdict(self)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Session:
        values = {key: value for key, value in data.items() if key != "session_version"}
        values["base"], values["head"] = Party(**values["base"]), Party(**values["head"])
        values["arms"] = {label: (base, head) for label, (base, head) in values["arms"].items()}
        values["metrics"], values["allowed"] = tuple(values["metrics"]), tuple(values["allowed"])
        session = cls(**values)
        shapes.check(session, cls)
        if not 1 <= session.pairs <= _MOST_PAIRS or session.first_look < 1:
            raise ValueError(f"it has {session.pairs} pairs")
        return session


def load_session(path: Path) -> Session:
    """Reads a run's `ab.json`. Raises StoreError."""
    file = path / AB_FILE
    try:
        return Session.from_json(json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise StoreError(f"{path} is not an A/B run: it has no {AB_FILE}", "Name two runs to compare.") from error
    except (OSError, RecursionError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(f"{file} is damaged: {error!r}", "Measure again.") from error


def sides(run: StoredRun, session: Session, pairs: int | None = None) -> tuple[Side, Side]:
    """The two sides of an A/B run; only the first `pairs` launches where given."""
    if pairs is not None:
        kept = tuple(one for one in run.passes if one.record.key.launch < pairs)
        failed = tuple(record for record in run.failed if record.key.launch < pairs)
        run = replace(run, passes=kept, failed=failed)
    base = Side(session.base.label, (run,), {label: pair[0] for label, pair in session.arms.items()})
    head = Side(session.head.label, (run,), {label: pair[1] for label, pair in session.arms.items()})
    return base, head
