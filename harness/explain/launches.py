"""What each launch of one side shows at each level: its account of TPOT, device times, graphs, TTFT and throughput."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, mode

from harness.metrics.definitions import PassView, distribution, output_throughput
from harness.metrics.tpot_account import Account, Curve, account, engine_steps, total
from harness.model import LaunchRecord, LoadLevel, Pass
from harness.store.ab_record import Side
from harness.verdict.pairs import measure

# Forward passes of SGLang's device timer that are no part of a decode step: what prefill is called.
_NOT_DECODE = ("extend", "prefill", "mixed", "split_prefill", "prebuilt")
_HOST_GAP = "host_gap"  # of a traced step: the device waits


@dataclass(frozen=True)
class Seen:
    """One launch at one level, its passes pooled. Device seconds of a decode step: `device` by kind of forward pass, as
    SGLang's device timer has them, and `traced` by part, where a step was traced."""

    account: Account
    tpot: float | None  # median over requests, as tables show it
    ttft: float | None  # median
    throughput: float | None  # output tokens/s
    graphs: float | None  # share of the decode steps in the server's log that ran in a graph
    device: Mapping[str, float] = field(default_factory=dict)
    traced: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class LaunchSeen:
    """One launch of one arm and TP. `captured`: batch sizes of its graphs, None where they are not known."""

    run: str
    launch: int
    levels: Mapping[LoadLevel, Seen]
    captured: tuple[int, ...] | None = None
    invalid: tuple[str, ...] = ()

    def curve(self, level: LoadLevel) -> Curve:
        """Seconds of a decode step at every batch size that any level with the same prompts shows."""
        alike = [
            seen.account
            for other, seen in self.levels.items()
            if (other.input_tokens, other.factor) == (level.input_tokens, level.factor)
        ]
        pooled = total(alike)
        return pooled.steps_at() if pooled else {}

    def bucket(self, batch: int) -> int | None:
        """The batch size of the graph that serves a batch; 0 where there is none, None where that is not known."""
        if self.captured is None:
            return None
        position = bisect.bisect_left(self.captured, batch)
        return self.captured[position] if position < len(self.captured) else 0


def observe(side: Side, label: str, tp: int) -> list[LaunchSeen]:
    """Every launch of an arm at a TP, in order."""
    arm = side.arms[label]
    wrong: dict[tuple[str, int], list[str]] = {}
    for (name, size, _), launches in measure(side, ()).launches.items():
        for launched in launches if (name, size) == (label, tp) else []:
            wrong.setdefault((launched.run, launched.launch), []).extend(launched.invalid)
    out = []
    for run in side.runs:
        records = [record for record in run.launches if (record.arm, record.tp) == (arm, tp)]
        passes: dict[int, dict[LoadLevel, list[Pass]]] = {}
        for source in run.passes:
            key = source.record.key
            if (key.arm, key.tp) == (arm, tp):
                passes.setdefault(key.launch, {}).setdefault(key.level, []).append(source)
        for launch, levels in sorted(passes.items()):
            views = {level: [PassView.of(one, run.scenario.slo) for one in found] for level, found in levels.items()}
            seen = {level: one for level, found in views.items() if (one := _seen(found)) is not None}
            captured = captured_batches(record for record in records if record.launch == launch)
            invalid = tuple(dict.fromkeys(wrong.get((run.id, launch), ())))
            out.append(LaunchSeen(run.id, launch, seen, captured, invalid))
    return out


def _seen(views: Sequence[PassView]) -> Seen | None:
    pooled = total(account(view) for view in views)
    if pooled is None:
        return None
    return Seen(
        account=pooled,
        tpot=_mean(distribution("tpot", view).percentiles[50] for view in views),
        ttft=_mean(distribution("ttft", view).percentiles[50] for view in views),
        throughput=_mean(output_throughput(view) for view in views),
        graphs=_graphs(views),
        device=_timed(views),
        traced=_traced(views),
    )


def _graphs(views: Sequence[PassView]) -> float | None:
    """Of the logged decode steps with the commonest batch size: others are on their way to it, or from it."""
    logged = [step for view in views for step in view.source.record.decode_log if "cuda_graph" in step]
    if not logged:
        return None
    usual = mode(step["running"] for step in logged)
    return fmean(step["cuda_graph"] for step in logged if step["running"] == usual)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _timed(views: Sequence[PassView]) -> dict[str, float]:
    """What SGLang's device timer says of a decode step, over the whole pass."""
    parts = [
        (view, {part: value for part, value in view.source.record.device_seconds.items() if part not in _NOT_DECODE})
        for view in views
    ]
    steps = sum(engine_steps(view) for view, timed in parts if timed)
    if not steps:
        return {}
    seconds: dict[str, float] = {}
    for _, timed in parts:
        for part, value in timed.items():
            seconds[part] = seconds.get(part, 0.0) + value
    return {name: value / steps for name, value in sorted(seconds.items())}


def _traced(views: Sequence[PassView]) -> dict[str, float]:
    """The device's parts of a traced step. Tracing slows the host down, so how long the device waited is left out."""
    profiles = [view.source.record.step_profile for view in views if view.source.record.step_profile]
    names = sorted({name for profile in profiles for name in profile} - {_HOST_GAP})
    return {name: fmean(profile.get(name, 0.0) for profile in profiles) for name in names}


def captured_batches(records: Iterable[LaunchRecord]) -> tuple[int, ...] | None:
    """Batch sizes of decode graphs: as the plug-in saw them captured, else as the server says them of itself."""
    for record in records:
        for entry in record.evidence:
            if batches := _sizes(entry.get("captured_batches")):
                return batches
        described = record.described
        if described.get("disable_cuda_graph") or described.get("disable_decode_cuda_graph"):
            return ()
        config = described.get("cuda_graph_config")
        decode = config.get("decode") if isinstance(config, dict) else None
        known = (
            described.get("decode_cuda_graph_bs"),
            decode.get("bs") if isinstance(decode, dict) else None,
            described.get("cuda_graph_bs_decode"),
            described.get("cuda_graph_bs"),
        )
        for value in known:
            if batches := _sizes(value):
                return batches
    return None


def _sizes(value: object) -> tuple[int, ...]:
    return tuple(sorted({size for size in value if isinstance(size, int)})) if isinstance(value, list) else ()
