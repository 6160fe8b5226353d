"""Every metric, as a table: name, unit, direction, formula. All are derived from raw events on reading.

A newcomer adds a metric with one entry below and a test with a value computed by hand.

Definitions (docs/metrics.md compares them with those of other tools). For a request with events
(t_i, cumulative tokens n_i), i = 1..m, sent at t_send:

    TTFT          t_1 - t_send; in an open loop t_1 - t_scheduled, see below
    TPOT          (t_m - t_1) / (n_m - n_1)
    accept length (n - 1) / verify steps, n all output tokens: the first comes from the prompt, not from a step
    step time     TPOT x accept length              so TPOT = step time / accept length, exactly
    E2E           t_m - t_send; in an open loop t_m - t_scheduled
    step gap      time between arrivals             arrivals closer than BURST_S are one
    ITL           step gap / new tokens, once for each of them

An open loop has users who come when they come: one whose request the client sends late waits from the moment at which
it was to be sent. Counting from the send would hide that wait (coordinated omission). `ttft_from_send` and
`e2e_from_send` count from the send in both loops, `lateness` is the difference.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from harness.metrics.steady_window import Window, achieved_concurrency, counted, cut, peak_in_flight, steady_window
from harness.model import Event, Pass, RequestRecord

# llama.cpp sends the tokens of one verify step as events 0.1-0.2 ms apart; no engine steps this fast.
BURST_S = 0.5e-3

# A percentile is shown only with at least this many samples beyond it: p90 from 50 samples on, p99 from 500.
# With fewer, it is little more than the maximum.
MIN_TAIL_SAMPLES = 5
PERCENTILES = (50, 90, 95, 99)


def samples_needed(percentile: int) -> int:
    """How many samples a percentile needs to be shown; one for the median."""
    return 1 if percentile == 50 else -(-100 * MIN_TAIL_SAMPLES // (100 - percentile))


@dataclass(frozen=True)
class Slo:
    """A service-level objective, in seconds; None is no demand."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None


@dataclass(frozen=True)
class PassView:
    """A pass cut to its steady-state window."""

    source: Pass
    window: Window | None
    counted: tuple[RequestRecord, ...]
    slo: Slo

    @classmethod
    def of(cls, source: Pass, slo: Slo | None = None) -> PassView:
        if source.derived is not None:
            return cls(source, None, (), slo or Slo())
        level = source.record.key.level
        window = steady_window(source.requests, level)
        return cls(source, window, counted(source.requests, window, level), slo or Slo())

    @property
    def open_loop(self) -> bool:
        return self.source.record.key.level.open_loop

    @property
    def requests(self) -> tuple[RequestRecord, ...]:
        return self.source.requests

    @property
    def decoding(self) -> tuple[RequestRecord, ...]:
        """The counted requests for what concerns decoding: of a burst, what lies in its window."""
        if self.window is None or not self.source.record.key.level.burst:
            return self.counted
        return tuple(cut(r, self.window) for r in self.counted)

    @property
    def gpus(self) -> int:
        return self.source.record.gpus


@dataclass(frozen=True)
class RequestMetric:
    """A metric with samples in each request; summarised by its distribution."""

    name: str
    label: str
    unit: str
    higher_is_better: bool
    samples: Callable[[RequestRecord], Sequence[float]]
    of_decoding: bool = True  # of the tokens after the first
    as_scheduled: Callable[[RequestRecord], Sequence[float]] | None = None  # the same in an open loop, where it differs


@dataclass(frozen=True)
class PassMetric:
    """A metric with one value a pass; None where it can't be told."""

    name: str
    label: str
    unit: str
    higher_is_better: bool
    formula: Callable[[PassView], float | None]


def ttft(r: RequestRecord) -> float | None:
    """Seconds from the send to the first event with a token."""
    return r.events[0].t - r.t_send if r.events else None


def ttft_scheduled(r: RequestRecord) -> float | None:
    """Seconds from the moment at which it was to be sent to the first event with a token."""
    return r.events[0].t - r.t_scheduled if r.events else None


