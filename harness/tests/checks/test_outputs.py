"""Arms must say the same: comparisons by hand."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from pathlib import Path

import pytest
from commands import run

from harness.checks.same_answers import agree, alone, differences, fixed_prompts
from harness.engines.base import read_output
from harness.model import Finding, Output
from harness.scenario.checked import OutputCheck

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
    assert codes(differences([tie], [answer([1, 9, 8])], "no-mtp", CHECK)) == []
    # Not a tie: the second choice was worse, or another token was taken, or the text just ends.
    for reference, other in [
        (answer([1, 2, 3], second=9, gap=0.5), [1, 9, 8]),
        (tie, [1, 7, 8]),
        (tie, [1, 2]),
    ]:
        assert codes(differences([reference], [answer(other)], "no-mtp", CHECK)) == ["output_differs"]
    # Without log-probabilities nothing can be a tie.
    assert codes(differences([Output((1, 2))], [Output((1, 3))], "no-mtp", CHECK)) == ["output_differs"]
    assert codes(differences([tie], [], "no-mtp", CHECK)) == ["output_differs"]


def test_logprobs_after_a_parting_do_not_count() -> None:
    reference = answer([1, 2, 3], second=9, gap=0.05)
    other = answer([1, 9, 8], [-0.5, -5.0, -5.0])
    assert agree([reference], [other], CHECK).mean_difference == 0.0


def test_logprobs_beyond_rounding_are_a_finding() -> None:
    [found] = differences([answer([1, 2])], [answer([1, 2], [-0.5, -0.6])], "no-mtp", CHECK)
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
