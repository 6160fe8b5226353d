"""A simulated year of nights, to try the dashboard on: drawn from a table of effects and noise. Nothing is measured.

It is written as a store writes a run (run.json, launches, Parquet rows), without raw records. Each run says in its
fingerprint that it is simulated, which also keeps it from ever being compared with a measured one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from harness import __version__
from harness.errors import StoreError
from harness.metrics.definitions import PassView, pass_row
from harness.model import Finding, LaunchRecord, LoadLevel, Pass, PassKey, PassRecord
from harness.scenario.format import Scenario
from harness.scenario.yaml_file import parse
from harness.store.ab_record import Party, Session, sides
from harness.store.rows import parquet, with_rows
from harness.store.runs import AB_FILE, QUARANTINE_FILE, StoredRun, head_of, rows_path
from harness.verdict.accepted import FILE as LEDGER
from harness.verdict.compare import compare
from harness.verdict.pairs import DEFAULT_METRICS

NAME = "simulated-year"
LAST_NIGHT = date(2026, 11, 29)
NIGHTS, LAUNCHES = 365, 3
SCENARIO = f"""\
version: 1
name: {NAME}
question: "SIMULATED, nothing was measured: what does MTP gain or cost over concurrency on one MI355X?"
server:
  engine: sglang
  gpu_vendor: amd
  model: Qwen/Qwen3.5-397B-A17B-FP8
  load_format: dummy
  speculation: {{steps: 3, topk: 1, draft_tokens: 4, simulate_accept_length: 3.33}}
  flags: {{attention-backend: aiter, kv-cache-dtype: fp8_e4m3, page-size: 16}}
arms:
  no-mtp: {{speculation: null}}
  mtp-upstream: {{verify: upstream}}
  mtp-generic: {{verify: generic}}
  mtp-in-tree: {{verify: in-tree}}
