"""What a server process writes down about the verify kernel that served it.

An engine only logs a plug-in that failed, so a run without this proof may have measured its
baseline twice.  Each process that loads the plug-in keeps one JSON file, rewritten whole whenever
its counts change: at capture under CUDA or HIP graphs, where a Python hook runs no more
afterwards, and in eager mode at most twice a second.  Engines end their workers by SIGKILL, so
nothing waits for the end.

Nothing here imports torch or an engine.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernel.source import ROOT, source_hash

VERSION = 1
ARM_VARIABLE = "MTPBENCH_VERIFY"
FOLDER_VARIABLE = "MTPBENCH_EVIDENCE"
_INTERVAL_S = 0.5


@dataclass
class Evidence:
    """Counts of one process.

    Attributes:
        arm: the arm that was asked for.
        facts: what does not change: versions, hooks, device.
        folder: where the file goes; ``None`` keeps the counts in memory only.
        served: calls that the arm's kernel took, ``captured`` in a graph or ``eager``.
        passed: calls handed on to the engine's own path, by reason.
        draft_extend: calls of draft-extend, which has the same shape: ``served``, or why not.
        decode: calls of decode, one query token a sequence: the same.
        batches: batch sizes seen while a graph was captured.
        query_lengths: longest query of the calls served.
        bodies: kernels that served them: on one device the same arm may choose between several.
        kernel_hash: of the sources as they were when the process loaded them.
    """

    arm: str
    facts: dict[str, Any]
    folder: Path | None = None
    served: Counter[str] = field(default_factory=Counter)
    passed: Counter[str] = field(default_factory=Counter)
    draft_extend: Counter[str] = field(default_factory=Counter)
    decode: Counter[str] = field(default_factory=Counter)
    batches: set[int] = field(default_factory=set)
    query_lengths: set[int] = field(default_factory=set)
    bodies: set[str] = field(default_factory=set)
    kernel_hash: str = field(default_factory=source_hash)
    rank: int | None = None
    world_size: int | None = None
    _dirty: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _writing: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        """Write the first file and keep it current.

        Raises:
            OSError: the folder can't be written.
        """
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self.write()
        threading.Thread(target=self._keep_current, name="mtpbench-evidence", daemon=True).start()
        atexit.register(self.write)

    def count_served(self, batch: int, query_length: int, captured: bool, body: str) -> None:
        """One call that the arm's kernel took; ``body`` names that kernel."""
        with self._lock:
            self.bodies.add(body)
            self.served["captured" if captured else "eager"] += 1
            self.query_lengths.add(query_length)
            if captured:
                self.batches.add(batch)
        self._dirty.set()

    def count_passed(self, reason: str, batch: int, captured: bool) -> None:
        """One call handed on to the engine's own path."""
        with self._lock:
            self.passed[reason] += 1
            if captured:
                self.batches.add(batch)
        self._dirty.set()

    def count_other(self, mode: str, outcome: str) -> None:
        """One call of ``draft_extend`` or ``decode``: ``served`` by the arm's kernel, or the reason why not."""
        with self._lock:
            {"draft_extend": self.draft_extend, "decode": self.decode}[mode][outcome] += 1
        self._dirty.set()

    def to_json(self) -> dict[str, Any]:
        with self._lock:
            return {
                "evidence_version": VERSION,
                "arm": self.arm,
                "pid": os.getpid(),
                "rank": self.rank,
                "world_size": self.world_size,
                "kernel_file": str(ROOT / "__init__.py"),
                "kernel_hash": self.kernel_hash,
                **self.facts,
                "served": dict(self.served),
                "passed": dict(self.passed),
                "draft_extend": dict(self.draft_extend),
                "decode": dict(self.decode),
                "captured_batches": sorted(self.batches),
                "query_lengths": sorted(self.query_lengths),
                "bodies": sorted(self.bodies),
            }

    def write(self) -> None:
        """Replace the file, whole or not at all."""
        if self.folder is None:
            return
        path = self.folder / f"process-{os.getpid()}.json"
        partial = path.with_suffix(".partial")
        with self._writing:  # the thread that keeps it current, and the end of the process
            partial.write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")
            partial.replace(path)

    def _keep_current(self) -> None:
        while True:
            self._dirty.wait()
            self._dirty.clear()
            self.write()
            threading.Event().wait(_INTERVAL_S)
