"""Is the node free and cool enough to measure on? GPU memory, temperature, power and clock before a night begins."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.machine.telemetry import Source
from harness.model import GpuSample

_READINGS, _APART_S = 3, 0.5
_RULES = 3  # what tells whether a GPU is free: memory, temperature and power


@dataclass(frozen=True)
class Limits:
    """What an idle GPU may show at most; `min_clock_mhz` for nodes whose clocks are fixed."""

    memory_mb: float = 2048
    temperature_c: float = 65
    power_w: float = 400
    min_clock_mhz: float = 0


@dataclass(frozen=True)
class GpuState:
    """The worst of a few readings of one GPU, and what is wrong with it."""

    worst: GpuSample
    problems: tuple[str, ...]
    unread: tuple[str, ...]

    @property
    def blind(self) -> bool:
        """Could nothing be read that tells whether it is free?"""
        return len(self.unread) == _RULES and not self.problems

    @property
    def word(self) -> str:
        return "not free" if self.problems else "not known" if self.blind else "ok"


def look(
    source: Source, gpus: Sequence[int], limits: Limits, sleep: Callable[[float], None] = time.sleep
) -> list[GpuState]:
    """Every GPU, each read a few times: a kernel that runs now and then must not be missed."""
    readings: dict[int, list[GpuSample]] = {gpu: [] for gpu in gpus}
    lost: dict[int, str] = {}
    for number in range(_READINGS):
        if number:
            sleep(_APART_S)
        for gpu in gpus:
            try:
                readings[gpu].append(source.read(gpu))
            except Exception as error:  # the vendors' error trees share no base class
                lost[gpu] = f"GPU {gpu}: it can't be read: {type(error).__name__}: {error}"
    return [
        GpuState(GpuSample(0.0, gpu), (lost[gpu],), ()) if gpu in lost else gpu_state(worst_of(readings[gpu]), limits)
        for gpu in gpus
    ]


def worst_of(samples: Sequence[GpuSample]) -> GpuSample:
    """The most memory, heat and power, and the slowest clock of some readings of one GPU."""

    def most(name: str) -> float | None:
        known = [value for sample in samples if (value := getattr(sample, name)) is not None]
        return max(known) if known else None

    clocks = [sample.clock_mhz for sample in samples if sample.clock_mhz is not None]
    return GpuSample(
        samples[-1].t,
        samples[-1].gpu,
        min(clocks) if clocks else None,
        most("power_w"),
        most("temperature_c"),
        most("memory_used_mb"),
    )


def gpu_state(sample: GpuSample, limits: Limits) -> GpuState:
    """What of a GPU is beyond the limits, and what could not be read."""
    rules = (
        ("memory", sample.memory_used_mb, limits.memory_mb, "MB", "another process holds it"),
        ("temperature", sample.temperature_c, limits.temperature_c, "°C", "it has not cooled down"),
        ("power", sample.power_w, limits.power_w, "W", "something runs on it"),
    )
    problems = [
        f"GPU {sample.gpu}: {name} {value:.0f} {unit}, at most {most:.0f} {unit} when idle: {why}"
        for name, value, most, unit, why in rules
        if value is not None and value > most
    ]
    clock, least = sample.clock_mhz, limits.min_clock_mhz
    if clock is not None and clock < least:
        problems.append(f"GPU {sample.gpu}: clock {clock:.0f} MHz, at least {least:.0f} MHz wanted: it is throttled")
    unread = [name for name, value, *_ in rules if value is None]
    return GpuState(sample, tuple(problems), tuple(unread))
