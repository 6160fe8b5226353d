"""The simulated server, against values worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.engines.sglang_settings import SglangSettings
from harness.errors import MtpbenchError, ScenarioError
from harness.metrics.definitions import PassView, accept_length, step_time, tpot, ttft
from harness.model import Pass
from harness.scenario.format import Scenario
from harness.scenario.yaml_file import load
from harness.simulator import attention
from harness.simulator.acceptance import Natural, OneByOne, chain_probability
from harness.simulator.attention import Call
from harness.simulator.causes import CAUSES, Effects, Injection
from harness.simulator.hardware import Hardware, load_hardware
from harness.simulator.serving import Asked, Served, Server
from harness.simulator.simulate import AcceptLength, simulate_run
from harness.simulator.steps import Serving, StepModel, graph_sizes

ROOT = Path(__file__).parents[3]
MACHINES = ROOT / "scenarios" / "hardware"
H200, MI355X = load_hardware(MACHINES / "h200.yaml"), load_hardware(MACHINES / "mi355x.yaml")
QUIET = {"noise": Injection(0.0)}
# One rank's shape on MI355X: four tokens, 16 query heads on one KV head, the page table as wide as the model's context.
MI355X_CALL = Call(query_tokens=4, query_heads=16, kv_heads=1, head_size=256, padded_context=262144)


def still(hardware: Hardware, **changes: Any) -> Hardware:
    """A machine without spread between steps."""
    return hardware.model_copy(
        update={"noise": hardware.noise.model_copy(update={"step": 0.0, "delivery": 0.0, "launch": 0.0}), **changes}
    )


def scenario(**changes: Any) -> Scenario:
    """A tiny model on one H200, with and without MTP."""
    flags = {"max-running-requests": 32, "cuda-graph-max-bs-decode": 32, "context-length": 16384}
    document: dict[str, Any] = {
        "version": 1,
        "name": "simulated",
        "question": "What would it be?",
        "server": {
            "engine": "sglang",
            "model": "tiny-qwen3.5-dense-16-1",
            "gpu_vendor": "nvidia",
            "flags": {"attention-backend": "triton", **flags},
        },
        "arms": {"no-mtp": {}, "mtp": {"speculation": {}}},
        "workload": {"prompts": "prose", "input_tokens": 8192, "output_tokens": 64},
        "arrival": {"concurrency": [4], "requests_per_slot": 4},
    }
    return Scenario.model_validate(document | changes)


def view(passes: Sequence[Pass], arm: str) -> PassView:
    return PassView.of(next(one for one in passes if one.record.key.arm == arm))


@pytest.mark.parametrize(("batch", "expected"), [(1, 128), (2, 128), (4, 128), (8, 128), (16, 64), (32, 32), (64, 16)])
def test_aiter_cuts_by_its_rule(batch: int, expected: int) -> None:
    assert attention.segments("aiter", batch, MI355X_CALL, 256) == expected


def test_aiter_does_not_cut_short_contexts_or_full_devices() -> None:
    short = Call(4, 16, 1, 256, padded_context=512)
    assert attention.segments("aiter", 1, short, 256) == 1
    assert attention.segments("aiter", 205, MI355X_CALL, 256) == 1  # 5 x 205 = 1025 > 4 x 256
    assert attention.segments("aiter", 204, MI355X_CALL, 256) == 8


def test_the_mtp_kernel_cuts_by_its_rule() -> None:
    # par = ceil(512 / 48) = 11: min(64, np2(min(64, 8192, max(8, 11, min(256, 88))))) = 64
    assert attention.segments("mtp", 16, MI355X_CALL, 256) == 64
    # par = 3: max(8, 3, min(256, 24)) = 24, the next power of two is 32
    assert attention.segments("mtp", 64, MI355X_CALL, 256) == 32
    # A context of 8192: min(8, 88) = 8, so 11 decides: 16
    assert attention.segments("mtp", 16, Call(4, 16, 1, 256, 8192), 256) == 16


@pytest.mark.parametrize(
    ("batch", "length", "unique", "generic", "mtp", "generic_io", "mtp_io"),
    [
        (1, 1024, 0.53, 2.1, 1.05, 8.6, 4.4),
        (16, 8192, 67, 269, 134, 120, 110),
        (16, 70000, 573, 2294, 1147, 135, 133),
        (64, 8192, 269, 1074, 537, 135, 245),
    ],
)
def test_bytes_of_a_verify_call_are_those_of_the_table_in_megabytes(
    batch: int, length: int, unique: float, generic: float, mtp: float, generic_io: float, mtp_io: float
) -> None:
    lengths = np.full((batch, 1), length + 4)
    assert MI355X_CALL.segment_bytes == 132096  # 64 rows x (256 + 2) x 4 bytes, written and read
    for name, issued, traffic in (("generic", generic, generic_io), ("mtp", mtp, mtp_io)):
        kernel = MI355X.kernels[name]
        assert attention.issued_bytes(kernel, MI355X_CALL, batch * length) / 1e6 == pytest.approx(issued, rel=0.01)
        found = attention.segment_traffic(kernel, MI355X, batch, MI355X_CALL, lengths)[0]
        assert found / 1e6 == pytest.approx(traffic, rel=0.01)
    in_tree = attention.issued_bytes(MI355X.kernels["in-tree"], MI355X_CALL, batch * length)
    assert in_tree / 1e6 == pytest.approx(unique, rel=0.02)


def test_a_kernel_without_a_cut_takes_longer_with_each_wave_of_workgroups() -> None:
    kernel, call = H200.kernels["triton-extend"], Call(4, 16, 1, 256, 16384)

    def at(batch: int) -> float:
        return float(attention.seconds(kernel, H200, batch, call, np.full((batch, 1), 8192))[0])

    wave = 8192 * 0.121e-6
    assert at(8) == pytest.approx(10e-6 + wave)  # 128 workgroups on 132 units
    assert at(9) == pytest.approx(10e-6 + 2 * wave)  # 144
    assert at(16) == at(9)  # 256 of 264 places in two waves
    assert at(32) == pytest.approx(10e-6 + 4 * wave)  # 512


def test_the_machine_file_of_the_mi355x_gives_the_public_figures_it_was_fitted_on() -> None:
    """131.6 µs a layer for 16 x 35k tokens in the MTP kernel, and 1.97 to 2.29 times that in the generic one."""
    lengths = np.full((16, 1), 35000)
    mtp, generic = (
        attention.seconds(MI355X.kernels[name], MI355X, 16, MI355X_CALL, lengths)[0] for name in ("mtp", "generic")
    )
    assert mtp == pytest.approx(131.6e-6, rel=0.02)
    assert 1.97 < generic / mtp < 2.29


def test_only_a_fixed_cut_waits_for_the_longest_sequence() -> None:
    ragged, even = np.array([[1000], [15000]]), np.array([[8000], [8000]])
    call = Call(4, 16, 1, 256, 16384)

    def slower(name: str) -> float:
        kernel = H200.kernels[name]
        return float(
            attention.seconds(kernel, H200, 2, call, ragged)[0] / attention.seconds(kernel, H200, 2, call, even)[0]
        )

    assert slower("in-tree") == pytest.approx(1.0, abs=0.005)
    assert slower("triton-extend") == pytest.approx(15000 / 8000, rel=0.01)
    assert 1.0 < slower("generic") < 15000 / 8000


def test_a_step_of_the_dense_model_by_hand() -> None:
    """One sequence, one GPU, no speculation: 6 gated delta nets, 2 full attention layers, head."""
    machine = still(H200)
    model = step_model(scenario(), "no-mtp", machine)
    parts = {name: float(values[0]) for name, values in model.decode(np.array([[8192]])).items()}
    linear = 1024 * (2 * 2048 + 2 * 4096 + 2 * 32) + 4096 * 1024
    full = 1024 * (2 * 4096 + 2 * 256) + 4096 * 1024
    weights = 6 * linear + 2 * full + 8 * 3 * 1024 * 3072 + 1024 * 16384
    assert parts["gemm"] == pytest.approx(2 * weights / (4.31e12 * 0.353))  # bf16, read once
    assert parts["verify_attention"] == pytest.approx(
        2 * (10e-6 + 1088 * 0.101e-6 + 8 * 16 * 258 * 8 / 4.31e12), rel=1e-3
    )
    state = 6 * 32 * 128 * 128 * 4
    assert parts["other"] == pytest.approx(8 * (machine.layer + machine.token) + 2 * state / 4.31e12)
    assert parts["draft"] == parts["draft_extend"] == parts["all_reduce"] == 0
    # The scheduler takes longer than the device: the rest of its time is the host gap.
    assert sum(parts.values()) == pytest.approx(machine.host.plain.step + machine.host.plain.request)


def step_model(of: Scenario, arm: str, machine: Hardware, tp: int = 1, effects: Effects | None = None) -> StepModel:
    server: Any = of.arm(arm).server
    effects = effects or Effects()
    return StepModel(machine, server, Serving.of(server, machine, 32, 16384, effects), tp, effects)


def test_two_ranks_share_weights_and_heads_and_pay_all_reduce() -> None:
    machine = still(H200)
    of = scenario(server={**scenario().server.model_dump(), "model": "tiny-qwen3.5-dense-32-2"})
    one, two = (step_model(of, "mtp", machine, tp).decode(np.array([[8192]])) for tp in (1, 2))
    assert two["gemm"][0] == pytest.approx(one["gemm"][0] / 2)
    assert one["all_reduce"][0] == 0
    moved = 4 * 1024 * 2  # four tokens, bf16; a ring of two moves 2 x 1 / 2 of it
    assert two["all_reduce"][0] == pytest.approx(
        16 * (machine.all_reduce.latency + moved / (machine.all_reduce.gb_per_s * 1e9))
    )


def test_graphs_are_captured_as_sglang_does() -> None:
    assert graph_sizes(True, 32) == (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32)
    assert graph_sizes(False, 32) == (1, 2, 4, 8, 12, 16, 24, 32)
    assert graph_sizes(False, 50)[-2:] == (48, 50)


def test_a_batch_is_padded_to_the_next_graph_or_runs_eagerly() -> None:
    machine = still(H200)
    model = step_model(scenario(), "mtp", machine)
    assert [model.serving.padded(batch) for batch in (1, 9, 17, 32, 33)] == [1, 10, 18, 32, None]

    def fixed(batch: int) -> float:
        return float(model.decode(np.full((batch, 1), 1000))["gemm"][0])

    assert fixed(9) == fixed(10)
    cut = step_model(scenario(), "mtp", machine, effects=Effects(missing_graph_bucket=16))
    assert cut.serving.padded(14) == 14
    assert cut.serving.padded(15) is None
    slow, fast = (float(sum(one.decode(np.full((16, 1), 1000)).values())[0]) for one in (cut, model))
    scheduler = machine.host.speculative
    assert slow == pytest.approx(machine.host.eager_layer * (8 + 3) + scheduler.step + 16 * scheduler.request)
    assert fast < slow


def serve(requests: list[Asked], slots: int, arm: str = "no-mtp") -> Served:
    model = step_model(scenario(), arm, still(H200))
    acceptance = OneByOne() if arm == "no-mtp" else Natural(3.0, 0.0, 3, workload=1)
    return Server(model, acceptance, np.random.default_rng(1), 1.0, start=0.0).run(requests, slots, open_loop=False)


def test_prefill_holds_up_exactly_the_running_requests() -> None:
    """One request decodes; a second arrives while it does, with a prompt of two chunks."""
    machine = still(H200)
    model = step_model(scenario(), "no-mtp", machine)
    short, long = Asked(0, 0, 1000, 400), Asked(1, 1, 2 * 8192, 1, offset=0.2)
    server = Server(model, OneByOne(), np.random.default_rng(1), 1.0, start=0.0)
    served = server.run([short, long], 2, open_loop=True)
    gaps = np.diff([event.t for event in served.records[0].events])
    device = [model.prefill([(8192, 0)]), model.prefill([(8192, 8192)])]
    prefill = sum(max(one, model.prefill_launch()) + machine.prefill.gap for one in device)
    assert served.seconds["prefill"] == pytest.approx(sum(device) + model.prefill([(1000, 0)]))
    assert served.seconds["stall"] == pytest.approx(prefill)
    assert gaps.max() - median(gaps) == pytest.approx(prefill + machine.host.plain.step, rel=1e-3)
    assert (gaps > 1.5 * median(gaps)).sum() == 1
    # The second waits for the step in which it arrived, at most, and for its own prefill.
    waited = ttft(served.records[1])
    assert waited is not None
    arrival = machine.host.arrival + 16384 * machine.host.arrival_token
    own = arrival + prefill + machine.host.plain.step + machine.host.delivery
    assert own <= waited <= own + 1.1 * median(gaps)


def test_prefill_and_drafting_go_to_the_backends_of_the_flags() -> None:
    """By hand: a layer's attention to 8192 tokens is 4 x 16 heads x 256 x 8192^2 / 2 FLOP. Two layers and a draft's."""

    def model(**flags: str) -> StepModel:
        server = scenario().server.model_dump()
        of = scenario(server={**server, "flags": {**server["flags"], **flags}})
        return step_model(of, "mtp", still(H200))

    flop = 4 * 16 * 256 * 8192**2 / 2
    known = H200.prefill.attention
    triton, fa3 = flop / 990e12 / known["triton"].attention, flop / 1979e12 / known["fa3"].attention
    split = {"prefill-attention-backend": "fa3", "speculative-attention-mode": "decode"}
    plain = model().prefill([(8192, 0)])
    assert plain - model(**split).prefill([(8192, 0)]) == pytest.approx(2 * (triton - fa3))
    whole = split | {"speculative-draft-attention-backend": "fa3"}
    assert plain - model(**whole).prefill([(8192, 0)]) == pytest.approx(3 * (triton - fa3))
    # SGLang's default for the mode: the draft model follows the prefill.
    assert plain - model(**{"prefill-attention-backend": "fa3"}).prefill([(8192, 0)]) == pytest.approx(
        3 * (triton - fa3)
    )
    assert model(**whole).scheduler - model().scheduler == pytest.approx(H200.host.eager_draft_extend)
    contexts = np.full((16, 1), 32768)
    slow, fast = model().decode(contexts), model(**whole).decode(contexts)
    assert fast["draft"] < slow["draft"]
    assert fast["draft_extend"] < slow["draft_extend"]
    assert fast["verify_attention"] == slow["verify_attention"]


def test_more_prefill_interference_holds_up_longer_by_just_that() -> None:
    """Whether a chunk takes the device's time or that of its launch: all of it is longer."""
    quiet, worse = (
        step_model(scenario(), "no-mtp", still(H200), effects=Effects(prefill_interference=size)) for size in (0.0, 0.5)
    )
    stalls = []
    for model in (quiet, worse):
        server = Server(model, OneByOne(), np.random.default_rng(1), 1.0, start=0.0)
        requests = [Asked(0, 0, 1000, 400), Asked(1, 1, 8192, 1, offset=0.2)]
        stalls.append(server.run(requests, 2, open_loop=True).seconds["stall"])
    assert stalls[1] == pytest.approx(1.5 * stalls[0])


