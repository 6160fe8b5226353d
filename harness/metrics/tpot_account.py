"""Where the time of an output token goes: an exact account of TPOT, from the client's events alone.

For the counted requests of a launch at one level, pooled (sums over requests, so that everything adds up):

    TPOT = Σ (t_last − t_first) / Σ (n_last − n_first)
         = (decode step + other stalls) / accept length + prefill interference

Steps and stalls are seconds a step. Prefill interference is seconds a *token*: while a request makes its tokens, as
many others are admitted as slots turn over, in however many steps. Counted for each step, fewer accepted drafts would
dilute it, and what prefills cost more would be charged to acceptance.

An engine step sends new tokens to every running request within about a millisecond, so half a step after an event of a
request, the requests between their first and their last token are the batch that the engine runs. A gap between two
events is *clean* while no other request waits for its first token. Clean gaps of one batch size lie close together:
those within BAND robust standard deviations of their median give the undisturbed decode step of that size, their mean.
A gap is *disturbed* by prefill when a first token arrived in it, or when it is longer than that band and a request was
waiting (with chunked or overlapped prefill the first token may arrive a step later). What a disturbed gap takes beyond
the undisturbed step is prefill interference; what a clean gap outside the band does is another stall, of the host or of
the client; a gap that was long because the one before was short cancels against it.

Between two accounts each part's change, over the logarithmic mean of both totals, is its part of the change of
log TPOT; these parts add up to the whole exactly: the additive LMDI-I decomposition of Ang, Energy Policy 33 (2005)
867-871, doi 10.1016/j.enpol.2003.10.010. Decode time a token is a product, step / accept length: its part is divided
between the two by their logarithms, times L(decode time a token) / L(TPOT).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.metrics.definitions import BURST_S, PassView, arrivals
from harness.model import RequestRecord
from harness.stats.inference import Floats

# Of a normal distribution's standard deviations: one step in 600 000 lies beyond 5.
BAND = 5.0
_MAD_TO_SD = 1.4826  # of a normal distribution
# With fewer clean steps of a batch size, those of its neighbours say more.
MIN_CLEAN = 8

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Gaps:
    """Every gap between two arrivals of the counted requests of a pass; arrays of one length.

    `batch` is how many requests decode in it, `tokens` what they hold in the KV cache together and
    `longest` the longest of them; `first` says that another request's first token arrived in the gap, `waiting` that
    another request waited for its own during it.
    """

    start: Floats
    end: Floats
    batch: NDArray[np.int64]
    tokens: Floats
    longest: Floats
    first: Mask
    waiting: Mask

    @property
    def seconds(self) -> Floats:
        return self.end - self.start


@dataclass(frozen=True)
class Batch:
    """Steps of one batch size: `gaps` of them, of which `clean` ones, undisturbed and in the band, take `seconds`."""

    gaps: int
    clean: int
    seconds: float

    def __add__(self, other: Batch) -> Batch:
        return Batch(self.gaps + other.gaps, self.clean + other.clean, self.seconds + other.seconds)


@dataclass(frozen=True)
class Account:
    """TPOT of some requests, taken apart. Sums over requests: seconds, tokens, steps of a request."""

    requests: int
    tokens: float
    steps: float
    decode: float
    interference: float
    stalls: float
    disturbed: int  # gaps
    stalled: int
    held: float  # over gaps: mean tokens of a decoding sequence
    longest: float  # over gaps: tokens of the longest
    batches: Mapping[int, Batch]
    separable: bool = True  # False where every gap had a prefill in it: `decode` is then everything

    @property
    def seconds(self) -> float:
        return self.decode + self.interference + self.stalls

    @property
    def gaps(self) -> int:
        return sum(batch.gaps for batch in self.batches.values())

    @property
    def tpot(self) -> float:
        """Seconds a token."""
        return self.seconds / self.tokens

    @property
    def accept_length(self) -> float:
        """Tokens a step; 1 without speculation."""
        return self.tokens / self.steps

    @property
    def step(self) -> float:
        """Seconds a step, everything included."""
        return self.seconds / self.steps

    @property
    def decode_step(self) -> float:
        """Seconds of an undisturbed step."""
        return self.decode / self.steps

    @property
    def interference_a_token(self) -> float:
        """Seconds a token that prefills take."""
        return self.interference / self.tokens

    @property
    def mean_length(self) -> float:
        """Tokens that a decoding sequence holds, over its steps."""
        return self.held / self.gaps

    @property
    def length_spread(self) -> float:
        """By how much the longest sequence of a batch exceeds the mean, as a share of the mean."""
        return self.longest / self.held - 1

    @property
    def mean_batch(self) -> float:
        return sum(size * batch.gaps for size, batch in self.batches.items()) / self.gaps

    def steps_at(self) -> dict[int, float]:
        """Batch size → seconds of an undisturbed step, where enough of them were seen."""
        known = sorted((size, batch) for size, batch in self.batches.items() if batch.clean >= MIN_CLEAN)
        return {size: batch.seconds / batch.clean for size, batch in known}

    def __add__(self, other: Account) -> Account:
        sizes = {*self.batches, *other.batches}
        none = Batch(0, 0, 0.0)
        return Account(
            self.requests + other.requests,
            self.tokens + other.tokens,
            self.steps + other.steps,
            self.decode + other.decode,
            self.interference + other.interference,
            self.stalls + other.stalls,
            self.disturbed + other.disturbed,
            self.stalled + other.stalled,
            self.held + other.held,
            self.longest + other.longest,
            {size: self.batches.get(size, none) + other.batches.get(size, none) for size in sorted(sizes)},
            self.separable and other.separable,
        )


def account(view: PassView) -> Account | None:
    """The account of a pass; None where no counted request has two events."""
    counted = [r for r in view.decoding if len(r.events) > 1]
    if not counted:
        return None
    gaps = gaps_of(view, counted)
    expected, clean, inside = undisturbed(gaps)
    seconds = gaps.seconds
    long = seconds > expected.upper
    disturbed = ~clean & (gaps.first | (gaps.waiting & long))
    stalled = ~disturbed & ~inside
    excess = seconds - expected.step
    quiet = clean & inside
    batches = {}
    for size in np.unique(gaps.batch):
        of_size = gaps.batch == size
        batches[int(size)] = Batch(
            int(np.sum(of_size)), int(np.sum(of_size & quiet)), float(np.sum(seconds[of_size & quiet]))
        )
    return Account(
        requests=len(counted),
        tokens=float(sum(r.events[-1].tokens - r.events[0].tokens for r in counted)),
        steps=float(sum(steps_of(r) for r in counted)),
        decode=float(np.sum(np.where(disturbed | stalled, expected.step, seconds))),
        interference=float(np.sum(excess[disturbed])),
        stalls=float(np.sum(excess[stalled])),
        disturbed=int(np.sum(disturbed)),
        stalled=int(np.sum(stalled)),
        held=float(np.sum(gaps.tokens / gaps.batch)),
        longest=float(np.sum(gaps.longest)),
        batches=batches,
        separable=bool(np.any(clean)),
    )


def total(accounts: Iterable[Account | None]) -> Account | None:
    """Several passes as one; None where none has an account."""
    known = [one for one in accounts if one is not None]
    return sum(known[1:], known[0]) if known else None


def steps_of(r: RequestRecord) -> int:
    """Engine steps after a request's first event: what the server counts, else one an event."""
    return r.verify_steps or len(r.events) - 1


