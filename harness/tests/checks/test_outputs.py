"""Arms must say the same: comparisons by hand, and broken attention kernels on a model that shows them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from commands import run

from harness.checks.same_answers import agree, alone, compare, fixed_prompts
from harness.engines.base import read_output
from harness.model import Finding, Output
from harness.scenario.format import OutputCheck
from kernel import ops
from kernel.config import Arch
from kernel.reference import reference_attention
from kernel.tests.interpreter import quicken

if not torch.cuda.is_available():
    quicken()

CHECK = OutputCheck()


def answer(ids: list[int], logprobs: list[float | None] | None = None, second: int = 99, gap: float = 1.0) -> Output:
    values = [-0.5] * len(ids) if logprobs is None else logprobs
    return Output(tuple(ids), tuple(values), tuple((second, (v or 0.0) - gap) for v in values))


def codes(found: Iterable[Finding]) -> list[str]:
    findings = list(found)
    assert all(finding.invalid for finding in findings)
    return [finding.code for finding in findings]


def test_equal_answers_agree() -> None:
    agreement = agree([answer([1, 2, 3])], [answer([1, 2, 3], [-0.5, -0.6, -0.4])], CHECK)
    assert (agreement.compared, agreement.ties, agreement.mismatch) == (3, 0, "")
    assert agreement.mean_difference == pytest.approx(0.2 / 3)


def test_texts_may_part_only_at_a_tie() -> None:
    tie = answer([1, 2, 3], second=9, gap=0.05)
    assert agree([tie], [answer([1, 9, 8])], CHECK).ties == 1
    assert codes(compare([tie], [answer([1, 9, 8])], "no-mtp", CHECK)) == []
    # Not a tie: the second choice was worse, or another token was taken, or the text just ends.
    for reference, other in [
        (answer([1, 2, 3], second=9, gap=0.5), [1, 9, 8]),
        (tie, [1, 7, 8]),
        (tie, [1, 2]),
    ]:
        assert codes(compare([reference], [answer(other)], "no-mtp", CHECK)) == ["output_differs"]
    # Without log-probabilities nothing can be a tie.
    assert codes(compare([Output((1, 2))], [Output((1, 3))], "no-mtp", CHECK)) == ["output_differs"]
    assert codes(compare([tie], [], "no-mtp", CHECK)) == ["output_differs"]


def test_logprobs_after_a_parting_do_not_count() -> None:
    reference = answer([1, 2, 3], second=9, gap=0.05)
    other = answer([1, 9, 8], [-0.5, -5.0, -5.0])
    assert agree([reference], [other], CHECK).mean_difference == 0.0


def test_logprobs_beyond_rounding_are_a_finding() -> None:
    [found] = compare([answer([1, 2])], [answer([1, 2], [-0.5, -0.6])], "no-mtp", CHECK)
    assert (found.code, found.invalid) == ("output_logprobs", True)
    assert "by 0.050 in the mean of 2 tokens; rounding explains 0.03" in found.message


def test_broken_without_comparison() -> None:
    assert codes(alone([answer([1, 2])])) == []
    assert codes(alone([answer([1, 2], [-0.5, None])])) == ["output_nan"]
    assert codes(alone([answer([1, 2], [-0.5, math.inf])])) == ["output_nan"]
    assert codes(alone([answer([1, 2], [-9.0, -9.5])])) == ["output_garbage"]
    assert codes(alone([answer([7] * 20), answer(list(range(20)))])) == ["output_repeats"]


def test_sglangs_answer_is_read() -> None:
    meta = {
        "output_token_logprobs": [[-0.25, 5, None], [float("nan"), 6, None]],
        "output_top_logprobs": [[[-0.25, 5, None], [-2.0, 8, None]], [[-0.1, 9, None], [-0.3, 6, None]]],
    }
    assert read_output(meta) == Output((5, 6), (-0.25, None), ((8, -2.0), (9, -0.1)))
    assert read_output({}) == Output(())


def test_prompts_are_fixed_and_distinct() -> None:
    async def tokenize(text: str) -> list[int]:
        return [ord(c) for c in text]

    first = asyncio.run(fixed_prompts(tokenize, CHECK))
    assert first == asyncio.run(fixed_prompts(tokenize, CHECK))
    assert len(first) == len({tuple(p) for p in first}) == CHECK.prompts
    assert min(map(len, first)) == 23
    assert max(map(len, first)) == 131


def test_an_arm_that_says_something_else_is_not_measured(tmp_path: Path) -> None:
    text = """\
