"""NVIDIA AIPerf: `profile_export_aiperf.json` (aggregates) or `profile_export.jsonl` (one request a line).

A number is named `tag.statistic`, in the unit that the file gives. From the requests, statistics are computed here, of
the profiling phase only; rates are not, because the lines do not hold AIPerf's own duration.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.importers.base import Document, Field, Item, Parsed, named
from harness.importers.sglang_bench_serving import failures
from harness.model import Finding
from harness.store.imported_runs import Number, Point, Scalar

_TAKEN = ("aiperf_version", "input_config", "start_time", "request_count", "error_summary", "was_cancelled")
_STATISTICS = ("avg", "min", "max", "p50", "p90", "p95", "p99", "std")


class AiPerf:
    """See harness.importers.base.Importer."""

    format = "aiperf"
    tool = "AIPerf"
    source = "aiperf/metrics/types/*.py, AIPerf 0.13.0"
    headline: tuple[str, ...] = ("time_to_first_token.p50", "inter_token_latency.p50", "output_token_throughput.avg")
    fields: tuple[Field, ...] = (
        Field("time_to_first_token", "ms", False, "first response − request start"),
        Field("time_to_second_token", "ms", False, "second response − first"),
        Field(
            "inter_token_latency",
            "ms",
            False,
            "a request's mean: (latency − TTFT) / (tokens − those of the first chunk)",
        ),
        Field("inter_chunk_latency", "ms", False, "gap between responses, however many tokens they hold"),
        Field("request_latency", "ms", False, "last response − request start"),
        Field("output_token_throughput", "tokens/sec", True, "output tokens ÷ benchmark duration"),
        Field("output_token_throughput_per_user", "tokens/sec/user", True, "1 ÷ a request's inter_token_latency"),
        Field("total_token_throughput", "tokens/sec", True, "input + output tokens ÷ benchmark duration"),
        Field("request_throughput", "requests/sec", True, "requests ÷ benchmark duration"),
        Field("output_sequence_length", "tokens", None, "re-tokenised, unless told to take the server's count"),
        Field("input_sequence_length", "tokens", None, "the same of the prompt"),
        Field("benchmark_duration", "sec", None, "first request's start to the last response"),
        Field("effective_concurrency", "requests", None, "requests in flight, over time"),
        Field("request_error_rate", "%", False, "failed ÷ all requests"),
    )

    def recognises(self, document: Document) -> bool:
        value = document.values[0][1]
        aggregates = isinstance(value, dict) and "aiperf_version" in value and "input_config" in value
        return _holds_requests(document) or (aggregates and not document.lines)

    def read(self, document: Document) -> Parsed:
        if _holds_requests(document):
            return self._from_requests(document)
        item = Item.of(document, 1, "", document.values[0][1])
        numbers, taken = [], {*_TAKEN}
        for field in self.fields:
            if tag := item.inner(field.name):
                taken.add(field.name)
                numbers += _of_tag(field, tag)
        completed = _value(item, "request_count")
        failed = sum(entry.count("count") or 0 for entry in item.items("error_summary"))
        cancelled = (
            (Finding("cancelled", "the run was cancelled", invalid=True),) if item.data.get("was_cancelled") else ()
        )
        settings, concurrency, rate = _load(item)
        point = Point(
            where="the file",
            measured_at=item.text("start_time"),
            concurrency=concurrency,
            rate=rate,
            requests=completed,
            failed=failed,
            settings=settings,
            numbers=tuple(numbers),
            findings=(*failures(completed, failed), *cancelled),
        )
        return Parsed(item.text("aiperf_version"), (point,), named(set(item.data) - taken))

    def _from_requests(self, document: Document) -> Parsed:
        samples: dict[str, list[float]] = {}
        units: dict[str, str] = {}
        good = bad = 0
        for line, value in document.values:
            item = Item.of(document, line, "", value)
            metadata, metrics = item.inner("metadata"), item.inner("metrics")
            if metadata is None or metrics is None or metadata.text("benchmark_phase") != "profiling":
                continue
            if item.data.get("error"):
                bad += 1
                continue
            good += 1
            for field in self.fields:
                if tag := metrics.inner(field.name):
                    samples.setdefault(field.name, []).extend(tag.all_numbers("value"))
                    units.setdefault(field.name, tag.text("unit") or field.unit)
        numbers: list[Number] = []
        for field in self.fields:
            if values := samples.get(field.name):
                numbers += _statistics(field, units[field.name], values)
        point = Point(
            where=f"{good} requests of the profiling phase",
            requests=good,
            failed=bad,
            settings={"statistics": "computed on import from single requests"},
            numbers=tuple(numbers),
            findings=failures(good, bad),
        )
        return Parsed("", (point,), ())


def _holds_requests(document: Document) -> bool:
    return all(isinstance(v, dict) and {"metadata", "metrics"} <= set(v) for _, v in document.values)


def _of_tag(field: Field, tag: Item) -> list[Number]:
    unit = tag.text("unit") or field.unit
    found = []
    for statistic in _STATISTICS:
        if (value := tag.number(statistic)) is not None:
            name = f"{field.name}.{statistic}"
            found.append(Number(name, value, unit, field.direction(name)))
    return found


def _value(item: Item, tag: str) -> int | None:
    inner = item.inner(tag)
    return inner.count("avg") if inner else None


def _statistics(field: Field, unit: str, values: Sequence[float]) -> list[Number]:
    computed = {"avg": np.mean(values), "min": np.min(values), "max": np.max(values), "std": np.std(values)}
    computed |= {f"p{p}": np.percentile(values, p) for p in (50, 90, 95, 99)}
    names = [(statistic, f"{field.name}.{statistic}") for statistic in _STATISTICS]
    return [Number(name, float(computed[statistic]), unit, field.direction(name)) for statistic, name in names]


def _load(item: Item) -> tuple[dict[str, Scalar], int | None, float | None]:
    """What was asked of the server, from the profiling phase of `input_config`."""
    config = item.inner("input_config")
    settings: dict[str, Scalar] = {}
    if config is None:
        return settings, None, None
    if endpoint := config.inner("endpoint"):
        settings |= endpoint.settings(("type", "streaming", "use_server_token_count"), "endpoint.")
    if models := config.inner("models"):
        names = [model.text("name") for model in models.items("items")]
        settings |= {"model": ", ".join(names)} if any(names) else {}
    phase = next((p for p in config.items("phases") if p.text("kind") == "profiling"), None)
    if phase is None:
        return settings, None, None
    return settings | phase.settings(("type", "requests")), phase.count("concurrency"), phase.number("rate")
