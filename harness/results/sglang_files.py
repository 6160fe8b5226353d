"""A run in the files that SGLang's nightly benchmark leaves: one JSON a level, and the table of its step summary.

The numbers are those of its client (InferenceX's benchmark_serving.py), computed from our records: over *all* requests
of a pass, ramps included, a chunk's gap counted once. They are therefore not the numbers of our own reports, which cut
to the steady state; docs/ci.md says where they differ.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from harness.errors import MtpbenchError
from harness.model import Pass, RequestRecord
from harness.store.runs import StoredRun

COLUMNS = ("conc", "completed", "total tput (tok/s)", "output tput (tok/s)", "median TTFT (ms)", "median TPOT (ms)",
           "median ITL (ms)", "median E2EL (ms)")  # fmt: skip
_SHOWN = ("total_token_throughput", "output_throughput", "median_ttft_ms", "median_tpot_ms", "median_itl_ms",
          "median_e2el_ms")  # fmt: skip
_NEEDED = ("model-prefix", "precision", "runner", "framework")


def result_files(run: StoredRun) -> dict[str, str]:
    """File name → JSON text, one of each arm, TP and concurrency; of several launches, `.launch<n>` tells them apart.

    Raises MtpbenchError where the scenario has no labels to name them by, or is an open loop.
    """
    labels = run.scenario.labels
    if missing := [name for name in _NEEDED if not labels.get(name)]:
        raise MtpbenchError(
            f"{run.scenario.name} has no label {', '.join(missing)}, from which these files take their names",
            "`mtpbench scenarios import` sets them; by hand: labels: {model-prefix: qwen3.5, precision: fp8, …}",
        )
    out = {}
    for one in _measured(run):
        text = json.dumps(result(run, one), indent=1, allow_nan=False) + "\n"
        out[_name(run, one)] = text
    return out


def _measured(run: StoredRun) -> list[Pass]:
    """Closed loops without factors, whose levels those files have a place for."""
    found = [one for one in run.passes if not one.record.key.level.open_loop and not one.record.key.level.factor]
    if not found:
        raise MtpbenchError(f"{run.id} has no finished pass of a closed loop", "mtpbench report says what it has.")
    return sorted(found, key=lambda one: (one.record.key.arm, one.record.key.tp, one.record.key.level.value,
                                          one.record.key.launch, one.record.key.index))  # fmt: skip


def _name(run: StoredRun, one: Pass) -> str:
    labels, key = run.scenario.labels, one.record.key
    isl, osl = _lengths(run, one)
    parts = [
        *(labels[name] for name in _NEEDED),
        key.arm,
        f"tp{key.tp}-ep{labels.get('ep', '1')}-dpa{labels.get('dp-attn', 'false')}",
        f"isl{isl}",
        f"osl{osl}",
        f"conc{key.level.concurrency}",
    ]
    again = f".launch{key.launch}-{key.index}" if key.launch or key.index else ""
    return re.sub(r"[^A-Za-z0-9._-]", "-", "_".join(parts)) + again + ".json"


def _lengths(run: StoredRun, one: Pass) -> tuple[str, str]:
    """As the entry names them: the longest of a range."""
    workload = run.scenario.workload_of(one.record.key.level)
    return str(workload.max_input or 0), str(workload.max_output)


def result(run: StoredRun, one: Pass) -> dict[str, Any]:
    """One pass as that client reports it. Times in ms, rates a second of the whole pass."""
    good = [request for request in one.requests if request.ok]
    begin = min((request.t_send for request in one.requests), default=0.0)
    seconds = max((request.t_end for request in one.requests), default=begin) - begin
    tokens_in = sum(request.prompt_tokens or request.input_tokens_asked for request in good)
    tokens_out = sum(request.tokens for request in good)
    document: dict[str, Any] = {
        "date": one.record.started_at,
        "backend": run.scenario.labels.get("bench-backend", "vllm"),
        "model_id": getattr(run.scenario.server, "model", ""),
        "num_prompts": len(one.requests),
        "request_rate": "inf",
        "max_concurrency": one.record.key.level.concurrency,
        "duration": seconds,
        "completed": len(good),
        "total_input_tokens": tokens_in,
        "total_output_tokens": tokens_out,
        "request_throughput": _rate(len(good), seconds),
        "output_throughput": _rate(tokens_out, seconds),
        "total_token_throughput": _rate(tokens_in + tokens_out, seconds),
    }
    for name, values in _samples(good).items():
        if values:
            document |= _statistics(name, values)
    document["mtpbench_run"] = run.id
    return document


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


def _samples(good: Sequence[RequestRecord]) -> dict[str, list[float]]:
    """Seconds, by that client's names."""
    streamed = [request for request in good if request.events]
    last = {id(request): request.events[-1].t - request.t_send for request in streamed}
    first = {id(request): request.events[0].t - request.t_send for request in streamed}
    return {
        "ttft": list(first.values()),
        # (latency - TTFT) / (output tokens - 1), as there, whatever the first chunk held.
        "tpot": [(last[id(r)] - first[id(r)]) / (r.tokens - 1) for r in streamed if r.tokens > 1],
        "itl": [after.t - before.t for r in streamed for before, after in pairwise(r.events)],
        "e2el": list(last.values()),
    }


def _statistics(name: str, seconds: Sequence[float]) -> dict[str, float]:
    values = 1e3 * np.asarray(seconds)
    out = {"mean": np.mean(values), "median": np.median(values), "std": np.std(values)}
    out |= {f"p{q}": np.percentile(values, q) for q in (90, 99)}
    return {f"{statistic}_{name}_ms": float(value) for statistic, value in out.items()}


def summary_table(run: StoredRun) -> str:
    """The step summary's Markdown, a table for each arm and TP, with the same columns; `n/a` where nothing is known."""
    lines: list[str] = []
    before = None
    labels = run.scenario.labels
    for one in _measured(run):
        key = one.record.key
        if (key.arm, key.tp) != before:
            before = (key.arm, key.tp)
            isl, osl = _lengths(run, one)
            head = " ".join(labels.get(name, "") for name in _NEEDED)
            spec = "mtp" if run.scenario.arm(key.arm).speculative else "none"
            model = str(getattr(run.scenario.server, "model", "")).replace("`", "'")
            lines += ["", f"### {head} ({key.arm}) - SGLang under test", ""]
            parallel = f"tp={key.tp} ep={labels.get('ep', '1')} dp_attn={labels.get('dp-attn', 'false')}"
            lines += [f"model=`{model}` {parallel} isl={isl} osl={osl} spec={spec}", ""]
            lines += ["| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
        found = result(run, one)
        cells = [f"{found[name]:.2f}" if name in found else "n/a" for name in _SHOWN]
        lines.append("| " + " | ".join([str(found["max_concurrency"]), str(found["completed"]), *cells]) + " |")
    lines.append("")
    return "\n".join(lines).lstrip("\n")
