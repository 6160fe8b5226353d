"""A scenario's launches and passes, simulated: what `harness.run.experiment` does with real servers.

    simulate_run(scenario, hardware, seed=1, injected={"slower_kernel": Injection(0.1, ("mtp",))}) → passes

Seeds: the same seed gives the same run. Prompts' lengths and almost all of acceptance depend on the scenario's own
seed, as greedy decoding does, so that arms, launches and runs share them; noise is each launch's own.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from harness.checks.passes import SIMULATED, Expectations, findings
from harness.engines.registry import ENGINES
from harness.engines.sglang_settings import SglangSettings
from harness.errors import MtpbenchError
from harness.metrics.definitions import PassView
from harness.model import LoadLevel, Pass, PassKey, PassRecord
from harness.scenario.format import Scenario
from harness.scenario.launch_plan import LaunchPlan, plan_launches
from harness.scenario.prompts import Block, draw_lengths, plan_blocks, poisson_offsets
from harness.simulator.acceptance import Acceptance, Natural, OneByOne, Simulated
from harness.simulator.causes import Injection, check, effects_in
from harness.simulator.hardware import Hardware
from harness.simulator.serving import Asked, Served, Server
from harness.simulator.steps import STEP_PARTS, Serving, StepModel
from harness.store.runs import utc_now

_FIRST_START = 100.0  # of the virtual clock
_BETWEEN_PASSES = 1.0


@dataclass(frozen=True)
class AcceptLength:
    """Tokens a verify step yields in the mean, and how much requests differ (standard deviation)."""

    mean: float
    spread: float


def simulate_run(
    scenario: Scenario,
    hardware: Hardware,
    *,
    seed: int = 1,
    injected: Mapping[str, Injection] = {},
    launches: Sequence[int] | None = None,
    arms: Sequence[str] | None = None,
    accept_length: AcceptLength | None = None,
) -> list[Pass]:
    """Every pass of a scenario, in the order in which it would be measured.

    Args:
        injected: what is made worse, by the names of `causes.CAUSES`.
        launches: only these, counted from 0; they come out the same as in the whole run.
        arms: only these.
        accept_length: in place of the model's own; simulated acceptance stays as the scenario sets it.

    Raises MtpbenchError where the scenario is for another machine or a model that is not known.
    """
    return list(simulate_passes(scenario, hardware, seed, injected, launches, arms, accept_length))


def simulate_passes(
    scenario: Scenario,
    hardware: Hardware,
    seed: int = 1,
    injected: Mapping[str, Injection] = {},
    launches: Sequence[int] | None = None,
    arms: Sequence[str] | None = None,
    accept_length: AcceptLength | None = None,
) -> Iterator[Pass]:
    """The simulated passes of `simulate_run`, one by one, for whoever keeps none of them."""
    check(injected, scenario.arms)
    clock = _FIRST_START
    for plan in plan_launches(scenario):
        if (launches is None or plan.launch in launches) and (arms is None or plan.arm.name in arms):
            launch = SimulatedLaunch(scenario, hardware, plan, seed, injected, accept_length)
            for key in plan.passes:
                done = launch.run(key, clock)
                clock = done.record.t_end + _BETWEEN_PASSES
                yield done


class SimulatedLaunch:
    """One server and its own speed."""

    def __init__(
        self,
        scenario: Scenario,
        hardware: Hardware,
        plan: LaunchPlan,
        seed: int,
        injected: Mapping[str, Injection] = {},
        accept_length: AcceptLength | None = None,
        serves_draft_extend: bool = True,
    ) -> None:
        self._scenario, self._hardware, self._plan, self._seed = scenario, hardware, plan, seed
        self._settings = _sglang(scenario, plan, hardware)
        self._effects = effects_in(plan.arm.name, injected)
        self._serving = serving_of(scenario, plan, hardware, injected)
        self._model = StepModel(
            hardware, self._settings, self._serving, plan.tp, self._effects, serves_draft_extend=serves_draft_extend
        )
        shape = self._model.shape
        self._accepted = accept_length or AcceptLength(shape.accept_length, shape.accept_spread)
        self._blocks = plan_blocks(scenario)
        self._spread = hardware.noise.launch if self._effects.noise is None else self._effects.noise
        self._own_speed = float(np.exp(self._draw("launch").normal(0.0, self._spread)))

    def run(self, key: PassKey, start: float) -> Pass:
        """One pass, beginning at `start` of the virtual clock."""
        level, scenario = key.level, self._scenario
        requests = self._requests(key)
        server = Server(
            self._model,
            self._acceptance(key),
            self._draw("pass", key.slug),
            self._own_speed,
            start=start,
        )
        slots = min(scenario.arrival.slots(level), len(requests))
        served = server.run(requests, slots, level.open_loop)
        record = PassRecord(
            key=key,
            started_at=utc_now(),
            t_start=start,
            t_end=served.end,
            status="complete",
            gpus=self._plan.tp,
            counters=_counters(served, self._serving.speculative),
            decode_log=served.decode_log,
            step_profile=_profile(served),
        )
        source = Pass(record, served.records)
        found = findings(PassView.of(source, scenario.slo), self._expectations(level))
        return Pass(replace(record, findings=(*found, SIMULATED)), served.records)

    def _number(self, *purpose: str) -> int:
        """A seed of this launch's own for a purpose."""
        return zlib.crc32("/".join((str(self._seed), self._plan.slug, *purpose)).encode())

    def _draw(self, *purpose: str) -> np.random.Generator:
        return np.random.default_rng(self._number(*purpose))

    def _requests(self, key: PassKey) -> list[Asked]:
        workload = self._scenario.workload
        block: Block = self._blocks[key.level, key.index, False]
        offsets = [0.0] * block.count
        if key.level.open_loop:
            offsets = poisson_offsets(key.level.rate, block.count, workload.seed + key.index)
        out = []
        for index, offset in enumerate(offsets):
            position = block.first + index
            draw = Random(f"{workload.seed}/{position}")
            given, asked = draw_lengths(block.workload, draw)
            spread = self._effects.ragged_lengths * draw.uniform(-1, 1)
            out.append(Asked(index, position, max(1, round(given * (1 + spread))), asked, offset))
        self._check_fits(max(one.input_tokens + one.output_tokens for one in out))
        return out

    def _check_fits(self, longest: int) -> None:
        """Raises MtpbenchError where the server would refuse the longest request, or let it wait for ever."""
        serving, asked = self._serving, self._scenario.max_context or 0  # without what is injected
        for flag, limit, tokens in (
            ("context-length", serving.padded_context, asked),
            ("max-total-tokens", serving.max_total_tokens, longest),
        ):
            if tokens > limit:
                raise MtpbenchError(
                    f"{self._scenario.name}: a request has {tokens} tokens, {flag} is {limit:g}", f"Raise flags.{flag}."
                )

    def _acceptance(self, key: PassKey) -> Acceptance:
        spec = self._settings.speculation
        if spec is None:
            return OneByOne()
        simulated = spec.simulate_accept_length
        mean = simulated if simulated is not None else self._accepted.mean
        mean = 1 + (mean - 1) * (1 - self._effects.acceptance_drift)
        if simulated is not None:
            return Simulated(mean, self._number("steps", key.slug))
        return Natural(
            mean,
            self._accepted.spread,
            spec.draft_tokens - 1,
            workload=self._scenario.workload.seed,
            launch=self._number("texts"),
            other_texts=self._hardware.noise.texts if self._spread else 0.0,
        )

    def _expectations(self, level: LoadLevel) -> Expectations:
        engine = ENGINES[self._settings.engine]
        return Expectations(
            concurrency=level.concurrency,
            speculative=engine.speculative(self._settings),
            exact_prompts=True,
            shared_prefix=self._scenario.workload.shared_prefix_tokens,
            meaningful_output=False,
        )


