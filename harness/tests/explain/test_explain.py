"""Why TPOT changed: each cause on accounts made by hand, simulated servers, and what the command line refuses."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import real_width
from accounts import C8, C16, C32, SCENARIO, case, make, seen
from accounts import run as stored_run
from launches import launch as launched

from harness.cli.explain import level_of, subjects
from harness.errors import MtpbenchError
from harness.explain.answer import Explanation, explain, judge
from harness.explain.change import ONE_LAUNCH, Case, Estimate, Subject, build
from harness.explain.hypotheses import HYPOTHESES, State, equal_servers, more_pairs
from harness.explain.launches import LaunchSeen, Seen, captured_batches
from harness.explain.report import account_rows, headline, to_json, to_markdown
from harness.model import LoadLevel
from harness.selftest import causes as explain_check
from harness.simulator.hardware import load_hardware
from harness.store.ab_record import Side
from harness.store.runs import StoredRun, load_run
from harness.text import escape
from harness.verdict.facts import Difference, Role

ROOT = Path(__file__).parents[3]
SMOKE = ROOT / "docs/results/20261130T005138Z-h200-smoke-4f5617"
PAIRED = ROOT / "docs/results/20261130T063447Z-h200-ab-verify-610fee"
LONG = LoadLevel(16, input_tokens=32768)
Levels = Mapping[LoadLevel, Seen]


def outcome(explanation: Explanation, number: int) -> State:
    return next(one.outcome.state for one in explanation.tested if one.hypothesis.number == number)


def pairs(one: Callable[[float], tuple[Levels, Levels]], count: int = 5) -> Case:
    """So many pairs of launches, each with a speed of its own, about 1 % apart, that both sides share in part."""
    draw = np.random.default_rng(1)
    both = [one(float(draw.normal(1.0, 0.005))) for _ in range(count)]
    return case([base for base, _ in both], [head for _, head in both])


def step(batch: int, seconds: float, **values: float) -> Seen:
    return seen(make({batch: (500, seconds)}, **values))


def test_prefill_in_the_way() -> None:
    """The step is even shorter, as in the report that this project began with."""

    def one(speed: float) -> tuple[Levels, Levels]:
        base = make({16: (500, 0.010 * speed)}, interference=2.0)
        head = make({16: (500, 0.0098)}, interference=2.5 * speed)
        return {C16: seen(base)}, {C16: replace(seen(head), ttft=0.9, throughput=104.0)}

    found = judge(pairs(one))
    assert found.cause == "prefill_interference"
    assert [outcome(found, n) for n in (1, 2, 9, 10, 12)] == [State.CONFIRMED, *[State.REFUTED] * 4]
    assert sum(row.change.mean for row in found.rows) == pytest.approx(found.tpot.change.mean)
    assert "against decode step, at equal batch sizes" in found.sentence
    figures = next(one.outcome.figures for one in found.tested if one.hypothesis.number == 1)
    assert "TTFT -10.0 %, output +4.0 %" in figures


def test_acceptance() -> None:
    found = judge(pairs(lambda s: ({C16: step(16, 0.010, tokens=1250)}, {C16: step(16, 0.010 * s, tokens=1100)})))
    assert found.cause == "acceptance_drift"
    assert found.rows[0].change.mean == pytest.approx(1250 / 1100 - 1, rel=0.1)


def grown(at_short: float, at_long: float, at_small: float) -> Case:
    """The step takes so many ms more at 16 × 8k, at 16 × 32k and at 8 × 8k."""

    def one(speed: float) -> tuple[Levels, Levels]:
        base = {C16: step(16, 0.010), LONG: step(16, 0.014, length=32768), C8: step(8, 0.008)}
        head = {
            C16: step(16, 0.010 + at_short * speed),
            LONG: step(16, 0.014 + at_long * speed, length=32768),
            C8: step(8, 0.008 + at_small * speed),
        }
        return base, head

    return pairs(one)


@pytest.mark.parametrize(
    ("short", "long", "small", "cause", "confirmed"),
    [
        (0.001, 0.004, 0.0005, "slower_kernel", 10),  # in proportion to what is read
        (0.001, 0.001, 0.0005, "segment_overhead", 4),  # partial results: as many at any length
        (0.001, 0.001, 0.001, "host_stall", 11),  # every step, whatever it does
    ],
)
def test_where_the_excess_grows_tells_what_it_is(
    short: float, long: float, small: float, cause: str, confirmed: int
) -> None:
    found = judge(grown(short, long, small))
    assert found.cause == cause
    states = {number: outcome(found, number) for number in (4, 10, 11)}
    assert states.pop(confirmed) is State.CONFIRMED
    assert set(states.values()) == {State.REFUTED}


def test_device_times_tell_what_a_host_bound_step_hides() -> None:
    """At 8 × 8k the step waits for the host, and seems not to change; the device says that it works longer."""

    def one(speed: float) -> tuple[Levels, Levels]:
        base = {C16: timed(16, 0.010, 0.009), C8: timed(8, 0.008, 0.004), LONG: timed(16, 0.014, 0.013, 32768)}
        head = {
            C16: timed(16, 0.011 * speed, 0.010),
            C8: timed(8, 0.008 * speed, 0.0045),
            LONG: timed(16, 0.015 * speed, 0.014, 32768),
        }
        return base, head

    found = judge(pairs(one))
    assert found.cause == "segment_overhead"
    assert [row.label for row in found.device] == ["device: verify", "the device waits for the host"]
    assert sum(row.change.mean for row in found.device) == pytest.approx(
        sum(row.change.mean for row in found.rows[1:3])
    )


def timed(batch: int, seconds: float, busy: float, length: float = 8192.0) -> Seen:
    return replace(step(batch, seconds, length=length), device={"verify": busy})


def test_a_graph_that_one_side_lacks() -> None:
    found = judge(pairs(lambda s: ({C16: step(16, 0.010)}, {C16: replace(step(16, 0.012 * s), graphs=0.02)})))
    assert found.cause == "missing_graph_bucket"


def test_a_graph_of_another_size_is_seen_without_a_log() -> None:
    both = pairs(lambda s: ({C16: step(16, 0.010)}, {C16: step(16, 0.011 * s)}))
    with_sizes = [(replace(b, captured=(8, 16)), replace(h, captured=(8, 24))) for b, h in both.pairs]
    found = judge(replace(both, pairs=tuple(with_sizes)))
    assert found.cause == "missing_graph_bucket"
    assert "graph of 16 → 24" in to_markdown(found)


def test_ragged_lengths() -> None:
    """The same kernel is as fast where lengths are equal."""
    ragged = LoadLevel(16, factor="ragged")

    def one(speed: float) -> tuple[Levels, Levels]:
        base = {C16: step(16, 0.010), ragged: step(16, 0.0101, spread=0.5)}
        return base, {C16: step(16, 0.010 * speed), ragged: step(16, 0.0115 * speed, spread=0.5)}

    draw = np.random.default_rng(1)
    both = [one(float(draw.normal(1.0, 0.003))) for _ in range(5)]
    found = judge(case([b for b, _ in both], [h for _, h in both], ragged))
    assert found.cause == "ragged_lengths"
    equal = judge(case([b for b, _ in both], [h for _, h in both], C16))
    assert outcome(equal, 8) is State.REFUTED


def test_a_bump_at_one_batch_size() -> None:
    """Workgroups of 16 sequences need one wave more: its neighbours do not."""
    near = {n: LoadLevel(n, factor="burst", burst=True) for n in (13, 14, 15, 16, 17, 18)}

    def one(speed: float) -> tuple[Levels, Levels]:
        base = {level: step(n, 0.010 + n * 1e-4) for n, level in near.items()}
        head = {level: step(n, (0.010 + n * 1e-4) * speed + (0.002 if n == 16 else 0.0)) for n, level in near.items()}
        return base, head

    draw = np.random.default_rng(1)
    both = [one(float(draw.normal(1.0, 0.003))) for _ in range(5)]
    found = judge(case([b for b, _ in both], [h for _, h in both], near[16]))
    assert found.cause == "slower_kernel"
    assert outcome(found, 7) is State.CONFIRMED
    # A closed loop at 16 is told by the burst's neighbours too; without them nothing is.
    loops = [({**b, C16: b[near[16]]}, {**h, C16: h[near[16]]}) for b, h in both]
    assert outcome(judge(case([b for b, _ in loops], [h for _, h in loops])), 7) is State.CONFIRMED
    alone = [({C16: b[C16]}, {C16: h[C16]}) for b, h in loops]
    assert outcome(judge(case([b for b, _ in alone], [h for _, h in alone])), 7) is State.UNTESTED


def test_noise_has_no_cause_and_too_little_data_is_not_called_noise() -> None:
    equal = judge(pairs(lambda s: ({C16: step(16, 0.010)}, {C16: step(16, 0.010 * s)})))
    assert equal.cause == "noise"
    assert outcome(equal, 9) is State.CONFIRMED
    assert "noise, or nothing" in equal.sentence
    draw = np.random.default_rng(4)
    wild = judge(
        case(
            [{C16: timed(16, 0.010 * float(draw.normal(1.0, 0.2)), 0.005)} for _ in range(4)],
            [{C16: timed(16, 0.010 * float(draw.normal(1.0, 0.2)), 0.004)} for _ in range(4)],
        )
    )
    assert wild.cause is None
    assert outcome(wild, 9) is State.UNTESTED
    assert "launches differ too much" in wild.sentence
    assert "certain is a change of the device's verify" in wild.sentence
    assert wild.next.startswith("mtpbench ab runs/by-hand/scenario.yaml --base arm:old --head arm:new")


def test_a_part_may_be_certain_where_the_whole_is_not() -> None:
    """The step is 6 % longer in each pair; prefills differ by more than that from launch to launch."""
    draw = np.random.default_rng(2)

    def side(seconds: float) -> list[Levels]:
        noisy = [float(draw.normal(5.0, 0.5)) for _ in range(5)]
        return [{C16: seen(make({16: (500, seconds * (1 + n / 1000))}, interference=i))} for n, i in enumerate(noisy)]

    both = case(side(0.010), side(0.0115))
    assert both.whole.p > 0.01
    assert "decode step, at equal batch sizes makes" in judge(both).sentence


def test_one_launch_tells_only_what_launches_hardly_ever_differ_by() -> None:
    small = judge(case([{C16: step(16, 0.010)}], [{C16: step(16, 0.0105)}]))
    assert small.cause is None
    assert "one launch a side" in small.sentence
    large = judge(case([{C16: step(16, 0.010)}], [{C16: step(16, 0.010, tokens=700)}]))
    assert large.cause == "acceptance_drift"
    assert "One launch a side: there is no interval" in large.sentence
    assert json.loads(to_json(large))["parts"][0]["interval_90"] is None
    assert Estimate.of([ONE_LAUNCH * 1.01]).sure()


def test_sides_measured_under_different_conditions_have_no_cause() -> None:
    both = pairs(lambda s: ({C16: step(16, 0.010)}, {C16: step(16, 0.012 * s)}))
    found = judge(replace(both, differences=(Difference("gpus", "A", "B", Role.MATTERS),)))
    assert found.cause == "noise"
    assert "different conditions (gpus: A → B)" in found.sentence


def test_between_two_levels_the_larger_batch_is_a_cause() -> None:
    """Twice as many sequences take 1.5 times as long a step: nothing got slower at an equal batch."""
    levels = [{C8: step(8, 0.008 * s), C16: step(16, 0.012 * s)} for s in (0.99, 1.0, 1.01, 1.0)]
    found = judge(case(levels, levels, C8, C16))
    assert found.cause == "larger_batch"
    assert found.tpot.change.mean == pytest.approx(0.5)
    assert {row.name: row.change.mean for row in found.rows}["step"] == pytest.approx(0.0, abs=1e-9)


def test_the_same_arm_with_another_context_length() -> None:
    text = (
        SCENARIO.replace(
            "arms: {old: {}, new: {}}",
            "arms: {old: {}, new: {flags: {page-size: 16}}, wide: {flags: {page-size: 16, context-length: 99999}}}",
        )
        .replace("[8, 16, 32]", "[1]")
        .replace("level: 16", "level: 1")
    )
    draw = np.random.default_rng(3)
    for wide, state in ((0.010, State.CONFIRMED), (0.0121, State.REFUTED)):
        means = {"old": 0.010, "new": 0.012, "wide": wide}
        passes = tuple(
            launched(n, mean * float(draw.normal(1, 0.002)), arm=arm) for n in range(4) for arm, mean in means.items()
        )
        run = replace(stored_run(text), passes=passes)
        side = Side("run", (run,), {arm: arm for arm in means})
        found = explain(Subject(side, "old", 1, LoadLevel(1)), Subject(side, "new", 1, LoadLevel(1)))
        assert outcome(found, 3) is state


def test_acceptance_and_prefills_together() -> None:
    """Prefills are in the way of tokens, not of steps: 10 % fewer accepted make 11 % more steps between the same two.

    Of a token, decode takes 5 ms and prefills 2.5 ms. Accepting a tenth less makes that 5.556 ms, prefills 2.75 ms.
    """

    def one(speed: float) -> tuple[Levels, Levels]:
        base = make({16: (500, 0.010 * speed)}, interference=2.5, tokens=1000)
        head = make({16: (556, 0.010)}, interference=2.75 * speed, tokens=1000)
        return {C16: seen(base)}, {C16: seen(head)}

    found = judge(pairs(one))
    parts = {share.cause: share.change.mean for share in found.shares}
    assert set(parts) == {"acceptance_drift", "prefill_interference"}
    mean = 0.806 / math.log(8.306 / 7.5)  # the logarithmic mean of TPOT, ms
    assert parts["prefill_interference"] == pytest.approx(0.25 / mean, abs=0.004)
    assert parts["acceptance_drift"] == pytest.approx(0.556 / mean, abs=0.008)
    assert "Causes: drafts accepted differently (" in found.sentence
    assert " and prefill interference (" in found.sentence


def test_causes_that_cancel_are_found() -> None:
    def one(speed: float) -> tuple[Levels, Levels]:
        base = make({16: (500, 0.010 * speed)}, interference=2.5, tokens=1000)
        head = make({16: (556, 0.010 * speed)}, interference=1.94, tokens=1000)
        return {C16: seen(base)}, {C16: seen(head)}

    found = judge(pairs(one))
    assert abs(found.tpot.change.mean) < 0.005
    assert "causes that cancel: drafts accepted differently (+7" in found.sentence
    assert {share.cause for share in found.shares} == {"acceptance_drift", "prefill_interference"}
    assert {one["cause"] for one in json.loads(to_json(found))["causes"]} == {
        "acceptance_drift",
        "prefill_interference",
    }


def test_one_launch_confirms_and_refutes_nothing() -> None:
    for head in (step(16, 0.010, tokens=700), step(16, 0.0101)):
        found = judge(case([{C16: step(16, 0.010)}], [{C16: head}]))
        states = {one.outcome.state for one in found.tested}
        assert not states & {State.CONFIRMED, State.REFUTED}
    assert (
        "Likely cause: drafts accepted differently"
        in judge(case([{C16: step(16, 0.010)}], [{C16: step(16, 0.010, tokens=700)}])).sentence
    )


def test_the_only_setting_that_differs_is_the_cause_of_what_it_governs(tmp_path: Path) -> None:
    """A model of real width, one setting apart, two pairs: the device's own account names the verify kernel."""
    found = explain(*subjects([str(real_width.store(tmp_path / "two"))]))
    assert found.cause == "slower_kernel"
    assert outcome(found, 10) is State.CONFIRMED
    assert "Cause: the verify kernel: target-verify 3" in found.sentence
    assert "server.verify: upstream → in-tree, the only setting that differs" in found.sentence
    once = explain(*subjects([str(real_width.store(tmp_path / "one", launches=1))]))
    assert once.cause == "slower_kernel"
    assert outcome(once, 10) is State.LIKELY
    assert "Likely cause: the verify kernel" in once.sentence
    other = replace(found.case, only=Difference("server.flags.page-size", "16", "64", Role.TESTED))
    assert outcome(judge(other), 10) is not State.CONFIRMED  # a setting that does not govern it


