"""The Triton backend's forward_extend as far as target-verify goes, over a pool that lies on the CPU."""

import os
from types import SimpleNamespace

import torch

HEADS, HEAD, DRAFTS, PAGE = 16, 256, 4, 16


class Mode:
    def __init__(self, verify, draft_extend=False):
        self._verify = verify
        self._draft_extend = draft_extend

    def is_target_verify(self):
        return self._verify

    def is_draft_extend_v2(self):
        return self._draft_extend


class TritonAttnBackend:
    """`plain_calls` counts the calls that its own attention served."""

    def __init__(self, slots=64, kv_dtype=torch.float8_e4m3fn):
        self.topk = 1
        self.max_context_len = 1024
        self.k_pool = torch.randn(slots, 1, HEAD).to(kv_dtype)
        self.v_pool = torch.randn(slots, 1, HEAD).to(kv_dtype)
        self.plain_calls = 0
        self.extend_attention_fwd = self._plain

    def _plain(self, *args, **kwargs):
        self.plain_calls += 1

    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True, sinks=None, score_mod=None):
        out = torch.zeros_like(q)
        meta = forward_batch.meta
        self.extend_attention_fwd(
            q.view(-1, layer.tp_q_head_num, layer.qk_head_dim),
            k,
            v,
            out.view(-1, layer.tp_q_head_num, layer.qk_head_dim),
            self.k_pool,
            self.v_pool,
            meta.qo_indptr,
            meta.kv_indptr,
            meta.kv_indices,
            None,
            True,
            None,
            meta.max_extend_len,
            1.0,
            1.0,
            layer.scaling,
            logit_cap=layer.logit_cap,
            sliding_window_size=layer.sliding_window_size,
            sinks=sinks,
            xai_temperature_len=-1,
            score_mod=score_mod,
        )
        return out


def batch(size, prefix=8, drafts=DRAFTS):
    """A target-verify batch: `prefix` tokens a sequence, drafts in the slots behind."""
    width = prefix + drafts
    slots = torch.arange(size * width).view(size, width)
    meta = SimpleNamespace(
        qo_indptr=torch.arange(size + 1) * drafts,
        kv_indptr=(torch.arange(size + 1) * prefix).to(torch.int32),
        kv_indices=slots[:, :prefix].flatten(),
        max_extend_len=drafts,
    )
    return SimpleNamespace(
        forward_mode=Mode(True),
        seq_lens=torch.full((size,), prefix),
        out_cache_loc=slots[:, prefix:].flatten(),
        meta=meta,
    )


def layer(heads=HEADS, head=HEAD, **changes):
    values = {"tp_q_head_num": heads, "qk_head_dim": head, "scaling": head**-0.5, "logit_cap": 0.0}
    return SimpleNamespace(**{**values, "sliding_window_size": -1, **changes})


if os.environ.get("STANDIN_FAULT") == "renamed":
    TritonAttnBackend.forward_extend_v2 = TritonAttnBackend.forward_extend
    del TritonAttnBackend.forward_extend
