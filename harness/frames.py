"""Runs → tables. The only place that imports pandas and pyarrow."""

from __future__ import annotations

import io
import json

import pandas as pd

from harness.metrics import PassView, pass_row
from harness.model import Pass
from harness.store import StoredRun

ROWS_VERSION = 3  # 2: input_tokens, where prompt lengths are swept; 3: factor, a scenario's further passes


def rows(run: StoredRun) -> pd.DataFrame:
    """One row a pass, failed ones included (without metrics); columns as in `metrics.pass_row`."""
    slo = run.scenario.slo
    table = [pass_row(PassView.of(p, slo)) for p in run.passes]
    table += [pass_row(PassView.of(Pass(record, ()), slo)) for record in run.failed]
    frame = pd.DataFrame(table)
    frame.insert(0, "run", run.id)
    frame.insert(1, "scenario", run.scenario.name)
    frame.insert(2, "host", str(run.environment.get("host", "")))
    # Types by name, not by content: a column without values must have the same type in every run's file.
    for column in frame.columns:
        if column in _TEXT:
            frame[column] = frame[column].astype("string")
        elif column in _COUNTS or column.endswith("_n"):
            frame[column] = frame[column].astype("Int64")
        else:
            frame[column] = frame[column].astype("float64")
    return frame


_TEXT = {"run", "scenario", "host", "arm", "factor", "started_at", "status", "findings"}
_COUNTS = {"launch", "server_start", "tp", "concurrency", "input_tokens", "pass", "requests", "ok", "counted"}


def parquet(run: StoredRun) -> bytes:
    """The row set of a run as a Parquet file, its fingerprint in the file's metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pandas(rows(run), preserve_index=False)
    metadata = {
        "mtpbench_rows_version": str(ROWS_VERSION),
        "mtpbench_environment": json.dumps(run.environment),
    }
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), **metadata})
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()
