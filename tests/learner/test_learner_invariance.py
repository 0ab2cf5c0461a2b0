"""Through the model: whatever a learner does to compute a loss, loss and gradients are those of single plain rows."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compiling import initialize
from tiny_learner import (
    CONFIG,
    GROUPS,
    PARAMS,
    flat_array,
    make_learner,
    make_trajectory,
    sampled_logprobs,
    shared_learner,
)  # fmt: skip

from cojax.learner.advantages import group_relative
from cojax.policy.adapters import Lora, initialize_adapters, merge
from cojax.policy.transformer import compute_hidden, compute_logits
from cojax.types import Group

REFERENCE = initialize(CONFIG, 1)
LORA = Lora(2)
# Keeps the gradient as its state, and changes nothing.
KEEPING = optax.GradientTransformation(
    lambda params: jax.tree.map(jnp.zeros_like, params),
    lambda gradient, state, params=None: (jax.tree.map(jnp.zeros_like, gradient), gradient),
)
SIZES = (5, 5, 5, 2)  # of the largest step of these tests, so that one program serves them


@jax.jit
def _logs(params, tokens):
    """Log-probs of all tokens, [N, 6, V], for the action in each row, which follows the prompt (1, 2)."""
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    hidden = compute_hidden(CONFIG, params, tokens, positions, jnp.ones_like(tokens))
    return jax.nn.log_softmax(compute_logits(CONFIG, params, hidden[:, 1:-1]))


def _of_action(logs, tokens):
    return jnp.take_along_axis(logs, tokens[:, 2:, None], -1)[..., 0]


def _rows(groups):
    """A row for each valid trajectory: tokens, the sampler's log-probs of the action, advantages, weights."""
    rows = []
    for group in groups:
        length = sum(len(t.turns[0].action_tokens) for t in group.valid)
        for trajectory, advantage in zip(group.valid, group_relative(group.valid), strict=True):
            turn = trajectory.turns[0]
            count = len(turn.action_tokens)
            padding = [0] * (6 - count)  # one length for all: no token sees a later one
            weights = [1.0 / (len(groups) * length)] * count + padding
            rows.append(
                ([1, 2, *turn.action_tokens, *padding], [*turn.action_logprobs, *padding], [advantage], weights)
            )
    tokens, *others = zip(*rows, strict=True)
    return np.array(tokens, np.int32), *(np.array(column, np.float32) for column in others)


@jax.jit
@jax.value_and_grad
def _plain(params, rows, before, reference, kl):
    """Eq. 1 with k3, from the log-probs of π_old and π_ref: no packing, no custom gradient."""
    tokens, sampler, advantages, weights = rows
    logprobs = _of_action(_logs(params, tokens), tokens)
    ratio = jnp.exp(logprobs - before)
    gain = jnp.minimum(ratio * advantages, jnp.clip(ratio, 0.8, 1.28) * advantages)
    towards = reference - logprobs
    term = kl * (jnp.exp(towards) - towards - 1.0) - jnp.minimum(jnp.exp(before - sampler), 2.0) * gain
    return jnp.sum(weights * term)


def _expected(groups, params=PARAMS, old=None, kl=0.0):
    """Value and gradient; without `old` it is the policy."""
    rows = _rows(groups)
    before, reference = (_of_action(_logs(policy, rows[0]), rows[0]) for policy in (old or params, REFERENCE))
    return _plain(params, rows, before, reference, kl)


def _near(found, expected):
    """To 1e-5 of the norm of all leaves together."""
    a, b = (np.concatenate([np.asarray(x, np.float64).ravel() for x in jax.tree.leaves(t)]) for t in (found, expected))
    assert np.linalg.norm(b) > 1e-3
    assert np.linalg.norm(a - b) <= 1e-5 * np.linalg.norm(b)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"row_length": 64, "micro_rows": 1},
        {"micro_rows": 12, "remat": "none"},
        {"row_length": 23, "micro_rows": 3, "remat": "dots", "kl": 0.1},
    ],
    ids=str,
)
def test_packing_and_micro_batches_change_nothing(settings):
    kl = {**settings}.pop("kl", 0.0)
    keywords = {name: value for name, value in settings.items() if name != "kl"}
    if kl:
        keywords |= {"loss_settings": {"kl_coefficient": kl}, "reference": REFERENCE}
    learner = make_learner(optimizer=KEEPING, **keywords) if settings else shared_learner(optimizer=KEEPING)
    state, metrics = learner.update(learner.init(PARAMS), GROUPS, () if settings else SIZES)
    value, gradient = _expected(GROUPS, kl=kl)
    assert metrics["loss"] == pytest.approx(float(value), abs=1e-5 * max(1.0, abs(float(value))))
    assert metrics["grad_norm"] == pytest.approx(float(optax.tree.norm(gradient)), rel=1e-5)
    tokens, *_, weights = _rows(GROUPS)
    logs = np.asarray(_logs(PARAMS, tokens))
    assert metrics["entropy"] == pytest.approx(-(np.exp(logs) * logs).sum(-1)[weights > 0].mean(), rel=1e-5)
    assert [metrics[name] for name in ("ratio", "ratio_max", "importance")] == pytest.approx([1.0] * 3, abs=1e-5)
    assert metrics["logprob_mismatch_max"] < 1e-5
    _near(state.opt_state, gradient)


