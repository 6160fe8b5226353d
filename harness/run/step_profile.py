"""Where the device's time goes within a decode step: reads a trace of PyTorch's profiler.

A decode step of SGLang replays one CUDA (HIP) graph of the target model and, under MTP, smaller ones of the draft
model. Kernels that a graph replay launched share a correlation id, so the graphs are told apart by their size: the
target's have about as many kernels as the largest, the draft's fewer. A *period* runs from one
target replay to the next; its parts add up to its length.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from harness.errors import StoreError

_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_ALIKE = 0.75  # of the largest graph's kernels; even an 8-layer target has twice as many as its MTP head's graphs
_GRAPH_KERNELS = 8  # a smaller group is no model's graph
_LONG_PERIOD = 1.5  # times the median: a prefill, or the profiler's own start, lay within
_KERNELS_KEPT = 24

# The first match decides. Names are those of SGLang's, AITER's and this repository's kernels.
_PARTS = (
    ("all_reduce", re.compile(r"all_?reduce|nccl|rccl|one_?shot|two_?shot", re.IGNORECASE)),
    (
        "verify_attention",
        re.compile(
            r"^(hopper|verify|generic)_kernel|^(generic_)?reduce_kernel|^_fwd_(grouped_)?kernel|unified_attention"
            r"|reduce_segments|fmha|flash_attn|mha_|pa_fwd|paged_attention|verify_attn",
            re.IGNORECASE,
        ),
    ),
    (
        "linear_attention",
        re.compile(r"delta_rule|causal_conv|fused_recurrent|fused_qkvzba|gdn|ssm|chunk_", re.IGNORECASE),
    ),
    ("moe", re.compile(r"moe|topk_|expert", re.IGNORECASE)),
    ("gemm", re.compile(r"gemm|gemv|cutlass|nvjet|cijk|cublas|splitk|matmul|wmma", re.IGNORECASE)),
)


@dataclass(frozen=True)
class DeviceProfile:
    """`parts`: device seconds a decode step, `host_gap` (no kernel ran) included: their sum is `step_s`.

    `steps` periods were averaged. `kernels`: (name, seconds a step, launches a step), the longest first.
    """

    steps: int
    step_s: float
    parts: dict[str, float]
    kernels: tuple[tuple[str, float, float], ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "profile_version": 1,
            "steps": self.steps,
            "step_s": self.step_s,
            "parts": self.parts,
            "kernels": [list(kernel) for kernel in self.kernels],
        }


@dataclass(frozen=True)
class _Kernel:
    start: float  # microseconds
    seconds: float
    name: str
    graph: int  # its graph replay's correlation id, or -1

    @property
    def end(self) -> float:
        return self.start + self.seconds * 1e6


def read_trace(path: Path) -> DeviceProfile | None:
    """The profile in a Chrome trace (plain or gzip); None where no model's graph was replayed at least three times.

    Raises StoreError for a file that is no trace.
    """
    try:
        content = path.read_bytes()
        text = gzip.decompress(content) if path.suffix == ".gz" else content
        events = json.loads(text)["traceEvents"]
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path} is no trace: {error!r}", "Was the server ended while it wrote it?") from error
    return profile_of(events)


def read_traces(folder: Path, rank: int = 0) -> DeviceProfile | None:
    """The profile of one tensor-parallel rank's decode steps, where SGLang's profiler wrote by stage. Raises StoreError
    where it wrote nothing."""
    traces = sorted(folder.glob(f"*TP-{rank}*DECODE.trace.json.gz"))
    if not traces:
        raise StoreError(f"{folder} has no trace of decode steps", "Were there fewer steps than `profile.steps`?")
    return read_trace(traces[-1])


def profile_of(events: Iterable[dict[str, Any]]) -> DeviceProfile | None:
    """See `read_trace`; `events` are Chrome trace events with times in microseconds."""
    kernels = _kernels(events)
    sizes = Counter(kernel.graph for kernel in kernels if kernel.graph >= 0)
    if not sizes:
        return None
    target = {graph for graph, size in sizes.items() if size >= _ALIKE * max(sizes.values())}
    starts = sorted(min(k.start for k in kernels if k.graph == graph) for graph in target)
    periods = list(pairwise(starts))
    if len(periods) < 2:
        return None
    usual = median(end - start for start, end in periods)
    periods = [(start, end) for start, end in periods if end - start <= _LONG_PERIOD * usual]
    parts: dict[str, float] = defaultdict(float)
    by_name: dict[str, float] = defaultdict(float)
    counts: Counter[str] = Counter()
    for start, end in periods:
        inside = [kernel for kernel in kernels if start <= kernel.start < end]
        busy = _busy(inside)
        share = busy / sum(k.seconds for k in inside)  # kernels that overlap share their time
        for kernel in inside:
            parts[_part(kernel, target)] += kernel.seconds * share
            by_name[kernel.name] += kernel.seconds
            counts[kernel.name] += 1
        parts["host_gap"] += max(0.0, (end - start) * 1e-6 - busy)
    steps = len(periods)
    return DeviceProfile(
        steps=steps,
        step_s=sum(parts.values()) / steps,
        parts={name: seconds / steps for name, seconds in sorted(parts.items())},
        kernels=tuple(
            (name, seconds / steps, counts[name] / steps)
            for name, seconds in sorted(by_name.items(), key=lambda item: -item[1])[:_KERNELS_KEPT]
        ),
    )


def _kernels(events: Iterable[dict[str, Any]]) -> list[_Kernel]:
    device = [e for e in events if e.get("ph") == "X" and e.get("cat") in _DEVICE]
    group = [int(e.get("args", {}).get("correlation", -1)) for e in device]
    size = Counter(group)
    return sorted(
        (
            _Kernel(
                start=float(e["ts"]),
                seconds=float(e["dur"]) * 1e-6,
                name=str(e["name"]),
                graph=number if number >= 0 and size[number] >= _GRAPH_KERNELS else -1,
            )
            for e, number in zip(device, group, strict=True)
        ),
        key=lambda kernel: kernel.start,
    )


def _part(kernel: _Kernel, target: set[int]) -> str:
    """Outside the graphs lie sampling and the step's bookkeeping."""
    if kernel.graph < 0:
        return "other"
    if kernel.graph not in target:
        return "draft"
    return next((part for part, names in _PARTS if names.search(kernel.name)), "other")


def _busy(kernels: Sequence[_Kernel]) -> float:
    """Seconds in which at least one of them ran; they are in order of their starts."""
    busy, until = 0.0, float("-inf")
    for kernel in kernels:
        busy += max(0.0, kernel.end - max(until, kernel.start)) * 1e-6
        until = max(until, kernel.end)
    return busy
