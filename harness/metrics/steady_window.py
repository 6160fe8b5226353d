"""The steady-state window of a pass: the time during which the asked load was really there.

Ramp-up (every slot prefills at once) and ramp-down (slots run empty one by one) are another load than the
one asked for. Both requests and tokens *and the duration* are cut to the same window, so that rates are right.
Of a burst it is the time in which all requests decode, so that no prefill is in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.model import Event, LoadLevel, RequestRecord


@dataclass(frozen=True)
class Window:
    """From `start` to `end`, CLOCK_MONOTONIC seconds."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start

    def holds(self, t: float) -> bool:
        return self.start < t <= self.end


def steady_window(requests: Sequence[RequestRecord], level: LoadLevel) -> Window | None:
    """The window of a pass, or None where it never reached a steady state.

    Closed loop: opens with the first completion after each of the first `concurrency` requests has its first token
    (or has failed), closes when the first slot finds no further request. Both edges are the end of a request, so
    that the window holds whole cycles: slots that run in step would otherwise contribute one decode phase more than
    prefill phases. Open loop: opens with the first completion, closes with the last arrival. Burst: opens when every
    request has its first token (or has failed), closes with the first end of one that is ok.
    """
    if not requests:
        return None
    if level.burst:
        window = _burst(requests)
    elif level.open_loop:
        window = Window(min(r.t_end for r in requests), max(r.t_send for r in requests))
    else:
        first = sorted(requests, key=lambda r: r.t_send)[: level.concurrency]
        last_of_slot: dict[int, float] = {}
        for request in requests:
            last_of_slot[request.slot] = max(request.t_end, last_of_slot.get(request.slot, 0.0))
        if len(last_of_slot) < level.concurrency:
            return None
        all_began = max(r.events[0].t if r.events else r.t_end for r in first)
        opens = min((r.t_end for r in requests if r.t_end >= all_began), default=all_began)
        window = Window(opens, min(last_of_slot.values()))
    return window if window.seconds > 0 else None


def _burst(requests: Sequence[RequestRecord]) -> Window:
    opens = max(r.events[0].t if r.events else r.t_end for r in requests)
    return Window(opens, min((r.events[-1].t for r in requests if r.ok), default=opens))


def counted(requests: Sequence[RequestRecord], window: Window | None, level: LoadLevel) -> tuple[RequestRecord, ...]:
    """The requests whose latencies count: ok, sent in the window and, in a closed loop, ended in it.

    In an open loop the load goes on after a late request's arrival, so it counts whenever it ends. Of a burst all do.
    """
    if window is None:
        return ()
    if level.burst:
        return tuple(r for r in requests if r.ok)
    return tuple(
        r
        for r in requests
        if r.ok and window.start <= r.t_send <= window.end and (level.open_loop or r.t_end <= window.end)
    )


def cut(r: RequestRecord, window: Window) -> RequestRecord:
    """A request as if it had been nothing but its decoding within the window: its first event there has one token.

    Its verify steps are its further events, as every step sends one (harness/engines/sglang_settings.py refuses other
    servers).
    """
    events = [event for event in r.events if window.start <= event.t <= window.end]
    if not events:
        return replace(r, events=(), completion_tokens=0, verify_steps=None)
    before = events[0].tokens - 1
    return replace(
        r,
        events=tuple(Event(event.t, event.tokens - before) for event in events),
        completion_tokens=events[-1].tokens - before,
        verify_steps=len(events) - 1 if r.verify_steps is not None else None,
    )


def achieved_concurrency(requests: Sequence[RequestRecord], window: Window) -> float:
    """Mean number of requests in flight over the window."""
    busy = sum(max(0.0, min(r.t_end, window.end) - max(r.t_send, window.start)) for r in requests)
    return busy / window.seconds


def peak_in_flight(requests: Sequence[RequestRecord]) -> int:
    """Most requests in flight at any moment of the pass."""
    changes = sorted([(r.t_send, 1) for r in requests] + [(r.t_end, -1) for r in requests])
    peak = now = 0
    for _, change in changes:  # ends sort before starts at the same moment
        now += change
        peak = max(peak, now)
    return peak