@dataclass(frozen=True)
class _Expected:
    """For each gap: what an undisturbed step of its batch takes, and from where on a step is no such one."""

    step: Floats
    lower: Floats
    upper: Floats


def undisturbed(gaps: Gaps) -> tuple[_Expected, Mask, Mask]:
    """(what to expect of each gap, which are clean, which lie within the band of clean ones)."""
    seconds = gaps.seconds
    clean = ~gaps.waiting & ~gaps.first
    if not np.any(clean):  # a request always waits: steps in which no prefill ended are the next best
        clean = ~gaps.first
    source = clean if np.any(clean) else np.ones(len(seconds), dtype=np.bool_)
    curve: dict[int, tuple[float, float, float]] = {}
    for size in np.unique(gaps.batch[source]):
        of_size = seconds[source & (gaps.batch == size)]
        if len(of_size) >= MIN_CLEAN:
            curve[int(size)] = _band(of_size)
    if not curve:
        curve[int(np.median(gaps.batch[source]))] = _band(seconds[source])
    sizes = sorted(curve)
    step, lower, upper = (np.interp(gaps.batch, sizes, [curve[size][i] for size in sizes]) for i in range(3))
    expected = _Expected(step, lower, upper)
    return expected, clean, (seconds >= lower) & (seconds <= upper)