def test_intervals_are_exponentiated_and_columns_add_up() -> None:
    found = explain(*subjects([str(PAIRED)]))
    logs = found.case.whole
    assert (found.tpot.change.low, found.tpot.change.high) == pytest.approx((-0.268, 0.126), abs=0.001)
    assert found.tpot.change.low == pytest.approx(math.expm1(logs.low))
    assert found.tpot.head / found.tpot.base == pytest.approx(1 + found.tpot.change.mean)
    for side in ("base", "head"):
        shown = {row.name: getattr(row, side) for row in found.rows}
        whole = (shown["step"] + shown["stalls"]) / shown["acceptance"] + shown["interference"]
        assert whole == pytest.approx(getattr(found.tpot, side))
        assert sum(getattr(row, side) for row in found.device) == pytest.approx(shown["step"])


def test_a_part_larger_than_tpot_is_told_as_a_factor() -> None:
    """Drafts divide the steps of a token by 4.9, and a step takes eight times as long: -160 % is no quantity."""
    found = judge(pairs(lambda s: ({C16: step(16, 0.010, tokens=500)}, {C16: step(16, 0.080 * s, tokens=2450)})))
    acceptance = next(one.outcome.figures for one in found.tested if one.hypothesis.number == 2)
    assert "a factor of 0.2 (" in acceptance
    cells = {row[0]: row[3] for row in account_rows(found)}
    assert cells["accept length"].endswith(", × 0.2")
    assert "-2" not in found.sentence


