"""Launches that take hours → blocks that each fit a time limit, and what of a plan was not measured.

Pure functions: what a launch costs is handed in, nothing is read or started. A block is one scenario with some of its
arms, measured by one job on one host; blocks know nothing of each other and write into one store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from statistics import median
from typing import Any

from harness.errors import MtpbenchError
from harness.scenario.format import Scenario
from harness.store.runs import StoredRun

PLAN_VERSION = 1
MARGIN = 1.15  # nights differ: what is planned is so much longer than what was stored
_RECENT = 5  # stored launches that say how long the next one takes
STORED, SIMULATED, ASSUMED = "stored", "simulated", "assumed"


@dataclass(frozen=True)
class Cost:
    """Seconds of one launch with all its passes, and where the number comes from."""

    seconds: float
    basis: str = ASSUMED


# scenario, arm, TP → what one launch of it takes
CostOf = Callable[[Scenario, str, int], Cost]


@dataclass(frozen=True)
class Block:
    """One job: some arms of a scenario. `seconds` with the margin; `basis` is that of its least sure launch."""

    name: str
    scenario: str  # its name
    file: str
    arms: tuple[str, ...]
    tp: tuple[int, ...]
    levels: tuple[str, ...]  # labels of the loads that each arm must have
    launches: int
    seconds: float
    basis: str

    @property
    def gpus(self) -> int:
        return max(self.tp)


@dataclass(frozen=True)
class Plan:
    """A night's blocks. `created_at` in ISO 8601: only runs begun after it are its results."""

    created_at: str
    limit: float
    blocks: tuple[Block, ...] = field(default_factory=tuple)

    def to_json(self) -> dict[str, Any]:
        return {"plan_version": PLAN_VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Plan:
        """The inverse of `to_json`. Raises MtpbenchError for what is no plan, or one of another version."""
        try:
            if value["plan_version"] != PLAN_VERSION:
                raise MtpbenchError(
                    f"a plan of version {value['plan_version']}", f"This mtpbench reads {PLAN_VERSION}."
                )
            tuples = ("arms", "tp", "levels")
            blocks = [_block({k: tuple(v) if k in tuples else v for k, v in one.items()}) for one in value["blocks"]]
            return cls(str(value["created_at"]), float(value["limit"]), tuple(blocks))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise MtpbenchError(f"that is no plan: {error!r}", "mtpbench ci plan writes one.") from error


def _block(fields: dict[str, Any]) -> Block:
    return Block(**fields)


def make_plan(scenarios: Sequence[tuple[str, Scenario]], cost: CostOf, limit: float, created_at: str) -> Plan:
    """Each scenario in as few blocks as the limit allows, arms in their order, so that neighbours stay together.

    Args:
        scenarios: (file, scenario).
        limit: seconds that a job may take for measuring.

    Raises MtpbenchError where a single arm does not fit.
    """
    blocks = [block for file, scenario in scenarios for block in _split(file, scenario, cost, limit)]
    names = [block.name for block in blocks]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise MtpbenchError(f"two scenarios are called {', '.join(doubled)}", "Results go by their names.")
    return Plan(created_at, limit, tuple(blocks))


def _split(file: str, scenario: Scenario, cost: CostOf, limit: float) -> list[Block]:
    of_arm = {arm: [cost(scenario, arm, tp) for tp in scenario.tp] for arm in scenario.arms}
    seconds = {arm: MARGIN * scenario.launches * sum(one.seconds for one in found) for arm, found in of_arm.items()}
    for arm, needed in seconds.items():
        if needed > limit:
            raise MtpbenchError(
                f"{scenario.name}: arm {arm} alone takes {needed / 60:.0f} minutes, a job has {limit / 60:.0f}",
                "Fewer launches or levels, one TP a scenario, or a longer --limit.",
            )
    groups: list[list[str]] = [[]]
    for arm in scenario.arms:
        if groups[-1] and sum(seconds[one] for one in groups[-1]) + seconds[arm] > limit:
            groups.append([])
        groups[-1].append(arm)
    sure = [STORED, SIMULATED, ASSUMED]
    return [
        Block(
            name=scenario.name if len(groups) == 1 else f"{scenario.name}.{number}",
            scenario=scenario.name,
            file=file,
            arms=tuple(arms),
            tp=tuple(scenario.tp),
            levels=tuple(level.label for level in scenario.levels()),
            launches=scenario.launches,
            seconds=sum(seconds[arm] for arm in arms),
            basis=max((one.basis for arm in arms for one in of_arm[arm]), key=sure.index),
        )
        for number, arms in enumerate(groups, 1)
    ]


def stored_costs(runs: Iterable[StoredRun]) -> dict[tuple[str, str, int], Cost]:
    """(scenario, arm, TP) → what its last launches took, from the server's start to the end of its last pass: their
    median. Launches that did not finish all their levels say nothing."""
    found: dict[tuple[str, str, int], list[tuple[str, float]]] = {}
    for run in runs:
        if run.simulated:
            continue
        planned = len(run.scenario.levels()) * run.scenario.passes
        for launch in run.launches:
            mine = [p.record for p in run.passes if p.record.key.launch_slug == launch.slug]
            if launch.status != "ready" or not launch.started_at or len(mine) < planned:
                continue
            last = max(mine, key=lambda record: record.started_at)
            seconds = (_moment(last.started_at) - _moment(launch.started_at)).total_seconds()
            seconds += last.t_end - last.t_start
            key = (run.scenario.name, launch.arm, launch.tp)
            found.setdefault(key, []).append((launch.started_at, seconds))
    return {
        key: Cost(median(seconds for _, seconds in sorted(values)[-_RECENT:]), STORED) for key, values in found.items()
    }


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


@dataclass(frozen=True)
class Missing:
    """What a block owes: arms without any result, and those whose levels are not all there."""

    block: Block
    what: tuple[str, ...]

    def __str__(self) -> str:
        return f"MISSING: {self.block.name}: {'; '.join(self.what)}"


def missing(plan: Plan, runs: Iterable[StoredRun]) -> list[Missing]:
    """Blocks of a plan that the store does not hold whole. Runs from before the plan do not count."""
    since = _moment(plan.created_at)
    tonight = [run for run in runs if _moment(run.created_at) >= since and not run.simulated]
    out = []
    for block in plan.blocks:
        of_it = [run for run in tonight if run.scenario.name == block.scenario]
        have: dict[tuple[str, int], set[str]] = {}
        for run in of_it:
            for one in run.passes:
                key = one.record.key
                have.setdefault((key.arm, key.tp), set()).add(key.level.label)
        what = []
        for arm in block.arms:
            for tp in block.tp:
                levels = have.get((arm, tp), set())
                lacking = [level for level in block.levels if level not in levels]
                if len(lacking) == len(block.levels):
                    what.append(f"{arm} at TP{tp} has no result")
                elif lacking:
                    what.append(f"{arm} at TP{tp} lacks {', '.join(lacking)}")
        if what:
            out.append(Missing(block, tuple(what)))
    return out
