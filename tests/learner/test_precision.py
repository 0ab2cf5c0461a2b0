"""bfloat16 is computed in, float32 is kept: near the float32 update, and nothing small is rounded away."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import initialize
from tiny_learner import CONFIG, GROUPS, PARAMS, bits, flat_array, make_learner

from cojax.learner.optimizer import adamw
from cojax.policy.config import ModelConfig
from cojax.policy.logprobs import token_logprobs
from cojax.policy.parameters import cast_for_compute, get_leaf, jit_policy, parameters

WIDE = ModelConfig(64, 64, 128, 2, 4, 2, 16, model_type="qwen2")
SPARSE = ModelConfig(
    64, 32, 48, 2, 4, 2, 16, model_type="qwen3_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24
)


def half(config, **changes):
    return dataclasses.replace(config, dtype="bfloat16", **changes)


def _gradient(config, params, tokens):
    """Of the mean log-prob, float32, over one text."""
    positions = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)

    @jax.jit
    @jax.value_and_grad
    def loss(params):
        return token_logprobs(config, params, tokens, positions, jnp.ones_like(tokens), remat="layers").mean()

    return loss(params)


def test_a_policy_rounds_where_its_program_does() -> None:
    """XLA would leave out a rounding to bfloat16 between two operations."""
    x = jnp.asarray(np.random.default_rng(0).standard_normal(4096), jnp.float32)

    def gate(x: jax.Array) -> jax.Array:
        rounded = x.astype(jnp.bfloat16)
        return (jax.nn.silu(rounded) * rounded).astype(jnp.float32)

    assert (jit_policy(gate, half(WIDE))(x) == gate(x)).all()


@pytest.mark.compiles
def test_a_bfloat16_update_is_near_the_float32_one():
    """To 5 % of every leaf's gradient, with a token that stands everywhere: summed in bfloat16, the gradient of its
    embedding would stop growing after some hundred places."""
    params = initialize(WIDE, 0)
    draw = np.random.default_rng(0)
    tokens = np.where(draw.random((1, 2048)) < 0.9, 7, draw.integers(0, 64, (1, 2048))).astype(np.int32)
    exact, expected = _gradient(WIDE, params, tokens)
    value, found = _gradient(half(WIDE), params, tokens)
    assert value == pytest.approx(float(exact), abs=0.01)
    for row in parameters(WIDE):
        a, b = (np.asarray(get_leaf(tree, row)) for tree in (found, expected))
        assert a.dtype == np.float32
        assert np.linalg.norm(a - b) <= 0.05 * np.linalg.norm(b), row.name


@functools.cache
def _computes_half():
    """float32 parameters, which it computes with as bfloat16; its reference is the policy."""
    learner = make_learner(optimizer=adamw(1e-5), loss_settings={"kl_coefficient": 0.1}, reference=PARAMS)
    return dataclasses.replace(learner, config=half(learner.config), reference=PARAMS)


@pytest.mark.parametrize(("dtype", "precision"), [("float32", "HIGHEST"), ("bfloat16", "DEFAULT")])
def test_products_of_float32_are_of_float32_on_every_platform(dtype, precision):
    """The update and the forward pass of the reference, as they are lowered."""
    learner = dataclasses.replace(_computes_half(), config=dataclasses.replace(CONFIG, dtype=dtype))
    (batch,) = learner.pack(GROUPS, 0).batches
    for lower in learner.lower_programs(learner.init(PARAMS), batch).values():
        products = [line for line in lower().as_text().splitlines() if "stablehlo.dot_general" in line]
        assert len(products) >= 9
        assert all(f"precision = [{precision}, {precision}]" in line for line in products)


def test_masters_move_where_bfloat16_would_stand_still():
    """Adam's first step is 1e-5 everywhere; numbers above 0.0051 lie further apart than 2e-5 in bfloat16."""
    learner = _computes_half()
    state, metrics = learner.update(learner.init(PARAMS), GROUPS)
    assert metrics["grad_norm"] > 0
    kernel = "layers", "attention", "query", "kernel"
    before, after = (np.asarray(_at(tree, kernel)) for tree in (PARAMS, state.params))
    large = np.abs(before) > 0.0051
    assert (np.abs(np.abs(after - before) - 1e-5) < 2e-7)[large].mean() > 0.99
    assert (before.astype(jnp.bfloat16) == after.astype(jnp.bfloat16))[large].mean() > 0.9


