"""SGLang's `python -m sglang.bench_one_batch_server --result-filename`: JSON lines, one a batch. Seconds;
−1 is absent."""

from __future__ import annotations

from harness.importers.base import Document, Field, Item, Parsed, left_over
from harness.store.imported_runs import Point

_ABSENT = -1  # what the server said nothing of
_SETTINGS = ("run_name", "batch_size", "input_len", "output_len")


class SglangOneBatchServer:
    """See harness.importers.base.Importer."""

    format = "sglang-one-batch-server"
    tool = "SGLang bench_one_batch_server"
    source = "sglang/benchmark/one_batch_server.py (run_one_case), SGLang 0.5.16"
    headline: tuple[str, ...] = ("last_ttft", "latency", "output_throughput", "acc_length")
    fields: tuple[Field, ...] = (
        Field("latency", "s", False, "the whole batch, from its one request to the end of its stream"),
        Field("input_throughput", "tokens/s", True, "batch × input_len ÷ last_ttft"),
        Field("output_throughput", "tokens/s", True, "batch × output_len ÷ (latency − last_ttft)"),
        Field("overall_throughput", "tokens/s", True, "batch × (input_len + output_len) ÷ latency"),
        Field("last_ttft", "s", False, "until the last sequence of the batch has its first token"),
        Field("last_gen_throughput", "tokens/s", True, "the server's last_gen_throughput"),
        Field("acc_length", "tokens/step", True, "the server's avg_spec_accept_length, last rank that has one"),
        Field("cache_hit_rate", "ratio", None, "cached ÷ prompt tokens of /metrics, over the batch"),
    )

    def recognises(self, document: Document) -> bool:
        wanted = {"run_name", "batch_size", "last_ttft", "overall_throughput"}
        return all(isinstance(value, dict) and wanted <= set(value) for _, value in document.values)

    def read(self, document: Document) -> Parsed:
        items = [(line, Item.of(document, line, "", value)) for line, value in document.values]
        points = [
            Point(
                where=f"line {line}",
                arm=item.text("run_name"),
                concurrency=item.count("batch_size"),
                settings=item.settings(_SETTINGS),
                numbers=item.numbers(self.fields, skip=[key for key, value in item.data.items() if value == _ABSENT]),
            )
            for line, item in items
        ]
        return Parsed("", tuple(points), left_over([i for _, i in items], _SETTINGS, self.fields))
