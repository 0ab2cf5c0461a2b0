"""Every shipped loss, packed and cut into micro-batches, and every weighting in turn: what plain float64 loops give."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import plain_losses
import pytest

from cojax.learner.advantages import group_relative
from cojax.learner.batch import RowShape, TrainBatch, draw_pairs, pack
from cojax.learner.losses import LOSSES
from cojax.learner.objective import bind_loss, objective
from cojax.learner.weightings import WEIGHTINGS
from cojax.policy.logprobs import TokenScores
from cojax.types import Action, Group, Task, Trajectory, Turn

SEED, MICRO_ROWS, ROW, LENGTH = (5, 2), 2, 40, 12
CASES = [
    ("grpo", {}),
    ("grpo", {"clip_low": 0.1, "clip_high": 0.05, "ratio": "sampler"}),
    ("grpo", {"kl_coefficient": 0.1, "kl": "k1"}),
    ("grpo", {"kl_coefficient": 0.1, "kl": "k2", "kl_towards": "sampler"}),
    ("grpo", {"kl_coefficient": 0.1, "entropy_coefficient": 0.3}),
    ("grpo", {"token_low": 0.8, "token_high": 1.3, "importance_cap": 1.1}),
    ("gspo", {}),
    ("gspo", {"form": "token", "clip_low": 0.05, "clip_high": 0.05, "sequence_low": 0.95, "sequence_high": 1.1}),
    ("cispo", {}),
    ("cispo", {"clip_low": 0.1, "clip_high": 0.1, "ratio": "sampler"}),
    ("dual_clip", {"clip_bad": 1.2}),
    ("sft", {}),
]


@functools.cache
def _groups() -> tuple[tuple[Group, ...], np.ndarray]:
    """Four groups of up to four trajectories, one group flat, of one to three turns; each action token has an id of its
    own, so that tables by id say what a policy gives it. Also the sampler's table."""
    draw = np.random.default_rng(0)
    sampler, token, groups = [0.0], 1, []
    for number, rewards in enumerate([(1.0, 0.0, 0.0), (0.0, 1.0, 1.0, 0.5), (1.0, 1.0), (0.0, 1.0, 0.0)]):
        trajectories = []
        for sample, reward in enumerate(rewards):
            turns = []
            for _ in range(int(draw.integers(1, 4))):
                count = int(draw.integers(1, 6))
                logs = tuple((-1.5 + 0.3 * draw.normal(size=count)).tolist())
                ids = tuple(range(token, token + count))
                prompt = (0,) * int(draw.integers(1, 4))
                turns.append(
                    Turn(Action(), prompt_tokens=prompt, action_tokens=ids, action_logprobs=logs, weights_version=0)
                )
                token, sampler = token + count, [*sampler, *logs]
            task = Task("desk", f"query {number}", {})
            trajectories.append(Trajectory(task, f"{number}-{sample}", turns=tuple(turns), reward=reward))
        groups.append(Group(task, tuple(trajectories)))
    return tuple(groups), np.array(sampler)


@functools.cache
def _tables() -> dict[str, np.ndarray]:
    """What policy, old policy and reference give each token, and entropies."""
    sampler = _groups()[1]
    draw = np.random.default_rng(1)
    old = sampler + 0.2 * draw.normal(size=sampler.size)
    return {
        "sampler": sampler,
        "old": old,
        "logprobs": old + 0.25 * draw.normal(size=sampler.size),
        "reference": sampler + 0.3 * draw.normal(size=sampler.size),
        "entropy": draw.uniform(0.5, 2.0, sampler.size),
    }


def _ids(trajectory: Trajectory) -> np.ndarray:
    return np.array([token for turn in trajectory.turns for token in turn.action_tokens], np.int64)


def _plain(trajectory: Trajectory, advantage: float, logprobs: np.ndarray, entropy: np.ndarray) -> plain_losses.Tokens:
    at, tables = _ids(trajectory), _tables()
    return plain_losses.Tokens(
        logprobs[at], tables["logprobs"][at], tables["old"][at], tables["sampler"][at], tables["reference"][at],
        entropy[at], advantage,
    )  # fmt: skip


