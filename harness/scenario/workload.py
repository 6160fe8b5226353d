"""What is asked of a server, and how often: prompts and their lengths, how requests arrive, factors that vary them.

Parts of the file format, see `format.py`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from harness.fields import Count, Rate, Strict
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


def _largest(length: int | TokenRange | list[int]) -> int:
    if isinstance(length, list):
        return max(length)
    return length.max if isinstance(length, TokenRange) else length


def shortest(length: int | TokenRange | list[int] | None) -> int | None:
    """The fewest tokens of a length, whichever form it has."""
    if isinstance(length, list):
        return min(length)
    return length.min if isinstance(length, TokenRange) else length
