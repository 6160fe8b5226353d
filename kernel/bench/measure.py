"""Device times: medians of CUDA-graph replays, in seconds and bytes a second."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

WARMUPS = 3


# torch does not annotate these two constructors.
_new_stream: Callable[[], torch.cuda.Stream] = torch.cuda.Stream
_new_event: Callable[..., torch.cuda.Event] = torch.cuda.Event


@dataclass(frozen=True)
class Timing:
    """Seconds a call over the replays: median, least and greatest."""

    median: float
    least: float
    greatest: float
    replays: int


def capture(calls: Sequence[Callable[[], object]]) -> torch.cuda.CUDAGraph:
    """One graph that runs ``calls`` in order; each is run once before, to compile it."""
    stream = _new_stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def time_graph(graph: torch.cuda.CUDAGraph, calls: int, replays: int) -> Timing:
    """Time ``replays`` replays of a graph of ``calls`` calls."""
    for _ in range(WARMUPS):
        graph.replay()
    seconds = []
    for _ in range(replays):
        start = _new_event(enable_timing=True)
        end = _new_event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        seconds.append(start.elapsed_time(end) / 1000 / calls)
    return Timing(statistics.median(seconds), min(seconds), max(seconds), replays)


def read_bandwidth(device: torch.device, replays: int = 20) -> float:
    """Bytes a second that a sum over 4 GiB reads: the ceiling to compare KV bytes with."""
    data = torch.ones(1 << 30, dtype=torch.float32, device=device)
    graph = capture([lambda: data.sum()])
    return data.numel() * 4 / time_graph(graph, 1, replays).median


class DeviceClock:
    """A clock for pytest-benchmark that advances with the device, in seconds."""

    def __init__(self) -> None:
        self._start = _new_event(enable_timing=True)
        self._start.record()

    def __call__(self) -> float:
        """Seconds of device time since the clock was made; waits for all work before."""
        now = _new_event(enable_timing=True)
        now.record()
        now.synchronize()
        return float(self._start.elapsed_time(now)) / 1000