@functools.cache
def _compiled(name: str, settings: tuple) -> object:
    """(log-probs and entropies by token id, micro-batch) → Σ weights · loss, and its gradients."""
    loss = bind_loss(name, LOSSES, dict(settings))

    def total(logprobs: jax.Array, entropy: jax.Array, micro: TrainBatch) -> jax.Array:
        at = micro.tokens
        old, reference = (jnp.asarray(_tables()[table], jnp.float32)[at] for table in ("old", "reference"))
        micro = dataclasses.replace(micro, old_logprobs=old, reference_logprobs=reference)
        inputs = loss.select_inputs(TokenScores(logprobs[at], entropy[at]), micro)
        return jnp.sum(micro.weights * loss.function(*inputs, **loss.settings)[0])

    return jax.jit(jax.value_and_grad(total, (0, 1)))


def _found(name: str, settings: dict, batch: TrainBatch) -> tuple[float, np.ndarray, np.ndarray]:
    """Added up over micro-batches."""
    function = _compiled(name, tuple(settings.items()))
    arguments = [jnp.asarray(_tables()[table], jnp.float32) for table in ("logprobs", "entropy")]
    total, gradients = 0.0, np.zeros((2, len(arguments[0])))
    for first in range(0, len(batch.tokens), MICRO_ROWS):
        value, found = function(*arguments, jax.tree.map(lambda x: x[first : first + MICRO_ROWS], batch))  # noqa: B023
        total, gradients = total + float(value), gradients + np.asarray(found, np.float64)
    return total, *gradients


@pytest.mark.parametrize(
    ("name", "settings", "weighting"),
    [(*case, weighting) for case, weighting in zip(CASES, itertools.cycle(WEIGHTINGS), strict=False)],
)
def test_a_loss_is_that_of_plain_loops(name, settings, weighting):
    groups, tables = _groups()[0], _tables()
    keywords = {"length": LENGTH} if weighting == "constant_length" else {}
    batch, _ = pack(
        groups,
        group_relative,
        RowShape(ROW, MICRO_ROWS),
        weighting=functools.partial(WEIGHTINGS[weighting], **keywords),
        skip_flat=not bind_loss(name, LOSSES, settings).takes_flat,
    )
    advantages = [group_relative(group.valid) for group in groups]

    def plain(logprobs: np.ndarray, entropy: np.ndarray) -> float:
        each = [
            [_plain(t, a, logprobs, entropy) for t, a in zip(group.valid, values, strict=True)]
            for group, values in zip(groups, advantages, strict=True)
        ]
        return plain_losses.of_groups(name, weighting, each, LENGTH, **settings)

    value, of_logprobs, of_entropy = _found(name, settings, batch)
    logprobs, entropy = tables["logprobs"], tables["entropy"]
    assert value == pytest.approx(plain(logprobs, entropy), rel=1e-6, abs=1e-6)
    expected = plain_losses.central_differences(lambda x: plain(x, entropy), logprobs)
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(of_logprobs, expected, atol=1e-4 * np.abs(expected).max())
    expected = plain_losses.central_differences(lambda x: plain(logprobs, x), entropy)
    np.testing.assert_allclose(of_entropy, expected, atol=1e-7)


@pytest.mark.parametrize("row", [ROW, 22])  # the shorter holds few pairs whole
@pytest.mark.parametrize("settings", [{}, {"beta": 0.5, "dpo_coefficient": 0.5, "sft_coefficient": 0.5}])
def test_preferences_are_those_of_plain_loops(settings, row):
    groups, tables = _groups()[0], _tables()
    wanted = objective(bind_loss("dpo", LOSSES, settings), "group_relative", {}, "group_token_mean", {}, split_count=1)
    (batch,), facts = wanted.pack_batches(groups, SEED, RowShape(row, MICRO_ROWS))
    drawn = [pair for group in groups for pair in draw_pairs(group, SEED)]
    assert facts["pairs"] == len(drawn) == 6

    def plain(logprobs: np.ndarray) -> float:
        pairs = [tuple(_plain(t, 0.0, logprobs, logprobs) for t in pair) for pair in drawn]
        return plain_losses.of_pairs(pairs, **settings)

    value, gradient, _ = _found("dpo", settings, batch)
    assert value == pytest.approx(plain(tables["logprobs"]), rel=1e-6, abs=1e-6)
    expected = plain_losses.central_differences(plain, tables["logprobs"])
    np.testing.assert_allclose(gradient, expected, atol=1e-4 * np.abs(expected).max())
