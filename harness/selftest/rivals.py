"""What other rules say of the histories of `histories`, for comparison: a fixed threshold, and Otava where it is there.

Otava (Apache, 0.8.0) is no dependency: it pins numpy. Where it is installed, `mtpbench selftest series` has its column.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable, Sequence

import numpy as np

from harness.selftest.histories import CASES, Case, Truth, draw_history
from harness.stats.inference import Floats

THRESHOLD = math.log(1.05)  # between two nights: what github-action-benchmark does, with its users' usual bound
Rule = Callable[[Floats], Sequence[tuple[int, bool]]]  # values → (night, is it for the worse?) of each change


def fixed_threshold(values: Floats) -> Sequence[tuple[int, bool]]:
    """Nights that are more than 5 % off the night before."""
    steps = np.diff(values)
    return [(int(night) + 1, bool(steps[night] > 0)) for night in np.flatnonzero(np.abs(steps) > THRESHOLD)]


def otava() -> Rule | None:
    """Otava's change points, by its defaults; None where it is not installed."""
    if importlib.util.find_spec("otava") is None:
        return None
    analysis = importlib.import_module("otava.analysis")

    def rule(values: Floats) -> Sequence[tuple[int, bool]]:
        found, _ = analysis.compute_change_points(np.exp(values).tolist(), window_len=50, max_pvalue=0.001)
        return [(point.index, point.stats.mean_2 > point.stats.mean_1) for point in found]

    return rule


def rules() -> dict[str, Rule]:
    """Name → rule."""
    found = otava()
    known: dict[str, Rule] = {"5 % above the night before": fixed_threshold}
    return known | {"Otava": found} if found is not None else known


def share(case: Case, rule: Rule, repetitions: int, seed: int) -> float | None:
    """How often a rule has the figure of a case, on the histories that the model had; None where it has no such figure.

    It is asked once, after the last night, so false alerts that it takes back later do not count against it.
    """
    if case.what.startswith("size"):
        return None
    draw, hits = np.random.default_rng([seed, CASES.index(case)]), 0
    for _ in range(repetitions):
        drawn = draw_history(case.kind, draw)
        hits += _hit(drawn.truth, [values for _, values in drawn.hosts], rule)
    return hits / repetitions


def _hit(truth: Truth, hosts: Sequence[Floats], rule: Rule) -> bool:
    if not truth.size:
        return any(worse for values in hosts for row in values.T for _, worse in rule(row))
    said = rule(hosts[0][:, 0])
    if truth.until is not None:
        return bool(said) and said[-1][1]
    return any(worse and night >= truth.at - 1 for night, worse in said)