def test_prompts_share_a_chunk_and_the_last_one_is_cut() -> None:
    """3 x 3000 tokens in chunks of 8192: the third begins in the first chunk and ends in the second."""
    served = serve([Asked(n, n, 3000, 2) for n in range(3)], 3)
    assert served.prefill_batches == 2
    # Results of a prefill are handled once the next batch is launched: the second chunk, or a decode step. The second
    # chunk, of 808 tokens, takes no longer than its launch.
    first = [record.events[0].t for record in served.records]
    assert first[0] == first[1] == pytest.approx(first[2] - H200.host.plain.step - H200.prefill.gap)


def test_a_full_server_lets_requests_wait() -> None:
    machine = still(H200)
    server: Any = scenario(
        server={**scenario().server.model_dump(), "flags": {"attention-backend": "triton", "max-running-requests": 1}}
    )
    model = step_model(server, "no-mtp", machine)
    served = Server(model, OneByOne(), np.random.default_rng(1), 1.0, start=0.0).run(
        [Asked(n, n, 100, 50) for n in range(2)], 2, open_loop=False
    )
    one, two = served.records
    assert two.events[0].t > one.events[-1].t


def test_a_request_is_recorded_as_the_client_would() -> None:
    passes = simulate_run(scenario(), H200, seed=3)
    for one in passes:
        speculative = one.record.key.arm == "mtp"
        for record in one.requests:
            counts = [event.tokens for event in record.events]
            assert counts[0] == 1
            assert counts[-1] == record.completion_tokens == 64
            assert all(1 <= b - a <= (4 if speculative else 1) for a, b in pairwise(counts))
            times = [record.t_send, *(event.t for event in record.events)]
            assert times == sorted(times)
            assert record.verify_steps == (len(counts) - 1 if speculative else None)
            assert record.prompt_tokens == 8192
    assert {one.record.findings[-1].code for one in passes} == {"simulated"}


