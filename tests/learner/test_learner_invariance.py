"""Through the model: whatever a learner does to compute a loss, loss and gradients are those of single plain rows."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compiling import initialize
from tiny_learner import CONFIG, GROUPS, PARAMS, make_learner, make_trajectory, sampled_logprobs

from cojax.learner.advantages import group_relative
from cojax.policy.adapters import Lora, add_adapters, initialize_adapters
from cojax.policy.transformer import hidden_states, logits
from cojax.types import Group

REFERENCE = initialize(CONFIG, 1)
LORA = Lora(2)
# Keeps the gradient as its state, and changes nothing.
KEEPING = optax.GradientTransformation(
    lambda params: jax.tree.map(jnp.zeros_like, params),
    lambda gradient, state, params=None: (jax.tree.map(jnp.zeros_like, gradient), gradient),
)


@jax.jit
def _row(params, tokens):
    """Log-probs of the action of one unpacked row, which starts after the prompt (1, 2), and of what follows it."""
    positions = jnp.arange(tokens.shape[1])[None]
    hidden = hidden_states(CONFIG, params, tokens, positions, jnp.ones_like(tokens))
    logs = jax.nn.log_softmax(logits(CONFIG, params, hidden[:, :-1]))
    return jnp.take_along_axis(logs, tokens[:, 1:, None], -1)[0, 1:, 0]


def _of(params, trajectory):
    action = trajectory.turns[0].action_tokens
    # One length for all: no token sees a later one.
    return _row(params, jnp.array([[1, 2, *action, *[0] * (6 - len(action))]]))[: len(action)]


def _plain(params, groups, *, old=None, kl=0.0):
    """Eq. 1 with k3: one trajectory after another, no packing, no custom gradient; `old` is π_old, None the policy."""
    total = 0.0
    for group in groups:
        length = sum(len(t.turns[0].action_tokens) for t in group.valid)
        for trajectory, advantage in zip(group.valid, group_relative(group.valid), strict=True):
            logprobs = _of(params, trajectory)
            before = jax.lax.stop_gradient(logprobs) if old is None else _of(old, trajectory)
            ratio = jnp.exp(logprobs - before)
            gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.28) * advantage)
            importance = jnp.minimum(jnp.exp(before - jnp.array(trajectory.turns[0].action_logprobs)), 2.0)
            term = -importance * gain
            if kl:
                towards = _of(REFERENCE, trajectory) - logprobs
                term = term + kl * (jnp.exp(towards) - towards - 1.0)
            total = total + jnp.sum(term) / (len(groups) * length)
    return total


def _near(found, expected):
    """To 1e-5 of the norm of all leaves together."""
    a, b = (np.concatenate([np.asarray(x, np.float64).ravel() for x in jax.tree.leaves(t)]) for t in (found, expected))
    assert np.linalg.norm(b) > 1e-3
    assert np.linalg.norm(a - b) <= 1e-5 * np.linalg.norm(b)


@functools.cache
def _expected(kl=0.0):
    return jax.value_and_grad(functools.partial(_plain, groups=GROUPS, kl=kl))(PARAMS)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"row_length": 64},
        {"row_length": 23, "micro_rows": 3},
        {"micro_rows": 1},
        {"micro_rows": 12, "remat": "none"},
        {"micro_rows": 4, "row_length": 40, "remat": "dots", "kl": 0.1},
    ],
    ids=str,
)
def test_packing_and_micro_batches_change_nothing(settings):
    kl = {**settings}.pop("kl", 0.0)
    keywords = {name: value for name, value in settings.items() if name != "kl"}
    if kl:
        keywords |= {"loss_settings": {"kl_coefficient": kl}, "reference": REFERENCE}
    learner = make_learner(optimizer=KEEPING, **keywords)
    state, metrics = learner.update(learner.init(PARAMS), GROUPS)
    value, gradient = _expected(kl)
    assert metrics["loss"] == pytest.approx(float(value), abs=1e-5 * max(1.0, abs(float(value))))
    _near(state.opt_state, gradient)


def test_what_is_lost_or_dropped_changes_nothing():
    """An infrastructure loss in each group, and a group that it leaves with one trajectory."""
    broken = make_trajectory([4, 4, 4], 1.0, outcome="environment_error")
    wider = [Group(g.task, (broken, *g.trajectories)) for g in GROUPS]
    alone = Group(GROUPS[0].task, (broken, GROUPS[0].trajectories[0]))
    learner = make_learner(optimizer=KEEPING)
    state, metrics = learner.update(learner.init(PARAMS), [*wider, alone])
    assert metrics["groups_dropped"] == 1.0
    _near(state.opt_state, _expected()[1])


def test_flat_groups_that_are_left_out_change_nothing():
    flat = Group(GROUPS[0].task, tuple(dataclasses.replace(t, reward=1.0) for t in GROUPS[0].trajectories))
    groups = [*GROUPS[1:], flat]
    learner = make_learner(optimizer=KEEPING)
    state, _ = learner.update(learner.init(PARAMS), groups)
    value, gradient = jax.value_and_grad(functools.partial(_plain, groups=groups))(PARAMS)
    assert math.isfinite(float(value))
    _near(state.opt_state, gradient)


def test_two_updates_of_a_batch_are_two_plain_steps():
    learner = make_learner(optimizer=optax.sgd(0.5), updates_per_batch=2)
    state, metrics = learner.update(learner.init(PARAMS), GROUPS)
    expected, values = PARAMS, []
    for _ in range(2):
        value, gradient = jax.value_and_grad(functools.partial(_plain, groups=GROUPS, old=PARAMS))(expected)
        values.append(float(value))
        expected = jax.tree.map(lambda p, g: p - 0.5 * g, expected, gradient)
    assert metrics["loss"] == pytest.approx(sum(values) / 2, abs=1e-5)
    moved = jax.tree.map(lambda a, b: a - b, state.params, PARAMS)
    _near(moved, jax.tree.map(lambda a, b: a - b, expected, PARAMS))


def test_adapters_have_the_gradient_of_the_whole_policy():
    learner = make_learner(optimizer=KEEPING, lora=LORA, reference=PARAMS)
    begun = learner.init(PARAMS, seed=3)
    draw = np.random.default_rng(0)
    adapters = jax.tree.map(lambda x: x + 0.1 * draw.normal(size=x.shape).astype(np.float32), begun.params)
    state, metrics = learner.update(dataclasses.replace(begun, params=jax.tree.map(jnp.copy, adapters)), GROUPS)

    def plain(adapters):
        return _plain(add_adapters(CONFIG, LORA, PARAMS, adapters), GROUPS)

    value, gradient = jax.jit(jax.value_and_grad(plain))(adapters)
    assert jax.tree.structure(initialize_adapters(CONFIG, LORA, 3)) == jax.tree.structure(gradient)
    assert metrics["loss"] == pytest.approx(float(value), abs=1e-5)
    _near(state.opt_state, gradient)


def test_the_rows_are_what_the_policy_gives():
    for trajectory in GROUPS[0].trajectories:
        expected = sampled_logprobs(list(trajectory.turns[0].action_tokens))
        np.testing.assert_allclose(_of(PARAMS, trajectory), expected, atol=2e-6)
