"""Advantages of one group: how much better each trajectory did than its siblings.

Each function maps the rewards of a group's valid trajectories, float64[K] with K ≥ 2, to advantages float64[K] that
sum to 0.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Advantage = Callable[[np.ndarray], np.ndarray]


def group_relative(rewards: np.ndarray, epsilon: float = 1e-6) -> np.ndarray:
    """Â_k = (r_k − mean r) / (std r + ε), the standard deviation over K − 1 (GRPO, arXiv 2402.03300, §4.1.2)."""
    return (rewards - rewards.mean()) / (rewards.std(ddof=1) + epsilon)


def mean_centred(rewards: np.ndarray) -> np.ndarray:
    """Â_k = r_k − mean r: easy and hard tasks are not blown up by a small deviation (Dr. GRPO, arXiv 2503.20783)."""
    return rewards - rewards.mean()


def leave_one_out(rewards: np.ndarray) -> np.ndarray:
    """Â_k = r_k − mean of the other K − 1 rewards = K/(K−1) · (r_k − mean r) (RLOO, arXiv 2402.14740)."""
    return (rewards - rewards.mean()) * (rewards.size / (rewards.size - 1))


ADVANTAGES: dict[str, Advantage] = {
    "group_relative": group_relative,
    "mean_centred": mean_centred,
    "leave_one_out": leave_one_out,
}