def test_tpot_is_step_time_over_accept_length_and_the_closed_loop_holds() -> None:
    """c = rate x (TTFT + (n - 1) TPOT + turnaround), Little's law, with means over the steady state."""
    long = scenario(arrival={"concurrency": [4], "requests_per_slot": 40})
    chosen = view(simulate_run(long, still(H200), injected=QUIET), "mtp")
    for record in chosen.counted:
        per_token, step, accepted = tpot(record), step_time(record), accept_length(record)
        assert per_token is not None
        assert step is not None
        assert accepted is not None
        assert per_token == pytest.approx(step / accepted)
    assert chosen.window is not None
    rate = sum(chosen.window.holds(r.t_end) for r in chosen.requests) / chosen.window.seconds
    busy = fmean((ttft(r) or 0) + 63 * (tpot(r) or 0) for r in chosen.counted)
    assert rate * (busy + H200.host.turnaround) == pytest.approx(4, rel=0.02)


def test_the_same_seed_gives_the_same_run_and_arms_share_prompts() -> None:
    one, two, other = (simulate_run(scenario(), H200, seed=seed) for seed in (1, 1, 2))
    assert [p.requests for p in one] == [p.requests for p in two]
    assert [p.requests for p in one] != [p.requests for p in other]
    no_mtp, mtp = one
    assert [r.input_tokens_asked for r in no_mtp.requests] == [r.input_tokens_asked for r in mtp.requests]
    only = simulate_run(scenario(launches=2), H200, launches=[1], arms=["mtp"])
    assert [p.record.key.launch_slug for p in only] == ["01-mtp-tp1"]


