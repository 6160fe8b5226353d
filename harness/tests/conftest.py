"""Shared helpers: records built by hand, scenario texts, and real servers."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hypothesis import settings

from harness.model import Event, LoadLevel, Pass, PassKey, PassRecord, RequestRecord, RequestStatus

sys.path.insert(0, str(Path(__file__).parent))
# `make fuzz` looks with 2000 examples each at what reads foreign bytes; `make test` with a few, always the same.
settings.register_profile("few", max_examples=40, deadline=None, derandomize=True)
settings.register_profile("many", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "few"))
try:
    import torch
except ModuleNotFoundError:  # `make test KERNEL=0`
    collect_ignore = ["checks/test_wrong_kernels.py"]
else:
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # before any import of triton, as in kernel/tests


def request(
    index: int = 0,
    *,
    slot: int = 0,
    send: float = 0.0,
    events: list[tuple[float, int]] | None = None,
    status: RequestStatus = RequestStatus.OK,
    **values: object,
) -> RequestRecord:
    """A record with the given events; `t_end` is the last of them."""
    timeline = tuple(Event(t, n) for t, n in (events or []))
    end = values.pop("end", timeline[-1].t if timeline else send)
    total = timeline[-1].tokens if timeline else None
    return RequestRecord(
        index=index,
        slot=slot,
        t_scheduled=send,
        t_send=send,
        t_end=end,  # type: ignore[arg-type]
        status=status,
        events=timeline,
        **{"completion_tokens": total, "output_tokens_asked": total or 0, **values},  # type: ignore[arg-type]
    )


def one_pass(requests: list[RequestRecord], concurrency: int = 1, rate: float = 0.0, **values: object) -> Pass:
    """A complete pass of hand-made requests."""
    level = LoadLevel(rate=rate) if rate else LoadLevel(concurrency=concurrency)
    record = PassRecord(
        key=PassKey(0, "arm", 1, level, 0),
        started_at="2026-01-01T00:00:00+00:00",
        t_start=0.0,
        t_end=max((r.t_end for r in requests), default=0.0),
        status="complete",
        **values,  # type: ignore[arg-type]
    )
    return Pass(record, tuple(requests))


SCENARIO = """\
version: 1
name: scripted
question: Does the pipeline tell what the script says?
server:
  engine: scripted
  ttft: 20ms
  step: 5ms
arms:
  plain: {}
  drafts: {chunk_tokens: [4], speculative: true}
workload:
  prompts: prose
  input_tokens: 32
  output_tokens: 16
arrival:
  concurrency: [1, 2]
  requests_per_slot: 4
  min_requests: 8
"""
