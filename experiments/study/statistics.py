"""Means and paired differences over seeds, which are the sampling unit, with 95 % intervals."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from scipy.special import stdtrit


@dataclasses.dataclass(frozen=True)
class SeedEstimate:
    """A mean over `count` seeds and its 95 % interval (low, high), which is None for one seed."""

    mean: float
    low: float | None
    high: float | None
    count: int


def estimate(values: Sequence[float]) -> SeedEstimate:
    """Mean and Student's interval, x̄ ± t₀.₉₇₅(n−1) · s/√n with s² = Σ(x−x̄)²/(n−1) (Student 1908).

    Raises ValueError for no values.
    """
    if not values:
        raise ValueError("no value to estimate from; run at least one seed")
    count = len(values)
    mean = math.fsum(values) / count
    if count == 1:
        return SeedEstimate(mean, None, None, 1)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    half = float(stdtrit(count - 1, 0.975)) * math.sqrt(variance / count)
    return SeedEstimate(mean, mean - half, mean + half, count)


def paired_difference(one: Mapping[int, float], other: Mapping[int, float]) -> SeedEstimate | None:
    """`estimate` of one − other over the seeds that both have; None where they share none.

    Effects of the seed, above all of its warm start, cancel out.
    """
    shared = sorted(one.keys() & other.keys())
    return estimate([one[seed] - other[seed] for seed in shared]) if shared else None
