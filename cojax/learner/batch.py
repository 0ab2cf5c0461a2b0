"""`TrainBatch`: rows of tokens with what the loss reads of each, and the loss's normalisation as weights."""

import dataclasses
from typing import Any

import jax
import numpy as np


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainBatch:
    """B rows of T tokens, NumPy on the host and JAX arrays inside jit. Any leading axes are allowed.

    tokens: int32[B, T], 0 at padding.
    segment_ids: int32[B, T], 1, 2, … for the sequences of a row; 0 at padding, which is only at the end of a row.
    positions: int32[B, T], the index of a token in its own sequence.
    advantages: float32[B, T], as the advantage gave them; in a batch of pairs 1 for the better, -1 for the worse.
    sampler_logprobs: float32[B, T], log π of the sampler for the tokens that it sampled, 0 elsewhere.
    versions: int32[B, T], the version of the weights that sampled the token; -1 for tokens that were not sampled.
    reference_logprobs, old_logprobs: float32[B, T], filled by the learner where the loss needs them.
    weights: float32[B, T], > 0 exactly at the tokens that are learned from; loss = Σ weights · per-token loss.
    sequences, tasks, groups: int32[B, T], the number of the token's trajectory, task and group in the batch, from 0 on;
        -1 at padding. In a batch of pairs a group is a pair.
    turns: int32[B, T], the number of the token's turn in its sequence, from 0 on; -1 at padding.
    lengths: int32[B, T], number of learned tokens in the token's sequence.
    group_sizes: int32[B, T], number of trajectories in the token's group.
    rewards: float32[B, T], reward of the token's trajectory.
    routes: int8 or int16[B, T, L, k], the experts that the token went through in the sampler, -1 where they are not
        known; None for a learner that does not read them.
    """

    tokens: Any
    segment_ids: Any
    positions: Any
    advantages: Any
    sampler_logprobs: Any
    versions: Any
    reference_logprobs: Any
    old_logprobs: Any
    weights: Any
    sequences: Any
    tasks: Any
    groups: Any
    turns: Any
    lengths: Any
    group_sizes: Any
    rewards: Any
    routes: Any = None


_INTEGERS = ("tokens", "segment_ids", "positions", "versions", "sequences", "tasks", "groups", "turns", "lengths",
             "group_sizes")  # fmt: skip
IDS = ("versions", "sequences", "tasks", "groups", "turns")  # -1 where a token has none
DTYPES = {
    field.name: np.dtype(np.int32 if field.name in _INTEGERS else np.float32)
    for field in dataclasses.fields(TrainBatch)
    if field.name != "routes"
}