workload: {{prompts: prose, input_tokens: 8192, output_tokens: 1024}}
arrival: {{concurrency: [1, 2, 4, 8, 16, 32, 64, 128], requests_per_slot: 10}}
launches: {LAUNCHES}
primary: {{metric: tpot, level: 16}}
"""
_OUTPUT, _INPUT, _ACCEPT = 1024, 8192, 3.33
# Seconds of a decode or verify step: at no load, and what each sequence adds.
_STEP = {
    "no-mtp": (6.2e-3, 0.10e-3),
    "mtp-upstream": (9.0e-3, 0.42e-3),
    "mtp-generic": (8.6e-3, 0.33e-3),
    "mtp-in-tree": (8.2e-3, 0.20e-3),
}
_TTFT = (0.35, 0.045)
# Relative spread between nights, between launches of a night, and between levels of a launch.
_NIGHT, _LAUNCH, _LEVEL = 0.004, 0.008, 0.003


@dataclass(frozen=True)
class Effect:
    """What is injected: from so many nights before the last one, for so long, on which arms and level."""

    before_end: int
    what: str  # step or ttft
    factor: float
    words: str
    nights: int = NIGHTS
    arms: tuple[str, ...] = tuple(_STEP)
    level: int | None = None

    def holds(self, age: int, arm: str, concurrency: int) -> bool:
        """`age`: nights before the last one."""
        return (
            self.before_end - self.nights < age <= self.before_end
            and arm in self.arms
            and self.level in (None, concurrency)
        )


LONE, GAP, SWAP, UPGRADE, QUARANTINED, UNPROVEN, ACCEPTED, VANISHED, SLOWER = 245, 215, 165, 105, 75, 60, 32, 20, 9
GAP_NIGHTS = 9
EFFECTS = (
    Effect(LONE, "step", 1.18, "one bad night", nights=1),
    Effect(SWAP, "step", 1.025, "another host"),
    Effect(UPGRADE, "step", 0.96, "SGLang 0.5.23 decodes faster", arms=("no-mtp",)),
    Effect(QUARANTINED, "step", 1.4, "a night in quarantine", nights=1),
    Effect(ACCEPTED, "ttft", 1.06, "accepted in the ledger", arms=("mtp-upstream",), level=64),
    Effect(SLOWER, "step", 1.054, "TPOT 5.4 % slower at concurrency 16", arms=("mtp-in-tree",), level=16),
)
LOST_ARM = "mtp-generic"


@dataclass(frozen=True)
class Written:
    """What a simulated year consists of."""

    runs: int
    last: date
    ledger: Path


def write_year(
    root: Path,
    seed: int = 1,
    nights: int = NIGHTS,
    last: date = LAST_NIGHT,
    watch: Callable[[int, int], None] = lambda _done, _total: None,
) -> Written:
    """Writes runs, an A/A and an A/B, and a ledger below a new folder. Raises StoreError where it is not empty."""
    if root.exists() and any(root.iterdir()):
        raise StoreError(f"{root} is not empty", "Simulated runs don't go among measured ones: name a new folder.")
    draw = np.random.default_rng(seed)
    scenario, written = parse(SCENARIO, "simulated"), 0
    for age in reversed(range(nights)):
        watch(nights - 1 - age, nights)
        if GAP - GAP_NIGHTS < age <= GAP:
            continue
        _write_night(root, scenario, seed, age, last - timedelta(age), draw)
        written += 1
    _write_session(root, scenario, seed, last, draw, "aa")
    if nights > SLOWER:
        _write_session(root, scenario, seed, last, draw, "ab")
        written += 1
    ledger = root / LEDGER
    ledger.write_text(_ledger(last), encoding="utf-8")
    return Written(written + 1, last, ledger)


def _write_night(
    root: Path, scenario: Scenario, seed: int, age: int, day: date, draw: np.random.Generator
) -> StoredRun:
    arms = [arm for arm in scenario.arms if not (arm == LOST_ARM and age <= VANISHED)]
    head = _head(root, scenario, seed, age, day, "01")
    launches = [_launch(arm, number, age, day) for number in range(LAUNCHES) for arm in scenario.arms]
    night = float(draw.normal(0, _NIGHT))
    rows = [
        row
        for number in range(LAUNCHES)
        for arm in arms
        for row in _rows(scenario, arm, arm, number, age, night, day, draw)
    ]
    _write(replace(head, launches=tuple(launches)), rows)
    if age == QUARANTINED:
        reason = {"reason": "simulated: the control scenario was 40 % off on this host"}
        (head.path / QUARANTINE_FILE).write_text(json.dumps(reason), encoding="utf-8")
    return head


def _write_session(root: Path, scenario: Scenario, seed: int, last: date, draw: np.random.Generator, kind: str) -> None:
    """An A/A of every arm while all are there, or the A/B of the last change."""
    pairs, age = 6, VANISHED + 1 if kind == "aa" else SLOWER
    names = tuple(scenario.arms) if kind == "aa" else ("mtp-in-tree",)
    arms = {name: (f"base.{name}", f"head.{name}") for name in names}
    plan = {side: scenario.arms[name] for name, pair in arms.items() for side in pair}
    of = scenario.model_copy(update={"arms": plan, "launches": pairs, "baseline": next(iter(plan))})
    head = _head(root, of, seed, age, last - timedelta(age), "05" if kind == "aa" else "06")
    before, after = _commit(max(age, SLOWER + 1)), _commit(age)
    base, newer = Party(before[:10], "git", before), Party(after[:10], "same" if kind == "aa" else "git", after)
    session = Session(kind, base, newer, arms, pairs, 4 if kind == "ab" else pairs, DEFAULT_METRICS)
    rows: list[dict[str, Any]] = []
    launches: list[LaunchRecord] = []
    for number in range(pairs):
        night = float(draw.normal(0, _NIGHT))  # what the host does at that hour, to both sides
        for name, pair in arms.items():
            for side, its_age in zip(pair, (max(age, SLOWER + 1), age), strict=True):
                rows += _rows(of, side, name, number, its_age, night, head_day(head), draw)
                launches.append(replace(_launch(name, number, its_age, head_day(head)), arm=side))
    run = with_rows(replace(head, launches=tuple(launches)), rows)
    verdict = compare(*sides(run, session), metrics=session.metrics, plan=session.plan).verdict.value
    _write(replace(head, launches=tuple(launches)), rows)
    session = replace(session, finished_pairs=pairs, verdict=verdict)
    (head.path / AB_FILE).write_text(session.to_json(), encoding="utf-8")


def head_day(head: StoredRun) -> date:
    return date.fromisoformat(head.created_at[:10])


def _head(root: Path, scenario: Scenario, seed: int, age: int, day: date, hour: str) -> StoredRun:
    mark = hashlib.sha256(f"{seed} {age} {hour}".encode()).hexdigest()[:6]
    path = root / f"{day:%Y%m%d}T{hour}0000Z-{scenario.name}-{mark}"
    environment = {
        "simulated": {
            "mtpbench": __version__,
            "what": "values drawn at random over nights; nothing was measured",
            "seed": seed,
            "injected": {},
            "hardware": {"name": "MI355X"},
        },
        "host": "simulated-b" if age <= SWAP else "simulated-a",
        "os": "Linux 6.8.0",
        "cpu": "simulated CPU",
        "cores": 128,
        "rocm": "7.2.0" if age <= SWAP else "7.0.2",
        "mtpbench": "0.1.0",
        "commit": _commit(age),
        "kernel_hash": _kernel(age),
        "gpus": [{"name": "AMD Instinct MI355X (simulated)", "driver": "6.16.6"}],
    }
    return StoredRun(path, path.name, f"{day}T{hour}:00:00+00:00", scenario, environment, (), (), ())


def _kernel(age: int) -> str:
    return hashlib.sha256(b"slower" if age <= SLOWER else b"as before").hexdigest()[:16]


def _commit(age: int) -> str:
    """A new one every third night, and the one that made it slower."""
    number = SLOWER if age <= SLOWER else SLOWER + 1 + (age - SLOWER - 1) // 3 * 3
    return hashlib.sha1(f"simulated {number}".encode(), usedforsecurity=False).hexdigest()


def _launch(arm: str, number: int, age: int, day: date) -> LaunchRecord:
    gone, unproven = arm == LOST_ARM and age <= VANISHED, arm == "mtp-in-tree" and age == UNPROVEN and number == 2
    verify = arm.partition("mtp-")[2] if arm.startswith("mtp-") else ""
    calls = {"captured": 0 if unproven else 24}
    passed = {"upstream": 24} if verify == "upstream" else {"simulated": 24} if unproven else {}
    evidence = {
        "evidence_version": 1, "simulated": True, "arm": verify, "rank": 0, "world_size": 1,
        "kernel_hash": _kernel(age), "served": calls if verify != "upstream" else {}, "passed": passed,
        "captured_batches": [1, 2, 4, 8, 16, 32, 64, 128], "query_lengths": [4], "bodies": [verify],
    }  # fmt: skip
    finding = Finding("verify_rejected", "rank 0: the in-tree kernel served no call (simulated)", invalid=True)
    return LaunchRecord(
        slug=f"{number:02d}-{arm}-tp1",
        launch=number,
        arm=arm,
        tp=1,
        server_start=0,
        started_at=f"{day}T01:00:00+00:00",
        command=("simulated",),
        environment={},
        status="SIMULATED: the server ended before it was ready" if gone else "ready",
        ready_seconds=0.0 if gone else 240.0,
        gpus=(0,),
        packages={"sglang": "0.5.23" if age <= UPGRADE else "0.5.16", "aiter": "0.1.9" if age <= UPGRADE else "0.1.6"},
        verify=verify,
        evidence=(evidence,) if verify and not gone else (),
        findings=(finding,) if unproven else (),
    )


def _empty_row() -> dict[str, Any]:
    level = LoadLevel(concurrency=1)
    return pass_row(PassView.of(Pass(PassRecord(PassKey(0, "", 1, level, 0), "", 0.0, 0.0, "complete"), ())))


_EMPTY = _empty_row()


def _rows(
    scenario: Scenario, name: str, arm: str, number: int, age: int, night: float, day: date, draw: np.random.Generator
) -> Iterator[dict[str, Any]]:
    """One row a level: a launch is off by the night's and its own deviation at all of them alike."""
    launch = float(draw.normal(0, _LAUNCH))
    for level in scenario.levels():
        c = level.concurrency
        own = draw.normal(0, _LEVEL, 3)
        factor = {what: _factor(what, age, arm, c) for what in ("step", "ttft")}
        first, more = _STEP[arm]
        step = (first + more * c) * factor["step"] * float(np.exp(night + launch + own[0]))
        ttft = (_TTFT[0] + _TTFT[1] * c) * factor["ttft"] * float(np.exp(night + launch + own[1]))
        accepted = None if arm == "no-mtp" else _ACCEPT * float(np.exp(own[2] / 3))
        yield {**_EMPTY, **_values(scenario, level, step, ttft, accepted), "launch": number, "arm": name,
               "concurrency": c, "started_at": f"{day}T01:00:00+00:00"}  # fmt: skip


