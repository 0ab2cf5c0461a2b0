"""The mean difference of two policies over the tasks that both played, with a 95 % interval."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from scipy.special import stdtrit


@dataclasses.dataclass(frozen=True)
class Paired:
    """The mean of other − one over `count` shared tasks, its 95 % interval, and on how many other scores more or less.

    The interval is over tasks: it says nothing of other seeds of the same two runs.
    """

    mean: float
    low: float
    high: float
    count: int
    better: int
    worse: int


def paired(one: Mapping[str, float], other: Mapping[str, float]) -> Paired | None:
    """Student's interval over the tasks' differences, x̄ ± t₀.₉₇₅(n−1) · s/√n; scores are in [0, 1], by id of the task.

    Where all differences are equal it is x̄ ± 3/n, as a share of 3/n of the tasks may differ unseen (Hanley and
    Lippman-Hand 1983). Both ends stay within [−1, 1]. None for fewer than two shared tasks.
    """
    differences = [other[task] - one[task] for task in sorted(one.keys() & other.keys())]
    count = len(differences)
    if count < 2:
        return None
    mean = math.fsum(differences) / count
    variance = math.fsum((value - mean) ** 2 for value in differences) / (count - 1)
    half = float(stdtrit(count - 1, 0.975)) * math.sqrt(variance / count) if variance > 1e-15 else 3 / count
    low, high = max(-1.0, mean - half), min(1.0, mean + half)
    better, worse = sum(value > 0 for value in differences), sum(value < 0 for value in differences)
    return Paired(mean, low, high, count, better, worse)