def test_the_step_profile_and_the_counters_are_what_passed() -> None:
    alone = scenario(arrival={"concurrency": [1], "requests_per_slot": 4})
    for done in simulate_run(alone, still(H200), injected=QUIET):
        record, steps = done.record, sum(len(r.events) - 1 for r in done.requests)
        counters, profile = record.counters, record.step_profile
        seen = sum(r.events[-1].t - r.events[0].t for r in done.requests)
        # Alone, nothing lies between two steps: the parts of the profile add up to what the client sees.
        assert sum(profile.values()) * steps == pytest.approx(seen, rel=1e-3)
        assert counters["output_tokens"] == 64 * len(done.requests)
        target = sum(profile[part] for part in ("verify_attention", "gemm", "all_reduce", "other"))
        if record.key.arm == "mtp":
            assert counters["device_seconds_target_verify"] == pytest.approx(target * steps)
            drafts = counters["device_seconds_eagle_draft"] + counters["device_seconds_eagle_draft_extend"]
            assert drafts == pytest.approx(profile["draft"] * steps)
            assert counters["verify_calls"] == steps
        else:
            assert counters["device_seconds_decode"] == pytest.approx(target * steps)
            assert profile["draft"] == 0
        one = step_model(alone, record.key.arm, still(H200)).prefill([(8192, 0)])
        assert counters["device_seconds_extend"] == pytest.approx(len(done.requests) * one)


