"""What a run will do: its launches in order, the passes of each, and the command of each server."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from harness.engines.base import LaunchContext
from harness.engines.registry import ENGINES
from harness.errors import MtpbenchError
from harness.model import PassKey
from harness.scenario.format import Arm, Scenario

# A jsonl workload's prompts are as long as they are: what a server without --context-length must hold.
_JSONL_CONTEXT = 8192
# Drafts are written beyond the last token, and servers keep a few slots free.
_CONTEXT_MARGIN = 32


@dataclass(frozen=True)
class LaunchPlan:
    """One server start and what it will serve."""

    launch: int
    arm: Arm
    tp: int
    passes: tuple[PassKey, ...]

    @property
    def slug(self) -> str:
        return self.passes[0].launch_slug


def plan_launches(scenario: Scenario) -> list[LaunchPlan]:
    """All launches in order: arms alternate ABBA over launches, so that drift hits them alike."""
    plans = []
    for launch in range(scenario.launches):
        arms = scenario.resolved_arms()
        for arm in reversed(arms) if launch % 2 else arms:
            for tp in scenario.tp:
                passes = tuple(
                    PassKey(launch, arm.name, tp, level, index)
                    for index in range(scenario.passes)
                    for level in scenario.levels()
                )
                plans.append(LaunchPlan(launch, arm, tp, passes))
    return plans


def choose_gpus(arm: Arm, tp: int, asked: tuple[int, ...]) -> tuple[int, ...]:
    """The GPUs of a launch: of those asked for on the command line, else of the scenario, else from 0 on."""
    engine = ENGINES[arm.server.engine]
    count = engine.gpu_count(arm.server, tp) if engine.multi_gpu else 0
    allowed = asked or tuple(getattr(arm.server, "gpus", None) or range(count))
    if len(allowed) < count:
        raise MtpbenchError(
            f"arm {arm.name} needs {count} GPUs at TP{tp}, --gpus names {len(allowed)}",
            f"Name at least {count}: --gpus {','.join(str(n) for n in range(count))}",
        )
    return tuple(allowed[:count])


def launch_context(
    scenario: Scenario, plan: LaunchPlan, gpus: tuple[int, ...], port: int, cache_dir: Path
) -> LaunchContext:
    """Everything that a command line depends on; the identity is new each time."""
    return LaunchContext(
        port=port,
        identity=f"mtpbench-{plan.arm.name}-{secrets.token_hex(4)}",
        tp=plan.tp,
        gpus=choose_gpus(plan.arm, plan.tp, gpus),
        max_concurrency=scenario.max_slots,
        max_context=(scenario.max_context or _JSONL_CONTEXT + scenario.workload.max_output) + _CONTEXT_MARGIN,
        cache_dir=cache_dir,
        kernel_cache=cache_dir / "kernels" / scenario.name / f"{plan.arm.name}-tp{plan.tp}",
    )
