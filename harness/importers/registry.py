"""All importers by name, and which of them a file is for."""

from __future__ import annotations

from harness.errors import MtpbenchError
from harness.importers.aiperf import AiPerf
from harness.importers.base import Document, Importer, fail
from harness.importers.guidellm import GuideLlm
from harness.importers.inferencex import InferenceX
from harness.importers.sglang_bench_serving import SglangBenchServing
from harness.importers.sglang_one_batch_server import SglangOneBatchServer
from harness.importers.vllm import Vllm

IMPORTERS: dict[str, Importer] = {
    importer.format: importer
    for importer in (SglangBenchServing(), SglangOneBatchServer(), Vllm(), AiPerf(), GuideLlm(), InferenceX())
}
AUTO = "auto"


def importer_for(document: Document, name: str) -> Importer:
    """The importer that was named, or the only one that recognises the file."""
    if name != AUTO:
        if name not in IMPORTERS:
            raise MtpbenchError(f"--format {name!r} is unknown", f"One of: {AUTO}, {', '.join(IMPORTERS)}.")
        if not IMPORTERS[name].recognises(document):
            hint = "Leave --format out to have it recognised. Keys: docs/importing.md."
            raise fail(document.name, 0, "", f"is no result of {IMPORTERS[name].tool}", hint)
        return IMPORTERS[name]
    found = [importer for importer in IMPORTERS.values() if importer.recognises(document)]
    if len(found) != 1:
        kinds = " and ".join(importer.format for importer in found) or "no known format"
        hint = f"Name it with --format: {', '.join(IMPORTERS)}."
        raise fail(document.name, 0, "", f"looks like {kinds}", hint)
    return found[0]
