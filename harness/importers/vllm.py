"""vLLM's `vllm bench serve --save-result`, and the older benchmark_serving.py: one JSON object. Milliseconds.

`--metadata key=value` is merged flat into the object, so unknown texts are taken as settings.
"""

from __future__ import annotations

from harness.importers.base import Document, Field, Item, Parsed, left_over
from harness.importers.sglang_bench_serving import failures
from harness.store.imported_runs import Point

_SETTINGS = (
    *("backend", "label", "model_id", "tokenizer_id", "num_prompts", "request_rate", "burstiness", "max_concurrency"),
    *("best_of", "endpoint_type", "ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps"),
)
# One value a request; not taken.
_DETAILS = (
    *("input_lens", "output_lens", "ttfts", "itls", "latencies", "queue_times", "start_times"),
    *("generated_texts", "errors"),
)


class Vllm:
    """See harness.importers.base.Importer."""

    format = "vllm"
    tool = "vLLM bench serve"
    source = "vllm/benchmarks/serve.py (calculate_metrics) and lib/endpoint_request_func.py, vLLM 0.33.0"
    headline: tuple[str, ...] = (
        "median_ttft_ms",
        "median_tpot_ms",
        "output_throughput",
        "spec_decode_acceptance_length",
    )
    fields: tuple[Field, ...] = (
        Field("{stat}_ttft_ms", "ms", False, "first chunk with `choices`, even without text, − send"),
        Field("{stat}_tpot_ms", "ms", False, "(latency − TTFT) / (output_len − 1); latency ends at the last `choices`"),
        Field("{stat}_itl_ms", "ms", False, "gap between chunks, however many tokens they hold"),
        Field("{stat}_e2el_ms", "ms", False, "last chunk with `choices` − send"),
        Field("duration", "s", None, "whole run, ramps included"),
        Field("request_throughput", "1/s", True, "completed ÷ duration"),
        Field("request_goodput", "1/s", True, "requests within --goodput ÷ duration"),
        Field("request_goodput:", "1/s", True, "the same; older versions write the colon"),
        Field("output_throughput", "tokens/s", True, "output tokens ÷ duration"),
        Field("total_token_throughput", "tokens/s", True, "input + output tokens ÷ duration"),
        Field("max_output_tokens_per_s", "tokens/s", True, "most stream events in a second"),
        Field("max_concurrent_requests", "requests", None, "most requests that touch the same second"),
        Field("spec_decode_acceptance_rate", "%", True, "accepted ÷ drafted tokens, of /metrics over the run"),
        Field("spec_decode_acceptance_length", "tokens/step", True, "1 + accepted tokens ÷ drafts, over the run"),
        Field("spec_decode_num_drafts", "count", None, "drafts over the run"),
        Field("spec_decode_draft_tokens", "tokens", None, "drafted tokens over the run"),
        Field("spec_decode_accepted_tokens", "tokens", None, "accepted tokens over the run"),
        Field("total_input_tokens", "tokens", None, "of completed requests"),
        Field("total_output_tokens", "tokens", None, "usage of the server, else the text tokenised again"),
    )

    def recognises(self, document: Document) -> bool:
        wanted = {"model_id", "num_prompts", "request_rate", "total_token_throughput"}
        return (
            len(document.values) == 1
            and isinstance(document.values[0][1], dict)
            and wanted <= set(document.values[0][1])
        )

    def read(self, document: Document) -> Parsed:
        item = Item.of(document, 1, "", document.values[0][1])
        taken = {*_SETTINGS, "date", "completed", "failed"}
        metadata = [key for key, value in item.data.items() if isinstance(value, str) and key not in taken]
        completed, failed = item.count("completed"), item.count("failed")
        rate = item.data.get("request_rate")
        point = Point(
            where="the file",
            arm=item.text("label"),
            measured_at=item.text("date"),  # the client's local time, without its zone
            concurrency=item.count("max_concurrency"),
            rate=None if isinstance(rate, str) else item.number("request_rate"),  # "inf"
            requests=completed,
            failed=failed if failed is not None else _missing(item.count("num_prompts"), completed),
            settings=item.settings([*_SETTINGS, *metadata]),
            numbers=item.numbers(self.fields, _DETAILS),
        )
        found = failures(point.requests, point.failed)
        point = Point(**{**vars(point), "findings": found})
        return Parsed("", (point,), left_over([item], [*taken, *metadata], self.fields))


def _missing(asked: int | None, completed: int | None) -> int | None:
    """Older versions do not write `failed`: what was asked and not completed failed."""
    return asked - completed if asked is not None and completed is not None and asked >= completed else None