def medians(passes: list[Pass], arm: str = "mtp") -> dict[str, float]:
    chosen = view(passes, arm)
    functions = {"tpot": tpot, "ttft": ttft, "step": step_time, "accept": accept_length}
    # Which requests are counted depends on when slots come free; what was accepted is compared over all of them.
    of = {name: chosen.requests if name == "accept" else chosen.counted for name in functions}
    return {name: fmean(f(r) or 0.0 for r in of[name]) for name, f in functions.items()}


@pytest.mark.parametrize(
    ("cause", "size", "moved", "still_there"),
    [
        ("prefill_interference", 0.3, "ttft", "accept"),
        ("acceptance_drift", 0.2, "accept", None),
        ("slower_kernel", 0.2, "step", "accept"),
        ("segment_overhead", 40.0, "step", "accept"),
        ("missing_graph_bucket", 4, "step", "accept"),
        ("host_stall", 0.001, "step", "accept"),
    ],
)
def test_each_cause_moves_what_it_is_about(cause: str, size: float, moved: str, still_there: str | None) -> None:
    machine = still(H200)
    base, head = (
        medians(simulate_run(scenario(), machine, injected={**QUIET, **injected}))
        for injected in ({}, {cause: Injection(size)})
    )
    assert abs(head[moved] / base[moved] - 1) > 0.05
    assert head["tpot"] > base["tpot"]
    if still_there:
        assert head[still_there] == pytest.approx(base[still_there])


