"""What equal servers differ by: the spread of stored A/A pairs, for each host, scenario and row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from harness.errors import StoreError
from harness.stats import inference
from harness.store.ab_record import Session, load_session, sides
from harness.store.runs import AB_FILE, StoredRun, load_run
from harness.verdict.pairs import Metric, RowKey, measure, pair_up, table_of

Floors = dict[RowKey, tuple[float, int]]


def aa_runs(root: Path, host: str, scenario: str) -> Iterator[tuple[StoredRun, Session]]:
    """Every A/A run below a store that was made on this host with this scenario; damaged ones are passed over."""
    for file in sorted(root.glob(f"*/{AB_FILE}")):
        try:
            session = load_session(file.parent)
            if session.kind != "aa":
                continue
            run = load_run(file.parent)
        except StoreError:
            continue
        if run.environment.get("host") == host and run.scenario.name == scenario and not run.quarantine:
            yield run, session


def floors(root: Path, host: str, scenario: str) -> Floors:
    """What the A/A runs of a store say of one host and scenario."""
    return pooled(aa_runs(root, host, scenario))


def pooled(runs: Iterable[tuple[StoredRun, Session]]) -> Floors:
    """Standard deviation of one A/A delta and its degrees of freedom, for each row, pooled over runs."""
    return pooled_deltas(aa_deltas(run, session) for run, session in runs)


def pooled_deltas(of_runs: Iterable[Mapping[RowKey, list[float]]]) -> Floors:
    """Standard deviation of one A/A delta and its degrees of freedom, for each row, from the deltas of each run."""
    groups: dict[RowKey, list[list[float]]] = {}
    for deltas in of_runs:
        for key, values in deltas.items():
            groups.setdefault(key, []).append(values)
    known = {key: inference.standard_deviation(values) for key, values in groups.items()}
    return {key: floor for key, floor in known.items() if floor[1] >= 1 and math.isfinite(floor[0])}


def aa_deltas(run: StoredRun, session: Session) -> dict[RowKey, list[float]]:
    """The deltas of one A/A run."""
    base, head = sides(run, session)
    ours, theirs = measure(base, session.metrics), measure(head, session.metrics)
    out: dict[RowKey, list[float]] = {}
    for group, launches in ours.launches.items():
        pairs = pair_up(launches, theirs.launches.get(group, []))
        for name in session.metrics:
            column = table_of([(Metric.of(name), pairs)])[:, 0]
            values = [float(value) for value in column if math.isfinite(value)]
            if values:
                out[RowKey(name, *group)] = values
    return out
