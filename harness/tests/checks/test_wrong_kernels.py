"""A wrong attention kernel shows in what a model says: broken kernels on a model whose attention carries weight."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from harness.checks.same_answers import differences
from harness.model import Output
from harness.scenario.checked import OutputCheck
from kernel import ops
from kernel.call import Pages
from kernel.config import Arch
from kernel.reference import reference_attention
from kernel.tests.interpreter import quicken

if not torch.cuda.is_available():
    quicken()

CHECK = OutputCheck()
HEADS, HEAD, HIDDEN, VOCAB, PAGE, DRAFTS = 16, 256, 64, 400, 16, 4
K_SCALE, V_SCALE = 0.5, 2.0
ARCH = Arch("gfx950", 3)
Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, int], torch.Tensor]


class TinyDecoder:
    """One attention layer over a paged FP8 cache; the likeliest next token is a fixed successor, as in
    harness/engines/tiny_qwen35.py, and how likely it is depends on what attention returns."""

    def __init__(self) -> None:
        g = torch.Generator().manual_seed(1)
        self.embedding = torch.nn.functional.normalize(torch.randn(VOCAB, HIDDEN, generator=g), dim=1)
        self.q = torch.randn(HIDDEN, HEADS * HEAD, generator=g)
        self.k = torch.randn(HIDDEN, HEAD, generator=g) * 3.0
        self.v = torch.randn(HIDDEN, HEAD, generator=g)
        self.o = torch.randn(HEADS * HEAD, HIDDEN, generator=g) / (HEADS * HEAD) ** 0.5 * 0.2
        self.successor = torch.randperm(VOCAB, generator=g)

    def answer(self, prompt: list[int], tokens: int, attention: Attention) -> Output:
        """Greedy, four tokens a step: all drafts are right, as the successor is always the likeliest."""
        text = list(prompt)
        while len(text) < len(prompt) + tokens + 1:
            text.append(int(self.successor[text[-1]]))
        x = self.embedding[torch.tensor(text)]
        pages = -(-len(text) // PAGE) + 1
        cache = torch.zeros(2, pages, PAGE, 1, HEAD)
        for side, (weight, scale) in enumerate(((self.k, K_SCALE), (self.v, V_SCALE))):
            cache[side].view(-1, HEAD)[: len(text)] = x @ weight / scale
        keys, values = cache.to(torch.float8_e4m3fn)
        ids, logprobs, runners_up = [], [], []
        for start in range(len(prompt) - 1, len(prompt) + tokens - 1, DRAFTS):
            length = start + DRAFTS
            q = (x[start:length] @ self.q).view(DRAFTS, HEADS, HEAD).bfloat16()
            out = attention(q, keys, values, length).float().view(DRAFTS, -1)
            hidden = torch.nn.functional.normalize(x[start:length] + out @ self.o, dim=1)
            scores = (7.0 * hidden @ self.embedding.T).bfloat16().float()[:, torch.argsort(self.successor)]
            best = scores.log_softmax(1).topk(2)
            ids += best.indices[:, 0].tolist()
            logprobs += best.values[:, 0].tolist()
            runners_up += zip(best.indices[:, 1].tolist(), best.values[:, 1].tolist(), strict=True)
        return Output(tuple(ids), tuple(logprobs), tuple(runners_up))


def paged(length: int) -> Pages:
    return Pages(seqused_k=torch.tensor([length]), block_table=torch.arange(-(-length // PAGE))[None])


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: int) -> torch.Tensor:
    """As without speculation: token for token, by the fp32 reference."""
    rows = [
        reference_attention(
            q[n : n + 1], k, v, cu_seqlens_q=torch.tensor([0, 1]), softmax_scale=HEAD**-0.5, k_descale=K_SCALE,
            v_descale=V_SCALE, **vars(paged(length - DRAFTS + 1 + n)),
        )
        for n in range(DRAFTS)
    ]  # fmt: skip
    return torch.cat(rows)


def verify(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: int, k_scale: float = K_SCALE, v_scale: float = V_SCALE
) -> torch.Tensor:
    out = torch.empty_like(q)
    return ops.mtp_verify_attention(
        q, k, v, out, paged(length), cu_seqlens_q=torch.tensor([0, DRAFTS]), max_seqlen_q=DRAFTS, max_seqlen_k=1024,
        softmax_scale=HEAD**-0.5, k_descale=k_scale, v_descale=v_scale, arch=ARCH,
    )  # fmt: skip


def generic(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: int) -> torch.Tensor:
    out = torch.empty_like(q)
    return ops.generic_attention(
        q, k, v, out, paged(length), cu_seqlens_q=torch.tensor([0, DRAFTS]), max_seqlen_q=DRAFTS, max_seqlen_k=512,
        softmax_scale=HEAD**-0.5, k_descale=K_SCALE, v_descale=V_SCALE, arch=ARCH,
    )  # fmt: skip


def swapped_descales(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: int) -> torch.Tensor:
    return verify(q, k, v, length, V_SCALE, K_SCALE)


def last_page_dropped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: int) -> torch.Tensor:
    return verify(q, k, v, max((length - 1) // PAGE * PAGE, DRAFTS))


def drafts_see_each_other(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: int) -> torch.Tensor:
    out = torch.empty_like(q)
    pages = paged(length)
    alone = Pages(pages.seqused_k.repeat(DRAFTS), pages.block_table.repeat(DRAFTS, 1))
    return ops.mtp_verify_attention(
        q, k, v, out, alone, cu_seqlens_q=torch.arange(DRAFTS + 1), max_seqlen_q=1, max_seqlen_k=1024,
        softmax_scale=HEAD**-0.5, k_descale=K_SCALE, v_descale=V_SCALE, arch=ARCH,
    )  # fmt: skip


@pytest.fixture(scope="module")
def reference() -> list[Output]:
    return answers(plain)


def answers(attention: Attention) -> list[Output]:
    model, g = TinyDecoder(), torch.Generator().manual_seed(2)
    prompts = [torch.randint(0, VOCAB, (length,), generator=g).tolist() for length in (23, 37)]
    return [model.answer(prompt, 16, attention) for prompt in prompts]


on_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="its tensors lie on the CPU")


@on_cpu
@pytest.mark.parametrize("right", [verify, generic])
def test_a_right_kernel_passes(reference: list[Output], right: Attention) -> None:
    found = answers(right)
    assert [o.ids for o in found] == [o.ids for o in reference]
    assert not list(differences(reference, found, "no-mtp", CHECK))


@on_cpu
@pytest.mark.parametrize("broken", [last_page_dropped, drafts_see_each_other, swapped_descales])
def test_a_broken_kernel_is_caught(reference: list[Output], broken: Attention) -> None:
    found = list(differences(reference, answers(broken), "no-mtp", CHECK))
    assert found
    assert all(finding.invalid for finding in found)
