"""What a run would do, as text: every command, environment and request count. Starts nothing."""

from __future__ import annotations

import shlex
from pathlib import Path

from harness.engines.registry import ENGINES
from harness.redact import harmless, harmless_command
from harness.scenario.format import Scenario
from harness.scenario.launch_plan import launch_context, plan_launches
from harness.scenario.prompts import plan_blocks

_PORT = 30000  # a free port is chosen when the server is started


def describe_run(scenario: Scenario, gpus: tuple[int, ...], cache_dir: Path) -> str:
    """The plan of a scenario in the order in which it would run."""
    out = [scenario.question, ""]
    plans = plan_launches(scenario)
    for number, plan in enumerate(plans, 1):
        engine = ENGINES[plan.arm.server.engine]
        context = launch_context(scenario, plan, gpus, _PORT, cache_dir)
        command = engine.command(plan.arm.server, context)
        out.append(f"[{number}/{len(plans)}] launch {plan.launch}, arm {plan.arm.name}, TP{plan.tp}")
        if command is None:
            out.append(f"  attach to {engine.base_url(plan.arm.server, context)}")
        else:
            out += [f"  {key}={shlex.quote(value)} \\" for key, value in harmless(command.env).items()]
            out.append("  " + shlex.join(harmless_command(command.argv)))
    out += ["", f"in each launch, {scenario.passes} time(s):"]
    blocks = plan_blocks(scenario)
    for level in scenario.levels():
        warmup, measured = blocks[level, 0, True], blocks[level, 0, False]
        kind = "arrivals at" if level.open_loop else "concurrency"
        out.append(f"  {kind} {level.label}: {warmup.count} warm-up, {measured.count} measured requests")
    each = sum(block.count for block in blocks.values())
    tokens = sum(
        block.count * (block.workload.max_output + (block.workload.max_input or 0)) for block in blocks.values()
    )
    out.append(f"{each} requests a launch, {each * len(plans)} in all, up to {tokens * len(plans):,} tokens")
    out.append("The port, and the name under which the model is served, are new in each launch.")
    return "\n".join(out)
