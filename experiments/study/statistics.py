"""Means over seeds, paired differences and their intervals.

A `Successes` maps a seed to a success, None if there was nothing to evaluate on.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import ndtri, stdtr, stdtrit

from cojax.report.figures import compute_student

Successes = Mapping[int, float | None]
_RESAMPLES = 10_000
_RANDOM_SEED = 20_261_130  # of the resamples: a page has the same digits whenever it is written


def estimate(values: Sequence[float | None]) -> dict[str, Any]:
    """The `mean` over `count` seeds, and `low` and `high`, its 95 % interval, which are None for one seed.

    All three are None if a run was not evaluated. The interval is Student's (1908), x̄ ± t₀.₉₇₅(n−1) · s/√n with
    s² = Σ(x−x̄)²/(n−1). Raises ValueError for no values.
    """
    if not values:
        raise ValueError("no value to estimate from; run at least one seed")
    known_values = [value for value in values if value is not None]
    if len(known_values) < len(values):
        return {"mean": None, "low": None, "high": None, "count": len(values)}
    if len(known_values) == 1:
        return {"mean": known_values[0], "low": None, "high": None, "count": 1}
    mean, _, half_width = compute_student(known_values)
    return {"mean": mean, "low": mean - half_width, "high": mean + half_width, "count": len(known_values)}


def list_differences(successes: Successes, other_successes: Successes) -> dict[int, float | None]:
    """Seed → `successes` − `other_successes`, of the seeds that both have; None where one of them is."""
    pairs = {seed: (successes[seed], other_successes[seed]) for seed in sorted(successes.keys() & other_successes)}
    return {seed: None if one is None or other is None else one - other for seed, (one, other) in pairs.items()}


def estimate_difference(successes: Successes, other_successes: Successes) -> dict[str, Any]:
    """`estimate` of `successes` − `other_successes` over the seeds that both have.

    Effects of the seed, above all of its warm start, cancel out. Raises ValueError if the two share no seed.
    """
    return estimate(list(list_differences(successes, other_successes).values()))


def compute_p_value(differences: Sequence[float | None]) -> float | None:
    """The two-sided p of Student's paired t-test that the mean is 0; None for fewer than two, or if one is unknown."""
    values = [value for value in differences if value is not None]
    if len(values) < max(2, len(differences)):
        return None
    mean, variance, _ = compute_student(values)
    if not variance:
        return 0.0 if mean else 1.0
    return float(2 * stdtr(len(values) - 1, -abs(mean) / math.sqrt(variance / len(values))))


def adjust_holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's (1979) adjusted p of each test of a family; None where there is no p, which is no test of the family."""
    order = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, index) in enumerate(order):
        largest = max(largest, min(1.0, p * (len(order) - rank)))
        adjusted[index] = largest
    return adjusted


def resample_seeds_and_tools(
    bits: Sequence[str], other_bits: Sequence[str], tools: Sequence[str]
) -> tuple[float, float] | None:
    """The 95 % interval of a paired difference of success if other seeds and other tools had been drawn.

    `bits` and `other_bits` say for each seed, with one character for each task, whether the task was solved: 1 or 0.
    `tools` are the tasks' tools. Seeds and tools are drawn with replacement, independently of each other (the
    pigeonhole bootstrap of Owen, 2007). Percentiles of the draws are too near the mean if seeds are few: their distance
    is multiplied by t₀.₉₇₅(n−1) / 1.96 · √(n / (n−1)) for n seeds. None for a single seed or tool.
    """
    tool_names = sorted(set(tools))
    if len(bits) < 2 or len(tool_names) < 2:
        return None
    columns = np.array([tool_names.index(tool) for tool in tools])
    task_counts = np.bincount(columns)
    gains = np.array([_to_array(one) - _to_array(other) for one, other in zip(bits, other_bits, strict=True)])
    sums = np.stack([np.bincount(columns, weights=gain) for gain in gains])
    rng = np.random.default_rng(_RANDOM_SEED)
    seed_weights, tool_weights = (rng.multinomial(n, np.full(n, 1 / n), _RESAMPLES) for n in sums.shape)
    means = np.einsum("rs,st,rt->r", seed_weights, sums, tool_weights) / (len(bits) * (tool_weights @ task_counts))
    mean, (low, high) = sums.sum() / (len(bits) * len(tools)), np.percentile(means, [2.5, 97.5])
    widening = stdtrit(len(bits) - 1, 0.975) / ndtri(0.975) * math.sqrt(len(bits) / (len(bits) - 1))
    return float(mean - widening * (mean - low)), float(mean + widening * (high - mean))


def _to_array(bits: str) -> np.ndarray:
    return np.frombuffer(bits.encode(), np.uint8).astype(np.float64) - ord("0")