@pytest.mark.parametrize(
    "settings", [{}, {"row_length": 40, "micro_rows": 1}, {"loss": "gspo", "remat": "none"}], ids=str
)
def test_a_prompt_that_a_group_shares_is_computed_once_and_changes_nothing(settings):
    """Two groups of a prompt of ten tokens, one of which has second turns, and one of prompts that differ."""

    def longer(trajectory, *prompt, second=()):
        first, *_ = trajectory.turns
        more = dataclasses.replace(first, prompt_tokens=(4, *second), action_tokens=(5,), action_logprobs=(-1.0,))
        first = dataclasses.replace(first, prompt_tokens=prompt)
        return dataclasses.replace(trajectory, turns=(first, *[more] * bool(second)))

    groups = [
        Group(group.task, tuple(longer(t, *prompt, second=second if t.reward else ()) for t in group.trajectories))
        for group, prompt, second in zip(GROUPS, [range(3, 13), range(13, 3, -1)], [(), (6, 7)], strict=False)
    ] + [Group(GROUPS[2].task, tuple(longer(t, *[3 + k] * 8) for k, t in enumerate(GROUPS[2].trajectories)))]
    sharing, plain = (make_learner(optimizer=KEEPING, **{"row_length": 64, **settings}) for _ in range(2))
    object.__setattr__(plain, "shape", dataclasses.replace(plain.shape, shares=False))
    (state, metrics), (expected, others) = (
        learner.update(learner.init(PARAMS), groups) for learner in (sharing, plain)
    )
    assert metrics["tokens_processed"] <= others["tokens_processed"] - 2 * 9
    assert metrics["tokens_trained"] == others["tokens_trained"]
    assert metrics["loss"] == pytest.approx(others["loss"], abs=1e-5)
    _near(state.opt_state, expected.opt_state)


def test_what_is_lost_or_dropped_changes_nothing():
    """An infrastructure loss in each group, and a group that it leaves with one trajectory."""
    broken = make_trajectory([4, 4, 4], 1.0, outcome="environment_error")
    wider = [Group(g.task, (broken, *g.trajectories)) for g in GROUPS]
    alone = Group(GROUPS[0].task, (broken, GROUPS[0].trajectories[0]))
    learner = shared_learner(optimizer=KEEPING)
    state, metrics = learner.update(learner.init(PARAMS), [*wider, alone], SIZES)
    assert metrics["groups_dropped"] == 1.0
    _near(state.opt_state, _expected(GROUPS)[1])


def test_flat_groups_that_are_left_out_change_nothing():
    flat = Group(GROUPS[0].task, tuple(dataclasses.replace(t, reward=1.0) for t in GROUPS[0].trajectories))
    groups = [*GROUPS[1:], flat]
    learner = shared_learner(optimizer=KEEPING)
    state, metrics = learner.update(learner.init(PARAMS), groups, SIZES)
    value, gradient = _expected(groups)
    assert metrics["loss"] == pytest.approx(float(value), abs=1e-5)
    _near(state.opt_state, gradient)


def test_two_updates_of_a_batch_are_two_plain_steps():
    learner = make_learner(optimizer=optax.sgd(0.5), updates_per_batch=2)
    state, metrics = learner.update(learner.init(PARAMS), GROUPS)
    expected, values = PARAMS, []
    for _ in range(2):
        value, gradient = _expected(GROUPS, expected, old=PARAMS)
        values.append(float(value))
        expected = jax.tree.map(lambda p, g: np.asarray(p) - 0.5 * np.asarray(g), expected, gradient)
    assert (metrics["updates"], int(state.step)) == (2.0, 1)
    assert metrics["loss"] == pytest.approx(sum(values) / 2, abs=1e-5)
    assert metrics["ratio_max"] > 1.001
    assert metrics["logprob_mismatch_max"] < 1e-5  # of the old log-probs, not of those after an update
    _near(flat_array(state.params) - flat_array(PARAMS), flat_array(expected) - flat_array(PARAMS))


def test_adapters_have_the_gradient_of_the_whole_policy():
    learner = make_learner(optimizer=KEEPING, lora=LORA, reference=PARAMS)
    begun = learner.init(PARAMS, seed=3)
    draw = np.random.default_rng(0)
    adapters = jax.tree.map(lambda x: np.asarray(x) + np.float32(0.1 * draw.normal(size=x.shape)), begun.params)
    state, metrics = learner.update(dataclasses.replace(begun, params=adapters), GROUPS)
    whole, pull = jax.vjp(jax.jit(functools.partial(merge, CONFIG, LORA, PARAMS)), adapters)
    value, of_whole = _expected(GROUPS, whole)
    (gradient,) = pull(of_whole)
    assert jax.tree.structure(initialize_adapters(CONFIG, LORA, 3)) == jax.tree.structure(gradient)
    assert metrics["loss"] == pytest.approx(float(value), abs=1e-5)
    _near(state.opt_state, gradient)


def test_the_rows_are_what_the_policy_gives():
    tokens = _rows(GROUPS)[0]
    found = _of_action(_logs(PARAMS, tokens), tokens)
    for row, trajectory in zip(found, (t for group in GROUPS for t in group.trajectories), strict=True):
        action = trajectory.turns[0].action_tokens
        np.testing.assert_allclose(row[: len(action)], sampled_logprobs(action), atol=2e-6)