def _band(seconds: Floats) -> tuple[float, float, float]:
    """(mean of those in the band, its lower end, its upper end); median and MAD ignore up to half of the steps."""
    middle = float(np.median(seconds))
    # The client's own time stamps may be off by BURST_S.
    reach = max(BAND * _MAD_TO_SD * float(np.median(np.abs(seconds - middle))), BURST_S)
    inside = seconds[np.abs(seconds - middle) <= reach]
    return float(np.mean(inside)), middle - reach, middle + reach


def gaps_of(view: PassView, counted: Sequence[RequestRecord]) -> Gaps:
    """The gaps of some requests of a pass; all of its requests say who decodes and who waits."""
    starts, ends = [], []
    for r in counted:
        times = [event.t for event in arrivals(r.events)]
        times[-1] = r.events[-1].t  # the account covers a request to its very last event
        starts += times[:-1]
        ends += times[1:]
    start, end = np.array(starts), np.array(ends)
    everyone = [r for r in view.requests if r.events]
    sent = np.sort([r.t_send for r in view.requests])
    began = np.sort([r.events[0].t if r.events else r.t_end for r in view.requests])
    by_end = np.searchsorted(began, end, side="right")
    # Two prefilled together get their first tokens one after the other: neither waits for the other.
    by_start = np.searchsorted(began, start + BURST_S, side="right")
    # Half a usual step on: by then the step before has arrived everywhere, however long this one takes.
    usual = float(np.median(end - start))
    batch, tokens, longest = _decoding(everyone, start + np.minimum(end - start, usual) / 2)
    return Gaps(
        start,
        end,
        batch,
        tokens,
        longest,
        first=by_end > by_start,
        waiting=np.searchsorted(sent, end, side="left") > by_start,
    )