version: 1
name: shifted
question: Is an arm with another text refused?
server: {engine: scripted, api: sglang, ttft: 5ms, step: 2ms}
arms:
  drafts: {chunk_tokens: [4], speculative: true}
  wrong: {chunk_tokens: [4], speculative: true, answer_shift: 1}
  plain: {}
workload: {prompts: prose, input_tokens: 32, output_tokens: 16}
arrival: {concurrency: [1], requests_per_slot: 4, min_requests: 8}
launches: 2
"""
    stored, output = run(tmp_path, text, check=2)
    wrong = [launch for launch in stored.launches if launch.arm == "wrong"]
    # The first start comes before the plain arm's, so only the report can compare it; the second is refused.
    assert "its text is not plain's: answer 1 parts at token 1, and not by a tie" in output
    assert [f.code for f in wrong[1].findings] == ["output_differs"]
    assert [p.record.key.launch for p in stored.passes if p.record.key.arm == "wrong"] == [0]
    assert "INVALID: its text" in " ".join(output.split())


# --- A model whose attention carries weight: a wrong kernel must show ---

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


def paged(length: int) -> dict[str, torch.Tensor]:
    pages = -(-length // PAGE)
    return {"seqused_k": torch.tensor([length]), "block_table": torch.arange(pages)[None]}


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: int) -> torch.Tensor:
    """As without speculation: token for token, by the fp32 reference."""
    rows = [
        reference_attention(
            q[n : n + 1], k, v, cu_seqlens_q=torch.tensor([0, 1]), softmax_scale=HEAD**-0.5, k_descale=K_SCALE,
            v_descale=V_SCALE, **paged(length - DRAFTS + 1 + n),
        )
        for n in range(DRAFTS)
    ]  # fmt: skip
    return torch.cat(rows)


def verify(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: int, k_scale: float = K_SCALE, v_scale: float = V_SCALE
) -> torch.Tensor:
    out = torch.empty_like(q)
    return ops.mtp_verify_attention(
        q, k, v, out, cu_seqlens_q=torch.tensor([0, DRAFTS]), max_seqlen_q=DRAFTS, max_seqlen_k=1024,
        softmax_scale=HEAD**-0.5, k_descale=k_scale, v_descale=v_scale, arch=ARCH, **paged(length),
    )  # fmt: skip


def generic(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: int) -> torch.Tensor:
    out = torch.empty_like(q)
    return ops.generic_attention(
        q, k, v, out, cu_seqlens_q=torch.tensor([0, DRAFTS]), max_seqlen_q=DRAFTS, max_seqlen_k=512,
        softmax_scale=HEAD**-0.5, k_descale=K_SCALE, v_descale=V_SCALE, arch=ARCH, **paged(length),
    )  # fmt: skip


def swapped_descales(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: int) -> torch.Tensor:
    return verify(q, k, v, length, V_SCALE, K_SCALE)


def last_page_dropped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: int) -> torch.Tensor:
    return verify(q, k, v, max((length - 1) // PAGE * PAGE, DRAFTS))


def drafts_see_each_other(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: int) -> torch.Tensor:
    out = torch.empty_like(q)
    where = paged(length)
    return ops.mtp_verify_attention(
        q, k, v, out, cu_seqlens_q=torch.arange(DRAFTS + 1), max_seqlen_q=1, max_seqlen_k=1024,
        seqused_k=where["seqused_k"].repeat(DRAFTS), block_table=where["block_table"].repeat(DRAFTS, 1),
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
    assert codes(compare(reference, found, "no-mtp", CHECK)) == []


@on_cpu
@pytest.mark.parametrize("broken", [last_page_dropped, drafts_see_each_other, swapped_descales])
def test_a_broken_kernel_is_caught(reference: list[Output], broken: Attention) -> None:
    assert codes(compare(reference, answers(broken), "no-mtp", CHECK))
