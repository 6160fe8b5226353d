"""What is wrong with a scenario that no single key shows, and what is allowed and yet likely not meant."""

from __future__ import annotations

import math

from harness.engines.registry import ENGINES
from harness.engines.sglang_settings import SglangSettings, unread_variables
from harness.metrics.definitions import samples_needed
from harness.redact import secrets_in
from harness.scenario.format import Scenario
from harness.scenario.workload import shortest


def semantic_problems(scenario: Scenario) -> list[tuple[tuple[str, ...], str]]:
    """Impossible combinations that no single section shows: (path of the key, message)."""
    found: list[tuple[tuple[str, ...], str]] = []
    if not scenario.arms:
        found.append((("arms",), "at least one arm is needed"))
    if scenario.baseline is not None and scenario.baseline not in scenario.arms:
        found.append((("baseline",), f"{scenario.baseline!r} is not an arm: {', '.join(scenario.arms)}"))
    for name, factor in scenario.factors.items():
        if scenario.arrival.rates:
            found.append((("factors", name), "factors go with `arrival.concurrency`"))
        elif factor.input_tokens is not None and scenario.workload.prompts == "jsonl":
            found.append((("factors", name, "input_tokens"), "`prompts: jsonl` has the lengths that it has"))
        elif (shortest(factor.input_tokens) or math.inf) <= scenario.workload.shared_prefix_tokens:
            found.append((("factors", name, "input_tokens"), "must exceed `shared_prefix_tokens`"))
    levels = [level.value for level in scenario.arrival.levels()]
    if scenario.primary and scenario.primary.level not in levels:
        allowed = ", ".join(f"{level:g}" for level in levels)
        found.append((("primary", "level"), f"{scenario.primary.level:g} is not in `arrival`: {allowed}"))
    elif scenario.primary:
        level = scenario.primary_level
        assert level is not None, "it is one of the levels"
        needed, expected = samples_needed(scenario.primary.percentile), scenario.arrival.steady_requests(level)
        if expected < needed:
            found.append(
                (
                    ("primary", "percentile"),
                    f"p{scenario.primary.percentile} needs {needed} requests in the steady state, "
                    f"a pass at {level.label} has about {expected}: raise requests_per_slot or min_requests",
                )
            )
    traced = (scenario.profile and scenario.profile.concurrency) or []
    if unknown := [str(value) for value in traced if value not in levels]:
        found.append((("profile", "concurrency"), f"{', '.join(unknown)} is not in `arrival.concurrency`"))
    for arm in scenario.resolved_arms():
        engine = ENGINES[arm.server.engine]
        for key, message in engine.problems(arm.server):
            section = key.split(".")[0]
            where = ("arms", arm.name) if section in scenario.arms[arm.name] else ("server",)
            problem = ((*where, *key.split(".", 1)), message)
            if problem not in found:
                found.append(problem)
        if scenario.accuracy.gsm8k and not (engine.evaluates and engine.meaningful_output(arm.server)):
            why = "the engine has no evaluator" if not engine.evaluates else "its text is meaningless"
            found.append((("accuracy", "gsm8k"), f"arm {arm.name} can't be evaluated: {why}"))
        if scenario.profile and not engine.profiles:
            found.append((("profile",), f"arm {arm.name}: the engine {engine.name} has no profiler of its device"))
        if not engine.multi_gpu and scenario.tp != [1]:
            found.append((("tp",), f"the engine {engine.name} runs at TP1 only: tp: [1]"))
            break
        gpus = getattr(arm.server, "gpus", None)
        if gpus is not None and len(gpus) < max(scenario.tp):
            found.append(
                (
                    ("tp",),
                    f"TP{max(scenario.tp)} needs {max(scenario.tp)} GPUs, `gpus` has {len(gpus)}",
                )
            )
            break
    return found


def warnings(scenario: Scenario) -> list[str]:
    """What is allowed and yet likely not meant; each ends with what to do."""
    arms = scenario.resolved_arms()
    drafting = [arm.name for arm in arms if arm.speculative]
    out = []
    if scenario.workload.prompts == "random" and drafting:
        simulated = all(not ENGINES[a.server.engine].meaningful_output(a.server) for a in arms if a.name in drafting)
        if not simulated:
            out.append(
                f"random tokens with speculation on ({', '.join(drafting)}): acceptance on them means little. "
                "Use `prompts: prose` or `code`."
            )
    out += _unread(scenario)
    few = [level.label for level in scenario.arrival.levels() if scenario.arrival.steady_requests(level) < 5]
    if few:
        out.append(f"fewer than 5 requests lie in the steady state at {', '.join(few)}. Raise requests_per_slot.")
    secret = [name for env in (scenario.server.env, *(arm.server.env for arm in arms)) for name in secrets_in(env)]
    if secret:
        out.append(
            f"server.env holds a secret ({', '.join(dict.fromkeys(secret))}): it is masked wherever the run is written "
            "down. Better, set it in the environment of mtpbench; container.pass_env hands it on."
        )
    if scenario.launches == 1:
        out.append(
            "one launch an arm: differences can't be told from launch-to-launch spread. "
            "Raise `launches` before drawing conclusions."
        )
    return out


def _unread(scenario: Scenario) -> list[str]:
    """Of each SGLang version that the arms name: its variables that nothing there reads."""
    found: dict[str, dict[str, None]] = {}
    for arm in scenario.resolved_arms():
        if isinstance(arm.server, SglangSettings):
            version, names = unread_variables(arm.server)
            found.setdefault(version, {}).update(dict.fromkeys(names))
    return [
        f"nothing in SGLang {version} reads {', '.join(names)}. Remove what does nothing."
        for version, names in found.items()
        if names
    ]
