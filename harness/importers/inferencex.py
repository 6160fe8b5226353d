"""InferenceX (InferenceMAX): `agg_*.json`, one object or an array of them. **Seconds**; a GPU is one of `tp`.

`std_intvty` is 1 / std of TPOT, which means nothing, and is not taken.
"""

from __future__ import annotations

from harness.importers.base import MAX_POINTS, Document, Field, Item, Parsed, left_over, named
from harness.store.imported_runs import Point

_SETTINGS = (
    *("hw", "conc", "image", "model", "infmax_model_prefix", "framework", "precision", "spec_decoding", "mtp"),
    *("disagg", "isl", "osl", "is_multinode", "tp", "ep", "dp_attention", "num_prefill_gpu", "num_decode_gpu"),
)
_ARM = ("hw", "framework", "precision", "spec_decoding")
_MEANINGLESS = ("std_intvty",)


class InferenceX:
    """See harness.importers.base.Importer."""

    format = "inferencex"
    tool = "InferenceX"
    source = "utils/process_result.py, SemiAnalysisAI/InferenceX 77f3e68; its client is vLLM's"
    headline: tuple[str, ...] = ("median_ttft", "median_tpot", "median_intvty", "output_tput_per_gpu")
    fields: tuple[Field, ...] = (
        Field("tput_per_gpu", "tokens/s", True, "total_token_throughput ÷ GPUs"),
        Field("output_tput_per_gpu", "tokens/s", True, "output_throughput ÷ GPUs (÷ decode GPUs when disaggregated)"),
        Field("input_tput_per_gpu", "tokens/s", True, "the difference ÷ GPUs (÷ prefill GPUs when disaggregated)"),
        Field("{stat}_ttft", "s", False, "vLLM's {stat}_ttft_ms ÷ 1000"),
        Field("{stat}_tpot", "s", False, "vLLM's {stat}_tpot_ms ÷ 1000"),
        Field("{stat}_itl", "s", False, "vLLM's {stat}_itl_ms ÷ 1000: gap between chunks"),
        Field("{stat}_e2el", "s", False, "vLLM's {stat}_e2el_ms ÷ 1000"),
        Field("{stat}_e2e", "s", False, "the same under another name"),
        Field("{stat}_intvty", "tokens/s/user", True, "1000 ÷ vLLM's {stat}_tpot_ms; p99_intvty is of the SLOWEST"),
    )

    def recognises(self, document: Document) -> bool:
        wanted = {"hw", "conc", "tput_per_gpu"}
        values = _flat(document)
        return bool(values) and all(isinstance(value, dict) and wanted <= set(value) for _, _, value in values)

    def read(self, document: Document) -> Parsed:
        values = _flat(document)
        if len(values) > MAX_POINTS:
            raise Item.of(document, 1, "", {}).problem("", f"has more than {MAX_POINTS} results")
        items = [(where, Item.of(document, line, where if not document.lines else "", v)) for where, line, v in values]
        points = tuple(
            Point(
                where=where,
                arm=" ".join(text for key in _ARM if (text := item.text(key))),
                concurrency=item.count("conc"),
                settings=item.settings(_SETTINGS),
                numbers=item.numbers(self.fields, _MEANINGLESS),
            )
            for where, item in items
        )
        ignored = left_over([i for _, i in items], _SETTINGS, self.fields)
        return Parsed("", points, named([*ignored, *(k for _, i in items for k in _MEANINGLESS if k in i.data)]))


def _flat(document: Document) -> list[tuple[str, int, object]]:
    """(where, line, value) of each result: of an array, of lines, or the only one."""
    [(line, first), *others] = document.values
    if isinstance(first, list) and not others:
        return [(f"[{n}]", line, value) for n, value in enumerate(first)]
    if document.lines:
        return [(f"line {n}", n, value) for n, value in document.values]
    return [("the file", line, first)]
