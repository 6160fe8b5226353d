"""An A/B on top of an ordinary run: two arms for each of the scenario's, launched in turn until the rule is sure.

The run in the store is the state: after each pair the table is made anew from it, so a stopped A/B goes on as if it
had never been stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from harness.ab.checkout import Origin
from harness.errors import MtpbenchError
from harness.fields import merge
from harness.scenario.format import Scenario
from harness.stats.decision import Plan
from harness.store.ab_record import Party, Session, sides
from harness.store.runs import AB_FILE, load_run, write_atomically
from harness.verdict.compare import Comparison, Excuse, Floors, Verdict, compare
from harness.verdict.pairs import Metric, primary_name

BASE, HEAD = "base", "head"


def session_of(
    scenario: Scenario,
    base: Origin,
    head: Origin,
    *,
    kind: str,
    pairs: int,
    first: int,
    metrics: Sequence[str],
    only: Sequence[str] = (),
) -> Session:
    """What will be compared. Raises MtpbenchError for sides that can't be one comparison."""
    if (base.party.kind == "arm") != (head.party.kind == "arm"):
        raise MtpbenchError("an arm can only be compared with an arm", "Give both sides as arm:NAME.")
    if pairs < 2 or first < 2:
        raise MtpbenchError("at least two pairs are needed to know anything", "--pairs 10")
    if base.party.kind == "arm":
        b, h = base.party.ref.partition(":")[2], head.party.ref.partition(":")[2]
        arms = {f"{b} → {h}" if b != h else b: (f"{BASE}.{b}", f"{HEAD}.{h}")}
    else:
        unknown = [name for name in only if name not in scenario.arms]
        if unknown:
            raise MtpbenchError(f"the scenario has no arm {unknown[0]!r}", f"It has: {', '.join(scenario.arms)}")
        arms = {name: (f"{BASE}.{name}", f"{HEAD}.{name}") for name in only or scenario.arms}
    named = [primary_name(scenario.primary)] if scenario.primary else []
    allowed = tuple(dict.fromkeys((*base.allowed, *head.allowed)))
    names = tuple(Metric.of(name).name for name in dict.fromkeys([*named, *metrics]))
    return Session(kind, base.party, head.party, arms, pairs, first, names, allowed)


def scenario_of(scenario: Scenario, base: Origin, head: Origin, session: Session) -> Scenario:
    """The scenario with an arm for each side, base and head next to each other: launches alternate ABBA."""
    arms = {}
    for pair in session.arms.values():
        for name, origin in zip(pair, (base, head), strict=True):
            changes = scenario.arms[name.partition(".")[2]]
            arms[name] = merge(changes, origin.changes) if origin.changes else changes
    first = next(iter(session.arms.values()))[0]
    return scenario.model_copy(update={"arms": arms, "baseline": first, "launches": session.pairs})


def checked_out(session: Session, parties: dict[str, Party]) -> Session:
    """The session with what the checkouts turned out to hold."""
    return replace(session, base=parties.get(BASE, session.base), head=parties.get(HEAD, session.head))


def save(path: Path, session: Session) -> None:
    write_atomically(path / AB_FILE, session.to_json().encode())


def evaluate(
    path: Path, session: Session, pairs: int | None = None, floors: Floors | None = None, excuse: Excuse | None = None
) -> Comparison:
    """The comparison of what is stored, of the first `pairs` launches where given."""
    base, head = sides(load_run(path), session, pairs)
    options = {"excuse": excuse} if excuse else {}
    return compare(
        base, head, metrics=session.metrics, plan=session.plan, allowed=session.allowed, floors=floors, **options
    )


class Looks:
    """Looks at the table after each planned pair, tells, and says when it is enough."""

    def __init__(self, path: Path, session: Session, tell: Callable[[Comparison], None]) -> None:
        self._path, self._session, self._tell = path, session, tell
        self._seen: dict[int, bool] = {}

    def enough(self, launch: int) -> bool:
        """Before launch number `launch`: are the pairs before it enough? Never in the middle of a pair."""
        if launch not in self._seen:
            self._seen[launch] = self._look(launch)
        return self._seen[launch]

    def _look(self, pairs: int) -> bool:
        if pairs < 2:
            return False
        comparison = evaluate(self._path, self._session, pairs)
        self._tell(comparison)
        if comparison.verdict in _HOPELESS:
            return True
        planned = self._session.kind == "ab" and pairs in self._session.plan.looks
        return planned and (comparison.verdict is Verdict.FAIL or not comparison.open_rows)


# More pairs can't change these; rows that are open they may.
_HOPELESS = (Verdict.INVALID, Verdict.INCOMPARABLE, Verdict.NO_BASELINE, Verdict.MISSING)


def plan_text(session: Session) -> str:
    """How it will be decided, in a line."""
    plan: Plan = session.plan
    if session.kind == "aa":
        return f"A/A of {session.pairs} pairs: what equal servers differ by"
    return (
        f"up to {session.pairs} pairs, looked at after each from {plan.looks[0]} on; sides alternate ABBA with the "
        "same prompts"
    )
