"""Stored runs made by hand: launches whose TPOT is what a test says, as if they had been measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from conftest import SCENARIO, request

from harness.model import Finding, LaunchRecord, LoadLevel, Pass, PassKey, PassRecord, RequestRecord
from harness.scenario.format import Scenario
from harness.scenario.yaml_file import parse
from harness.store.ab_record import Side
from harness.store.rows import parquet
from harness.store.runs import RunStore, StoredRun, load_run, write_atomically

TTFT = 0.05
ENVIRONMENT = {"host": "a", "cores": 2, "commit": "1" * 40, "prompts": "p"}


def scenario(**changes: Any) -> Scenario:
    """One arm `mtp` at concurrency 1, TPOT the primary endpoint."""
    text = SCENARIO.replace("concurrency: [1, 2]", "concurrency: [1]")
    text = text.replace("  plain: {}\n  drafts: {chunk_tokens: [4], speculative: true}\n", "  mtp: {}\n")
    return parse(text + "primary: {metric: tpot, level: 1}\n", "x.yaml").model_copy(update=changes)


def requests(tpot: float, ttft: float = TTFT, concurrency: int = 1, accept: float | None = None) -> list[RequestRecord]:
    """Slots that send one request after the other, all alike: 16 tokens each."""
    out = []
    for slot in range(concurrency):
        now = 0.0
        for index in range(8):
            events = [(now + ttft, 1), (now + ttft + 15 * tpot, 16)]
            steps = round(15 / accept) if accept else None
            out.append(request(index, slot=slot, send=now, events=events, verify_steps=steps, prompt_tokens=32))
            now = events[-1][0]
    return out


def launch(
    number: int,
    tpot: float,
    *,
    arm: str = "mtp",
    tp: int = 1,
    concurrency: int = 1,
    ttft: float = TTFT,
    accept: float | None = None,
    findings: tuple[Finding, ...] = (),
) -> Pass:
    key = PassKey(number, arm, tp, LoadLevel(concurrency=concurrency), 0)
    record = PassRecord(key, "2026-01-01T00:00:00+00:00", 0.0, 1.0, "complete", findings=findings)
    return Pass(record, tuple(requests(tpot, ttft, concurrency, accept)))


def run(
    passes: Sequence[Pass] | Sequence[float],
    *,
    name: str = "run",
    created_at: str = "2026-01-01T02:00:00+00:00",
    environment: Mapping[str, Any] = {},
    packages: Mapping[str, str] = {},
    failed: Sequence[PassRecord] = (),
    of: Scenario | None = None,
) -> StoredRun:
    """A run of given passes, or of launches with given TPOT in seconds."""
    made = tuple(one if isinstance(one, Pass) else launch(i, one) for i, one in enumerate(passes))
    plan = of or scenario(launches=max(1, len(made)))
    started = [
        LaunchRecord(f"00-{arm}-tp1", 0, arm, 1, 0, "", (), {}, "ready", packages=dict(packages)) for arm in plan.arms
    ]
    return StoredRun(
        path=Path("runs") / name,
        id=name,
        created_at=created_at,
        scenario=plan,
        environment={**ENVIRONMENT, **environment},
        launches=tuple(started),
        passes=made,
        failed=tuple(failed),
    )


def side(name: str, *runs: StoredRun) -> Side:
    return Side(name, runs, {arm: arm for one in runs for arm in one.scenario.arms})


def failed(number: int, why: str) -> PassRecord:
    return replace(launch(number, 0.01).record, status=why)


def save(root: Path, made: StoredRun) -> Path:
    """A run made by hand as it would be on disk: records, launches and rows, not yet sealed. Returns its folder."""
    store = RunStore.create(root, made.scenario, SCENARIO, dict(made.environment))
    head = json.loads((store.path / "run.json").read_text()) | {"created_at": made.created_at}
    stamp = made.created_at[:19].translate(str.maketrans("", "", "-:"))
    store.close()
    store.path = store.path.rename(root / f"{stamp}Z-{store.path.name.partition('-')[2]}")
    write_atomically(store.path / "run.json", json.dumps(head | {"id": store.path.name}).encode())
    for one in made.launches:
        store.save_launch(one)
    for one_pass in made.passes:
        store.save_pass(one_pass.record, one_pass.requests)
    store.write_rows(parquet(load_run(store.path)))
    return store.path
