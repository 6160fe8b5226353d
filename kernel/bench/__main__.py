"""``python -m kernel.bench``: check, time, print and write JSON."""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import triton

from kernel.bench.arms import ARMS, MAX_ERROR, MAX_ERROR_BY_ARM, MAX_SETS_BY_ARM, ArmUnavailable
from kernel.bench.inputs import Inputs, cache_bytes, fp32_answer, make_inputs, sets_needed
from kernel.bench.measure import capture, read_bandwidth, time_graph
from kernel.bench.shapes import FAMILIES, Shape
from kernel.bench.tune import tuned_shapes
from kernel.checks import device_arch
from kernel.config import next_power_of_two
from kernel.measured import SHAPES_FILE
from kernel.reference import relative_error

JSON_VERSION = 2
CHECKED_SEQUENCES = 4
# Starting a graph takes microseconds of its own; over this many calls they do not show.
MIN_CALLS = 8


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench.

    Returns:
        0 if every arm that could run was accurate, 1 if one was not or broke, 2 without a GPU.
    """
    parser = argparse.ArgumentParser(prog="mtpbench kernel bench", description=__doc__)
    parser.add_argument("--shape", choices=sorted(FAMILIES), default="targets")
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--replays", type=int, default=20)
    parser.add_argument("--output", type=Path, help="write JSON here, after each shape")
    parser.add_argument(
        "--tune",
        action="store_true",
        help="on gfx950: time both shapes of the kernel and write the faster one for each row count, which then runs",
    )
    chosen = parser.parse_args(arguments)
    arms = chosen.arms.split(",")
    unknown = sorted(set(arms) - set(ARMS))
    if unknown:
        parser.error(f"unknown arms {unknown}; there are {sorted(ARMS)}")
    if not torch.cuda.is_available():
        print("no GPU: nothing to time; run this on a machine with one", file=sys.stderr)
        return 2
    report = run(FAMILIES[chosen.shape], arms, chosen.replays, chosen.output)
    print(text(report))
    if chosen.tune:
        print(tuned_shapes(report, SHAPES_FILE))
    return int(any(row["status"] in ("inaccurate", "failed") for row in report["rows"]))


def run(shapes: Sequence[Shape], arms: Sequence[str], replays: int, output: Path | None = None) -> dict[str, Any]:
    """Time ``arms`` on ``shapes``; arms alternate within a shape, on the same inputs.

    Args:
        shapes: what to time.
        arms: names of arms.
        replays: of each graph.
        output: where the report goes after each shape, so that an interrupted run leaves what it measured.
    """
    device = torch.device("cuda", torch.cuda.current_device())
    rows: list[dict[str, Any]] = []
    report = {
        "version": JSON_VERSION,
        "device": torch.cuda.get_device_properties(device).name,
        "arch": asdict(device_arch(device)),
        "cache_bytes": cache_bytes(device),
        "read_bytes_per_second": read_bandwidth(device),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "kernel_sha256": source_hash(),
        "rows": rows,
    }
    for number, shape in enumerate(shapes, 1):
        print(f"{number} of {len(shapes)}: {shape.name}", file=sys.stderr, flush=True)
        inputs = make_inputs(shape, sets_needed(shape, cache_bytes(device)), device)
        answer = fp32_answer(inputs[0], min(CHECKED_SEQUENCES, len(shape.lengths)))
        rows += [run_arm(arm, inputs, answer, replays) for arm in arms]
        del inputs
        torch.cuda.empty_cache()
        if output:
            output.write_text(json.dumps(report, indent=1) + "\n")
    return report


def run_arm(arm: str, inputs: Sequence[Inputs], answer: torch.Tensor, replays: int) -> dict[str, Any]:
    """One row of the report: checked first, timed only if accurate.  A peer that breaks does not end the run."""
    shape = inputs[0].shape
    row: dict[str, Any] = {"arm": arm, "shape": shape.name, "kv_bytes": shape.kv_bytes}
    try:
        return row | _timed(arm, inputs, answer, replays)
    except ArmUnavailable as missing:
        return row | {"status": "unavailable", "reason": str(missing)}
    except Exception as error:
        return row | {"status": "failed", "reason": f"{type(error).__name__}: {error}"[:300]}


def _timed(arm: str, inputs: Sequence[Inputs], answer: torch.Tensor, replays: int) -> dict[str, Any]:
    shape = inputs[0].shape
    inputs = inputs[: MAX_SETS_BY_ARM.get(arm, len(inputs))]
    calls = [ARMS[arm](each) for each in inputs]
    inputs[0].out.fill_(math.nan)
    calls[0]()
    tokens = answer.shape[0]
    error = relative_error(inputs[0].out[:tokens], answer)
    written = bool(inputs[0].out.isfinite().all())
    limit = MAX_ERROR_BY_ARM.get(arm, MAX_ERROR)
    row = {"relative_error": error, "error_limit": limit, "sets": len(inputs)}
    row |= {"query_tokens": shape.max_query_length, "query_rows": query_rows(shape)}
    if not (written and error <= limit):
        return row | {"status": "inaccurate", "reason": f"error {error:.1e}, all set: {written}"}
    calls *= -(-MIN_CALLS // len(calls))
    timing = time_graph(capture(calls), len(calls), replays)
    return row | {
        "status": "timed",
        "seconds": asdict(timing),
        "kv_bytes_per_second": shape.kv_bytes / timing.median,
    }


def query_rows(shape: Shape) -> int:
    """Query rows of a KV head, padded as the kernel pads them."""
    return max(16, next_power_of_two(shape.group * shape.max_query_length))


def source_hash() -> str:
    """SHA-256 over the package's Python files, so that a result names the code it timed."""
    digest = hashlib.sha256()
    root = Path(__file__).resolve().parents[1]
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def text(report: dict[str, Any]) -> str:
    """The report as a table."""
    ceiling = report["read_bytes_per_second"]
    lines = [f"{report['device']}: reads {ceiling / 1e12:.2f} TB/s"]
    for row in report["rows"]:
        start = f"{row['shape']:16} {row['arm']:16} "
        if row["status"] != "timed":
            lines.append(f"{start} {row['status']}: {row['reason']}")
            continue
        rate = row["kv_bytes_per_second"]
        lines.append(
            f"{start} {row['seconds']['median'] * 1e6:9.1f} us {rate / 1e12:6.2f} TB/s "
            f"{rate / ceiling:5.0%} error {row['relative_error']:.1e}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
