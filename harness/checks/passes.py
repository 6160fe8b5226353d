"""What a reader must know about a pass before trusting it. One function a check; a table runs them all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from harness.metrics.definitions import PassView, accept_length, arrival_rate, distribution, lateness, tpot
from harness.metrics.steady_window import achieved_concurrency, peak_in_flight
from harness.model import Finding, RequestRecord
from harness.scenario.prompts import HEAD
from harness.units import format_duration

MIN_COUNTED = 5
MAX_REPETITION = 0.9  # of the last 64 pieces: English text stays below 0.5, a loop of six tokens reaches it
MIN_PIECES_TOKENS = 32
MAX_CLIENT_ERROR = 0.05
MAX_CLIENT_CPU = 0.9  # cores of a load process: a single thread that is as busy has a queue
# Mean clock ÷ the highest seen in the pass: clocks that dip in each prefill stayed above 0.92 in all runs on an H200.
THROTTLED = 0.88
TOLD_LATENESS = 0.05  # seconds after its time from which on the late send of an open loop's request is told
# Beyond so much for so many the load is another one than was asked for; below it TTFT holds the wait. A machine with
# twice as many busy processes as cores sends a few of a hundred 0.1 s late; a client without free slots seconds.
MAX_LATENESS, MAX_LATE = 0.25, 0.1

# On every launch and pass that the simulator made.
SIMULATED = Finding("simulated", "SIMULATED: computed from a model of the machine, no server ran")


@dataclass(frozen=True)
class Expectations:
    """What the scenario promises about a pass."""

    concurrency: int  # 0 in an open loop
    speculative: bool | None
    exact_prompts: bool
    shared_prefix: int
    meaningful_output: bool


Check = Callable[[PassView, Expectations], Iterator[Finding]]


def findings(view: PassView, expected: Expectations) -> tuple[Finding, ...]:
    """All that is to be said about a pass, the invalidating first."""
    found = [finding for check in CHECKS for finding in check(view, expected)]
    return tuple(sorted(found, key=lambda finding: not finding.invalid))


def _failures(view: PassView, _: Expectations) -> Iterator[Finding]:
    failed = [r for r in view.requests if not r.ok]
    if failed:
        kinds = ", ".join(f"{n} {kind}" for kind, n in Counter(r.status.value for r in failed).most_common())
        example = next((r.error for r in failed if r.error), "")
        yield Finding(
            "requests_failed",
            f"{len(failed)} of {len(view.requests)} requests failed ({kinds}): {example}",
            invalid=True,
        )


def _window(view: PassView, _: Expectations) -> Iterator[Finding]:
    if view.window is None:
        yield Finding("no_steady_state", "the asked load was never reached: no result", invalid=True)
    elif len(view.counted) < MIN_COUNTED and not view.source.record.key.level.burst:
        yield Finding(
            "few_samples",
            f"only {len(view.counted)} requests lie in the steady state; raise requests_per_slot or min_requests",
        )


def _concurrency(view: PassView, expected: Expectations) -> Iterator[Finding]:
    if view.window is None or not expected.concurrency:
        return
    achieved = achieved_concurrency(view.requests, view.window)
    if achieved < 0.95 * expected.concurrency:
        yield Finding(
            "concurrency_short",
            f"{achieved:.1f} requests in flight of {expected.concurrency} asked: {_why_short(view)}",
        )


def _why_short(view: PassView) -> str:
    """What slots did between two requests, and who made them wait."""
    of_slot: dict[int, list[RequestRecord]] = {}
    for r in sorted(view.requests, key=lambda r: r.t_send):
        of_slot.setdefault(r.slot, []).append(r)
    turns = [b.t_send - a.t_end for own in of_slot.values() for a, b in pairwise(own)]
    lasted = [r.t_end - r.t_send for r in view.requests]
    if not turns:
        return "no slot sent a second request"
    gap, lasts, lag = median(turns), median(lasted), view.source.record.client_lag_p99
    between = f"{format_duration(max(0.0, gap))} pass between two requests of a slot, which last "
    between += format_duration(lasts)
    if lag > gap / 2:
        return f"{between}; the load generator itself was up to {format_duration(lag)} late"
    return f"{between}: longer answers, or a steady state of more rounds, come closer"


def _lateness(view: PassView, _: Expectations) -> Iterator[Finding]:
    """An open loop whose requests wait in the client is a closed loop: `max_in_flight` was reached, or it was slow."""
    if not view.open_loop or not view.requests:
        return
    late = [value for r in view.requests if (value := lateness(r)) > TOLD_LATENESS]
    achieved, asked = arrival_rate(view), view.source.record.key.level.rate
    if late:
        sent = f"; {achieved:.1f} a second were sent, {asked:g} were asked for" if achieved is not None else ""
        yield Finding(
            "sent_late",
            f"{len(late)} of {len(view.requests)} requests were sent up to {format_duration(max(late))} after their "
            f"time, at most {peak_in_flight(view.requests)} in flight{sent}. Their TTFT counts from their time. Raise "
            "max_in_flight, or ask for a lower rate.",
            invalid=sum(value > MAX_LATENESS for value in late) > MAX_LATE * len(view.requests),
        )


def _counts(view: PassView, _: Expectations) -> Iterator[Finding]:
    ok = _ok(view)
    uncounted = sum(not r.counted for r in ok)
    if uncounted:
        yield Finding(
            "tokens_not_counted",
            f"the server does not say how many tokens it sent in {uncounted} of {len(ok)} answers: TPOT, ITL and "
            "tokens a second can't be told",
        )
    at_once = [r for r in ok if r.counted and r.tokens > 1 and tpot(r) is None]
    if at_once:
        yield Finding(
            "all_at_once",
            f"{len(at_once)} of {len(ok)} answers came in one piece: their TPOT can't be told. Does something between "
            "here and the server hold streams back?",
        )
    wrong = [why for r in ok if (why := _impossible(r))]
    if wrong:
        yield Finding(
            "impossible_counts",
            f"{len(wrong)} of {len(ok)} answers have counts that can't be, such as {wrong[0]}",
            invalid=True,
        )


def _impossible(r: RequestRecord) -> str:
    """Why a request's counts can't all be right; empty where they can."""
    if r.prompt_tokens is not None and r.cached_tokens is not None and r.cached_tokens > r.prompt_tokens:
        return f"{r.cached_tokens} cached tokens of a prompt of {r.prompt_tokens}"
    if r.verify_steps is not None and r.counted and r.verify_steps > max(r.tokens, 1):
        return f"{r.verify_steps} verify steps for {r.tokens} tokens"
    return ""


def _preempted(view: PassView, _: Expectations) -> Iterator[Finding]:
    times = view.source.record.counters.get("retracted_requests", 0.0)
    if times > 0:
        every = times >= len(view.requests)
        yield Finding(
            "requests_preempted",
            f"the server took back and began again requests {times:.0f} times in this pass of {len(view.requests)}: "
            "its KV cache is too small for this load, and what was measured is that",
            invalid=every,
        )


def _prompt_lengths(view: PassView, expected: Expectations) -> Iterator[Finding]:
    wrong = [r for r in _ok(view) if r.prompt_tokens is not None and r.prompt_tokens != r.input_tokens_asked]
    if wrong and expected.exact_prompts:
        r = wrong[0]
        yield Finding(
            "prompt_length",
            f"{len(wrong)} prompts have another length than asked: {r.prompt_tokens} for {r.input_tokens_asked}. "
            "Does the server add tokens?",
        )


def _cached(view: PassView, expected: Expectations) -> Iterator[Finding]:
    surprising = [r.cached_tokens for r in _ok(view) if (r.cached_tokens or 0) > expected.shared_prefix + HEAD]
    if surprising:
        yield Finding(
            "cached_tokens",
            f"{len(surprising)} requests found up to {max(surprising, key=lambda n: n or 0)} prompt tokens in a cache, "
            f"though prompts share {expected.shared_prefix}: TTFT is too good. Restart the server or change the seed.",
            invalid=True,
        )


def _output(view: PassView, expected: Expectations) -> Iterator[Finding]:
    if not expected.meaningful_output:
        return
    looping = [r for r in _ok(view) if r.tokens >= MIN_PIECES_TOKENS and r.repetition >= MAX_REPETITION]
    if looping:
        yield Finding(
            "repeated_output",
            f"{len(looping)} of {len(view.requests)} outputs repeat a few tokens: a broken model's speed is no result",
            invalid=True,
        )


def _acceptance(view: PassView, expected: Expectations) -> Iterator[Finding]:
    lengths = [value for r in _ok(view) if (value := accept_length(r)) is not None]
    if not lengths and (average := view.source.record.server_accept_length) is not None:
        lengths = [average]  # chat endpoints do not report steps for each request
    if expected.speculative and lengths and max(lengths) <= 1.0:
        yield Finding(
            "no_draft_accepted",
            "speculation is on and not one drafted token was accepted",
            invalid=True,
        )
    if expected.speculative and not lengths and _ok(view):
        yield Finding("accept_length_unknown", "the server does not report verify steps for each request")
    if expected.speculative is False and lengths:
        yield Finding(
            "unexpected_speculation",
            "speculation is off and verify steps are reported",
            invalid=True,
        )


def _client(view: PassView, _: Expectations) -> Iterator[Finding]:
    """Was the load generator itself the limit? A late event loop shifts single time stamps: TTFT has one of them, TPOT
    two over the whole decode. A load process that fills its core can't take more events than it does."""
    record = view.source.record
    lag, late, cpu = record.client_lag_p99, record.client_late_share, record.client_cpu
    first = distribution("ttft", view).percentiles[50]
    whole = distribution("e2e", view).percentiles[50]
    if first is None or whole is None:
        return
    worst = max(lag / first, lag / (whole - first) if whole > first else 0.0)
    full = cpu is not None and cpu > MAX_CLIENT_CPU
    if worst > MAX_CLIENT_ERROR or full:
        share = f", {100 * late:.0f} % of its time stamps more than 1 ms" if late is not None else ""
        busy = f"; its busiest process used {100 * cpu:.0f} % of a core" if cpu is not None else ""
        what = "more cores or fewer streams are needed" if full else "something else took its cores"
        yield Finding(
            "client_lag",
            f"the load generator was the limit: it ran up to {format_duration(lag)} late (p99), which can shift TTFT "
            f"or TPOT by {100 * worst:.0f} %{share}{busy}: {what}",
        )


