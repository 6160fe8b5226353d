"""What each arm is checked for before it is measured: the same answers as others, and accuracy.

Parts of the file format, see `format.py`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from harness.fields import Count, Strict, Timeout


class OutputCheck(Strict):
    """Every arm answers the same prompts before it is measured, and must agree with the plainest arm of its model
    (the first without speculation). It can't be turned off; dummy weights and simulated acceptance can't be checked."""

    prompts: Count = 16
    """How many."""

    output_tokens: Count = 48
    """Tokens of each answer."""

    max_logprob_difference: Annotated[float, Field(gt=0)] = 0.03
    """Mean difference of log-probabilities that rounding may cause."""

    tie: Annotated[float, Field(ge=0)] = 0.1
    """Texts may part where the two best tokens are so close, in log-probability."""


class Gsm8k(Strict):
    """GSM8K through SGLang's evaluator, once an arm and TP, before anything is measured."""

    questions: Count = 200
    """How many problems."""

    least: Annotated[float, Field(ge=0, le=1)]
    """Share that must be solved."""

    parallel: Count = 32
    """Problems at once."""

    data: str | None = None
    """A local copy of the test questions (JSON lines); in a container, as it is mounted there. Default: fetched."""

    timeout: Timeout = 1800.0
    """How long it may take."""


class Accuracy(Strict):
    """Evaluations of the text, for machines that have the weights."""

    gsm8k: Gsm8k | None = None
    """Grade-school mathematics."""
