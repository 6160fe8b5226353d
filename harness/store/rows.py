"""Runs → tables. The only place that imports pandas and pyarrow."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import StoreError
from harness.metrics.definitions import PassView, pass_row
from harness.model import Finding, LoadLevel, Pass, PassKey, PassRecord
from harness.store.runs import StoredRun, check_record

if TYPE_CHECKING:
    import pandas as pd

ROWS_VERSION = 6  # 2: input_tokens, where prompt lengths are swept. 3: factor, a scenario's further passes.
# 4: finding_details, a JSON list. 5: device_time_per_token, of one GPU
# 6: an open loop's TTFT and E2E count from the schedule, not from the send; what nobody counted has no TPOT


def rows(run: StoredRun) -> pd.DataFrame:
    """One row a pass, failed ones included (without metrics); columns as in `metrics.pass_row`."""
    slo = run.scenario.slo
    table = [pass_row(PassView.of(p, slo)) for p in run.passes]
    table += [pass_row(PassView.of(Pass(record, ()), slo)) for record in run.failed]
    return _typed(run, table)


def _typed(run: StoredRun, table: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    import pandas as pd  # takes half a second: not for commands without tables

    frame = pd.DataFrame(table)
    frame.insert(0, "run", run.id)
    frame.insert(1, "scenario", run.scenario.name)
    frame.insert(2, "host", str(run.environment.get("host", "")))
    # Types by name, not by content: a column without values must have the same type in every run's file.
    return frame.astype({column: _type_of(str(column)) for column in frame.columns})


def _type_of(column: str) -> str:
    if column in _TEXT:
        return "string"
    return "Int64" if column in _COUNTS or column.endswith("_n") else "float64"


_TEXT = {"run", "scenario", "host", "arm", "factor", "started_at", "status", "findings", "finding_details"}
_COUNTS = {"launch", "server_start", "tp", "concurrency", "input_tokens", "pass", "requests", "ok", "counted"}


def parquet(run: StoredRun, table: Sequence[Mapping[str, Any]] | None = None) -> bytes:
    """The row set of a run as a Parquet file, its fingerprint in the file's metadata.

    `table`: rows as of `metrics.pass_row`, where they don't come from the run's own passes.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    frame = rows(run) if table is None else _typed(run, table)
    arrow = pa.Table.from_pandas(frame, preserve_index=False)
    metadata = {
        "mtpbench_rows_version": str(ROWS_VERSION),
        "mtpbench_environment": json.dumps(run.environment),
    }
    arrow = arrow.replace_schema_metadata({**(arrow.schema.metadata or {}), **metadata})
    sink = io.BytesIO()
    pq.write_table(arrow, sink, write_page_checksum=True)
    return sink.getvalue()


def read_rows(path: Path) -> list[dict[str, Any]] | None:
    """A run's stored rows, None for what has no value; None where the file is absent or of another version.

    Raises StoreError where it is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
        version = (file.schema_arrow.metadata or {}).get(b"mtpbench_rows_version")
        if version != str(ROWS_VERSION).encode():
            return None
        return [dict(row) for row in file.read(use_threads=False).to_pylist()]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = str(error).partition("\n")[0]
        raise StoreError(f"{path} is damaged: {reason}", "`mtpbench store rows RUN` makes it anew.") from error


def with_rows(head: StoredRun, table: Sequence[Mapping[str, Any]]) -> StoredRun:
    """A run whose passes hold their stored rows in place of requests. Raises StoreError where they don't fit."""
    levels = {_place(level): level for level in head.scenario.levels()}
    try:
        passes = [Pass(_record(_checked(row), levels), (), row) for row in table]
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        hint = f"`mtpbench store rows {head.path}` makes them anew."
        raise StoreError(f"the rows of {head.path} are damaged: {error!r}", hint) from error
    return replace(
        head,
        passes=tuple(one for one in passes if one.record.complete),
        failed=tuple(one.record for one in passes if not one.record.complete),
    )


def _checked(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row whose cells are of the types of their columns. Raises ValueError; NaN is a value that nothing measured."""
    for column, value in row.items():
        kind = _type_of(column)
        right = isinstance(value, str) if kind == "string" else type(value) in (int, float)
        if value is not None and not right:
            raise ValueError(f"{column} can't be {str(value)[:40]!r}")
    return row


def _place(level: LoadLevel) -> tuple[object, ...]:
    """What a row holds of a level."""
    return (level.concurrency, level.rate, level.input_tokens, level.factor)


def _record(row: Mapping[str, Any], levels: Mapping[tuple[object, ...], LoadLevel]) -> PassRecord:
    level = LoadLevel(row["concurrency"] or 0, row["rate"] or 0.0, row["input_tokens"] or 0, row["factor"] or "")
    key = PassKey(row["launch"], row["arm"], row["tp"], levels.get(_place(level), level), row["pass"])
    found = tuple(Finding(**finding) for finding in json.loads(row["finding_details"]))
    record = PassRecord(key, row["started_at"], 0.0, 0.0, row["status"], row["server_start"], findings=found)
    check_record(record)
    return record