def attached(*urls: str) -> StoredRun:
    arms = ", ".join(f"arm{n}: {{url: '{url}'}}" for n, url in enumerate(urls))
    return stored_run(
        "version: 1\nname: by-hand\nquestion: What of a server that runs already?\n"
        f"server: {{engine: attach, url: '{urls[0]}'}}\narms: {{{arms}}}\n"
        "workload: {prompts: prose, input_tokens: 8192, output_tokens: 100}\narrival: {concurrency: [16]}\n"
    )


def test_what_is_to_be_run_next_can_be_run() -> None:
    both = pairs(lambda s: ({C16: step(16, 0.010)}, {C16: step(16, 0.011 * s)}))

    def commands(base: StoredRun, head: StoredRun, arms: tuple[str, str]) -> list[str]:
        one, other = (
            Subject(Side("s", (run,), {arm: arm}), arm, 1, C16) for run, arm in ((base, arms[0]), (head, arms[1]))
        )
        of = replace(both, base=one, head=other)
        return [more_pairs(of), equal_servers(of), *(one.experiment(of) for one in HYPOTHESES)]

    # A server that runs already is no two sides, has no second of its kind, and none of SGLang's scenarios.
    alone = attached("http://127.0.0.1:1")
    for command in commands(alone, replace(alone, id="later"), ("arm0", "arm0")):
        assert command == "mtpbench run runs/by-hand/scenario.yaml"
    two = attached("http://127.0.0.1:1", "http://127.0.0.1:2")
    assert commands(two, two, ("arm0", "arm1"))[0].endswith("--base arm:arm0 --head arm:arm1")
    same = attached("http://127.0.0.1:1", "http://127.0.0.1:1")
    assert commands(same, same, ("arm0", "arm1"))[0] == "mtpbench run runs/by-hand/scenario.yaml"
    # Two runs of one arm: two commits, or more launches.
    text = SCENARIO.replace("arms: {old: {}, new: {}}", "arms: {old: {}}")
    runs = [replace(stored_run(text), environment={"commit": c * 40}) for c in "12"]
    assert commands(*runs, ("old", "old"))[0].endswith(f"--base {'1' * 10} --head {'2' * 10}")
    assert commands(runs[0], runs[0], ("old", "old"))[0] == "mtpbench run runs/by-hand/scenario.yaml"
    amd = stored_run(text.replace("nvidia", "amd"))
    assert "mtpbench run scenarios/c16-tpot.yaml" in commands(amd, amd, ("old", "old"))
    assert not any(command.startswith("rocprofv3") for command in commands(*runs, ("old", "old")))