def _throttling(view: PassView, _: Expectations) -> Iterator[Finding]:
    by_gpu: dict[int, list[float]] = {}
    for sample in view.source.record.gpu:
        busy = view.window is None or view.window.holds(sample.t)
        if sample.clock_mhz is not None and busy:
            by_gpu.setdefault(sample.gpu, []).append(sample.clock_mhz)
    for gpu, clocks in sorted(by_gpu.items()):
        if fmean(clocks) < THROTTLED * max(clocks):
            yield Finding(
                "clock_dropped",
                f"GPU {gpu} ran at {fmean(clocks):.0f} MHz on average in the steady state, though it can at "
                f"{max(clocks):.0f}: it was throttled or waited for work",
            )


def _warmup(view: PassView, _: Expectations) -> Iterator[Finding]:
    record = view.source.record
    if record.warmup_failures:
        yield Finding(
            "warmup_failed",
            f"{record.warmup_failures} of {record.warmup_requests} warm-up requests failed",
        )


def _ok(view: PassView) -> Sequence[RequestRecord]:
    return [r for r in view.requests if r.ok]


CHECKS: tuple[Check, ...] = (
    _failures,
    _window,
    _concurrency,
    _lateness,
    _counts,
    _preempted,
    _prompt_lengths,
    _cached,
    _output,
    _acceptance,
    _client,
    _throttling,
    _warmup,
)