def _at(tree, path):
    for key in path:
        tree = tree[key]
    return tree


def test_moments_in_bfloat16_are_half_and_learn_alike():
    exact, halved = make_learner(), make_learner(optimizer=adamw(1e-2, moments_dtype="bfloat16"))
    states = [learner.init(PARAMS) for learner in (exact, halved)]
    adam = states[1].opt_state[1][0]
    assert {leaf.dtype.name for leaf in jax.tree.leaves((adam.mu, adam.nu))} == {"bfloat16"}
    for _ in range(4):
        states = [learner.update(state, GROUPS)[0] for learner, state in zip((exact, halved), states, strict=True)]
    assert {leaf.dtype.name for leaf in jax.tree.leaves(states[1].params)} == {"float32"}
    adam = states[1].opt_state[1][0]
    assert {leaf.dtype.name for leaf in jax.tree.leaves((adam.mu, adam.nu))} == {"bfloat16"}
    way = np.linalg.norm(flat_array(states[0].params) - flat_array(PARAMS))
    assert np.linalg.norm(flat_array(states[1].params) - flat_array(states[0].params)) < 0.05 * way


def test_other_moments_are_refused():
    with pytest.raises(ValueError, match="moments_dtype 'float16' is not supported; available: '', float32, bfloat16"):
        adamw(1e-2, moments_dtype="float16")


@pytest.mark.parametrize("config", [half(WIDE), half(SPARSE)], ids=["dense", "sparse"])
def test_what_is_computed_with_is_the_policy_to_the_bit(config):
    params = initialize(config, 0)
    small = cast_for_compute(config, params)
    tokens = np.random.default_rng(0).integers(0, 64, (2, 16)).astype(np.int32)
    positions = np.broadcast_to(np.arange(16, dtype=np.int32), tokens.shape)
    scores = [token_logprobs(config, tree, tokens, positions, jnp.ones_like(tokens)) for tree in (params, small)]
    assert (scores[0] == scores[1]).all()
    halved = {row.name for row in parameters(config) if get_leaf(small, row).dtype == jnp.bfloat16}
    kept = {row.name.removeprefix("layers/") for row in parameters(config) if row.name not in halved}
    assert kept <= {
        "attention_norm/scale", "feed_forward_norm/scale", "final_norm/scale", "feed_forward/router",
        "attention/query_norm/scale", "attention/key_norm/scale", "attention/query/bias", "attention/key/bias",
        "attention/value/bias",
    }  # fmt: skip


def test_the_reference_is_kept_as_it_is_computed_with():
    exact = make_learner(reference=PARAMS)
    assert exact.reference["embed"]["embedding"] is PARAMS["embed"]["embedding"]  # no copy where none is needed
    learner = _computes_half()
    assert learner.reference["embed"]["embedding"].dtype == jnp.bfloat16
    metrics = learner.update(learner.init(PARAMS), GROUPS)[1]
    assert metrics["kl"] == 0.0


def test_an_engine_is_given_what_the_update_computes_with():
    learner = _computes_half()
    arrays = dict(learner.weights(learner.init(PARAMS), 0).arrays())
    assert arrays["model.layers.0.mlp.up_proj.weight"].dtype == jnp.bfloat16
    expected = np.asarray(PARAMS["layers"]["feed_forward"]["up"]["kernel"][0].astype(jnp.bfloat16)).T
    assert arrays["model.layers.0.mlp.up_proj.weight"].tobytes() == np.ascontiguousarray(expected).tobytes()
    assert bits(arrays["model.norm.weight"]) == bits(PARAMS["final_norm"]["scale"])
