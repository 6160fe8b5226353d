"""The attention model against `mtpbench kernel bench`: seconds of a verify-attention call, shape by shape."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from harness.errors import MtpbenchError
from harness.simulator import attention
from harness.simulator.attention import Call
from harness.simulator.hardware import Hardware
from harness.text import markdown_table, terminal_table

BENCH_VERSIONS = (1, 2)
_PADDED_CONTEXT = 131072  # tokens that the benchmark's page tables cover
_QUERY_HEADS, _HEAD_SIZE = 16, 256  # a KV head
_QUERY_TOKENS = 4
_SHAPE = re.compile(r"^(\d+)x(\d+)(?:-(\d+))?(?:/h(\d+))?$")
# 8 query heads a KV head, or other than four query tokens: from version 2 on, and not modelled.
_OTHER_MODE = re.compile(r"/(g|q)\d")
# Which kernel of the machine file is meant by an arm of the benchmark; others are not modelled.
_KERNELS = {"ours": "in-tree", "generic": "generic", "mtp-triton": "mtp", "upstream": "mtp"}
HEADERS = ("sequences x tokens", "kernel", "us", "simulated", "error")


@dataclass(frozen=True)
class KernelRow:
    """One timed call; seconds."""

    shape: str
    kernel: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class KernelRows:
    """All calls of a benchmark that the machine file can predict."""

    file: str
    machine: str
    rows: tuple[KernelRow, ...]

    @property
    def error(self) -> float:
        """Median of |predicted / measured - 1|."""
        return median(abs(row.error) for row in self.rows)


def against_kernel(path: Path, hardware: Hardware) -> KernelRows:
    """Reads what `mtpbench kernel bench --output FILE` wrote. Raises MtpbenchError."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["version"] not in BENCH_VERSIONS:
            raise MtpbenchError(f"{path} has version {document['version']}; this mtpbench reads {BENCH_VERSIONS}")
        rows = [_row(row, hardware) for row in document["rows"]]
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError) as error:
        raise MtpbenchError(
            f"{path} is no result of the kernel's benchmark: {error!r}",
            "Give the folder of a run, or what `mtpbench kernel bench --output FILE` wrote.",
        ) from error
    known = tuple(row for row in rows if row is not None)
    if not known:
        raise MtpbenchError(f"{path} times no kernel that {hardware.name} describes")
    return KernelRows(path.name, hardware.name, known)


def _row(row: dict[str, Any], hardware: Hardware) -> KernelRow | None:
    kernel = hardware.kernels.get(_KERNELS.get(row["arm"], ""))
    if kernel is None or row["status"] != "timed" or _OTHER_MODE.search(row["shape"]):
        return None
    found = _SHAPE.match(row["shape"])
    if found is None:
        raise ValueError(f"the shape {row['shape']!r} can't be read")
    batch, low, kv_heads = int(found[1]), int(found[2]), int(found[4] or 1)
    lengths = np.rint(np.linspace(low, int(found[3] or low), batch)).astype(np.int64)
    call = Call(
        int(row.get("query_tokens", _QUERY_TOKENS)), _QUERY_HEADS * kv_heads, kv_heads, _HEAD_SIZE, _PADDED_CONTEXT
    )
    predicted = float(attention.seconds(kernel, hardware, batch, call, lengths[:, None])[0])
    return KernelRow(row["shape"], _KERNELS[row["arm"]], float(row["seconds"]["median"]), predicted)


def cells(row: KernelRow) -> tuple[str, ...]:
    """A row as text, in the order of HEADERS."""
    times = (f"{1e6 * row.measured:.1f}", f"{1e6 * row.predicted:.1f}")
    return (row.shape, row.kernel, *times, f"{100 * row.error:+.0f} %")


def _sentence(result: KernelRows) -> str:
    return f"Off by {100 * result.error:.1f} % in the median of {len(result.rows)} calls."


def to_rich(result: KernelRows) -> RenderableType:
    """For the terminal."""
    table = terminal_table(HEADERS, ("kernel",), f"{result.file} against a SIMULATED {result.machine}")
    for row in result.rows:
        table.add_row(*(Text(cell) for cell in cells(row)))
    return Group(table, Text(_sentence(result), style="bold"))


def to_markdown(result: KernelRows) -> str:
    """For a document."""
    return "\n".join([*markdown_table(HEADERS, map(cells, result.rows), ("kernel",)), "", _sentence(result), ""])


def to_json(result: KernelRows) -> str:
    """For programs."""
    rows = [asdict(row) for row in result.rows]
    document = {"file": result.file, "machine": result.machine, "simulated": True, "error": result.error, "rows": rows}
    return json.dumps(document, indent=1)


RENDERERS = {"markdown": to_markdown, "json": to_json}
