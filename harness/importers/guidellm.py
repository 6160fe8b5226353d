"""GuideLLM: `benchmarks.json`, metadata version 2. One point for each benchmark, over its successful requests.

A number is named `metric.statistic`. Its time_per_output_token_ms includes TTFT and is no TPOT of anybody else's.
"""

from __future__ import annotations

from datetime import datetime, timezone

from harness.importers.base import Document, Field, Item, Parsed, named
from harness.importers.sglang_bench_serving import failures
from harness.store.imported_runs import Number, Point

_STATISTICS = ("mean", "median", "std_dev", "min", "max")
_PERCENTILES = ("p50", "p90", "p95", "p99")


class GuideLlm:
    """See harness.importers.base.Importer."""

    format = "guidellm"
    tool = "GuideLLM"
    source = "guidellm/schemas/base/request_stats.py, GuideLLM 0.8.1"
    headline: tuple[str, ...] = (
        "time_to_first_token_ms.median",
        "inter_token_latency_ms.median",
        "output_tokens_per_second.mean",
    )
    fields: tuple[Field, ...] = (
        Field("time_to_first_token_ms", "ms", False, "first content, reasoning or tool call − request start"),
        Field("time_per_output_token_ms", "ms", False, "(last token − request START) / output tokens: includes TTFT"),
        Field("inter_token_latency_ms", "ms", False, "(last − first token) / (output tokens − 1), weighted by tokens"),
        Field("request_latency", "s", False, "request end − start"),
        Field("requests_per_second", "1/s", True, "over time, between first start and last end"),
        Field("request_concurrency", "requests", None, "over time"),
        Field("output_tokens_per_second", "tokens/s", True, "over time"),
        Field("prompt_tokens_per_second", "tokens/s", True, "over time"),
        Field("tokens_per_second", "tokens/s", True, "prompt and output, over time"),
        Field("prompt_token_count", "tokens", None, "usage of the server, else tokenised"),
        Field("output_token_count", "tokens", None, "usage of the server, else the number of chunks"),
    )

    def recognises(self, document: Document) -> bool:
        value = document.values[0][1]
        return not document.lines and isinstance(value, dict) and {"metadata", "benchmarks"} <= set(value)

    def read(self, document: Document) -> Parsed:
        report = Item.of(document, 1, "", document.values[0][1])
        metadata = report.inner("metadata")
        if metadata is None or metadata.number("version") != 2:
            raise report.problem("metadata.version", "only version 2 (GuideLLM 0.8) is understood")
        points, ignored = [], set()
        for number, benchmark in enumerate(report.items("benchmarks")):
            points.append(_point(f"benchmarks[{number}]", benchmark, self.fields))
            if metrics := benchmark.inner("metrics"):
                ignored |= set(metrics.data) - {field.name for field in self.fields} - {"request_totals"}
        if not points:
            raise report.problem("benchmarks", "holds no benchmark")
        return Parsed(metadata.text("guidellm_version"), tuple(points), named(ignored))


def _point(where: str, benchmark: Item, fields: tuple[Field, ...]) -> Point:
    metrics = benchmark.inner("metrics")
    if metrics is None:
        raise benchmark.problem("metrics", "is missing")
    numbers: list[Number] = []
    for field in fields:
        kinds = metrics.inner(field.name)
        if successful := kinds.inner("successful") if kinds else None:
            numbers += _statistics(field, successful)
    totals = metrics.inner("request_totals")
    good = totals.count("successful") if totals else None
    bad = (totals.count("errored") or 0) if totals else None
    config = benchmark.inner("config")
    strategy = config.inner("strategy") if config else None
    return Point(
        where=where,
        measured_at=_moment(benchmark),
        concurrency=strategy.count("streams") if strategy else None,
        rate=strategy.number("rate") if strategy else None,
        requests=good,
        failed=bad,
        settings=strategy.settings(("type_", "streams", "rate", "max_concurrency"), "strategy.") if strategy else {},
        numbers=tuple(numbers),
        findings=failures(good, bad),
    )


def _moment(benchmark: Item) -> str:
    """When it began, as ISO 8601; the file has seconds since 1970."""
    start = benchmark.number("start_time")
    try:
        return datetime.fromtimestamp(start, timezone.utc).isoformat(timespec="seconds") if start else ""
    except (OverflowError, ValueError, OSError) as error:
        raise benchmark.problem("start_time", "is no time") from error


def _statistics(field: Field, summary: Item) -> list[Number]:
    if not summary.count("count"):
        return []  # GuideLLM writes 0.0 for every statistic of nothing
    found = [(name, summary.number(name)) for name in _STATISTICS]
    if percentiles := summary.inner("percentiles"):
        found += [(name, percentiles.number(name)) for name in _PERCENTILES]
    return [
        Number(f"{field.name}.{name}", value, field.unit, None if name == "std_dev" else field.higher_is_better)
        for name, value in found
        if value is not None
    ]
