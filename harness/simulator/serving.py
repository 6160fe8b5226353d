"""One pass in virtual time: SGLang's scheduler, and what the client sees of it.

Prefill goes first: while a request waits and fits, its chunks run and nobody decodes. Otherwise all running requests
decode together, one step after the other, until one ends or the next arrives. Between two such moments every step is
computed at once.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from harness.model import CountSource, Event, RequestRecord, RequestStatus
from harness.simulator.acceptance import Acceptance, Ints
from harness.simulator.attention import Floats
from harness.simulator.hardware import Host
from harness.simulator.steps import STEP_PARTS, StepModel

_LOG_STEPS = 40  # SGLang logs a `Decode batch` line so often
_BLOCK = 1024  # steps computed at once, at most


@dataclass(frozen=True)
class Asked:
    """A request as the load generator plans it; `position` is its place among all prompts of the run."""

    index: int
    position: int
    input_tokens: int
    output_tokens: int
    offset: float = 0.0


@dataclass
class _Request:
    """A request on its way: when it was sent, and when its tokens came."""

    asked: Asked
    slot: int
    due: float
    sent: float
    prefilled: int = 0
    first_token: float = 0.0
    first_step: int = 0
    behind: int = 0  # requests before it in the batch
    totals: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    @property
    def steps(self) -> int:
        return len(self.totals) - 1


@dataclass(frozen=True)
class Served:
    """A pass as it went. `seconds`: of the device, by part of STEP_PARTS and `prefill`, `stall` of running requests."""

    records: tuple[RequestRecord, ...]
    end: float
    seconds: dict[str, float]
    steps: int
    verify_calls: int
    prefill_batches: int
    decode_log: tuple[dict[str, float], ...]


@dataclass
class _Block:
    """Steps with one batch: the time each ends, and the tokens it yields over all requests."""

    batch: int
    ends: Floats
    tokens: Ints
    queued: int
    eager: bool


class Server:
    """One pass on one server, from the first request to the last token."""

    def __init__(
        self,
        steps: StepModel,
        acceptance: Acceptance,
        draw: np.random.Generator,
        launch_factor: float,
        *,
        start: float,
    ) -> None:
        self._model, self._acceptance, self._draw = steps, acceptance, draw
        self._factor, self._spread = launch_factor, steps.hardware.noise
        self._host: Host = steps.hardware.host
        self._start = self._clock = start
        self._arrivals: list[tuple[float, int, _Request]] = []
        self._waiting: deque[_Request] = deque()
        self._running: list[_Request] = []
        self._undelivered: list[_Request] = []
        self._done: list[_Request] = []
        self._blocks: list[_Block] = []
        self._last_step = float("inf")
        self._steps = self._verify_calls = self._prefills = 0
        self._seconds = dict.fromkeys((*STEP_PARTS, "prefill", "stall"), 0.0)

    def run(self, requests: Sequence[Asked], slots: int, open_loop: bool) -> Served:
        """Serves all requests from `slots` clients, each of which takes the next as soon as it is free."""
        self._left = deque(requests)
        self._open_loop = open_loop
        for slot in range(slots):
            self._send(slot, self._start)
        while self._arrivals or self._waiting or self._running or self._undelivered:
            self._admit_arrived()
            batch = self._prefill_batch()
            if batch:
                self._prefill(batch)
            elif self._running or self._undelivered:
                if self._undelivered:
                    # The step after a prefill waits for the scheduler, which has new requests to take in.
                    self._clock += self._model.scheduler * self._factor
                    self._deliver(self._clock)
                self._decode()
            else:
                self._clock = max(self._clock, self._arrivals[0][0])
        return self._served()

    def _send(self, slot: int, free: float) -> None:
        if not self._left:
            return
        asked = self._left.popleft()
        due = self._start + asked.offset if self._open_loop else free
        request = _Request(asked, slot, due, max(due, free))
        heapq.heappush(self._arrivals, (request.sent + self._arrival(asked), asked.index, request))

    def _arrival(self, asked: Asked) -> float:
        return self._host.arrival + self._host.arrival_token * asked.input_tokens

    def _admit_arrived(self) -> None:
        while self._arrivals and self._arrivals[0][0] <= self._clock:
            self._waiting.append(heapq.heappop(self._arrivals)[2])

    def _prefill_batch(self) -> list[tuple[_Request, int]]:
        """(request, new tokens) of the next chunk: first come, first served, the last one cut to what is left."""
        left = self._model.serving.chunk
        batch: list[tuple[_Request, int]] = []
        running = len(self._running) + len(self._undelivered)
        held = sum(self._size(r) for r in (*self._running, *self._undelivered))
        for request in self._waiting:
            held += self._size(request)
            fits = (
                running + len(batch) < self._model.serving.max_running and held <= self._model.serving.max_total_tokens
            )
            if not left or not (fits or request.prefilled):
                break
            new = min(left, request.asked.input_tokens - request.prefilled)
            batch.append((request, new))
            left -= new
        return batch

    @staticmethod
    def _size(request: _Request) -> int:
        return request.asked.input_tokens + request.asked.output_tokens

    def _prefill(self, batch: list[tuple[_Request, int]]) -> None:
        factor = self._factor * float(self._noise(1)[0])
        device = self._model.prefill([(new, request.prefilled) for request, new in batch]) * factor
        launch = self._model.prefill_launch() * factor
        whole = max(device, launch) + self._model.prefill_gap() * factor
        self._seconds["prefill"] += device
        self._seconds["stall"] += whole * len(self._running)
        self._prefills += 1
        # Overlap: the result of a prefill is handled once the next batch is launched.
        self._deliver(self._clock + launch)
        self._clock += whole
        for request, new in batch:
            request.prefilled += new
            if request.prefilled == request.asked.input_tokens:
                self._waiting.popleft()
                self._undelivered.append(request)

    def _deliver(self, when: float) -> None:
        """First tokens reach their clients; the requests decode from the next step on."""
        for request in self._undelivered:
            request.first_token = when + self._host.delivery
            request.first_step = self._steps
            asked = request.asked
            request.totals = self._acceptance.totals(asked.position, asked.output_tokens, self._steps)
            request.behind = len(self._running)
            if request.steps:
                self._running.append(request)
            else:
                self._finish(request, request.first_token)
        self._undelivered = []

    def _decode(self) -> None:
        """Steps until a request ends or the next one arrives."""
        if not self._running:
            return
        batch = len(self._running)
        count = min(_BLOCK, min(r.first_step + r.steps for r in self._running) - self._steps)
        if self._arrivals:  # no more than are likely to be needed: too few only make one more block
            count = min(count, int((self._arrivals[0][0] - self._clock) / self._last_step) + 2)
        totals = np.stack(
            [r.totals[self._steps - r.first_step : self._steps - r.first_step + count + 1] for r in self._running]
        )
        prompts = np.array([[r.asked.input_tokens] for r in self._running])
        parts = self._model.decode(prompts + totals[:, :-1])
        noise = self._noise(count) * self._factor
        ends = self._clock + np.cumsum(sum(parts.values()) * noise)
        if self._arrivals:  # the step during which the next request arrives is the last one before its prefill
            count = min(count, int(np.searchsorted(ends, self._arrivals[0][0])) + 1)
        ends = ends[:count]
        for name, values in parts.items():
            self._seconds[name] += float((values[:count] * noise[:count]).sum())
        eager = self._model.serving.padded(batch) is None
        tokens = np.diff(totals[:, : count + 1], axis=1).sum(axis=0)
        self._blocks.append(_Block(batch, ends, tokens, len(self._waiting), eager))
        self._steps += count
        self._verify_calls += count * batch * self._model.serving.speculative
        self._last_step = (float(ends[-1]) - self._clock) / count
        self._clock = float(ends[-1])
        ended = [r for r in self._running if r.first_step + r.steps == self._steps]
        self._running = [r for r in self._running if r.first_step + r.steps > self._steps]
        for request in ended:
            self._finish(request, self._clock + self._delay(request))

    def _delay(self, request: _Request) -> float:
        """From the end of a step to the request's client."""
        return self._host.delivery + request.behind * self._host.delivery_request

    def _finish(self, request: _Request, when: float) -> None:
        self._done.append(request)
        self._send(request.slot, when + self._host.turnaround)

    def _noise(self, count: int) -> Floats:
        """Factors around 1, of each step."""
        return np.maximum(0.2, self._draw.normal(1.0, self._spread.step, count))

    def _served(self) -> Served:
        ends = np.concatenate([block.ends for block in self._blocks]) if self._blocks else np.empty(0)
        records = [self._record(request, ends) for request in sorted(self._done, key=lambda r: r.asked.index)]
        return Served(
            records=tuple(records),
            end=max(record.t_end for record in records),
            seconds=self._seconds,
            steps=self._steps,
            verify_calls=self._verify_calls,
            prefill_batches=self._prefills,
            decode_log=self._decode_log(),
        )

    def _record(self, request: _Request, ends: Floats) -> RequestRecord:
        """As the real client would have recorded it."""
        asked = request.asked
        times = ends[request.first_step : request.first_step + request.steps] + self._delay(request)
        times = np.maximum.accumulate(times + self._draw.uniform(0.0, self._spread.delivery, len(times)))
        counts = request.totals[1:].tolist()
        later = [Event(t, tokens) for t, tokens in zip(times.tolist(), counts, strict=True)]
        events = (Event(request.first_token, 1), *later)
        return RequestRecord(
            index=asked.index,
            slot=request.slot,
            t_scheduled=request.due,
            t_send=request.sent,
            t_end=events[-1].t,
            status=RequestStatus.OK,
            events=events,
            input_tokens_asked=asked.input_tokens,
            output_tokens_asked=asked.output_tokens,
            prompt_tokens=asked.input_tokens,
            completion_tokens=asked.output_tokens,
            cached_tokens=0,
            verify_steps=request.steps if self._model.serving.speculative else None,
            finish_reason="length",
            count_source=CountSource.EVENT,
        )

    def _decode_log(self) -> tuple[dict[str, float], ...]:
        """As SGLang's log: a line every 40 steps, its throughput with whatever lay between."""
        if not self._blocks:
            return ()
        sizes = [len(block.ends) for block in self._blocks]
        batches = np.repeat([block.batch for block in self._blocks], sizes)
        queued = np.repeat([block.queued for block in self._blocks], sizes)
        eager = np.repeat([block.eager for block in self._blocks], sizes)
        ends = np.concatenate([block.ends for block in self._blocks])
        tokens = np.concatenate([block.tokens for block in self._blocks])
        log, before = [], self._start
        for last in range(_LOG_STEPS - 1, len(ends), _LOG_STEPS):
            span = slice(last - _LOG_STEPS + 1, last + 1)
            line = {
                "running": float(batches[last]),
                "throughput": round(float(tokens[span].sum() / (ends[last] - before)), 2),
                "queued": float(queued[last]),
                "cuda_graph": float(not eager[last]),
            }
            if self._model.serving.speculative:
                line["accept_length"] = round(float(tokens[span].sum() / batches[span].sum()), 2)
            log.append(line)
            before = float(ends[last])
        return tuple(log)
