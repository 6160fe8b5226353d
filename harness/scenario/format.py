"""A scenario: one question, asked of servers. The types below are the file format and its documentation.

`yaml_file.py` reads YAML into them; `mtpbench schema` prints the JSON Schema made from them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from harness.engines.registry import ENGINES, AnySettings
from harness.fields import Count, Name, Strict, Timeout, merge, no_truth_value
from harness.metrics.definitions import PASS_METRICS, REQUEST_METRICS, Slo
from harness.model import LoadLevel
from harness.scenario.checked import Accuracy, OutputCheck
from harness.scenario.workload import Arrival, Factor, Workload


class Profile(Strict):
    """Once a launch has measured everything, the server's profiler traces decode steps in bursts of their own, so
    that `explain` knows which kernels a step consists of. It can't disturb what is measured."""

    steps: Annotated[int, Field(ge=4, le=100)] = 16
    """Decode steps traced at each load."""

    concurrency: list[Count] | None = None
    """Of `arrival`, those at which to trace. Default: all."""


class Objective(Strict):
    """Service-level objective: goodput counts the requests that meet all of it."""

    ttft: Timeout | None = None
    """Time to first token, at most."""

    tpot: Timeout | None = None
    """Time per output token, at most."""

    e2e: Timeout | None = None
    """Time to the last token, at most."""


class Primary(Strict):
    """The one number that this scenario is about."""

    metric: str
    """A metric's name, such as tpot or output_throughput."""

    level: Annotated[float, Field(gt=0)]
    """A concurrency, or a rate in requests a second, of `arrival`; where `input_tokens` is a list, at its longest."""

    percentile: Literal[50, 90, 95, 99] = 50
    """Of the metric over requests; a tail needs requests enough to be known."""

    @model_validator(mode="after")
    def _known(self) -> Primary:
        if self.metric not in REQUEST_METRICS and self.metric not in PASS_METRICS:
            known = ", ".join([*REQUEST_METRICS, *PASS_METRICS])
            raise ValueError(f"{self.metric!r} is no metric; known: {known}")
        return self


class Arm(Strict):
    """One arm, resolved: its name and the whole of its server settings."""

    name: str
    server: AnySettings

    @property
    def speculative(self) -> bool | None:
        """Do its settings say that it drafts? None where they don't tell."""
        return ENGINES[self.server.engine].speculative(self.server)

    @property
    def set_accept_length(self) -> float | None:
        """The accept length that its settings prescribe; None where drafts are accepted for what they are."""
        return ENGINES[self.server.engine].set_accept_length(self.server)

    def changes(self, base: AnySettings) -> dict[str, Any]:
        """The top-level settings in which this arm differs from `base`."""
        mine, other = self.server.model_dump(), base.model_dump()
        return {key: value for key, value in mine.items() if other.get(key) != value}


