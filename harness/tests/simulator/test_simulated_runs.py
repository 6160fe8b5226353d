"""Simulated runs on disk and on the command line: marked wherever they are shown, never taken for measured ones."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from commands import mtpbench
from conftest import one_pass, request

from harness.checks.passes import SIMULATED
from harness.cli.app import main
from harness.cli.simulate import parse_injections
from harness.errors import MtpbenchError
from harness.model import Pass
from harness.results.report import build
from harness.simulator.against import FORWARDS, against, device_seconds, to_markdown
from harness.simulator.against_kernel import against_kernel
from harness.simulator.breakdown import PARTS, breakdown
from harness.simulator.causes import Injection
from harness.simulator.hardware import FittedOn
from harness.simulator.simulate import simulate_run
from harness.simulator.steps import graph_sizes
from harness.simulator.writer import environment, write_run
from harness.store.ab_record import Side
from harness.store.runs import RunStore, StoredRun, load_run
from harness.tests.simulator.test_simulator import H200, ROOT, scenario, step_model, still
from harness.verdict.compare import Verdict, compare


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two simulated runs and their machine files, as the command line leaves them."""
    root = tmp_path_factory.mktemp("runs")
    small = scenario(arrival={"concurrency": [2], "requests_per_slot": 4}, launches=3)
    for seed, injected in ((1, {}), (2, {"slower_kernel": Injection(3.0, ("mtp",))})):
        opened = RunStore.create(root, small, "version: 1\n", environment(H200, seed, injected, None))
        write_run(opened, small, H200, seed=seed, injected=injected)
        opened.close()
    return root


def stored(root: Path) -> list[StoredRun]:
    """Base, then the one with a slower kernel."""
    runs = [load_run(path.parent) for path in root.glob("*/run.json")]
    return sorted(runs, key=lambda run: run.simulated["seed"] if run.simulated else 0)


def test_a_stored_run_says_that_it_is_simulated_wherever_it_is_shown(store: Path) -> None:
    base, head = stored(store)
    shown = build(head)
    assert shown.valid
    assert shown.headline.startswith("SIMULATED, NOT MEASURED. OK: all ")
    assert shown.environment.startswith("simulated h200")
    [note] = [text for text in shown.notes if "SIMULATED" in text]
    assert "slower_kernel = 3 in mtp" in note
    assert all("text was not checked" not in text for text in shown.notes)
    assert base.launches[0].findings == (SIMULATED,)
    mtp = next(launch for launch in base.launches if launch.arm == "mtp")
    assert mtp.described["decode_cuda_graph_bs"] == list(graph_sizes(True, 32))
    assert mtpbench("list", store, cwd=store, check=0).stdout.count("SIMULATED") == 2


def test_simulated_runs_compare_with_each_other_and_never_with_measured_ones(store: Path) -> None:
    base, head = (Side(name, (run,), {"mtp": "mtp"}) for name, run in zip(("base", "head"), stored(store), strict=True))
    found = compare(base, head, metrics=("tpot_p50",))
    assert found.verdict is Verdict.FAIL
    assert found.headline.startswith("FAIL (SIMULATED, NOT MEASURED): TPOT")
    assert any("simulated.injected.slower_kernel" in note for note in found.notes)
    real = replace(head.runs[0], environment={"host": "a"})
    mixed = compare(base, replace(head, runs=(real,)), allowed=("simulated", "host"))
    assert mixed.verdict is Verdict.INCOMPARABLE
    assert "no setting makes them comparable" in mixed.headline


def test_predicted_stands_beside_measured_and_says_what_was_fitted(store: Path) -> None:
    """A run of this very simulator, passed off as measured: nothing but noise lies between."""
    own = replace(stored(store)[0], environment={"host": "a"})
    machine = H200.model_copy(
        update={"fitted_on": [FittedOn(scenario="simulated", tp=1, arms=["mtp"], concurrency=[2])]}
    )
    found = against(own, machine)
    assert [(row.arm, row.fitted) for row in found.rows] == [("no-mtp", False), ("mtp", True)]
    [fit] = machine.fitted_on
    of_another = machine.model_copy(update={"fitted_on": [fit.model_copy(update={"model": "tiny-qwen3.5-deep-16-1"})]})
    assert not any(row.fitted for row in against(own, of_another).rows)
    assert found.rows[1].accept_length == pytest.approx(3.39, rel=0.1)
    for which in ("tpot", "ttft"):
        error = found.error(which)
        assert error is not None
        assert error < 0.1  # eight requests an arm
    assert found.error("tpot", fitted=True) == abs(found.rows[1].tpot_error)
    assert "| predicted |" in to_markdown(found)
    with pytest.raises(MtpbenchError, match="is simulated itself"):
        against(stored(store)[0], H200)


def test_device_seconds_are_a_decode_steps_or_a_prompts() -> None:
    """By hand: two requests decode together in three steps, then one alone in a fourth."""
    long = [(0.0, 1), (0.1, 4), (0.2, 8), (0.3, 12), (0.4, 16)]
    requests = [request(n, slot=n, events=long[: 5 - n], prompt_tokens=20000) for n in range(2)]
    counters = {"device_seconds_extend": 0.5, "device_seconds_target_verify": 0.2, "device_seconds_decode": 9.0}
    found = device_seconds(one_pass(requests, 2, counters={**counters, "device_seconds_idle": 0.0}))
    assert found == {"extend": pytest.approx(0.25), "target_verify": pytest.approx(0.2 / 4)}


