"""Configurations and causes drawn at random: cases with a known answer, as many as are wanted.

case = draw_case(hardware, seed=7)
base = simulate_run(case.scenario, case.hardware, seed=1, accept_length=case.accept_length)
head = simulate_run(case.scenario, case.hardware, seed=2, injected=case.injected, accept_length=case.accept_length)
true_effects(case)["tpot"]      what TPOT is multiplied by, were there no noise
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from statistics import fmean

from harness.metrics import PassView, distribution
from harness.scenario import Scenario
from harness.simulator.causes import CAUSES, Injection
from harness.simulator.hardware import Hardware
from harness.simulator.simulate import AcceptLength, simulate_run

_NOISE = (0.005, 0.02)  # coefficient of variation between launches, as real servers have
_CONCURRENCY = (1, 2, 4, 8, 16, 32)
_INPUT = (1024, 32768)
_OUTPUT = (128, 384)
_ACCEPT = (1.8, 3.6)
_MODELS = {
    "nvidia": (("tiny-qwen3.5-dense-16-1", 1), ("tiny-qwen3.5-dense-32-2", 2)),
    "amd": (("Qwen/Qwen3.5-397B-A17B-FP8", 2), ("amd/Qwen3.5-397B-A17B-MXFP4", 2)),
}
_BACKEND = {"nvidia": "triton", "amd": "aiter"}
# Sizes from what can hardly be seen to what nobody overlooks; `missing_graph_bucket` is the batch itself.
_SIZES = {
    "prefill_interference": (0.1, 0.8),
    "acceptance_drift": (0.05, 0.4),
    "slower_kernel": (0.1, 1.0),
    "segment_overhead": (5.0, 80.0),
    "ragged_lengths": (0.3, 0.9),
    "host_stall": (0.2e-3, 2e-3),
    "noise": _NOISE,
}
_QUIET = {"noise": Injection(0.0)}
_EFFECTS = ("tpot", "ttft", "step_time", "accept_length")


@dataclass(frozen=True)
class Case:
    """One arm with MTP at one concurrency, and what is wrong with it on one side."""

    scenario: Scenario
    hardware: Hardware
    accept_length: AcceptLength
    injected: Mapping[str, Injection]


def draw_case(hardware: Hardware, seed: int, *, launches: int = 5, cause: str | None = None) -> Case:
    """Model, arm, lengths, concurrency, noise and cause (or the one that is named), all from the seed."""
    draw = Random(f"case/{seed}")
    model, tp = draw.choice(_MODELS[hardware.gpu_vendor])
    concurrency = draw.choice(_CONCURRENCY)
    given, asked = round(_log_uniform(draw, *_INPUT)), draw.randint(*_OUTPUT)
    flags = {
        "attention-backend": _BACKEND[hardware.gpu_vendor],
        "kv-cache-dtype": "fp8_e4m3",
        "page-size": 16,
        "cuda-graph-max-bs": max(_CONCURRENCY),
    }
    scenario = Scenario.model_validate(
        {
            "version": 1,
            "name": f"case-{seed}",
            "question": "What made head slower than base?",
            "server": {"engine": "sglang", "gpu_vendor": hardware.gpu_vendor, "model": model, "flags": flags},
            "arms": {"mtp": {"speculation": {}, "verify": draw.choice(("upstream", "generic", "in-tree"))}},
            "tp": [tp],
            "workload": {"prompts": "prose", "input_tokens": given, "output_tokens": asked, "seed": seed},
            "arrival": {"concurrency": [concurrency], "requests_per_slot": 6},
            "launches": launches,
            "primary": {"metric": "tpot", "level": float(concurrency)},
        }
    )
    noise = hardware.noise.model_copy(update={"launch": draw.uniform(*_NOISE)})
    chosen = cause or draw.choice(list(CAUSES))
    size = concurrency if chosen == "missing_graph_bucket" else _log_uniform(draw, *_SIZES[chosen])
    return Case(
        scenario=scenario,
        hardware=hardware.model_copy(update={"noise": noise}),
        accept_length=AcceptLength(draw.uniform(*_ACCEPT), 0.1),
        injected={chosen: Injection(size)},
    )


def true_effects(case: Case) -> dict[str, float]:
    """Metric → head ÷ base with launch-to-launch noise off, means over the steady state of one launch."""
    base, head = (_means(case, injected) for injected in ({}, case.injected))
    return {name: head[name] / base[name] for name in base}


def _means(case: Case, injected: Mapping[str, Injection]) -> dict[str, float]:
    passes = simulate_run(
        case.scenario,
        case.hardware,
        injected={**injected, **_QUIET},
        launches=[0],
        accept_length=case.accept_length,
    )
    views = [PassView.of(one) for one in passes]
    values = {name: [distribution(name, view).mean for view in views] for name in _EFFECTS}
    return {name: fmean(value for value in found if value is not None) for name, found in values.items()}


def _log_uniform(draw: Random, low: float, high: float) -> float:
    return float(low * (high / low) ** draw.random())