def test_an_injection_for_one_arm_leaves_the_others_as_they_are() -> None:
    base = simulate_run(scenario(), H200)
    head = simulate_run(scenario(), H200, injected={"slower_kernel": Injection(0.5, ("mtp",))})
    same = [a.requests == b.requests for a, b in zip(base, head, strict=True)]
    assert [one.record.key.arm for one in base] == ["no-mtp", "mtp"]
    assert same == [True, False]


def test_ragged_lengths_keep_their_mean_and_noise_is_all_that_launches_differ_by() -> None:
    ragged = simulate_run(scenario(), H200, injected={"ragged_lengths": Injection(0.5)})[0]
    lengths = [r.prompt_tokens or 0 for r in ragged.requests]
    assert 0.5 * 8192 <= min(lengths) < max(lengths) <= 1.5 * 8192
    spread = simulate_run(scenario(launches=12), still(H200), injected={"noise": Injection(0.05)}, arms=["no-mtp"])
    values = [fmean(tpot(r) or 0 for r in one.requests) for one in spread]
    assert 0.02 < np.std(values) / np.mean(values) < 0.09
    equal = simulate_run(scenario(launches=2), still(H200), injected=QUIET, arms=["no-mtp"])
    assert [tpot(r) for r in equal[0].requests] == pytest.approx([tpot(r) for r in equal[1].requests])


def test_texts_are_the_same_in_every_launch_but_for_a_share() -> None:
    machine = H200.model_copy(update={"noise": H200.noise.model_copy(update={"texts": 0.25})})
    long = scenario(arrival={"concurrency": [4], "requests_per_slot": 40}, launches=2)
    one, two = simulate_run(long, machine, arms=["mtp"])
    same = [a.verify_steps == b.verify_steps for a, b in zip(one.requests, two.requests, strict=True)]
    assert 0.5 < fmean(same) < 0.75  # 0.75 squared surely, some of the others by chance
    quiet = simulate_run(long, machine, arms=["mtp"], injected=QUIET)
    assert [r.verify_steps for r in quiet[0].requests] == [r.verify_steps for r in quiet[1].requests]


