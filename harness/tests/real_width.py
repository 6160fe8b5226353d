"""An A/B at the width of a real model, made anew from the figures that its measurement left behind.

One H200, SGLang 0.5.16, Qwen3.5-122B-A10B's width and 20 of its layers, 8192 tokens in, 384 to 640 out, concurrency
16, acceptance simulated at 3.3. Measured: TPOT p50 of both launches of both arms, and the device's target-verify and
draft-extend of a step. Made up, so that requests add up to these: the device's drafts, what a step waits for the host,
and, as the rest of TPOT, what a prefill takes.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from conftest import request
from scipy import optimize

from harness.ab import looks as ab
from harness.metrics.definitions import PassView, distribution
from harness.model import LaunchRecord, LoadLevel, Pass, PassKey, PassRecord, RequestRecord
from harness.scenario.format import Scenario
from harness.scenario.yaml_file import parse
from harness.store.ab_record import Party, Session
from harness.store.runs import RunStore

TEXT = """\
version: 1
name: real-ab
question: At the width of Qwen3.5-122B-A10B, what do MTP and the verify kernel do?
server:
  engine: sglang
  gpu_vendor: nvidia
  python: python3
  model: moe-122b-width-20-layers
  load_format: dummy
  env: {SGLANG_ENABLE_METRICS_DEVICE_TIMER: "1"}
  speculation: {steps: 3, topk: 1, draft_tokens: 4, simulate_accept_length: 3.3}
  flags: {attention-backend: triton, page-size: 16, kv-cache-dtype: fp8_e4m3, disable-radix-cache: true}
arms:
  mtp-in-tree: {verify: in-tree}
  mtp-upstream: {verify: upstream}
workload:
  prompts: prose
  input_tokens: 8192
  output_tokens: {min: 384, max: 640}
  seed: 1
arrival:
  concurrency: [16]
  requests_per_slot: 3
  min_requests: 4
  warmup_per_slot: 0
primary: {metric: tpot, level: 16}
"""
LEVEL = LoadLevel(16)
SLOTS, EACH = 16, 3
ARMS = ("base.mtp-upstream", "head.mtp-in-tree")
TPOT = {ARMS[0]: (21.37e-3, 21.38e-3), ARMS[1]: (13.80e-3, 13.52e-3)}
DEVICE = {
    ARMS[0]: {"target_verify": 36.1e-3, "eagle_draft_extend": 4.3e-3, "eagle_draft": 1.5e-3},
    ARMS[1]: {"target_verify": 17.6e-3, "eagle_draft_extend": 0.6e-3, "eagle_draft": 1.5e-3},
}
HOST = 3e-3  # a step waits so long


def requests(step: float, prefill: float, seed: int) -> tuple[list[RequestRecord], int]:
    """(what the client saw, engine steps) of a server that does one thing after the other."""
    draw = random.Random(seed)
    asked = [[draw.randint(384, 640) for _ in range(EACH)] for _ in range(SLOTS)]
    out: list[RequestRecord] = []
    running: dict[int, list[tuple[float, int]]] = {}
    sent, done, steps, now = dict.fromkeys(range(SLOTS), 0.0), dict.fromkeys(range(SLOTS), 0), 0, 0.0
    waiting = list(range(SLOTS))
    while waiting or running:
        if waiting:  # the oldest first, alone
            slot = waiting.pop(0)
            now += prefill
            running[slot] = [(now, 1)]
            continue
        now, steps = now + step, steps + 1
        new = 4 if draw.random() < 0.3 else 3  # simulated acceptance: one draw for the whole batch
        for slot in list(running):
            events, wanted = running[slot], asked[slot][done[slot]]
            events.append((now, min(wanted, events[-1][1] + new)))
            if events[-1][1] < wanted:
                continue
            del running[slot]
            index = slot * EACH + done[slot]
            values = {"verify_steps": len(events) - 1, "prompt_tokens": 8192}
            out.append(request(index, slot=slot, send=sent[slot], events=events, **values))
            done[slot], sent[slot] = done[slot] + 1, now
            waiting += [slot] if done[slot] < EACH else []
    return out, steps


def launched(arm: str, number: int) -> Pass:
    """A launch whose median TPOT is what was measured: a prefill takes what is then left for it."""
    step, seed = sum(DEVICE[arm].values()) + HOST, 2 * number

    def made(prefill: float) -> Pass:
        found, steps = requests(step, prefill, seed)
        counters = {f"device_seconds_{name}": steps * seconds for name, seconds in DEVICE[arm].items()}
        counters["device_seconds_extend"] = SLOTS * EACH * prefill
        key = PassKey(number, arm, 1, LEVEL, 0)
        end = max(one.t_end for one in found)
        record = PassRecord(key, "2026-11-30T00:00:00+00:00", 0.0, end, "complete", gpus=1, counters=counters)
        return Pass(record, tuple(found))

    def too_long(prefill: float) -> float:
        median = distribution("tpot", PassView.of(made(prefill))).percentiles[50]
        assert median is not None
        return median - TPOT[arm][number]

    return made(float(optimize.brentq(too_long, 0.05, 0.6, xtol=1e-7)))


def scenario() -> Scenario:
    """As `ab` writes it down: an arm for each side."""
    found = parse(TEXT, "ab.yaml")
    arms: dict[str, Any] = {name: found.arms[name.partition(".")[2]] for name in ARMS}
    return found.model_copy(update={"arms": arms, "baseline": ARMS[0], "launches": 2})


def store(root: Path, launches: int = 2) -> Path:
    """The run as it would lie in a store; returns its folder."""
    of = scenario().model_copy(update={"launches": launches})
    opened = RunStore.create(root, of, TEXT, {"host": "h200", "cores": 16, "commit": "1" * 40, "kernel_hash": "k"})
    for arm in ARMS:
        for number in range(launches):
            slug = PassKey(number, arm, 1, LEVEL, 0).launch_slug
            opened.save_launch(LaunchRecord(slug, number, arm, 1, 0, "", (), {}, "ready"))
            one = launched(arm, number)
            opened.save_pass(one.record, one.requests)
    sides = (Party("arm:mtp-upstream", "arm"), Party("arm:mtp-in-tree", "arm"))
    session = Session(
        "ab", *sides, {"mtp-upstream → mtp-in-tree": ARMS}, launches, launches,
        ("tpot_p50", "ttft_p50", "output_throughput", "step_time_p50", "accept_length_mean"), ("server", "packages"),
    )  # fmt: skip
    ab.save(opened.path, replace(session, finished_pairs=launches))
    opened.close()
    assert json.loads((opened.path / "run.json").read_text())["id"]
    return opened.path
