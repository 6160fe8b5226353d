"""Which kernel served a launch: reads what its processes wrote down, and says where that contradicts the arm.

SGLang logs a plug-in that failed and serves on, so an arm whose processes say nothing has not been measured.
`kernel/evidence.py` describes the files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from harness.model import Finding

VERSION = 1
UPSTREAM = "upstream"


def read_evidence(folder: Path) -> tuple[dict[str, Any], ...]:
    """One entry a process, in order of rank; a file that can't be read becomes an entry with `error`."""
    found = []
    for path in sorted(folder.glob("process-*.json")):
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            value = {"error": f"{path.name}: {error}"}
        if not isinstance(value, dict):
            value = {"error": f"{path.name}: not a JSON object"}
        elif "error" not in value and value.get("evidence_version") != VERSION:
            value = {"error": f"{path.name}: version {value.get('evidence_version')}, this mtpbench reads {VERSION}"}
        found.append(value)
    return tuple(sorted(found, key=lambda entry: (entry.get("rank") is None, entry.get("rank") or 0)))


def check_evidence(
    evidence: Sequence[dict[str, Any]], arm: str, tp: int, kernel_hash: str, concurrency: int
) -> tuple[Finding, ...]:
    """What is wrong with the evidence of one launch; the invalidating first.

    `kernel_hash` is that of the sources handed to the server; `concurrency` the largest that is measured, 0 in
    an open loop.
    """
    found = list(_contradictions(evidence, arm, tp, kernel_hash))
    if not found:
        found = list(_remarks(evidence, concurrency))
    return tuple(found)


def _contradictions(evidence: Sequence[dict[str, Any]], arm: str, tp: int, kernel_hash: str) -> Iterator[Finding]:
    def invalid(code: str, message: str) -> Finding:
        return Finding(code, message, invalid=True)

    for entry in evidence:
        if "error" in entry:
            yield invalid("evidence_unreadable", f"evidence can't be read: {entry['error']}")
            return
    if not evidence:
        yield invalid(
            "evidence_missing",
            f"nothing proves that `verify: {arm}` was engaged: no process loaded the plug-in. Search the server's log "
            "for `plugin`: the entry point is missing, SGLANG_PLUGINS leaves it out, or it failed to import",
        )
        return
    ranks = {entry["rank"]: entry for entry in evidence if entry.get("rank") is not None}
    if missing := sorted(set(range(tp)) - set(ranks)):
        which = ", ".join(map(str, missing))
        yield invalid(
            "evidence_missing",
            f"the plug-in was loaded, but no target-verify came by on rank {which} of {tp}: "
            "is another attention backend in use?",
        )
    for rank, entry in ranks.items():
        if entry.get("arm") != arm:
            yield invalid("evidence_arm", f"rank {rank} served arm {entry.get('arm')!r}, asked for was {arm!r}")
        if entry.get("kernel_hash") != kernel_hash:
            yield invalid(
                "evidence_kernel",
                f"rank {rank} ran the kernel {entry.get('kernel_hash')} from {entry.get('kernel_file')}, "
                f"handed to it was {kernel_hash}",
            )
        passed = _counts(entry, "passed")
        if arm == UPSTREAM and not passed.get(UPSTREAM):
            yield invalid("evidence_unused", f"rank {rank}: no target-verify call was seen")
        elif arm != UPSTREAM and not sum(_counts(entry, "served").values()):
            yield invalid(
                "verify_rejected",
                f"rank {rank}: the {arm} kernel served no call, {sum(passed.values())} went to SGLang's own path "
                f"({reasons(passed)}): this arm measured something else",
            )


def _remarks(evidence: Sequence[dict[str, Any]], concurrency: int) -> Iterator[Finding]:
    for entry in evidence:
        served, passed = sum(_counts(entry, "served").values()), _counts(entry, "passed")
        refused = {reason: n for reason, n in passed.items() if reason != UPSTREAM}
        if served and refused:
            yield Finding(
                "verify_partly_rejected",
                f"rank {entry['rank']}: {sum(refused.values())} of {served + sum(refused.values())} calls went to "
                f"SGLang's own path ({reasons(refused)})",
            )
        captured = entry.get("captured_batches") or []
        if entry.get("rank") == 0 and captured and concurrency > max(captured):
            yield Finding(
                "beyond_graphs",
                f"concurrency {concurrency} exceeds the largest captured batch, {max(captured)}: "
                "larger batches run without a graph. Raise cuda-graph-max-bs",
            )


def _counts(entry: dict[str, Any], key: str) -> dict[str, int]:
    value = entry.get(key)
    return {str(k): n for k, n in value.items() if isinstance(n, int)} if isinstance(value, dict) else {}


def reasons(counts: dict[str, int]) -> str:
    """`head_size 8, gqa_ratio 4`, the commonest first."""
    return ", ".join(f"{reason} {n}" for reason, n in sorted(counts.items(), key=lambda kv: -kv[1])) or "none"