def e2e_scheduled(r: RequestRecord) -> float | None:
    """Seconds from the moment at which it was to be sent to the last token."""
    return r.events[-1].t - r.t_scheduled if r.events else None


def lateness(r: RequestRecord) -> float:
    """Seconds from the moment at which it was to be sent to the send."""
    return max(0.0, r.t_send - r.t_scheduled)


def tpot(r: RequestRecord) -> float | None:
    """Seconds a token after the first event; None when everything came at once, or nobody counted the tokens."""
    if len(r.events) < 2 or not r.counted:
        return None
    first, last = r.events[0], r.events[-1]
    return (last.t - first.t) / (last.tokens - first.tokens) if last.t - first.t >= BURST_S else None


def accept_length(r: RequestRecord) -> float | None:
    """Tokens a target-verify step, the bonus token included; None without speculation."""
    if not r.verify_steps or not r.events or not r.counted:
        return None
    return (r.tokens - 1) / r.verify_steps  # tokens that are only counted took steps too


def step_time(r: RequestRecord) -> float | None:
    """Seconds a target-verify step."""
    per_token, accepted = tpot(r), accept_length(r)
    return per_token * accepted if per_token is not None and accepted is not None else None


def e2e(r: RequestRecord) -> float | None:
    """Seconds from the send to the last token."""
    return r.events[-1].t - r.t_send if r.events else None


def arrivals(events: Sequence[Event]) -> list[Event]:
    """Events with bursts merged: each at the time of its burst's first event, with its last count."""
    merged: list[Event] = []
    previous = float("-inf")
    for event in events:
        if event.t - previous < BURST_S:
            merged[-1] = Event(merged[-1].t, event.tokens)
        else:
            merged.append(event)
        previous = event.t
    return merged


def step_gaps(r: RequestRecord) -> list[float]:
    """Seconds between consecutive arrivals."""
    steps = arrivals(r.events)
    return [b.t - a.t for a, b in pairwise(steps)]


def inter_token_latencies(r: RequestRecord) -> list[float]:
    """Each gap divided by the tokens that ended it, once for each of them; none where nobody counted them."""
    steps = arrivals(r.events) if r.counted else []
    samples: list[float] = []
    for a, b in pairwise(steps):
        new = b.tokens - a.tokens
        samples += [(b.t - a.t) / new] * new
    return samples


def _one(
    formula: Callable[[RequestRecord], float | None],
) -> Callable[[RequestRecord], Sequence[float]]:
    def samples(r: RequestRecord) -> Sequence[float]:
        value = formula(r)
        return [] if value is None else [value]

    return samples


REQUEST_METRICS: dict[str, RequestMetric] = {
    m.name: m
    for m in (
        RequestMetric("ttft", "TTFT", "s", False, _one(ttft), False, _one(ttft_scheduled)),
        RequestMetric("tpot", "TPOT", "s", False, _one(tpot)),
        RequestMetric("itl", "ITL", "s", False, inter_token_latencies),
        RequestMetric("step_gap", "Step gap", "s", False, step_gaps),
        RequestMetric("step_time", "Step time", "s", False, _one(step_time)),
        RequestMetric("accept_length", "Accept length", "tokens/step", True, _one(accept_length)),
        RequestMetric("e2e", "E2E", "s", False, _one(e2e), False, _one(e2e_scheduled)),
        RequestMetric("ttft_from_send", "TTFT from send", "s", False, _one(ttft), False),
        RequestMetric("e2e_from_send", "E2E from send", "s", False, _one(e2e), False),
        RequestMetric("lateness", "Lateness of sends", "s", False, _one(lateness), False),
    )
}


def _tokens_in(requests: Sequence[RequestRecord], window: Window) -> list[tuple[float, int]]:
    """(time, new output tokens) of every event of ok requests in the window."""
    out = []
    for r in requests:
        if r.ok:
            before = 0
            for event in r.events:
                if window.holds(event.t):
                    out.append((event.t, event.tokens - before))
                before = event.tokens
    return out


def _uncounted(v: PassView) -> bool:
    """Are there answers whose tokens nobody counted? A rate without them would be too low."""
    return any(r.ok and not r.counted for r in v.requests)


