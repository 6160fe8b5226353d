"""How many tokens each verify step of a request yields: 1 + accepted drafts of a chain of k.

A draft is accepted with probability p if all before it were, so a step yields 1 + p + ... + p^k tokens in the mean.
Requests differ in their mean. A request has the same draws in every arm, launch and run, as greedy decoding has, but
for a share of the texts of each launch, which rounding has made others.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Acceptance(Protocol):
    """How a request's tokens come."""

    def totals(self, position: int, tokens: int, step: int) -> Ints:
        """Output tokens after prefill and after each step up to `tokens`: begins with 1, ends with `tokens`.

        Args:
            position: the request's place among all prompts of the run.
            tokens: that it generates.
            step: number of the server's step that is its first.
        """
        ...


@dataclass(frozen=True)
class OneByOne:
    """No speculation."""

    def totals(self, position: int, tokens: int, step: int) -> Ints:
        return np.arange(1, tokens + 1)


@dataclass(frozen=True)
class Natural:
    """Drafts of a real model: `mean` tokens a step, requests spread around it by `spread` (standard deviation).

    `other_texts`: share of requests whose draws come from `launch`, not from `workload` alone.
    """

    mean: float
    spread: float
    drafts: int
    workload: int
    launch: int = 0
    other_texts: float = 0.0

    def totals(self, position: int, tokens: int, step: int) -> Ints:
        draw = np.random.default_rng((self.workload, position))
        own = float(np.clip(draw.normal(self.mean, self.spread), 1.0, self.drafts + 1.0))
        of_launch = np.random.default_rng((self.workload, position, self.launch))
        if of_launch.random() < self.other_texts:
            draw = of_launch
        # Rounded so that the bisection below is shared by requests that are about alike.
        yields = chain_yields(draw, chain_probability(round(own, 3), self.drafts), self.drafts, tokens)
        return _until(yields, tokens)


class Simulated:
    """SGLANG_SIMULATE_ACC_LEN: the whole batch draws floor or ceiling of `mean` once a step."""

    def __init__(self, mean: float, seed: int) -> None:
        self._mean, self._draw = mean, np.random.default_rng((seed, 1 << 30))
        self._yields = np.empty(0, dtype=np.int64)

    def totals(self, position: int, tokens: int, step: int) -> Ints:
        while len(self._yields) < step + tokens:
            low = int(self._mean)
            more = low + (self._draw.random(4096) < self._mean - low)
            self._yields = np.concatenate([self._yields, more])
        return _until(self._yields[step : step + tokens], tokens)


@lru_cache(maxsize=4096)
def chain_probability(mean: float, drafts: int) -> float:
    """p with 1 + p + ... + p^drafts = mean, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if sum(middle**n for n in range(drafts + 1)) < mean:
            low = middle
        else:
            high = middle
    return high


def chain_yields(draw: np.random.Generator, probability: float, drafts: int, steps: int) -> Ints:
    """Tokens of each of `steps` steps: 1 + the drafts before the first that fails."""
    accepted = draw.random((steps, drafts)) < probability
    return np.asarray(1 + np.cumprod(accepted, axis=1).sum(axis=1), dtype=np.int64)


def _until(yields: Ints, tokens: int) -> Ints:
    totals = np.concatenate([[1], 1 + np.cumsum(yields)])
    steps = int(np.searchsorted(totals, tokens))
    totals = totals[: steps + 1]
    totals[-1] = tokens
    return totals