def test_every_hypothesis_says_what_would_tell() -> None:
    both = pairs(lambda s: ({C16: step(16, 0.010)}, {C16: step(16, 0.011 * s)}))
    assert [one.number for one in HYPOTHESES] == list(range(1, 13))
    for one in HYPOTHESES:
        assert one.confirms
        assert one.refutes
        assert one.experiment(both).split()[0] in ("mtpbench", "rocprofv3")
        assert one.test(both).figures


@pytest.mark.parametrize(
    ("cause", "seed"), [("prefill_interference", 0), ("slower_kernel", 2), ("missing_graph_bucket", 0), ("noise", 0)]
)
def test_simulated_servers(cause: str, seed: int) -> None:
    """A few of the self-test, `mtpbench selftest explain`."""
    machine = load_hardware(ROOT / "scenarios/hardware/h200.yaml")
    done = explain_check.trial(cause, [machine], seed)
    assert done.right, done.sentence
    assert explain_check.lines([done])[0].met


def test_a_simulated_run_says_so_first() -> None:
    found = judge(pairs(lambda s: ({C16: step(16, 0.010)}, {C16: step(16, 0.011 * s)})))
    assert not headline(found).startswith("SIMULATED")
    run = replace(stored_run(), environment={"simulated": {"hardware": {"name": "x"}}})
    base = replace(found.case.base, side=replace(found.case.base.side, runs=(run,)))
    marked = replace(found, case=replace(found.case, base=base))
    assert headline(marked).startswith("SIMULATED, NOT MEASURED.")
    assert json.loads(to_json(marked))["simulated"] is True


