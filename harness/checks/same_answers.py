"""Do all arms say the same? Greedy outputs on fixed prompts, compared before anything is measured.

Speculation with greedy sampling must not change text, and another attention kernel only within rounding. So
every arm answers the same prompts, and is compared with the plainest arm of the same model: token for token,
and in the log-probability of each token, which shows a wrong kernel even where the text does not.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from harness.checks.passes import MAX_REPETITION
from harness.corpus import corpus
from harness.model import Finding, LaunchRecord, Output
from harness.scenario.checked import OutputCheck
from harness.scenario.format import Arm, Scenario

# Short prompts: there a key that is missing or should not be seen weighs most. None is a multiple of a page.
_LENGTHS = (23, 37, 50, 61, 75, 90, 109, 131)
_LEAST_LOGPROB = -8.0  # in the mean: a model that rates its own greedy tokens so low says nothing
_CHUNK = 2000


async def fixed_prompts(tokenize: Callable[[str], Awaitable[list[int]]], check: OutputCheck) -> list[list[int]]:
    """Token ids, the same for every arm and run with the same tokeniser. Lengths recur, texts do not."""
    ids: list[int] = []
    needed = sum(_LENGTHS) * -(-check.prompts // len(_LENGTHS))
    for document in corpus("prose", 20 * needed):
        for start in range(0, len(document), _CHUNK):
            if len(ids) >= needed:
                break
            ids += await tokenize(document[start : start + _CHUNK])
    prompts, place = [], 0
    for number in range(check.prompts):
        length = _LENGTHS[number % len(_LENGTHS)]
        prompts.append(ids[place : place + length])
        place += length
    return prompts


def reference_arm(scenario: Scenario, arm: Arm) -> str:
    """Whom `arm` must agree with: the first arm of the same model without speculation, else the baseline."""

    def model(other: Arm) -> object:
        return getattr(other.server, "model", None)

    arms = [other for other in scenario.resolved_arms() if model(other) == model(arm)]
    plain = [other.name for other in arms if other.speculative is False]
    return plain[0] if plain else scenario.baseline_arm


def check_outputs(scenario: Scenario, launches: Sequence[LaunchRecord]) -> dict[str, tuple[Finding, ...]]:
    """What is wrong with the outputs of each launch, by its slug; launches without outputs are left out."""
    arms = {arm.name: arm for arm in scenario.resolved_arms()}
    answered = [launch for launch in launches if launch.outputs and launch.arm in arms]
    found = {}
    for launch in answered:
        name = reference_arm(scenario, arms[launch.arm])
        references = [other for other in answered if other.arm == name and other.tp == launch.tp]
        problems = list(alone(launch.outputs))
        if references and launch.arm != name:
            problems += differences(references[0].outputs, launch.outputs, name, scenario.output_check)
        found[launch.slug] = tuple(problems)
    return found


def alone(outputs: Sequence[Output]) -> Iterator[Finding]:
    """Broken without any comparison: no number, garbage, a loop."""
    numbers = [value for output in outputs for value in output.logprobs]
    if any(value is None or not math.isfinite(value) for value in numbers):
        yield Finding("output_nan", "a log-probability is not a number: the model computes NaN", invalid=True)
    elif numbers and sum(v for v in numbers if v is not None) / len(numbers) < _LEAST_LOGPROB:
        yield Finding(
            "output_garbage",
            f"its own greedy tokens have a log-probability below {_LEAST_LOGPROB:g} in the mean: noise, not text",
            invalid=True,
        )
    looping = [o for o in outputs if len(o.ids) >= 16 and _commonest(o.ids) >= MAX_REPETITION]
    if looping:
        yield Finding(
            "output_repeats", f"{len(looping)} of {len(outputs)} outputs repeat one token: a broken model", invalid=True
        )


def differences(
    reference: Sequence[Output], outputs: Sequence[Output], name: str, check: OutputCheck
) -> Iterator[Finding]:
    """Where `outputs` leave those of the arm `name` by more than rounding can."""
    agreement = agree(reference, outputs, check)
    if agreement.mismatch:
        yield Finding("output_differs", f"its text is not {name}'s: {agreement.mismatch}", invalid=True)
    difference = agreement.mean_difference
    if difference is not None and difference > check.max_logprob_difference:
        yield Finding(
            "output_logprobs",
            f"its log-probabilities differ from {name}'s by {difference:.3f} in the mean of {agreement.compared} "
            f"tokens; rounding explains {check.max_logprob_difference:g}",
            invalid=True,
        )


@dataclass(frozen=True)
class Agreement:
    """`mean_difference`: |Δ log-probability| in the mean over the tokens before texts part, None if unknown."""

    compared: int
    ties: int
    mean_difference: float | None
    mismatch: str = ""


def agree(reference: Sequence[Output], outputs: Sequence[Output], check: OutputCheck) -> Agreement:
    """Compares answers prompt by prompt, each up to where the texts part."""
    if len(reference) != len(outputs):
        return Agreement(0, 0, None, f"{len(outputs)} answers, {len(reference)} expected")
    differences: list[float] = []
    compared, ties, mismatch = 0, 0, ""
    for number, (mine, theirs) in enumerate(zip(outputs, reference, strict=True), 1):
        common = _common(mine.ids, theirs.ids)
        compared += common
        pairs = zip(mine.logprobs[:common], theirs.logprobs[:common], strict=False)
        differences += [abs(a - b) for a, b in pairs if a is not None and b is not None]
        if common == max(len(mine.ids), len(theirs.ids)):
            continue
        if _tie(mine, theirs, common, check.tie):
            ties += 1
        elif not mismatch:
            mismatch = f"answer {number} parts at token {common + 1}, and not by a tie"
    mean = sum(differences) / len(differences) if differences else None
    return Agreement(compared, ties, mean, mismatch)


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _tie(mine: Output, theirs: Output, place: int, tie: float) -> bool:
    """Did `mine` take the reference's second choice where that was about as good as its first?"""
    if place >= min(len(mine.ids), len(theirs.ids), len(theirs.logprobs), len(theirs.runners_up)):
        return False
    first, (second, value) = theirs.logprobs[place], theirs.runners_up[place]
    return first is not None and second == mine.ids[place] and first - value <= tie


def _commonest(ids: Sequence[int]) -> float:
    return Counter(ids).most_common(1)[0][1] / len(ids)
