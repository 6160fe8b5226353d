"""A scenario: one question, asked of servers. The types below are the file format and its documentation.

`yaml_file.py` reads YAML into them; `mtpbench schema` prints the JSON Schema made from them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from harness.engines.registry import ENGINES, AnySettings
from harness.fields import Count, Name, Rate, Strict, Timeout, merge, no_truth_value
from harness.metrics.definitions import PASS_METRICS, REQUEST_METRICS, Slo
from harness.model import LoadLevel


class TokenRange(Strict):
    """Lengths drawn uniformly, both ends included."""

    min: Count
    """Shortest."""

    max: Count
    """Longest."""

    @model_validator(mode="after")
    def _ordered(self) -> TokenRange:
        if self.min > self.max:
            raise ValueError(f"min = {self.min} exceeds max = {self.max}")
        return self


class Workload(Strict):
    """What every request asks."""

    prompts: Literal["prose", "code", "random", "jsonl"]
    """prose: English technical text (the Python language reference). code: standard-library sources.
    random: tokens drawn at random; acceptance of drafts on them means little. jsonl: your own, see `file`."""

    file: str | None = None
    """For `jsonl`: one object a line with `prompt`, `messages`, `conversations` (ShareGPT) or `input_ids`, and
    optionally `output_tokens`; or a JSON array of such. Relative to the scenario file."""

    input_tokens: Count | TokenRange | Annotated[list[Count], Field(min_length=1)] | None = None
    """Prompt length in tokens of the server's tokeniser: one, a range, or a list, each with passes of its own.
    Required but for `jsonl`."""

    output_tokens: Count | TokenRange
    """Tokens to generate. For `jsonl`, the default for lines that do not say."""

    seed: Annotated[int, Field(ge=0)] = 1
    """Same seed, same prompts: in every arm and launch."""

    shared_prefix_tokens: Annotated[int, Field(ge=0)] = 0
    """Every prompt begins with these same tokens. 0: no two prompts share a beginning, so that no cache helps."""

    chat: bool = False
    """Send text through the server's chat template; prompt lengths are then about right, not exact."""

    ignore_eos: bool = True
    """Always generate `output_tokens`. When false, a shorter answer is a good answer."""

    temperature: Annotated[float, Field(ge=0)] = 0.0
    """0: greedy. Above it, outputs differ from run to run."""

    @model_validator(mode="after")
    def _complete(self) -> Workload:
        if (self.prompts == "jsonl") != (self.file is not None):
            raise ValueError("`file` goes with `prompts: jsonl`, and only with it")
        if self.prompts != "jsonl" and self.input_tokens is None:
            raise ValueError("`input_tokens` is required")
        if len(set(self.input_lengths)) < len(self.input_lengths):
            raise ValueError("`input_tokens` names the same length twice")
        if self.input_lengths and self.prompts == "jsonl":
            raise ValueError("a list of `input_tokens` does not go with `prompts: jsonl`")
        least = shortest(self.input_tokens)
        if least is not None and self.shared_prefix_tokens >= least:
            raise ValueError("`shared_prefix_tokens` must be below `input_tokens`")
        return self

    @property
    def input_lengths(self) -> list[int]:
        """Prompt lengths that are swept; empty where every pass has the same."""
        return sorted(self.input_tokens) if isinstance(self.input_tokens, list) else []

    @property
    def max_input(self) -> int | None:
        return _largest(self.input_tokens) if self.input_tokens is not None else None

    @property
    def max_output(self) -> int:
        return _largest(self.output_tokens)


