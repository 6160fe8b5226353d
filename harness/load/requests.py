"""A raw stream and what was asked → a RequestRecord with exactly one terminal state."""

from __future__ import annotations

from dataclasses import dataclass

from harness.load.connection import RawStream
from harness.load.dialects import Decoded, Dialect
from harness.load.sse import events
from harness.model import CountSource, RequestRecord, RequestStatus

CONNECTION_LOST = "connection lost"


@dataclass(frozen=True)
class PlannedRequest:
    """A request ready to go: `body` is encoded before the load starts. `offset` is for open loop, in seconds."""

    index: int
    body: bytes
    input_tokens: int
    output_tokens: int
    offset: float = 0.0
    exact_output: bool = True  # the server was told to ignore end-of-sequence tokens


def to_record(
    plan: PlannedRequest,
    slot: int,
    t_scheduled: float,
    raw: RawStream,
    dialect: Dialect,
    stop_status: RequestStatus,
) -> RequestRecord:
    """`stop_status` is what a request that we cancelled is called: it depends on why we stopped."""
    decoded = dialect.decode(events(raw.body.pieces()))
    status, error = _terminal_state(plan, raw, decoded, stop_status)
    return RequestRecord(
        index=plan.index,
        slot=slot,
        t_scheduled=t_scheduled,
        t_send=raw.t_send,
        t_end=raw.t_end,
        status=status,
        error=error,
        events=tuple(decoded.events),
        input_tokens_asked=plan.input_tokens,
        output_tokens_asked=plan.output_tokens,
        prompt_tokens=decoded.prompt_tokens,
        completion_tokens=decoded.completion_tokens,
        cached_tokens=decoded.cached_tokens,
        verify_steps=decoded.verify_steps,
        finish_reason=decoded.finish_reason,
        count_source=decoded.count_source,
        output_digest=decoded.output_digest,
        repetition=decoded.repetition,
    )


def _terminal_state(
    plan: PlannedRequest, raw: RawStream, decoded: Decoded, stop_status: RequestStatus
) -> tuple[RequestStatus, str]:
    received = decoded.completion_tokens or (decoded.events[-1].tokens if decoded.events else 0)
    known = decoded.count_source is not CountSource.NONE
    if raw.outcome == "refused":
        return RequestStatus.REFUSED, raw.error
    if raw.outcome == "garbled":
        return RequestStatus.STREAM_ERROR, raw.error
    if decoded.error:  # said by the server itself: better than any of our guesses below
        return RequestStatus.STREAM_ERROR, decoded.error
    if raw.outcome == "cancelled":
        return stop_status, f"stopped after {received} of {plan.output_tokens} tokens"
    if raw.outcome == "timeout":
        return (
            RequestStatus.TIMED_OUT,
            f"{raw.error}, {received} of {plan.output_tokens} tokens received",
        )
    if raw.outcome == "broken":
        return RequestStatus.TRUNCATED, f"{CONNECTION_LOST} after {received} tokens: {raw.error}"
    if raw.body.size and not decoded.events and not decoded.done:
        return RequestStatus.TRUNCATED, f"no event in an answer of {raw.body.size} bytes: {raw.body.head(80)!r}"
    if not decoded.done:
        return (
            RequestStatus.TRUNCATED,
            f"the stream ended without its end mark after {received} tokens",
        )
    if received == 0 or not decoded.events:
        return RequestStatus.TRUNCATED, "the stream ended without a single token"
    if known and received > plan.output_tokens:
        what = f"the server counts {received} output tokens where at most {plan.output_tokens} were asked for"
        return RequestStatus.STREAM_ERROR, what
    if not known and plan.exact_output and received < plan.output_tokens:
        what = (
            f"{received} pieces of output for {plan.output_tokens} tokens, and the server never says how many it sent"
        )
        return RequestStatus.TRUNCATED, f"{what}: with `ignore_eos: false` what arrived is measured all the same"
    if plan.exact_output and received < plan.output_tokens:
        reason = decoded.finish_reason or "not given"
        return (
            RequestStatus.TRUNCATED,
            f"{received} of {plan.output_tokens} tokens, finish reason {reason}, though told to ignore EOS",
        )
    return RequestStatus.OK, ""