def test_a_stored_run_between_two_levels() -> None:
    """Why TPOT nearly doubles from 8 to 16 with SGLang's own MTP on an H200."""
    found = explain(*subjects([f"{SMOKE}@mtp"], levels=[8, 16]))
    assert found.tpot.base == pytest.approx(3.05e-3, rel=0.01)
    assert found.tpot.change.mean == pytest.approx(0.84, abs=0.01)
    parts = {row.name: row.change.mean for row in found.rows}
    assert sum(parts.values()) == pytest.approx(found.tpot.change.mean)
    assert parts["batch"] > 0.3
    assert parts["interference"] > 0.3
    assert outcome(found, 6) is State.UNLIKELY  # its graphs were captured for 16
    assert len(account_rows(found)) == 6


def test_a_stored_paired_run() -> None:
    """Launches differ by more than the kernels; the device's own times do not."""
    found = explain(*subjects([str(PAIRED)]))
    assert found.cause is None
    verify = next(row for row in found.device if row.name == "target_verify")
    assert verify.change.n == 4
    assert verify.change.high < -0.02
    traced = next(row for row in found.traced if row.name == "verify_attention")
    assert traced.change.mean == pytest.approx(verify.change.mean, abs=0.003)
    assert escape(found.sentence) in to_markdown(found)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"runs": [str(SMOKE)]}, "has several arms"),
        ({"runs": [str(SMOKE)], "base_arm": "nope", "head_arm": "mtp"}, "has no arm 'nope'"),
        ({"runs": [f"{SMOKE}@nope"]}, "has no arm 'nope'"),
        ({"runs": [f"{SMOKE}@mtp"], "levels": [3, 16]}, "no such level"),
        ({"runs": [f"{SMOKE}@mtp"], "levels": [1, 2, 3]}, "--level stands there 3 times"),
        ({"runs": [f"{SMOKE}@mtp"], "levels": [8], "factors": ["burst"]}, "no such level"),
        ({"runs": [f"{SMOKE}@mtp"], "tp": 4}, "has no TP4"),
        ({"runs": [str(SMOKE), str(SMOKE), str(SMOKE)]}, "several on each side of the word vs"),
        ({"runs": [str(SMOKE), "vs"]}, "several on each side of the word vs"),
        ({"runs": ["nowhere"]}, "can't be read"),
    ],
)
def test_what_the_command_line_refuses(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(MtpbenchError, match=message):
        subjects(**arguments)  # type: ignore[arg-type]


def test_what_can_not_be_explained() -> None:
    base, head = subjects([f"{SMOKE}@mtp"], levels=[16])
    with pytest.raises(MtpbenchError, match="both sides are the same launches"):
        explain(base, head)
    run = replace(load_run(SMOKE), passes=())
    empty = replace(base, side=Side("empty", (run,), {"mtp": "mtp"}))
    with pytest.raises(MtpbenchError, match="holds no completed pass"):
        build(base, empty)
    with pytest.raises(ValueError, match="no values"):
        Estimate.of([math.nan])


def test_graphs_as_servers_describe_them() -> None:
    smoke = load_run(SMOKE)
    sizes = captured_batches(record for record in smoke.launches if record.arm == "mtp")
    assert sizes is not None
    assert sizes[-1] == 32
    shown = LaunchSeen("run", 0, {}, sizes)
    assert (shown.bucket(16), shown.bucket(17), shown.bucket(33)) == (16, 18, 0)
    assert LaunchSeen("run", 0, {}).bucket(16) is None
    assert captured_batches([]) is None
    assert C32.label == "32"


def test_a_prompt_length_that_was_not_measured_is_refused() -> None:
    """A level that names no length has the workload's: asked for another, its numbers are no answer."""
    side = Side("s", (attached("http://127.0.0.1:1"),), {"arm0": "arm0"})
    assert level_of(side, 16, "", 8192) == LoadLevel(16)
    with pytest.raises(MtpbenchError, match="no such level"):
        level_of(side, 16, "", 32768)