class Arrival(Strict):
    """How requests arrive: `concurrency` (closed loop) or `rates` (open loop)."""

    concurrency: list[Count] = []
    """Closed loop: so many requests are kept in flight, one pass for each number."""

    rates: list[Rate] = []
    """Open loop: requests arrive at random (Poisson) at this mean rate, whatever the server does."""

    max_in_flight: Count = 256
    """Open loop: at most so many at once; beyond it arrivals are late, and said to be."""

    requests_per_slot: Count = 10
    """A pass has this many requests for each unit of concurrency. The first and the last round are ramps."""

    min_requests: Count = 16
    """But at least this many. In an open loop, this many."""

    warmup_per_slot: Annotated[int, Field(ge=0, strict=True)] = 1
    """Requests before each pass, for each unit of concurrency, that are not measured."""

    max_warmups: Count | None = None
    """But at most this many. Default: no limit."""

    burst: bool = False
    """Closed loop: every slot sends one request, all at once, and only the time counts in which all of them decode,
    from the last first token to the first end. No prefill disturbs it."""

    @model_validator(mode="after")
    def _one_kind(self) -> Arrival:
        if bool(self.concurrency) == bool(self.rates):
            raise ValueError("give either `concurrency` (closed loop) or `rates` (open loop)")
        if len(set(self.concurrency)) < len(self.concurrency) or len(set(self.rates)) < len(self.rates):
            raise ValueError("the same level stands there twice")
        if self.burst and self.rates:
            raise ValueError("`burst` goes with `concurrency`")
        if self.concurrency and self.requests_per_slot < 3:
            raise ValueError(
                "`requests_per_slot` must be at least 3: one round ramps up, one ramps down, between them is the result"
            )
        return self

    def levels(self) -> list[LoadLevel]:
        closed = [LoadLevel(concurrency=c, burst=self.burst) for c in self.concurrency]
        return closed or [LoadLevel(rate=rate) for rate in self.rates]

    def slots(self, level: LoadLevel) -> int:
        return self.max_in_flight if level.open_loop else level.concurrency

    def requests(self, level: LoadLevel) -> int:
        if level.open_loop:
            return self.min_requests
        if level.burst:
            return level.concurrency
        return max(self.min_requests, self.requests_per_slot * level.concurrency)

    def steady_requests(self, level: LoadLevel) -> int:
        """About how many requests of a pass lie in the steady state: all but the first and the last round."""
        if level.open_loop or level.burst:
            return self.requests(level)
        return max(0, self.requests(level) - 2 * level.concurrency + 1)

    def warmups(self, level: LoadLevel) -> int:
        asked = self.warmup_per_slot * max(1, level.concurrency)
        return min(asked, self.max_warmups) if self.max_warmups else asked


class Factor(Strict):
    """Further passes of every launch in which this alone differs from `workload` and `arrival`."""

    concurrency: Annotated[list[Count], Field(min_length=1)] | None = None
    """Loads, closed loop. Default: the primary endpoint's, or else the largest of `arrival`."""

    input_tokens: Count | TokenRange | None = None
    """Prompt length; a range makes lengths differ within a batch. Default: the workload's, of several the longest."""

    output_tokens: Count | TokenRange | None = None
    """Tokens to generate."""

    requests_per_slot: Count | None = None
    """As in `arrival`."""

    warmup_per_slot: Annotated[int, Field(ge=0, strict=True)] | None = None
    """As in `arrival`."""

    burst: bool | None = None
    """As in `arrival`."""

    @model_validator(mode="after")
    def _something(self) -> Factor:
        if not self.model_fields_set:
            raise ValueError("a factor changes something")
        if self.requests_per_slot is not None and self.requests_per_slot < 3 and not self.burst:
            raise ValueError("`requests_per_slot` must be at least 3, as in `arrival`")
        return self


class OutputCheck(Strict):
    """Every arm answers the same prompts before it is measured, and must agree with the plainest arm of its model
    (the first without speculation). It can't be turned off; dummy weights and simulated acceptance can't be checked."""

    prompts: Count = 16
    """How many."""

    output_tokens: Count = 48
    """Tokens of each answer."""

    max_logprob_difference: Annotated[float, Field(gt=0)] = 0.03
    """Mean difference of log-probabilities that rounding may cause."""

    tie: Annotated[float, Field(ge=0)] = 0.1
    """Texts may part where the two best tokens are so close, in log-probability."""


class Gsm8k(Strict):
    """GSM8K through SGLang's evaluator, once an arm and TP, before anything is measured."""

    questions: Count = 200
    """How many problems."""

    least: Annotated[float, Field(ge=0, le=1)]
    """Share that must be solved."""

    parallel: Count = 32
    """Problems at once."""

    data: str | None = None
    """A local copy of the test questions (JSON lines); in a container, as it is mounted there. Default: fetched."""

    timeout: Timeout = 1800.0
    """How long it may take."""


class Accuracy(Strict):
    """Evaluations of the text, for machines that have the weights."""

    gsm8k: Gsm8k | None = None
    """Grade-school mathematics."""


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
        """The same without factors."""
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


def _largest(length: int | TokenRange | list[int]) -> int:
    if isinstance(length, list):
        return max(length)
    return length.max if isinstance(length, TokenRange) else length


def shortest(length: int | TokenRange | list[int] | None) -> int | None:
    """The fewest tokens of a length, whichever form it has."""
    if isinstance(length, list):
        return min(length)
    return length.min if isinstance(length, TokenRange) else length