def test_the_device_rows_of_the_simulators_own_run_agree(store: Path) -> None:
    own = stored(store)[0]
    passes = [replace(one, record=replace(one.record, step_profile={})) for one in own.passes]
    found = against(replace(own, environment={"host": "a"}, passes=tuple(passes)), H200)
    assert {row.forward for row in found.device} == set(FORWARDS)
    for forward in FORWARDS:
        error = found.device_error(forward)
        assert error is not None
        assert error < 0.05
    assert "eagle_draft_extend" in to_markdown(found)


def test_the_attention_model_predicts_the_kernels_own_benchmark(tmp_path: Path) -> None:
    found = against_kernel(ROOT / "kernel" / "results" / "h200-verify.json", H200)
    assert len(found.rows) == 30  # three kernels, ten shapes
    assert found.error < 0.06
    assert max(abs(row.error) for row in found.rows) < 0.3
    # A later run, nothing fitted to it: without the calls that are not modelled.
    later = against_kernel(ROOT / "kernel" / "results" / "h200-all.json", H200)
    assert len(later.rows) == 48  # three kernels, 16 shapes
    assert later.error < 0.08
    other = tmp_path / "other.json"
    for text in ("[]", '{"version": 2, "rows": []}', '{"version": 1, "rows": [{"arm": "ours"}]}', "nothing"):
        other.write_text(text)
        with pytest.raises(MtpbenchError):
            against_kernel(other, H200)


def test_injections_are_read_from_the_command_line() -> None:
    assert parse_injections(["slower_kernel=0.1@a", "slower_kernel=0.1@b", "noise=0.02"]) == {
        "slower_kernel": Injection(0.1, ("a", "b")),
        "noise": Injection(0.02),
    }
    for wrong in (["slower_kernel"], ["slower_kernel=fast"], ["noise=0.1", "noise=0.2"]):
        with pytest.raises(MtpbenchError):
            parse_injections(wrong)


def test_the_verb_writes_a_run_and_refuses_what_it_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["mtpbench", "simulate", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0)

    smoke = str(ROOT / "scenarios" / "h200-smoke.yaml")
    assert call(smoke, "--store", str(tmp_path), "--arm", "mtp", "--launches", "2", "--format", "json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["headline"].startswith("SIMULATED")
    assert [line["arm"] for line in document["lines"]] == ["mtp"] * 4
    assert call(smoke, "--store", str(tmp_path), "--inject", "bad_luck=1") == 2
    assert "prefill_interference" in capsys.readouterr().err
    assert call(str(ROOT / "scenarios" / "quickstart.yaml"), "--store", str(tmp_path)) == 2
    assert len(list(tmp_path.iterdir())) == 1


def test_ctrl_c_keeps_what_is_finished(tmp_path: Path) -> None:
    small = scenario(launches=3)
    opened = RunStore.create(tmp_path, small, "version: 1\n", environment(H200, 1, {}, None))

    def interrupt(done: Pass) -> None:
        if done.record.key.launch == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_run(opened, small, H200, seed=1, injected={}, progress=interrupt)
    opened.close()
    run = load_run(opened.path)
    assert len(run.passes) == 3
    assert build(run).headline == "SIMULATED, NOT MEASURED. INCOMPLETE: 3 of 6 passes are complete"


def test_the_breakdown_shows_how_long_requests_wait_for_each_others_prefill() -> None:
    """Four requests in lockstep, prefilled one after the other, W apart. The first three get their token when the next
    prefill is launched (its gap before W is over), the last one S after its prefill, when the first step begins. So
    they wait 2 W + S + gap, W + S + gap, S + gap and 0, and the streams of a step are written one after the other.
    Ten rounds count, and of the eleventh the first request, with whose end the steady state ends."""
    small = scenario(arrival={"concurrency": [1, 4], "requests_per_slot": 12})
    rows = breakdown(simulate_run(small, still(H200), injected={"noise": Injection(0.0)}))
    assert [(row.level.load, row.arm) for row in rows] == [("1", "no-mtp"), ("1", "mtp"), ("4", "no-mtp"), ("4", "mtp")]
    alone, _, four, _ = rows
    model = step_model(small, "no-mtp", still(H200))
    gap, host = H200.prefill.gap, H200.host
    apart = max(model.prefill([(8192, 0)]), model.prefill_launch()) + gap
    waits = 3 * apart + 3 * (host.plain.step + gap) + (0 + 1 + 2 + 3) * host.delivery_request
    first = 2 * apart + host.plain.step + gap
    assert four.prefill == pytest.approx((10 * waits + first) / 41 / 63, rel=0.01)
    assert alone.prefill < 1e-3 * alone.step
    assert four.tpot == pytest.approx(four.step + four.prefill)  # no speculation: a step is a token
    assert set(four.parts) == set(PARTS)