@given(mean=st.floats(1.0, 4.0), drafts=st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_a_chain_yields_the_mean_it_was_asked_for(mean: float, drafts: int) -> None:
    mean = min(mean, drafts + 1.0)
    p = chain_probability(mean, drafts)
    assert sum(p**n for n in range(drafts + 1)) == pytest.approx(mean, abs=1e-6)
    totals = Natural(mean, 0.0, drafts, workload=1).totals(0, 20000, 0)
    assert totals[0] == 1
    assert totals[-1] == 20000
    assert (20000 - 1) / (len(totals) - 1) == pytest.approx(mean, rel=0.03)


@given(
    batch=st.integers(1, 64),
    length=st.integers(1, 100_000),
    name=st.sampled_from(["mtp", "generic", "in-tree", "decode"]),
)
@settings(max_examples=60, deadline=None)
def test_attention_never_gets_cheaper_with_length_nor_reads_less_than_there_is(
    batch: int, length: int, name: str
) -> None:
    kernel = MI355X.kernels[name]
    lengths = np.array([[length, 2 * length]] * batch)
    once, twice = attention.seconds(kernel, MI355X, batch, MI355X_CALL, lengths)
    assert twice >= once > kernel.launch
    assert once >= batch * length * 512 / MI355X.bandwidth
    if name != "in-tree":
        live, piece = attention.live_segments(kernel.segments, 64, np.array([length]))
        assert live[0] * piece[0] >= length > (live[0] - 1) * piece[0]


def test_random_causes_and_arms_are_refused_with_what_there_is() -> None:
    with pytest.raises(MtpbenchError, match="is no cause"):
        simulate_run(scenario(), H200, injected={"cosmic_rays": Injection(1.0)})
    with pytest.raises(MtpbenchError, match="the scenario lacks"):
        simulate_run(scenario(), H200, injected={"noise": Injection(0.1, ("nobody",))})
    with pytest.raises(MtpbenchError, match="0 to 1"):
        simulate_run(scenario(), H200, injected={"acceptance_drift": Injection(1.5)})
    with pytest.raises(MtpbenchError, match="is for nvidia, mi355x is amd"):
        simulate_run(scenario(), MI355X)
    assert set(CAUSES) == set(Effects.__dataclass_fields__)


def test_a_request_that_no_server_could_hold_is_refused() -> None:
    for flag, value in (("context-length", 8192), ("max-total-tokens", 5000)):
        server = {**scenario().server.model_dump(), "flags": {"attention-backend": "triton", flag: value}}
        with pytest.raises(MtpbenchError, match=f"{flag} is {value}"):
            simulate_run(scenario(server=server), H200)


def test_an_open_loop_arrives_whatever_the_server_does() -> None:
    passes = simulate_run(scenario(arrival={"rates": [20.0], "min_requests": 60}), H200, arms=["mtp"])
    sends = [r.t_send - passes[0].record.t_start for r in passes[0].requests]
    assert sends == sorted(sends)
    assert 60 / sends[-1] == pytest.approx(20.0, rel=0.4)
    assert all(r.t_send == r.t_scheduled for r in passes[0].requests)


def test_a_machine_file_says_what_is_wrong_and_where(tmp_path: Path) -> None:
    text = (
        (MACHINES / "h200.yaml").read_text().replace("layer: 20us", "layer: 20", 1).replace("stream: 1.0", "steam: 1.0")
    )
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    with pytest.raises(ScenarioError) as caught:
        load_hardware(path)
    messages = str(caught.value)
    assert "layer: 20 is not a duration" in messages
    assert "did you mean 'stream'?" in messages
    path.write_text((MACHINES / "h200.yaml").read_text().replace("unhooked: triton-extend", "unhooked: nothing"))
    with pytest.raises(ScenarioError, match="unhooked names the kernel 'nothing'"):
        load_hardware(path)
    path.write_text((MACHINES / "h200.yaml").read_text().replace("{fa3: fa3}", "{fa3: fa4}"))
    with pytest.raises(ScenarioError, match=r"draft_backends\.fa3 names the kernel 'fa4'"):
        load_hardware(path)
    with pytest.raises(ScenarioError, match="can't be read") as missing:
        load_hardware(tmp_path / "none.yaml")
    assert "--hardware FILE" in missing.value.hint


def test_accept_length_can_be_given() -> None:
    passes = simulate_run(scenario(), H200, accept_length=AcceptLength(3.5, 0.0))
    assert medians(passes)["accept"] == pytest.approx(3.5, rel=0.05)


@pytest.mark.parametrize(
    ("version", "env", "kernel"),
    [
        ("0.5.19", {}, "mtp"),
        ("0.5.20", {}, "assembly"),
        ("0.5.23", {}, "assembly"),
        ("0.5.23", {"SGLANG_ASM_VERIFY_ATTN": "0"}, "mtp"),
    ],
)
def test_who_verifies_by_itself_depends_on_sglangs_version(version: str, env: dict[str, str], kernel: str) -> None:
    """Assembly from 0.5.20 on, unless its switch is off: `upstream` must not be timed as the Triton kernel then."""
    hardware = load_hardware(ROOT / "scenarios" / "hardware" / "mi355x.yaml")
    server = load(ROOT / "scenarios" / "mi355x-qwen35-70k.yaml").arm("mtp-upstream").server
    assert isinstance(server, SglangSettings)
    server = server.model_copy(update={"version": version, "env": env})
    serving = Serving.of(server, hardware, 16, 70300, Effects())
    model = StepModel(hardware, server, serving, 2, Effects())
    lengths = np.full((16, 1), 35_000)
    call = attention.Call(4, 16, 1, 256, serving.padded_context)
    one = float(attention.seconds(hardware.kernels[kernel], hardware, 16, call, lengths + 4)[0])
    assert model.decode(lengths)["verify_attention"][0] == pytest.approx(15 * one)
    # About what its authors published: 131.6 us, and 5 TB/s of 16 x 35k x 512 bytes.
    assert one == pytest.approx({"mtp": 131.6e-6, "assembly": 16 * 35_000 * 512 / 5e12}[kernel], rel=0.03)
