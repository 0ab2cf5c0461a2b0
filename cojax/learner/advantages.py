"""Advantages of one group: how much its trajectories are worth learning from, as a rule relative to their siblings.

Each function maps the rewards of a group's valid trajectories, float64[K] with K ≥ 2, to advantages float64[K]. A group
whose advantages are all exactly 0 teaches nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Advantage = Callable[[np.ndarray], np.ndarray]


def group_relative(rewards: np.ndarray, epsilon: float = 1e-6) -> np.ndarray:
    """Â_k = (r_k − mean r) / (std r + ε), the standard deviation over K − 1 (GRPO, arXiv 2402.03300, §4.1.2)."""
    return _centred(rewards) / (rewards.std(ddof=1) + epsilon)


def mean_centred(rewards: np.ndarray) -> np.ndarray:
    """Â_k = r_k − mean r: easy and hard tasks are not blown up by a small deviation (Dr. GRPO, arXiv 2503.20783)."""
    return _centred(rewards)


def leave_one_out(rewards: np.ndarray) -> np.ndarray:
    """Â_k = r_k − mean of the other K − 1 rewards = K/(K−1) · (r_k − mean r) (RLOO, arXiv 2402.14740)."""
    return _centred(rewards) * (rewards.size / (rewards.size - 1))


def success(rewards: np.ndarray) -> np.ndarray:
    """Â_k = 1 where r_k ≥ 1, else 0: the policy imitates its successes (rejection sampling; ReST, arXiv 2308.08998).

    With `loss="grpo"`, one update a step and no KL term this is the gradient of their log-likelihood.
    """
    return (rewards >= 1.0).astype(np.float64)


def _centred(rewards: np.ndarray) -> np.ndarray:
    """What sums to 0; exactly 0 where all are alike, which the rounding of a mean does not grant."""
    return np.zeros_like(rewards) if (rewards == rewards[0]).all() else rewards - rewards.mean()


ADVANTAGES: dict[str, Advantage] = {
    "group_relative": group_relative,
    "mean_centred": mean_centred,
    "leave_one_out": leave_one_out,
    "success": success,
}
