"""The expectations looked up in versions: what holds, what drifted, what could not be told, what changed in between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from harness.upstream.checks import Seen
from harness.upstream.expectations import EXPECTATIONS, Expectation
from harness.upstream.reader import Drift, Tree, Unreadable, release

HOLDS, DRIFT, UNKNOWN, NOT_EXPECTED = "holds", "DRIFT", "unknown", "–"


@dataclass(frozen=True)
class Result:
    """One expectation in one version. `message` says what is wrong, `seen` what stands there where nothing is."""

    status: str
    message: str = ""
    path: str = ""
    line: int = 0
    seen: str = ""

    @property
    def place(self) -> str:
        return f"{self.path}:{self.line}" if self.line else self.path


@dataclass(frozen=True)
class Expected:
    """One expectation in every version that was looked at, in their order."""

    what: str
    used_by: str
    results: tuple[Result, ...]


@dataclass(frozen=True)
class Reworded:
    """Something that holds in both of two versions and yet reads differently."""

    what: str
    before: str
    after: str
    versions: tuple[str, str]
    place: str


@dataclass(frozen=True)
class DriftReport:
    versions: tuple[str, ...]
    origins: tuple[str, ...]
    rows: tuple[Expected, ...]
    changes: tuple[Reworded, ...]

    def count(self, status: str) -> int:
        return sum(result.status == status for row in self.rows for result in row.results)

    @property
    def exit_code(self) -> int:
        """0: everything holds; 1: something drifted; 2: something could not be told."""
        return 1 if self.count(DRIFT) else 2 if self.count(UNKNOWN) else 0


def drift_of(trees: Sequence[Tree], expectations: Sequence[Expectation] = EXPECTATIONS) -> DriftReport:
    """Looks every expectation up in every version, oldest first."""
    trees = sorted(trees, key=lambda tree: release(tree.version))
    by_name: dict[str, list[Expectation]] = {}
    for expectation in expectations:
        by_name.setdefault(expectation.what, []).append(expectation)
    rows = [
        Expected(what, _used_by(variants), tuple(_look(variants, tree) for tree in trees))
        for what, variants in by_name.items()
    ]
    versions = tuple(tree.version for tree in trees)
    return DriftReport(versions, tuple(tree.origin for tree in trees), tuple(rows), tuple(_changes(rows, versions)))


def _used_by(variants: Sequence[Expectation]) -> str:
    return ", ".join(dict.fromkeys(v.used_by for v in variants))


def _look(variants: Sequence[Expectation], tree: Tree) -> Result:
    """The variant that is meant for this version; a name has at most one of them a version."""
    [*meant] = [v for v in variants if v.applies_to(tree.version)]
    if not meant:
        return Result(NOT_EXPECTED)
    try:
        seen: Seen = meant[0].check.look(tree)
    except Drift as drift:
        return Result(DRIFT, drift.message, drift.path, drift.line)
    except Unreadable as error:
        return Result(UNKNOWN, str(error))
    return Result(HOLDS, "", seen.path, seen.line, seen.text)


def _changes(rows: Sequence[Expected], versions: Sequence[str]) -> list[Reworded]:
    out = []
    for row in rows:
        for (before, old), (after, new) in pairwise(zip(versions, row.results, strict=True)):
            if old.status == new.status == HOLDS and old.seen != new.seen:
                out.append(Reworded(row.what, old.seen, new.seen, (before, after), new.place))
    return out
