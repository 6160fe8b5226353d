"""As 0.5.16 has it: the pair of backends for prefill and decode does not say its context length."""

from typing import Any


class HybridAttnBackend:
    def __init__(self, model_runner: Any, prefill_backend: Any, decode_backend: Any) -> None:
        self.prefill_backend, self.decode_backend = prefill_backend, decode_backend
        if model_runner is not None:  # as 0.5.17 does
            self.max_context_len = model_runner.context_len
