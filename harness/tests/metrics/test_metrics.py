"""Metrics against values worked out by hand, the traps of other tools first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conftest import one_pass, request

from harness.metrics.definitions import (
    PASS_METRICS,
    Distribution,
    PassView,
    Slo,
    accept_length,
    distribution,
    e2e,
    inter_token_latencies,
    step_gaps,
    step_time,
    tpot,
    ttft,
)
from harness.metrics.steady_window import Window, achieved_concurrency, counted, cut, peak_in_flight, steady_window
from harness.model import Event, LoadLevel, PassRecord, RequestStatus


def test_definitions_by_hand() -> None:
    r = request(send=10.0, events=[(10.5, 1), (10.6, 5), (10.8, 9)], verify_steps=2)
    assert ttft(r) == pytest.approx(0.5)
    assert tpot(r) == pytest.approx(0.3 / 8)
    assert accept_length(r) == pytest.approx(4.0)
    assert step_time(r) == pytest.approx(0.15)
    assert e2e(r) == pytest.approx(0.8)
    assert step_gaps(r) == pytest.approx([0.1, 0.2])
    assert inter_token_latencies(r) == pytest.approx([0.025] * 4 + [0.05] * 4)


def test_tpot_is_step_time_over_accept_length_exactly() -> None:
    r = request(send=0.0, events=[(0.1, 2), (0.137, 5), (0.2, 6), (0.291, 11)], verify_steps=3)
    assert tpot(r) == step_time(r) / accept_length(r)  # type: ignore[operator]


def test_four_token_chunks_every_12_ms() -> None:
    """A chunk of four tokens every 12 ms: ITL is 3 ms for each token, TPOT too."""
    r = request(events=[(0.1 + 0.012 * n, 1 + 4 * n) for n in range(10)])
    assert inter_token_latencies(r) == pytest.approx([0.003] * 36)
    assert tpot(r) == pytest.approx(0.003)


def test_first_chunk_of_five_of_ten_tokens() -> None:
    """Five tokens take 50 ms after the first chunk: 10 ms a token, not 50/9."""
    r = request(events=[(0.2, 5), (0.225, 8), (0.25, 10)])
    assert tpot(r) == pytest.approx(0.05 / 5)


def test_bursts_are_one_step() -> None:
    """llama.cpp sends the tokens of a step 0.15 ms apart: two steps of 4 tokens, 20 ms apart."""
    burst = (
        [(0.1, 1)] + [(0.12 + 0.00015 * n, 2 + n) for n in range(4)] + [(0.14 + 0.00015 * n, 6 + n) for n in range(4)]
    )
    r = request(events=burst)
    assert step_gaps(r) == pytest.approx([0.02, 0.02])
    assert inter_token_latencies(r) == pytest.approx([0.005] * 8)


def test_everything_at_once_has_no_tpot() -> None:
    r = request(events=[(0.3, 7)])
    assert ttft(r) == pytest.approx(0.3)
    assert tpot(r) is None
    assert step_time(r) is None


def test_no_percentile_without_samples_beyond_it() -> None:
    few = Distribution.of([1.0] * 49)
    assert few.percentiles == {50: 1.0, 90: None, 95: None, 99: None}
    samples = list(np.random.default_rng(0).exponential(size=500))
    enough = Distribution.of(samples)
    assert enough.percentiles[99] == pytest.approx(np.quantile(samples, 0.99))
    assert Distribution.of([]).mean is None


def closed_loop() -> list:
    """Two slots, three rounds of 1 s: first token after 0.4 s, then 5 tokens over 0.5 s."""
    requests = []
    for round_ in range(3):
        for slot in range(2):
            start = 1.0 * round_ + 0.1 * slot
            events = [(start + 0.4, 1)] + [(start + 0.4 + 0.1 * n, 1 + n) for n in range(1, 6)]
            requests.append(request(2 * round_ + slot, slot=slot, send=start, events=events, prompt_tokens=10))
    return requests


def test_steady_window_of_a_closed_loop() -> None:
    requests = closed_loop()
    window = steady_window(requests, LoadLevel(concurrency=2))
    assert window is not None
    assert window.start == pytest.approx(0.9)  # the first completion after both slots have a first token (0.5)
    assert window.end == pytest.approx(2.9)  # the first slot finds nothing more
    # In flight over 2 s: slot 0 rests in [0.9, 1) and [1.9, 2), slot 1 in [1, 1.1) and [2, 2.1).
    assert achieved_concurrency(requests, window) == pytest.approx((2 * 2.0 - 0.4) / 2.0)
    assert [r.index for r in counted(requests, window, LoadLevel(concurrency=2))] == [2, 3, 4]
    assert peak_in_flight(requests) == 2


def test_rates_cut_tokens_and_duration_alike() -> None:
    """Tokens of the ramps are left out, and so is their time."""
    view = PassView.of(one_pass(closed_loop(), concurrency=2))
    # By hand, tokens with 0.9 < t <= 2.9. Slot 0: two rounds of 6. Slot 1: one at 1.0, six at 1.5-2.0, five at 2.5-2.9.
    # That is two slots' 6 tokens a second, the true rate of this loop.
    assert PASS_METRICS["output_throughput"].formula(view) == pytest.approx((6 + 6 + 1 + 6 + 5) / 2.0)
    assert PASS_METRICS["output_throughput"].formula(view) == pytest.approx(12.0)
    assert PASS_METRICS["input_throughput"].formula(view) == pytest.approx(40 / 2.0)
    assert PASS_METRICS["request_throughput"].formula(view) == pytest.approx(4 / 2.0)
    peak = PASS_METRICS["peak_output_throughput"].formula(view)
    assert peak is not None
    assert peak >= PASS_METRICS["output_throughput"].formula(view)  # type: ignore[operator]


def test_slots_in_step_are_not_flattered() -> None:
    """Two slots exactly in step, 0.8 s of prefill and 0.2 s of decode: 10 tokens a second, whatever the window."""
    requests = [
        request(2 * wave + slot, slot=slot, send=1.0 * wave, events=[(wave + 0.8, 1), (wave + 1.0, 5)])
        for wave in range(5)
        for slot in range(2)
    ]
    view = PassView.of(one_pass(requests, concurrency=2))
    assert PASS_METRICS["output_throughput"].formula(view) == pytest.approx(10.0)


def test_failed_requests_count_nowhere() -> None:
    requests = closed_loop()
    broken = requests[3]
    requests[3] = request(
        3, slot=1, send=broken.t_send, events=[(e.t, e.tokens) for e in broken.events], status=RequestStatus.TRUNCATED
    )
    view = PassView.of(one_pass(requests, concurrency=2))
    assert [r.index for r in view.counted] == [2, 4]
    assert PASS_METRICS["output_throughput"].formula(view) == pytest.approx((6 + 6 + 1 + 5) / 2.0)


def test_no_window_when_a_slot_never_ran() -> None:
    assert steady_window(closed_loop(), LoadLevel(concurrency=3)) is None
    assert steady_window([], LoadLevel(concurrency=1)) is None


def test_open_loop_window() -> None:
    requests = [request(n, slot=n, send=0.1 * n, events=[(0.1 * n + 0.2, 1), (0.1 * n + 0.3, 2)]) for n in range(10)]
    level = LoadLevel(rate=10.0)
    window = steady_window(requests, level)
    assert window is not None
    assert (window.start, window.end) == (pytest.approx(0.3), pytest.approx(0.9))
    # Those sent from 0.3 to 0.9 count, though the last ends after the window.
    assert len(counted(requests, window, level)) in (6, 7)  # 0.3 itself is a tie of floating point
    assert requests[9] in counted(requests, window, level)


def test_goodput_needs_all_of_the_objective() -> None:
    requests = closed_loop()
    view = PassView.of(one_pass(requests, concurrency=2), Slo(ttft=0.45, tpot=0.11))
    assert PASS_METRICS["goodput"].formula(view) == pytest.approx(4 / 2.0)
    view = PassView.of(one_pass(requests, concurrency=2), Slo(ttft=0.45, tpot=0.09))
    assert PASS_METRICS["goodput"].formula(view) == 0
    assert PASS_METRICS["goodput"].formula(PassView.of(one_pass(requests, concurrency=2))) is None


def test_per_gpu_only_where_there_are_gpus() -> None:
    view = PassView.of(one_pass(closed_loop(), concurrency=2, gpus=2))
    total = PASS_METRICS["output_throughput"].formula(view)
    assert PASS_METRICS["output_throughput_per_gpu"].formula(view) == pytest.approx(total / 2)  # type: ignore[operator]
    view = PassView.of(one_pass(closed_loop(), concurrency=2))
    assert PASS_METRICS["output_throughput_per_gpu"].formula(view) is None


def test_device_time_is_of_all_forward_passes_for_each_token() -> None:
    """By hand: six requests of six tokens; waiting for other ranks is no work."""
    timer = {"device_seconds_extend": 0.9, "device_seconds_target_verify": 0.54, "device_seconds_idle": 5.0}
    view = PassView.of(one_pass(closed_loop(), concurrency=2, counters={**timer, "verify_calls": 9.0}))
    assert PASS_METRICS["device_time_per_token"].formula(view) == pytest.approx(1.44 / 36)
    untimed = PassView.of(one_pass(closed_loop(), concurrency=2, counters={"verify_calls": 9.0}))
    assert PASS_METRICS["device_time_per_token"].formula(untimed) is None


def test_record_survives_its_file_form() -> None:
    r = request(3, slot=1, send=5.25, events=[(5.5, 1), (5.75, 4)], verify_steps=1, error="x")
    back = type(r).from_json(r.to_json())
    assert back == r
    assert back.events == (Event(5.5, 1), Event(5.75, 4))


def test_old_records_summed_the_device_timer_over_tp_ranks() -> None:
    """Tokens and verify steps only the first rank counts."""
    counters = {"device_seconds_extend": 3.0, "verify_calls": 20.0, "prompt_tokens": 8.0}
    record = one_pass(closed_loop(), counters=counters).record
    new = replace(record, key=replace(record.key, tp=2)).to_json()
    assert PassRecord.from_json(new).counters == counters
    old = {**new, "record_version": 1}
    assert PassRecord.from_json(old).counters == {**counters, "device_seconds_extend": 1.5}
    assert PassRecord.from_json({**record.to_json(), "record_version": 1}).counters == counters  # TP1


def test_a_burst_counts_only_while_all_decode() -> None:
    """The second request is prefilled until 2.0 s, which holds up the first; both decode until one ends at 5 s."""
    first = request(0, send=0.0, events=[(1.0, 1), (2.5, 4), (3.5, 7), (5.0, 10)], verify_steps=3)
    second = request(1, slot=1, send=0.0, events=[(2.0, 1), (2.5, 3), (3.5, 5), (5.0, 7), (9.0, 9)], verify_steps=4)
    source = one_pass([first, second], 2)
    level = LoadLevel(concurrency=2, burst=True)
    view = PassView.of(replace(source, record=replace(source.record, key=replace(source.record.key, level=level))))
    assert view.window == Window(2.0, 5.0)
    assert view.counted == (first, second)
    # From 2.5 to 5.0 s the first gets 6 tokens in two steps; from 2.0 to 5.0 s the second gets 6 in three.
    assert [tpot(r) for r in view.decoding] == [pytest.approx(2.5 / 6), pytest.approx(3.0 / 6)]
    assert [accept_length(r) for r in view.decoding] == [3.0, 2.0]
    assert distribution("tpot", view).mean == pytest.approx((2.5 / 6 + 3.0 / 6) / 2)
    assert distribution("ttft", view).mean == pytest.approx(1.5)  # as ever
    assert cut(first, Window(6.0, 7.0)).events == ()
    with pytest.raises(ValueError, match="a burst has a concurrency"):
        LoadLevel(rate=1.0, burst=True)
