"""Accounts made by hand, and launches that show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.explain.change import Case, Subject, of_launches
from harness.explain.launches import LaunchSeen, Seen
from harness.metrics.tpot_account import Account, Batch
from harness.model import LoadLevel
from harness.scenario.yaml_file import parse
from harness.store.ab_record import Side
from harness.store.runs import StoredRun

C8, C16, C32 = LoadLevel(8), LoadLevel(16), LoadLevel(32)
SCENARIO = """\
version: 1
name: by-hand
question: What is told of accounts made by hand?
server:
  engine: sglang
  model: some/model
  gpu_vendor: nvidia
  speculation: {}
arms: {old: {}, new: {}}
workload: {prompts: prose, input_tokens: 8192, output_tokens: 100}
arrival: {concurrency: [8, 16, 32]}
primary: {metric: tpot, level: 16}
"""


def make(
    steps: Mapping[int, tuple[int, float]],
    *,
    interference: float = 0.0,
    stalls: float = 0.0,
    tokens: float = 0.0,
    scale: float = 1.0,
    length: float = 8192.0,
    spread: float = 0.0,
) -> Account:
    """So many clean steps of so many seconds at each batch size; two tokens a step unless `tokens` says otherwise."""
    count = sum(number for number, _ in steps.values())
    batches = {size: Batch(number, number, number * each) for size, (number, each) in steps.items()}
    decode = scale * sum(number * each for number, each in steps.values())
    return Account(
        requests=10,
        tokens=tokens or 2.0 * count,
        steps=count,
        decode=decode,
        interference=interference,
        stalls=stalls,
        disturbed=0,
        stalled=0,
        held=length * count,
        longest=length * (1 + spread) * count,
        batches=batches,
    )


def seen(one: Account, **values: object) -> Seen:
    return Seen(one, **{"tpot": one.tpot, "ttft": 1.0, "throughput": 100.0, "graphs": 1.0, **values})  # type: ignore[arg-type]


def launches(levels: Sequence[Mapping[LoadLevel, Seen]]) -> list[LaunchSeen]:
    """A launch for each mapping."""
    return [LaunchSeen("run", number, found) for number, found in enumerate(levels)]


def run(text: str = SCENARIO) -> StoredRun:
    """One that holds nothing but its scenario."""
    return StoredRun(Path("runs/by-hand"), "run", "", parse(text, "x.yaml"), {}, (), (), ())


def case(
    base: Sequence[Mapping[LoadLevel, Seen]],
    head: Sequence[Mapping[LoadLevel, Seen]],
    level: LoadLevel = C16,
    head_level: LoadLevel | None = None,
) -> Case:
    """Arm `new` against `old`; with `head_level`, `old` at two levels."""
    stored = run()
    arms = ("old", "new" if head_level is None else "old")
    one, other = (
        Subject(Side(stored.id, (stored,), {arm: arm}), arm, 1, at)
        for arm, at in zip(arms, (level, head_level or level), strict=True)
    )
    return of_launches(one, other, launches(base), launches(head))
