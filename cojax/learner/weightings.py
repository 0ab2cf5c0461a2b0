"""Weightings: the weight of each learned token of a batch. The loss of a batch is Σ weights · per-token loss.

A weighting maps lengths to weights. It runs on the host before packing and micro-batching, so that neither can change
it. `lengths` holds int64[K] for each of the G groups that count: the number of learned tokens of each of its K valid
trajectories. Flat groups count, whether or not they are computed. A weighting returns, for each group and each of its
trajectories, one number for all learned tokens or one number for each. Settings are keyword-only.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from cojax.registry import Range

Weighting = Callable[..., Any]


def group_token_mean(lengths: Sequence[np.ndarray]) -> list[np.ndarray]:
    """1 / (G · Σ_k|τ_k|): each group averages over its own tokens, and the batch over groups (CoEvolve, Eq. 1)."""
    return [np.full(len(counts), 1.0 / (len(lengths) * max(1, int(counts.sum())))) for counts in lengths]


def sequence_mean(lengths: Sequence[np.ndarray]) -> list[np.ndarray]:
    """1 / (G · K · |τ_k|): each trajectory averages over its own tokens (GRPO, arXiv 2402.03300, Eq. 3)."""
    return [1.0 / (len(lengths) * len(group_lengths) * np.maximum(group_lengths, 1)) for group_lengths in lengths]


def batch_token_mean(lengths: Sequence[np.ndarray]) -> list[np.ndarray]:
    """1 / Σ_g Σ_k|τ_k|: every token of the batch weighs the same (DAPO, arXiv 2503.14476, Eq. 8)."""
    token_count = max(1, sum(int(group_lengths.sum()) for group_lengths in lengths))
    return [np.full(len(group_lengths), 1.0 / token_count) for group_lengths in lengths]


def constant_length(lengths: Sequence[np.ndarray], *, length: Annotated[int, Range(1)]) -> list[np.ndarray]:
    """1 / (N · length) for N trajectories: it does not depend on sampled lengths, so that no length is favoured.

    `length` is that of the longest possible answer (Dr. GRPO, arXiv 2503.20783, §3.2).
    """
    trajectory_count = sum(len(group_lengths) for group_lengths in lengths)
    return [np.full(len(group_lengths), 1.0 / (trajectory_count * length)) for group_lengths in lengths]


WEIGHTINGS: Mapping[str, Weighting] = {
    "group_token_mean": group_token_mean,
    "sequence_mean": sequence_mean,
    "batch_token_mean": batch_token_mean,
    "constant_length": constant_length,
}


def check_weights(weights: Any, lengths: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
    """Checks the weights that a weighting returned, and gives float64[] or float64[n] for each trajectory.

    Raises ValueError for another number of weights, and for one that is negative or not finite.
    """
    arrays = [[np.asarray(weight, np.float64) for weight in group] for group in weights]
    if [len(group) for group in arrays] != [len(group) for group in lengths]:
        raise ValueError(
            f"the weighting returned weights for groups of {[len(group) for group in arrays]} trajectories; "
            f"expected {[len(group) for group in lengths]}"
        )
    for group, group_lengths in zip(arrays, lengths, strict=True):
        for weight, length in zip(group, group_lengths, strict=True):
            if weight.shape not in ((), (int(length),)) or not (np.isfinite(weight) & (weight >= 0)).all():
                raise ValueError(
                    f"the weighting returned {weight} for the {length} learned tokens of a trajectory; expected a "
                    "number of 0 or more, or one for each"
                )
    return arrays
