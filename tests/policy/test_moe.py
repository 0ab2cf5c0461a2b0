"""The sparse feed-forward: by hand, both ways of computing it, and nobody disturbed by company."""

import functools
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from references import hidden_states, initialize, one_segment

from cojax.policy.config import ModelConfig
from cojax.policy.moe import Kernels, mix_dense, mix_grouped
from cojax.policy.parameters import to_hf
from cojax.rollout.engine import Completion, Sampling, Weights
from cojax.rollout.local import LocalEngine

CONFIG = ModelConfig(
    61,
    32,
    40,
    2,
    4,
    2,
    16,
    model_type="qwen3_moe",
    num_experts=8,
    num_experts_per_tok=2,
    moe_intermediate_size=24,
    norm_topk_prob=True,
)
COMPILED = {way.__name__: jax.jit(way) for way in (mix_dense, mix_grouped)}
WAYS = pytest.mark.parametrize("way", COMPILED.values(), ids=COMPILED)
ZERO = jnp.int32(0)


def drawn(tokens: int, chosen: int, experts: int) -> tuple[jax.Array, jax.Array, jax.Array, Kernels]:
    draw = np.random.default_rng(0)
    normal = lambda *shape: jnp.asarray(draw.standard_normal(shape), jnp.float32)  # noqa: E731
    picked = np.stack([draw.permutation(experts)[:chosen] for _ in range(tokens)]).astype(np.int32)
    gate, up, down = (0.4 * normal(*shape) for shape in ((experts, 8, 6), (experts, 8, 6), (experts, 6, 8)))
    return (
        normal(tokens, 8),
        jnp.asarray(picked),
        jnp.asarray(draw.random((tokens, chosen)), jnp.float32),
        (gate, up, down),
    )


@WAYS
def test_by_hand(way) -> None:
    """Width 1, three experts with gate 1, up 1, 2, 3 and down 1: token 2 through experts 2 and 0 at 0.25 and 0.5.

    silu(2) = 2 · 0.8807971 = 1.7615942; 1.7615942 · (0.25 · 6 + 0.5 · 2) = 4.4039855. Token 0 gives 0.
    """
    kernels = jnp.ones((3, 1, 1)), jnp.array([1.0, 2.0, 3.0]).reshape(3, 1, 1), jnp.ones((3, 1, 1))
    experts, weights = jnp.array([[2, 0], [1, 2]]), jnp.array([[0.25, 0.5], [0.7, 0.3]])
    found = way(jnp.array([[2.0], [0.0]]), experts, weights, kernels, ZERO)
    np.testing.assert_allclose(found, [[4.4039855], [0.0]], rtol=1e-6)


@pytest.mark.parametrize("chosen", [1, 3])
def test_both_ways_agree_with_their_gradients(chosen: int) -> None:
    x, experts, weights, kernels = drawn(20, chosen, 8)

    def total(way, x, weights, kernels):
        return jnp.sum(jnp.cos(way(x, experts, weights, kernels, ZERO)))

    dense, grouped = (
        jax.jit(jax.value_and_grad(functools.partial(total, way), argnums=(0, 1, 2)))(x, weights, kernels)
        for way in (mix_dense, mix_grouped)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), dense, grouped)


@WAYS
def test_parts_of_the_experts_add_up(way) -> None:
    x, experts, weights, kernels = drawn(32, 2, 8)
    whole = way(x, experts, weights, kernels, ZERO)
    parts = [
        way(x, experts, weights, tuple(matrix[first : first + 4] for matrix in kernels), jnp.int32(first))
        for first in (0, 4)
    ]
    np.testing.assert_allclose(sum(parts), whole, atol=1e-4, rtol=0)


@WAYS
def test_a_row_is_the_same_bits_in_any_company(way) -> None:
    """Other tokens at other experts, and another place among them."""
    x, experts, weights, kernels = drawn(32, 2, 8)
    alone = np.asarray(way(x, experts, weights, kernels, ZERO))[7]
    draw = np.random.default_rng(1)
    for place in (0, 7, 31):
        others = jnp.asarray(draw.standard_normal(x.shape), jnp.float32).at[place].set(x[7])
        routed = jnp.asarray(draw.integers(0, 8, experts.shape), jnp.int32).at[place].set(experts[7])
        shares = jnp.asarray(draw.random(weights.shape), jnp.float32).at[place].set(weights[7])
        np.testing.assert_array_equal(np.asarray(way(others, routed, shares, kernels, ZERO))[place], alone)