class Scenario(Strict):
    """A scenario file."""

    model_config = ConfigDict(title="mtpbench scenario")

    version: Annotated[Literal[1], BeforeValidator(no_truth_value)]
    """Of the file format: 1."""

    name: Name
    """Names the results: letters, digits, dots, dashes."""

    question: Annotated[str, Field(min_length=8)]
    """What a result of this scenario answers, in a sentence."""

    labels: dict[Name, str] = {}
    """Words of other tools about this scenario, such as those from which result files there take their names. Nothing
    that is measured depends on them."""

    server: AnySettings
    """What all arms share."""

    arms: dict[Name, dict[str, Any]]
    """Each arm: what it changes in `server`. Mappings are merged key by key; null removes."""

    baseline: str | None = None
    """The arm that others are compared with. Default: the first."""

    tp: Annotated[list[Count], Field(min_length=1)] = [1]
    """Tensor-parallel sizes, each with launches of its own."""

    workload: Workload
    """Prompts, their lengths and the seed."""

    arrival: Arrival
    """How requests arrive, and how many."""

    factors: dict[Name, Factor] = {}
    """One thing changed at a time: passes of their own in every launch, which `mtpbench explain` sets against the
    scenario's own. What changes the server is an arm."""

    output_check: OutputCheck = OutputCheck()
    """Whether all arms say the same."""

    accuracy: Accuracy = Accuracy()
    """Evaluations that each arm must pass."""

    launches: Count = 1
    """Server starts of each arm. The launch is the unit of statistics: one says nothing about spread."""

    passes: Count = 1
    """Sweeps over the levels within a launch."""

    profile: Profile | None = None
    """Traces of the device, for `explain`."""

    objective: Objective = Objective()
    """Service-level objective, for goodput."""

    primary: Primary | None = None
    """The one number that this scenario is about, for reports and verdicts."""

    def arm(self, name: str) -> Arm:
        return next(arm for arm in self.resolved_arms() if arm.name == name)

    def resolved_arms(self) -> list[Arm]:
        base = self.server.model_dump(exclude_unset=True)
        return [
            Arm.model_validate({"name": name, "server": merge(base, changes)}) for name, changes in self.arms.items()
        ]

    def levels(self) -> list[LoadLevel]:
        """Every point of the sweep: the loads at each prompt length, short ones first, and then each factor's."""
        return [*self.own_levels(), *(level for name in self.factors for level in self._factor_levels(name))]

    def own_levels(self) -> list[LoadLevel]:
        """The loads at each prompt length, short ones first, without those of factors."""
        loads = self.arrival.levels()
        lengths = self.workload.input_lengths
        return [replace(load, input_tokens=length) for length in lengths for load in loads] or loads

    def _factor_levels(self, name: str) -> list[LoadLevel]:
        factor = self.factors[name]
        length = factor.input_tokens
        if length is None:
            length = self.workload.input_lengths[-1] if self.workload.input_lengths else 0
        usual = [int(self.primary.level)] if self.primary else [max(self.arrival.concurrency, default=1)]
        burst = self.arrival.burst if factor.burst is None else factor.burst
        swept = length if isinstance(length, int) else 0
        return [LoadLevel(c, 0.0, swept, name, burst) for c in factor.concurrency or usual]

    def workload_of(self, level: LoadLevel) -> Workload:
        """The workload of the passes at a level: one prompt length, or one range of them."""
        factor = self.factors.get(level.factor, None)
        update: dict[str, Any] = {}
        if factor is not None:
            changed = {"input_tokens": factor.input_tokens, "output_tokens": factor.output_tokens}
            update = {key: value for key, value in changed.items() if value is not None}
        if level.input_tokens:
            update["input_tokens"] = level.input_tokens
        return self.workload.model_copy(update=update)

    def arrival_of(self, level: LoadLevel) -> Arrival:
        """How requests of the passes at a level arrive, and how many."""
        factor = self.factors.get(level.factor, None)
        names = ("requests_per_slot", "warmup_per_slot") if factor else ()
        changed = {name: value for name in names if (value := getattr(factor, name)) is not None}
        return self.arrival.model_copy(update=changed)

    def profiled(self, level: LoadLevel) -> bool:
        """Is the device traced at this level? Open loops have no burst of a fixed size; factors are like the others."""
        if self.profile is None or level.open_loop or level.factor:
            return False
        return self.profile.concurrency is None or level.concurrency in self.profile.concurrency

    @property
    def primary_level(self) -> LoadLevel | None:
        """The level of `primary`; of several prompt lengths, the longest's."""
        named = [level for level in self.own_levels() if self.primary and level.value == self.primary.level]
        return named[-1] if named else None

    @property
    def baseline_arm(self) -> str:
        return self.baseline or next(iter(self.arms))

    @property
    def slo(self) -> Slo:
        return Slo(self.objective.ttft, self.objective.tpot, self.objective.e2e)

    @property
    def max_slots(self) -> int:
        return max(self.arrival.slots(level) for level in self.levels())

    @property
    def max_context(self) -> int | None:
        """Longest request in tokens; None for `jsonl` without `input_tokens`."""
        workloads = [self.workload_of(level) for level in self.levels()]
        totals = [one.max_input + one.max_output for one in workloads if one.max_input is not None]
        return max(totals, default=None)