def _factor(what: str, age: int, arm: str, concurrency: int) -> float:
    held = (e.factor for e in EFFECTS if e.what == what and e.holds(age, arm, concurrency))
    return float(np.prod([1.0, *held]))


def _values(scenario: Scenario, level: LoadLevel, step: float, ttft: float, accepted: float | None) -> dict[str, Any]:
    """Metrics that fit each other: TPOT is step time / accept length, throughput follows from both latencies."""
    c, tpot = level.concurrency, step / (accepted or 1.0)
    e2e = ttft + (_OUTPUT - 1) * tpot
    throughput, counted = c * _OUTPUT / e2e, scenario.arrival.requests(level) - c
    out: dict[str, Any] = {
        "window_s": 8 * e2e, "requests": counted + c, "ok": counted + c, "counted": counted, "client_lag_p99_s": 1e-3,
        "output_throughput": throughput, "peak_output_throughput": 1.05 * throughput,
        "output_throughput_per_gpu": throughput, "input_throughput": throughput * _INPUT / _OUTPUT,
        "total_throughput": throughput * (1 + _INPUT / _OUTPUT), "request_throughput": throughput / _OUTPUT,
        "interactivity": 1 / tpot, "achieved_concurrency": float(c), "peak_in_flight": float(c),
    }  # fmt: skip
    times = {"ttft": ttft, "tpot": tpot, "itl": tpot, "step_gap": step, "e2e": e2e}
    if accepted is not None:
        times |= {"step_time": step, "accept_length": accepted}
    for name, value in times.items():
        out |= {f"{name}_n": counted, f"{name}_mean": value, f"{name}_p50": value}
        if counted >= 50 and name != "accept_length":
            out[f"{name}_p90"] = 1.06 * value
    return out


def _write(head: StoredRun, rows: Sequence[dict[str, Any]]) -> None:
    """As the store writes a finished run, but without waiting for the disk."""
    (head.path / "launches").mkdir(parents=True)
    (head.path / "scenario.yaml").write_text(SCENARIO, encoding="utf-8")
    content = head_of(head.id, head.created_at, head.scenario, head.environment)
    (head.path / "run.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    for launch in head.launches:
        file = head.path / "launches" / f"{launch.slug.replace(launch.slug.split('-', 1)[1], launch.arm)}-s0.json"
        file.write_text(json.dumps(launch.to_json()), encoding="utf-8")
    target = rows_path(head.path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(parquet(head, rows))


def _ledger(last: date) -> str:
    entry = next(effect for effect in EFFECTS if effect.before_end == ACCEPTED)
    return f"""\
version: 1
regressions:
  - scenario: {NAME}
    metric: ttft_p50
    arm: {entry.arms[0]}
    level: {entry.level}
    bound: 9%
    owner: simulated-person
    reason: "simulated: the longer prefill is accepted until its fix lands"
    expires: {last + timedelta(60)}
"""
