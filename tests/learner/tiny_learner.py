"""A policy of two layers, groups of its own trajectories and learners of it: what the learner's tests are tried on."""

import functools

import jax
import numpy as np
import optax
from compiling import initialize

from cojax.learner.learner import Learner
from cojax.learner.optimizer import adamw
from cojax.policy.config import ModelConfig
from cojax.policy.logprobs import token_logprobs
from cojax.types import Action, Group, Task, Trajectory, Turn

CONFIG = ModelConfig(
    vocab_size=16,
    hidden_size=8,
    intermediate_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
)
PARAMS = initialize(CONFIG, 0)


def make_trajectory(tokens, reward, *, logprobs=None, outcome="finished", sample=0):
    """Prompt (1, 2), then `tokens` as the action."""
    turn = Turn(
        Action(),
        prompt_tokens=(1, 2),
        action_tokens=tuple(tokens),
        action_logprobs=logprobs or sampled_logprobs(tokens),
        weights_version=0,
    )
    return Trajectory(Task("desk", "q", {}), f"0-ab-{sample}", turns=(turn,), reward=reward, outcome=outcome)


def sampled_logprobs(tokens, params=PARAMS, temperature=1.0):
    """What the policy itself gives the tokens after (1, 2)."""
    ids = [1, 2, *tokens]
    row = np.array([[*ids, *[0] * (16 - len(ids))]], np.int32)
    return tuple(np.asarray(_scored(params, row, row > 0, temperature)[0, 2 : len(ids)]).tolist())


@functools.partial(jax.jit, static_argnums=3)
def _scored(params, row, real, temperature):
    """One program for all lengths of up to 16 tokens, none of them 0."""
    positions, segment_ids = np.arange(16, dtype=np.int32)[None], real.astype(np.int32)
    return token_logprobs(CONFIG, params, row, positions, segment_ids, temperature=temperature)


def make_groups(count=3):
    """Groups of four trajectories of 3 to 6 action tokens, half of them rewarded."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(3, 16, (count, 4, 6)).tolist()
    return [
        Group(
            Task("desk", "q", {}),
            tuple(make_trajectory(row[: 3 + k], float(k % 2), sample=k) for k, row in enumerate(rows)),
        )
        for rows in tokens
    ]


GROUPS = make_groups()


ADAMW, SGD = adamw(1e-2), optax.sgd(1.0)


@functools.cache
def shared_learner(**changes):
    """Learners hold no state, only what they have compiled: one for each setting serves all tests."""
    return make_learner(**changes)


def make_learner(**changes):
    return Learner(CONFIG, **{"optimizer": ADAMW, "row_length": 16, "micro_rows": 2, **changes})


def bits(tree):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def flat_array(tree):
    return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(tree)])