def serving_of(
    scenario: Scenario, plan: LaunchPlan, hardware: Hardware, injected: Mapping[str, Injection] = {}
) -> Serving:
    """The settings of a launch, as far as the simulator needs them."""
    settings, effects = _sglang(scenario, plan, hardware), effects_in(plan.arm.name, injected)
    return Serving.of(settings, hardware, scenario.max_slots, scenario.max_context or 0, effects)


def _sglang(scenario: Scenario, plan: LaunchPlan, hardware: Hardware) -> SglangSettings:
    settings = plan.arm.server
    if not isinstance(settings, SglangSettings):
        raise MtpbenchError(f"{scenario.name} is for the engine {settings.engine}", "The simulator knows SGLang only.")
    if settings.gpu_vendor != hardware.gpu_vendor:
        raise MtpbenchError(
            f"{scenario.name} is for {settings.gpu_vendor}, {hardware.name} is {hardware.gpu_vendor}",
            "Name another machine: --hardware scenarios/hardware/FILE.yaml",
        )
    if scenario.workload.input_tokens is None:
        raise MtpbenchError(f"{scenario.name} does not say how long its prompts are", "Set workload.input_tokens.")
    return settings


def _profile(served: Served) -> dict[str, float]:
    """Device seconds a step by part, as a trace would show them: their sum is the step."""
    seconds = {part: served.seconds[part] / max(1, served.steps) for part in STEP_PARTS}
    seconds["draft"] += seconds.pop("draft_extend")
    return seconds


def _counters(served: Served, speculative: bool) -> dict[str, float]:
    """As the server's own: device seconds by kind of forward pass (SGLang's device timer), and counts."""
    seconds = served.seconds
    target = sum(seconds[part] for part in ("verify_attention", "gemm", "all_reduce", "other"))
    counters = {
        "prompt_tokens": float(sum(r.input_tokens_asked for r in served.records)),
        "output_tokens": float(sum(r.tokens for r in served.records)),
        "cached_tokens": 0.0,
        "retracted_requests": 0.0,
        "device_seconds_extend": seconds["prefill"],
    }
    if not speculative:
        return counters | {"device_seconds_decode": target}
    return counters | {
        "verify_calls": float(served.verify_calls),
        "device_seconds_target_verify": target,
        "device_seconds_eagle_draft": seconds["draft"],
        "device_seconds_eagle_draft_extend": seconds["draft_extend"],
    }