def output_throughput(v: PassView) -> float | None:
    if v.window is None or _uncounted(v):
        return None
    return sum(n for _, n in _tokens_in(v.requests, v.window)) / v.window.seconds


def peak_output_throughput(v: PassView) -> float | None:
    """Highest rate in equal bins of at most one second: never under the mean."""
    if v.window is None or _uncounted(v):
        return None
    bins = max(1, math.ceil(v.window.seconds))
    width = v.window.seconds / bins
    totals = [0.0] * bins
    for t, n in _tokens_in(v.requests, v.window):
        totals[min(bins - 1, int((t - v.window.start) / width))] += n
    return max(totals) / width


def input_throughput(v: PassView) -> float | None:
    """Prompt tokens whose request got its first token in the window, a second."""
    if v.window is None:
        return None
    tokens = sum(
        r.prompt_tokens if r.prompt_tokens is not None else r.input_tokens_asked
        for r in v.requests
        if r.ok and v.window.holds(r.events[0].t)
    )
    return tokens / v.window.seconds


def request_throughput(v: PassView) -> float | None:
    if v.window is None:
        return None
    return sum(r.ok and v.window.holds(r.t_end) for r in v.requests) / v.window.seconds


def arrival_rate(v: PassView) -> float | None:
    """Requests a second that an open loop really sent, over all of its sends; None of a closed loop."""
    if not v.open_loop or len(v.requests) < 2:
        return None
    sends = [r.t_send for r in v.requests]
    begin = min(r.t_scheduled for r in v.requests)
    taken = max(sends) - min(begin, min(sends))
    return (len(sends) - 1) / taken if taken > 0 else None


def goodput(v: PassView) -> float | None:
    """Requests a second that meet the scenario's SLO; None where it has none."""
    first, whole = (ttft_scheduled, e2e_scheduled) if v.open_loop else (ttft, e2e)
    demands = ((v.slo.ttft, first), (v.slo.tpot, tpot), (v.slo.e2e, whole))
    asked = [(limit, formula) for limit, formula in demands if limit is not None]
    if v.window is None or not asked:
        return None

    def meets(r: RequestRecord) -> bool:
        values = [(formula(r), limit) for limit, formula in asked]
        return all(value is None or value <= limit for value, limit in values)

    good = sum(r.ok and v.window.holds(r.t_end) and meets(r) for r in v.requests)
    return good / v.window.seconds


def _per_gpu(formula: Callable[[PassView], float | None]) -> Callable[[PassView], float | None]:
    def value(v: PassView) -> float | None:
        total = formula(v)
        return total / v.gpus if total is not None and v.gpus else None

    return value


def interactivity(v: PassView) -> float | None:
    """Tokens a second that one user sees: 1 / median TPOT."""
    values = [value for r in v.decoding if (value := tpot(r)) is not None]
    return 1 / median(values) if values and median(values) > 0 else None


def device_time_per_token(v: PassView) -> float | None:
    """Seconds that forward passes took on the device, prefill included, for each output token of the whole pass.

    What the host costs is not in it, so it repeats where TPOT does not. None without SGLang's device timer
    (``SGLANG_ENABLE_METRICS_DEVICE_TIMER=1``). Of one GPU, also at TP2; waiting for the other GPU in a collective is
    in it. Not only of the window: the timer is read before and after a pass.
    """
    seconds = v.source.record.device_seconds
    tokens = sum(r.tokens for r in v.requests)
    return sum(seconds.values()) / tokens if seconds and tokens and not _uncounted(v) else None


def total_throughput(v: PassView) -> float | None:
    new, read = output_throughput(v), input_throughput(v)
    return new + read if new is not None and read is not None else None


