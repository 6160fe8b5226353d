"""The account of TPOT: three requests worked out by hand, exactness on anything, and real records."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from accounts import make
from conftest import one_pass, request
from hypothesis import given
from hypothesis import strategies as st

from harness.metrics.definitions import PassView, Slo, tpot
from harness.metrics.steady_window import Window
from harness.metrics.tpot_account import (
    ACCEPTANCE,
    INTERFERENCE,
    MIX,
    PARTS,
    STALLS,
    STEP,
    Account,
    Batch,
    account,
    change,
    engine_steps,
    logarithmic_mean,
    total,
)
from harness.model import Pass, RequestRecord
from harness.store.runs import load_run

SMOKE = Path(__file__).parents[3] / "docs/results/20261130T005138Z-h200-smoke-4f5617"


def view_of(requests: list[RequestRecord]) -> PassView:
    """All of them count."""
    return PassView(one_pass(requests), Window(-1.0, 1.0), tuple(requests), Slo())


def decoding(index: int, first: float, steps: list[float], *, send: float, tokens: int = 2) -> RequestRecord:
    """Its first token at `first`, then `tokens` at each of `steps`."""
    events = [(first, 1), *((t, 1 + tokens * n) for n, t in enumerate(steps, 1))]
    return request(index, slot=index, send=send, events=events, verify_steps=len(steps), prompt_tokens=100)


def three() -> list[RequestRecord]:
    """A and B decode in steps of 10 ms; C is sent at 105 ms and prefilled until 148 ms, so that one of their steps
    takes 50 ms; then all three decode in steps of 12 ms, and C's first takes 14 ms."""
    steps = [0.01 * n for n in range(1, 11)] + [0.150, 0.162, 0.174, 0.186]
    later = [t + 0.0002 for t in steps]  # B's tokens arrive after A's
    return [
        decoding(0, 0.0, steps, send=-0.1),
        decoding(1, 0.0002, later, send=-0.1),
        decoding(2, 0.148, [0.162, 0.174, 0.186], send=0.105),
    ]


def test_three_requests_by_hand() -> None:
    found = account(view_of(three()))
    assert found is not None
    assert found.requests == 3
    assert (found.tokens, found.steps) == (28 + 28 + 6, 14 + 14 + 3)
    # 186 ms of A and of B, 38 ms of C.
    assert found.seconds == pytest.approx(0.410)
    # The step of 50 ms takes 40 more than an undisturbed one, for A and for B.
    assert found.interference == pytest.approx(0.080)
    assert found.disturbed == 2
    # C's first step takes 2 ms more than the others of a batch of three.
    assert (found.stalls, found.stalled) == (pytest.approx(0.002), 1)
    assert found.decode == pytest.approx(0.328)
    assert found.steps_at() == {2: pytest.approx(0.010), 3: pytest.approx(0.012)}
    assert {size: batch.gaps for size, batch in found.batches.items()} == {2: 22, 3: 9}
    assert found.tpot == pytest.approx(0.410 / 62)
    assert found.accept_length == 2
    assert found.mean_batch == pytest.approx((22 * 2 + 9 * 3) / 31)


def test_engine_steps_are_counted_once() -> None:
    """Eleven steps of two requests and three of three give 31 gaps."""
    assert engine_steps(view_of(three())) == pytest.approx(14)


def test_prefill_whose_first_token_arrives_a_step_later_is_still_interference() -> None:
    """With overlapped scheduling the step that waited for a prefill arrives before that prefill's first token."""
    steps = [0.01 * n for n in range(1, 13)] + [0.150, 0.160, 0.170]
    waits = request(1, slot=1, send=0.125, events=[(0.1505, 1), (0.160, 3), (0.170, 5)], verify_steps=2)
    found = account(view_of([decoding(0, 0.0, steps, send=-0.1), waits]))
    assert found is not None
    assert found.interference == pytest.approx(0.020, abs=1e-4)  # the step of 30 ms; the next has the token in it
    assert found.stalls == pytest.approx(0.0, abs=1e-3)


def test_without_any_clean_step_nothing_is_told_apart() -> None:
    """Another request's first token arrives in every step."""
    alone = decoding(0, 0.0, [0.01, 0.02, 0.03], send=-0.1)
    others = [request(n, slot=n, send=-0.1, events=[(0.01 * n - 0.005, 1), (0.01 * n - 0.004, 2)]) for n in range(1, 4)]
    found = account(replace(view_of([alone, *others]), counted=(alone,)))
    assert found is not None
    assert not found.separable
    assert found.decode == pytest.approx(0.03)
    assert found.interference == pytest.approx(0.0)


