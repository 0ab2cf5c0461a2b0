"""bfloat16 parameters learn at 1e-6, bit for bit as float32 ones do."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tiny_learner import CONFIG, GROUPS, PARAMS, bits, make_learner

from cojax.learner.optimizer import adamw, compensate_rounding, exact_values
from cojax.policy.sharding import make_mesh
from cojax.storage.checkpoint import Checkpointer

HALF = dataclasses.replace(CONFIG, dtype="bfloat16", param_dtype="bfloat16")


@functools.cache
def _half():
    return dataclasses.replace(make_learner(optimizer=adamw(1e-6)), config=HALF)


def _halved(params):
    return jax.tree.map(lambda leaf: np.asarray(leaf).astype(jnp.bfloat16), params)


def test_steps_of_a_millionth_add_up():
    """5,000 of them move 1 to 0.995, whose nearest bfloat16 is 0.99609375; without what is kept it stays at 1."""
    params, gradient = jnp.array([1.0, -0.02], jnp.bfloat16), jnp.ones(2)

    def moved(optimizer):
        def step(_, carried):
            params, state = carried
            updates, state = optimizer.update(gradient, state, params)
            return optax.apply_updates(params, updates), state

        return jax.jit(lambda: jax.lax.fori_loop(0, 5_000, step, (params, optimizer.init(params))))()

    found, state = moved(compensate_rounding(optax.sgd(1e-6)))
    assert found.dtype == jnp.bfloat16
    assert found.tolist() == [0.99609375, -0.0250244140625]
    assert exact_values(found, state.low).tolist() == pytest.approx([0.995, -0.025], abs=1e-4)
    assert moved(optax.sgd(1e-6))[0].tolist() == params.tolist()


def test_every_value_comes_back_to_the_bit():
    """Random float32 values, signs and ties included, as the sum of 0 and one update."""
    bits = np.random.default_rng(0).integers(0, 1 << 32, 20_000, dtype=np.uint32)
    values = np.concatenate([bits.view(np.float32), np.float32([1.00390625, -1.00390625, 0.0, 1.01171875])])
    values = values[np.isfinite(values) & (np.abs(values) < 1e38)]
    optimizer, params = compensate_rounding(optax.identity()), jnp.zeros(len(values), jnp.bfloat16)
    updates, state = jax.jit(optimizer.update)(jnp.asarray(values), optimizer.init(params), params)
    found = optax.apply_updates(params, updates)
    normal = np.abs(values) > 1e-37  # smaller ones are flushed to 0
    assert (np.asarray(exact_values(found, state.low))[normal] == values[normal]).all()
    distance = np.abs(np.asarray(found, np.float32) - values)[normal]
    assert (distance <= np.abs(values[normal]) * 2**-8).all()


def test_a_learner_of_bfloat16_parameters_learns_at_the_papers_rate():
    """Twenty updates at 1e-6: of the values that are kept, nearly all move, as far as float32 ones do."""
    learner, half = make_learner(optimizer=adamw(1e-6)), _half()
    start = _halved(PARAMS)
    states = learner.init(jax.tree.map(lambda leaf: leaf.astype(np.float32), start)), half.init(start)
    for _ in range(20):
        states = learner.update(states[0], GROUPS)[0], half.update(states[1], GROUPS)[0]
    exact, state = states
    assert {leaf.dtype.name for leaf in jax.tree.leaves(state.params)} == {"bfloat16"}
    kept = jax.jit(exact_values)(state.params, state.opt_state.low)
    ways = [
        np.concatenate([(np.asarray(a, np.float64) - np.asarray(b, np.float64)).ravel() for a, b in zip(
            jax.tree.leaves(params), jax.tree.leaves(start), strict=True)])
        for params in (exact.params, kept)
    ]  # fmt: skip
    assert (ways[1] != 0).mean() > 0.9
    assert np.linalg.norm(ways[1] - ways[0]) < 0.3 * np.linalg.norm(ways[0])  # gradients in bfloat16 differ a little


def test_float32_parameters_have_no_part_in_it():
    learner = make_learner(optimizer=adamw(1e-6))
    assert learner.compensated_optimizer is learner.optimizer
    state = learner.init(PARAMS)
    assert jax.tree.structure(state.opt_state) == jax.tree.structure(learner.optimizer.init(PARAMS))


def test_what_is_kept_lies_as_its_parameter_does():
    learner = dataclasses.replace(make_learner(optimizer=adamw(1e-6), mesh=make_mesh()), config=HALF)
    state = learner.init(_halved(PARAMS))
    places = jax.tree.map(lambda param, low: param.sharding == low.sharding, state.params, state.opt_state.low)
    assert all(jax.tree.leaves(places))


def test_a_checkpoint_of_it_goes_on_bit_for_bit(tmp_path):
    learner, checkpointer = _half(), Checkpointer(tmp_path)
    state, _ = learner.update(learner.init(_halved(PARAMS)), GROUPS)
    checkpointer.save(1, state, {})
    ahead, _ = learner.update(state, GROUPS)
    restored = checkpointer.read_arrays(1, learner.init(_halved(PARAMS)))
    assert bits(learner.update(restored, GROUPS)[0]) == bits(ahead)