def _decoding(requests: Sequence[RequestRecord], at: Floats) -> tuple[NDArray[np.int64], Floats, Floats]:
    """(how many requests decode, the tokens that they hold, the longest of them) at each of some moments."""
    first = np.array([r.events[0].t for r in requests])
    last = np.array([r.events[-1].t for r in requests])
    prompt = np.array([float(r.prompt_tokens or r.input_tokens_asked) for r in requests])
    new = np.array([float(r.tokens) for r in requests])
    rate = new / np.maximum(last - first, 1e-9)
    batch, tokens, longest = np.zeros(len(at), dtype=np.int64), np.zeros(len(at)), np.zeros(len(at))
    for part in np.array_split(np.arange(len(at)), max(1, len(at) // _AT_ONCE)):
        t = at[part][:, None]
        running = (first < t) & (t < last)
        length = np.where(running, prompt + rate * (t - first), 0.0)
        batch[part] = np.maximum(1, running.sum(axis=1))
        tokens[part] = length.sum(axis=1)
        longest[part] = length.max(axis=1)
    return batch, tokens, longest


_AT_ONCE = 2048  # moments: bounds the memory of a comparison of all moments with all requests


def engine_steps(view: PassView) -> float:
    """Steps that the engine made over the whole pass: a step of a batch of b gives b gaps."""
    all_of_them = [r for r in view.requests if r.ok and len(r.events) > 1]
    return float(np.sum(1 / gaps_of(view, all_of_them).batch)) if all_of_them else 0.0


@dataclass(frozen=True)
class Change:
    """What happened between two accounts: parts of Δ log TPOT by name, which add up to `whole`."""

    whole: float
    parts: Mapping[str, float]


Curve = Mapping[int, float]  # batch size → seconds of a decode step

ACCEPTANCE, STEP, MIX, INTERFERENCE, STALLS = "acceptance", "step", "batch", "interference", "stalls"
PARTS = (ACCEPTANCE, STEP, MIX, INTERFERENCE, STALLS)


def change(base: Account, head: Account, base_curve: Curve | None = None, head_curve: Curve | None = None) -> Change:
    """The parts of log(TPOT of head / TPOT of base), which add up to it exactly.

    Curves say what a step of a batch size that an account lacks takes on its side, from other levels of its launch.
    """
    mean = logarithmic_mean(base.tpot, head.tpot)
    weight = logarithmic_mean(base.decode / base.tokens, head.decode / head.tokens) / mean
    at_equal, by_mix = step_and_mix(base, head, base_curve or {}, head_curve or {})
    a_second = second_of_a_step(base, head)
    # Stalls may be zero, or below: a product without logarithms is divided evenly.
    stalls = (base.stalls / base.steps, head.stalls / head.steps)
    steps = (1 / base.accept_length, 1 / head.accept_length)  # of a token
    parts = {
        ACCEPTANCE: -weight * math.log(head.accept_length / base.accept_length)
        + sum(stalls) / 2 * (steps[1] - steps[0]) / mean,
        STEP: at_equal * a_second,
        MIX: by_mix * a_second,
        INTERFERENCE: (head.interference_a_token - base.interference_a_token) / mean,
        STALLS: sum(steps) / 2 * (stalls[1] - stalls[0]) / mean,
    }
    return Change(math.log(head.tpot / base.tpot), parts)


def second_of_a_step(base: Account, head: Account) -> float:
    """What a second more in every decode step makes of Δ log TPOT, between these accounts."""
    a_token = logarithmic_mean(base.decode / base.tokens, head.decode / head.tokens)
    whole = logarithmic_mean(base.tpot, head.tpot)
    return a_token / whole / logarithmic_mean(base.decode_step, head.decode_step)


def logarithmic_mean(a: float, b: float) -> float:
    """(b − a) / log(b / a), a where both are equal: Ang 2005, equation 4."""
    if a <= 0 or b <= 0:
        raise ValueError("a logarithmic mean needs positive numbers")
    ratio = b / a
    if abs(ratio - 1) < 1e-9:
        return (a + b) / 2
    return (b - a) / math.log(ratio)


def step_and_mix(base: Account, head: Account, base_curve: Curve, head_curve: Curve) -> tuple[float, float]:
    """(change of the decode step at equal batch sizes, change by other batch sizes), seconds a step.

    With shares w and steps d of each batch size, Σ w·d changes by Σ mean(w)·Δd + Σ Δw·mean(d): the symmetric split
    of Marshall and Edgeworth. The second is computed, the first is the rest, so that both add up to the whole.
    """
    sizes = sorted({*base.batches, *head.batches})
    w_base, d_base = _shares(base, sizes, base_curve)
    w_head, d_head = _shares(head, sizes, head_curve)
    by_mix = float(np.sum((w_head - w_base) * (d_base + d_head) / 2))
    return head.decode_step - base.decode_step - by_mix, by_mix


def _shares(one: Account, sizes: Sequence[int], curve: Curve) -> tuple[Floats, Floats]:
    """(share of the gaps, seconds of a decode step) at each batch size."""
    known = {**curve, **one.steps_at()} or {1: one.decode_step}
    step = np.interp(sizes, sorted(known), [known[size] for size in sorted(known)])
    share = np.array([one.batches[size].gaps if size in one.batches else 0 for size in sizes]) / one.gaps
    return share, step
