"""JSON of any form, with the keys that readers look for, and events made of it."""

from __future__ import annotations

import json

from hypothesis import strategies as st

KEYS = st.sampled_from([
    "choices", "usage", "timings", "meta_info", "output_ids", "text", "delta", "content", "reasoning", "error",
    "object", "reasoning_content", "tool_calls", "function", "arguments", "name", "completion_tokens", "prompt_tokens",
    "message",
    "prompt_tokens_details", "cached_tokens", "completion_tokens_details", "reasoning_tokens", "predicted_n", "cache_n",
    "draft_n_accepted", "finish_reason", "type", "spec_verify_ct", "thinking",
])  # fmt: skip
LEAF = st.none() | st.booleans() | st.integers(-3, 40) | st.integers() | st.floats() | st.text(max_size=5)
JSON = st.recursive(
    LEAF | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)
EVENT = (
    st.dictionaries(KEYS, JSON, min_size=1, max_size=4).map(lambda value: json.dumps(value).encode())
    | JSON.map(lambda value: json.dumps(value).encode())
    | st.binary(max_size=40)
    | st.just(b"[DONE]")
)
