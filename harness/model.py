"""What a run consists of: requests, passes, launches. Immutable, standard library only.

A *run* executes one scenario. It starts servers (*launches*, the unit of statistics), and sends each of
them *passes* of requests, one pass a load level. Times are seconds of CLOCK_MONOTONIC, which all processes
of one machine share; wall-clock times are only for people.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, NamedTuple

RECORD_VERSION = 2  # Raise it when a field changes meaning, and say here what changed.
# 2: the device timer is that of one TP rank. In 1 it was the sum over ranks: see `_of_one_rank`. `cuda_graph_passes` is
# gone: nothing reads it, and of several ranks only the first counts prefills.

_DEVICE_COUNTER = "device_seconds_"  # what engines call SGLang's device timer, a counter for each kind of forward pass


class RequestStatus(str, Enum):
    """How a request ended. Exactly one, and only OK counts in any metric."""

    OK = "ok"
    REFUSED = "refused"  # no stream began: connection refused, or an HTTP status other than 200
    STREAM_ERROR = "error_in_stream"  # an error inside a 200 response
    TRUNCATED = "truncated"  # the stream ended early: no end mark, or fewer tokens than demanded
    TIMED_OUT = "timed_out"  # nothing for longer than the scenario allows
    CANCELLED = "cancelled"  # by us: Ctrl-C
    SERVER_DIED = "server_died"


class CountSource(str, Enum):
    """Where the number of tokens in each event comes from."""

    EVENT = "event"  # the server says it with every piece of output
    FINAL = "final"  # only at the end, or now and then: spread evenly over the pieces between
    NONE = "none"  # never: pieces are counted, and nothing is said of tokens


class Event(NamedTuple):
    """One thing that arrived with new tokens: when, and how many tokens there were by then.

    A tuple, because a pass has millions: half the memory and a third of the time of a dataclass.
    """

    t: float
    tokens: int


@dataclass(frozen=True)
class RequestRecord:
    """One request as measured: every metric is derived from this, none is stored.

    `t_send` is the moment at which the request's first byte goes out on an open connection; `t_scheduled`
    the moment at which the load generator wanted to send it. Counts are the server's own, None where it
    does not say. `verify_steps` counts target-verify passes, each of which yields 1 + accepted tokens.
    """

    index: int
    slot: int
    t_scheduled: float
    t_send: float
    t_end: float
    status: RequestStatus
    events: tuple[Event, ...] = ()
    error: str = ""
    input_tokens_asked: int = 0
    output_tokens_asked: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    verify_steps: int | None = None
    finish_reason: str = ""
    count_source: CountSource = CountSource.EVENT
    output_digest: str = ""  # of the text or ids: equal outputs have equal digests
    repetition: float = 0.0  # share of the commonest piece of output, 1.0 = the same piece throughout

    @property
    def ok(self) -> bool:
        return self.status is RequestStatus.OK

    @property
    def counted(self) -> bool:
        """Is it known how many tokens arrived? Else only when pieces of output did."""
        return self.count_source is not CountSource.NONE

    @property
    def tokens(self) -> int:
        """Output tokens that really arrived; pieces of output where they are not `counted`."""
        if self.completion_tokens is not None:
            return self.completion_tokens
        return self.events[-1].tokens if self.events else 0

    def to_json(self) -> dict[str, Any]:
        """Compact: events become microseconds since the send and tokens since the event before."""
        data = asdict(self)
        before = [0, *(event.tokens for event in self.events)]
        data["events"] = [
            [round((event.t - self.t_send) * 1e6), event.tokens - earlier]
            for event, earlier in zip(self.events, before, strict=False)
        ]
        for name in ("t_scheduled", "t_send", "t_end"):
            data[name] = round(data[name], 6)
        data["repetition"] = round(self.repetition, 3)
        return {key: value for key, value in data.items() if value not in ("", None)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RequestRecord:
        """The inverse of `to_json`, to the microsecond."""
        values = dict(data)
        events, total = [], 0
        for micros, new in values.pop("events", []):
            total += new
            events.append(Event(values["t_send"] + micros * 1e-6, total))
        values["events"] = tuple(events)
        values["status"] = RequestStatus(values["status"])
        values["count_source"] = CountSource(values["count_source"])
        return cls(**values)


@dataclass(frozen=True)
class LoadLevel:
    """One point of a sweep: closed loop at a concurrency, or open loop at a Poisson rate (requests/s).

    `input_tokens` is 0 unless the scenario sweeps prompt lengths too. `factor` names the factor of the scenario in
    which this level differs from the others; `burst` says that each slot sends one request, all at once.
    """

    concurrency: int = 0
    rate: float = 0.0
    input_tokens: int = 0
    factor: str = ""
    burst: bool = False

    def __post_init__(self) -> None:
        if (self.concurrency > 0) == (self.rate > 0):
            raise ValueError("a load level is either a concurrency or a rate")
        if self.burst and self.open_loop:
            raise ValueError("a burst has a concurrency")

    @property
    def open_loop(self) -> bool:
        return self.rate > 0

    @property
    def load(self) -> str:
        return f"{self.rate:g}/s" if self.open_loop else str(self.concurrency)

    @property
    def label(self) -> str:
        details = [f"{self.input_tokens} in"] if self.input_tokens else []
        details += [self.factor] if self.factor else ["burst"] if self.burst else []
        return f"{self.load} ({', '.join(details)})" if details else self.load

    @property
    def value(self) -> float:
        return self.rate if self.open_loop else float(self.concurrency)


@dataclass(frozen=True)
class PassKey:
    """Which pass: `launch` and `index` count from 0; arms run the same passes with the same prompts."""

    launch: int
    arm: str
    tp: int
    level: LoadLevel
    index: int

    @property
    def launch_slug(self) -> str:
        return f"{self.launch:02d}-{self.arm}-tp{self.tp}"

    @property
    def slug(self) -> str:
        level = f"r{self.level.rate:g}" if self.level.open_loop else f"c{self.level.concurrency:04d}"
        level += f"-i{self.level.input_tokens}" if self.level.input_tokens else ""
        if self.level.factor or self.level.burst:
            level += f"-{self.level.factor or 'burst'}"
        return f"{self.launch_slug}-p{self.index:02d}-{level}"


@dataclass(frozen=True)
class GpuSample:
    """One reading of one GPU; None where the driver does not say."""

    t: float
    gpu: int
    clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    memory_used_mb: float | None = None


@dataclass(frozen=True)
class Finding:
    """Something that a reader of the result must know; `invalid` ones forbid its use."""

    code: str
    message: str
    invalid: bool = False


@dataclass(frozen=True)
class PassRecord:
    """One pass, all but its requests (which lie beside it, one JSON line each).

    `t_start` is the moment the first request was allowed to go. `counters` are the server's own, as
    differences over the pass. `client_lag_p99` is how late the load generator's event loop ran, in seconds.
    `step_profile` was traced after everything was measured, at the same load, and lies in a file of its own.
    """

    key: PassKey
    started_at: str  # UTC, ISO 8601
    t_start: float
    t_end: float
    status: str  # "complete", or why not
    server_start: int = 0  # counts the server processes that served this launch: more than one after a resume
    gpus: int = 0  # that the server used; 0 on a CPU
    warmup_requests: int = 0
    warmup_failures: int = 0
    client_lag_p99: float = 0.0
    client_late_share: float | None = None  # of looks at its event loop: those more than 1 ms late
    client_cpu: float | None = None  # cores that its busiest process used
    server_accept_length: float | None = None  # the server's own average since its start, if it has one
    counters: dict[str, float] = field(default_factory=dict)  # what the server counted; of one TP rank
    gpu: tuple[GpuSample, ...] = ()
    decode_log: tuple[dict[str, float], ...] = ()
    findings: tuple[Finding, ...] = ()
    step_profile: dict[str, float] = field(default_factory=dict)  # device seconds a decode step, by part

    @property
    def complete(self) -> bool:
        return self.status == "complete"

    @property
    def device_seconds(self) -> dict[str, float]:
        """SGLang's device timer by kind of forward pass, without `idle`, waiting for other ranks. Empty without it."""
        kinds = {name.removeprefix(_DEVICE_COUNTER): name for name in self.counters if name.startswith(_DEVICE_COUNTER)}
        return {kind: self.counters[name] for kind, name in kinds.items() if kind != "idle"}

    def to_json(self) -> dict[str, Any]:
        return {"record_version": RECORD_VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> PassRecord:
        values = {key: value for key, value in data.items() if key != "record_version"}
        key = dict(values["key"])
        key["level"] = LoadLevel(**key["level"])
        values["key"] = PassKey(**key)
        if data["record_version"] < 2:
            values["counters"] = _of_one_rank(values["counters"], values["key"].tp)
        values["gpu"] = tuple(GpuSample(**sample) for sample in values["gpu"])
        values["findings"] = tuple(Finding(**finding) for finding in values["findings"])
        values["decode_log"] = tuple(values["decode_log"])
        return cls(**values)


def _of_one_rank(counters: Mapping[str, float], tp: int) -> dict[str, float]:
    """Counters of a record of version 1. What else is read is counted by the first rank alone."""
    return {name: value / tp if name.startswith(_DEVICE_COUNTER) else value for name, value in counters.items()}


@dataclass(frozen=True)
class Pass:
    """A pass with its requests: what metrics are computed from.

    `derived` stands in for requests that were not read: the pass's stored row, keyed as by `metrics.pass_row`.
    """

    record: PassRecord
    requests: tuple[RequestRecord, ...]
    derived: Mapping[str, Any] | None = None

    @property
    def sent(self) -> int:
        """How many requests."""
        return len(self.requests) if self.derived is None else int(self.derived["requests"])

    @property
    def failed(self) -> int:
        """How many of them did not end well."""
        if self.derived is not None:
            return self.sent - int(self.derived["ok"])
        return sum(not r.ok for r in self.requests)


@dataclass(frozen=True)
class Output:
    """A greedy answer: tokens, the log-probability of each (None: not a number), and each one's runner-up."""

    ids: tuple[int, ...]
    logprobs: tuple[float | None, ...] = ()
    runners_up: tuple[tuple[int, float], ...] = ()  # (token, log-probability)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Output:
        runners_up = tuple((int(token), float(value)) for token, value in data["runners_up"])
        return cls(tuple(data["ids"]), tuple(data["logprobs"]), runners_up)


@dataclass(frozen=True)
class LaunchRecord:
    """One server process that was started: its command and harmless environment, and how it went."""

    slug: str
    launch: int
    arm: str
    tp: int
    server_start: int
    started_at: str
    command: tuple[str, ...]
    environment: dict[str, str]
    status: str  # "ready", or why it never was
    ready_seconds: float = 0.0
    gpus: tuple[int, ...] = ()
    described: dict[str, Any] = field(default_factory=dict)  # what the server says of itself
    packages: dict[str, str] = field(default_factory=dict)  # versions in the server's own interpreter
    log: str = ""  # file name, beside this record
    verify: str = ""  # arm of the verify kernel that was asked for; empty: SGLang unhooked
    evidence: tuple[dict[str, Any], ...] = ()  # what each of its processes wrote down: checks/kernel_evidence.py
    accuracy: float | None = None  # share of GSM8K problems solved, where the scenario asks for it
    outputs: tuple[Output, ...] = ()  # greedy answers to fixed prompts, see checks/same_answers.py
    findings: tuple[Finding, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"record_version": RECORD_VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> LaunchRecord:
        values = {key: value for key, value in data.items() if key != "record_version"}
        values["command"] = tuple(values["command"])
        values["gpus"] = tuple(values["gpus"])
        values["evidence"] = tuple(values.get("evidence", ()))
        values["outputs"] = tuple(Output.from_json(output) for output in values.get("outputs", ()))
        values["findings"] = tuple(Finding(**finding) for finding in values.get("findings", ()))
        return cls(**values)