@WAYS
def test_no_token_is_dropped_when_all_choose_one_expert(way) -> None:
    x, _, _, kernels = drawn(32, 2, 8)
    found = way(x, jnp.full((32, 2), 5), jnp.full((32, 2), 0.5), kernels, ZERO)
    gate, up, down = (matrix[5] for matrix in kernels)
    expected = (jax.nn.silu(x @ gate) * (x @ up)) @ down
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-4)


@WAYS
def test_an_expert_not_chosen_need_not_be_finite(way) -> None:
    """Its overflow must not reach a token that never visits it."""
    x, _, weights, kernels = drawn(32, 2, 8)
    large = tuple(matrix.at[1].set(1e25) for matrix in kernels)
    found = way(x, jnp.broadcast_to(jnp.array([0, 2]), (32, 2)), weights, large, ZERO)
    assert np.isfinite(found).all()


def test_padding_changes_no_bit_of_a_text() -> None:
    params = initialize(CONFIG, 0)
    tokens = np.arange(24, dtype=np.int32).reshape(2, 12)
    positions, segments = (array.copy() for array in one_segment(tokens))
    segments[:, 8:] = 0
    first = hidden_states(CONFIG, params, tokens, positions, segments)
    second = hidden_states(CONFIG, params, np.where(segments == 0, 60 - tokens, tokens), positions, segments)
    np.testing.assert_array_equal(first[:, :8], second[:, :8])


def test_the_engine_gives_the_same_bits_in_any_company() -> None:
    """Twelve conversations one by one, then all at once over eight slots."""
    params = initialize(CONFIG, 0)
    engine = LocalEngine(CONFIG, slots=8, max_length=48, prefill_rows=4, prefill_chunks=(8,))
    engine.load(Weights(0, lambda: to_hf(CONFIG, params)))

    def converse(number: int) -> Completion:
        prompt = np.random.default_rng(number).integers(0, 61, 5 + number).tolist()
        sampling = Sampling(temperature=1.0, max_tokens=12, stop_tokens=(3,))
        completion = engine.generate(prompt, sampling, session=str(number), seed=(number,))
        engine.release(str(number))
        return completion

    alone = [converse(number) for number in range(12)]
    with ThreadPoolExecutor(12) as threads:
        assert list(threads.map(converse, range(12))) == alone
    engine.close()


@jax.custom_vjp
def _undefined_product(x: jax.Array, matrices: jax.Array, group_sizes: jax.Array) -> jax.Array:
    """A grouped product as kernels make it: rows after the last group are never written, so they may be NaN. The
    gradient of the matrices leaves such rows of `x` out, but multiplies them by those of the cotangent."""
    return jnp.where(_in_groups(x, group_sizes), jax.lax.ragged_dot(x, matrices, group_sizes), jnp.nan)


def _in_groups(x: jax.Array, group_sizes: jax.Array) -> jax.Array:
    return (jnp.arange(len(x)) < jnp.sum(group_sizes))[:, None]


def _undefined_fwd(*arguments: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    return _undefined_product(*arguments), arguments


def _undefined_bwd(arguments: tuple[jax.Array, ...], cotangent: jax.Array) -> tuple[jax.Array, jax.Array, None]:
    x, matrices, group_sizes = arguments
    inside = _in_groups(x, group_sizes)
    clean = jnp.where(inside, cotangent, 0)
    d_x, d_matrices = jax.vjp(lambda *given: jax.lax.ragged_dot(*given, group_sizes), x, matrices)[1](clean)
    outside = jnp.where(inside, 0, x * 0).T @ jnp.where(inside, 0, cotangent)
    return jnp.where(inside, d_x, jnp.nan), d_matrices.at[-1].add(outside), None


_undefined_product.defvjp(_undefined_fwd, _undefined_bwd)


def test_what_a_kernel_leaves_undefined_reaches_no_gradient() -> None:
    x, experts, weights, kernels = drawn(32, 2, 8)
    first_half = jax.tree.map(lambda kernel: kernel[:4], kernels)

    def total(dot, x, weights, kernels):
        return jnp.sum(jnp.cos(mix_grouped(x, experts, weights, kernels, ZERO, dot)))

    found, expected = (
        jax.grad(functools.partial(total, dot), argnums=(0, 1, 2))(x, weights, first_half)
        for dot in (_undefined_product, jax.lax.ragged_dot)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), found, expected)