def test_a_request_with_one_event_has_no_account() -> None:
    assert account(view_of([request(events=[(0.0, 1)])])) is None
    assert total([None]) is None


def test_logarithmic_mean() -> None:
    assert logarithmic_mean(1.0, math.e) == pytest.approx(math.e - 1)
    assert logarithmic_mean(3.0, 3.0) == 3.0
    with pytest.raises(ValueError, match="positive"):
        logarithmic_mean(0.0, 1.0)


def test_parts_of_a_change_by_hand() -> None:
    """Base: 8 steps of 10 ms at batch 8, 20 ms of prefill. Head: half of its 16 at batch 16, which take 14 ms."""
    base = make({8: (8, 0.010)}, interference=0.020, stalls=0.0, tokens=16)
    head = make({8: (8, 0.010), 16: (8, 0.014)}, interference=0.064, stalls=0.016, tokens=40)
    found = change(base, head, {16: 0.014}, {})
    # A step: decode 10 → 12 ms, stalls 0 → 1 ms; accept length 2 → 2.5. A token: decode 5 → 4.8 ms, interference
    # 1.25 → 1.6 ms, stalls 0 → 0.4 ms, so TPOT 6.25 → 6.8 ms.
    assert (base.step, head.step) == (pytest.approx(0.0125), pytest.approx(0.017))
    mean = (6.8 - 6.25) / math.log(6.8 / 6.25)
    weight = (4.8 - 5.0) / math.log(4.8 / 5.0) / mean
    assert found.parts == {
        ACCEPTANCE: pytest.approx(-weight * math.log(2.5 / 2) - 0.5 * 0.1 / mean),  # a mean stall, 0.5 → 0.4 steps
        STEP: pytest.approx(0.0, abs=1e-12),
        MIX: pytest.approx(weight * math.log(12 / 10)),  # half of the steps moved from 10 to 14 ms
        INTERFERENCE: pytest.approx(0.35 / mean),
        STALLS: pytest.approx(0.45 / mean),
    }
    assert found.whole == pytest.approx(math.log(head.tpot / base.tpot))


accounts = st.builds(
    make,
    st.dictionaries(st.integers(1, 64), st.tuples(st.integers(1, 1000), st.floats(1e-4, 1.0)), min_size=1, max_size=5),
    interference=st.floats(0.0, 10.0),
    stalls=st.floats(-1e-5, 5.0),
    tokens=st.floats(1.0, 1e4),
    scale=st.floats(0.9, 1.1),
)


@given(accounts, accounts, st.dictionaries(st.integers(1, 64), st.floats(1e-4, 1.0), max_size=4))
def test_parts_always_add_up(base: Account, head: Account, curve: dict[int, float]) -> None:
    found = change(base, head, curve, curve)
    assert set(found.parts) == set(PARTS)
    assert sum(found.parts.values()) == pytest.approx(found.whole, rel=1e-6, abs=1e-7)


def test_pooling_is_a_sum() -> None:
    one = make({8: (10, 0.01)}, interference=0.1, stalls=0.0, tokens=20)
    other = make({8: (5, 0.02), 4: (9, 0.01)}, interference=0.0, stalls=0.1, tokens=30)
    both = total([one, None, other])
    assert both is not None
    assert both.seconds == pytest.approx(one.seconds + other.seconds)
    assert both.batches[8] == Batch(15, 15, pytest.approx(0.2))  # type: ignore[arg-type]
    assert both.steps_at() == {4: pytest.approx(0.01), 8: pytest.approx(0.2 / 15)}


@pytest.mark.parametrize("one", load_run(SMOKE).passes, ids=lambda p: p.record.key.slug)
def test_account_of_real_records_is_exact(one: Pass) -> None:
    """Every second between first and last token is in it, with and without drafts."""
    view = PassView.of(one)
    found = account(view)
    assert found is not None
    pooled = sum(r.events[-1].t - r.events[0].t for r in view.counted) / sum(
        r.events[-1].tokens - r.events[0].tokens for r in view.counted
    )
    assert found.tpot == pytest.approx(pooled, rel=1e-9)
    values = [value for r in view.counted if (value := tpot(r)) is not None]
    assert min(values) <= found.tpot <= max(values)
    assert found.accept_length == pytest.approx(found.tokens / found.steps)
    assert (found.accept_length == 1) == (one.record.key.arm == "no-mtp")
    assert found.mean_batch == pytest.approx(one.record.key.level.concurrency, rel=0.03)
    assert 0.5 < found.decode / found.seconds <= 1.01