PASS_METRICS: dict[str, PassMetric] = {
    m.name: m
    for m in (
        PassMetric("output_throughput", "Output", "tokens/s", True, output_throughput),
        PassMetric("peak_output_throughput", "Peak output", "tokens/s", True, peak_output_throughput),
        PassMetric("input_throughput", "Input", "tokens/s", True, input_throughput),
        PassMetric("total_throughput", "Total", "tokens/s", True, total_throughput),
        PassMetric(
            "output_throughput_per_gpu",
            "Output a GPU",
            "tokens/s",
            True,
            _per_gpu(output_throughput),
        ),
        PassMetric("request_throughput", "Requests", "1/s", True, request_throughput),
        PassMetric("goodput", "Goodput", "1/s", True, goodput),
        PassMetric("arrival_rate", "Sent", "1/s", True, arrival_rate),
        PassMetric("interactivity", "Interactivity", "tokens/s/user", True, interactivity),
        PassMetric(
            "achieved_concurrency",
            "In flight",
            "requests",
            True,
            lambda v: achieved_concurrency(v.requests, v.window) if v.window else None,
        ),
        PassMetric(
            "server_accept_length",
            "Accept length (server)",
            "tokens/step",
            True,
            lambda v: v.source.record.server_accept_length,
        ),
        PassMetric("device_time_per_token", "Device time", "s/token", False, device_time_per_token),
        PassMetric(
            "peak_in_flight",
            "Peak in flight",
            "requests",
            True,
            lambda v: peak_in_flight(v.requests),
        ),
    )
}


@dataclass(frozen=True)
class Distribution:
    """Samples summed up; a percentile is None where too few samples lie beyond it."""

    n: int
    mean: float | None
    percentiles: dict[int, float | None]

    @classmethod
    def of(cls, samples: Sequence[float]) -> Distribution:
        n = len(samples)
        if not n:
            return cls(0, None, dict.fromkeys(PERCENTILES))
        import numpy as np  # not above: `validate` and `list` need the names of metrics, and are to start at once

        values = np.percentile(samples, PERCENTILES)
        return cls(
            n,
            float(np.mean(samples)),
            {p: float(value) if n >= samples_needed(p) else None for p, value in zip(PERCENTILES, values, strict=True)},
        )


def distribution(name: str, view: PassView) -> Distribution:
    """The distribution of a request metric over the counted requests of a pass."""
    metric = REQUEST_METRICS[name]
    requests = view.decoding if metric.of_decoding else view.counted
    samples = metric.as_scheduled if view.open_loop and metric.as_scheduled else metric.samples
    return Distribution.of([value for r in requests for value in samples(r)])


def pass_row(view: PassView) -> dict[str, Any]:
    """One pass as a flat row: who it is, how requests ended, every metric. Units: seconds, tokens."""
    record, key = view.source.record, view.source.record.key
    row: dict[str, Any] = {
        "launch": key.launch,
        "server_start": record.server_start,
        "arm": key.arm,
        "tp": key.tp,
        "concurrency": key.level.concurrency or None,
        "rate": key.level.rate or None,
        "input_tokens": key.level.input_tokens or None,
        "factor": key.level.factor or None,
        "pass": key.index,
        "started_at": record.started_at,
        "status": record.status,
        "window_s": view.window.seconds if view.window else None,
        "requests": len(view.requests),
        "ok": sum(r.ok for r in view.requests),
        "counted": len(view.counted),
        "client_lag_p99_s": record.client_lag_p99,
        "client_late_share": record.client_late_share,
        "client_cpu": record.client_cpu,
        "findings": ",".join(finding.code for finding in record.findings),
        "finding_details": json.dumps([asdict(finding) for finding in record.findings]),
    }
    for pass_metric in PASS_METRICS.values():
        row[pass_metric.name] = pass_metric.formula(view)
    for metric in REQUEST_METRICS.values():
        summary = distribution(metric.name, view)
        row[f"{metric.name}_n"] = summary.n
        row[f"{metric.name}_mean"] = summary.mean
        for percentile, value in summary.percentiles.items():
            row[f"{metric.name}_p{percentile}"] = value
    for reading in ("clock_mhz", "power_w", "temperature_c", "memory_used_mb"):
        values = [v for sample in record.gpu if (v := getattr(sample, reading)) is not None]
        row[f"gpu_{reading}_mean"] = Distribution.of(values).mean
        row[f"gpu_{reading}_min"] = min(values) if values else None
        row[f"gpu_{reading}_max"] = max(values) if values else None
    return row
