"""Routes: as text, replayed against NumPy, and without a trace where they are the router's own."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from references import initialize, one_segment

from cojax.policy import cached
from cojax.policy.config import ModelConfig
from cojax.policy.logprobs import token_scores
from cojax.policy.moe import RouteShape, measure_difference

CONFIG = ModelConfig(
    29,
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
SHAPE = RouteShape(2, 2, 8)


def test_routes_as_text() -> None:
    """Layer 0 to experts 1 and 0, layer 1 to 7 and 3: bytes 01 00 07 03; two bytes each of 300 experts."""
    routes = np.array([[[1, 0], [7, 3]]])
    assert SHAPE.encode(routes) == "AQAHAw=="
    np.testing.assert_array_equal(SHAPE.decode("AQAHAw=="), routes)
    many = RouteShape(1, 2, 300)
    assert (SHAPE.dtype, many.dtype) == (np.int8, np.int16)
    assert many.encode(np.array([[[299, 1]]])) == "KwEBAA=="
    assert SHAPE.decode("").shape == (0, 2, 2)
    assert SHAPE.make_unknown(3).tolist() == [[[-1, -1], [-1, -1]]] * 3


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("AQAH", "3 bytes; expected a multiple of 4"),
        ("AQAHAw=", "not base64"),
        ("A!AHAw==", "not base64"),
        ("AQAHé===", "not base64"),
        ("AQAHCA==", "experts 0–8; the model has 0–7"),
        ("AQD/Aw==", "experts -1–3"),
        ("AQEHAw==", "twice"),
    ],
)
def test_text_that_holds_no_routes(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        SHAPE.decode(text)


def test_a_dense_model_has_none() -> None:
    with pytest.raises(ValueError, match=r"learner\.routes=own"):
        RouteShape.of(ModelConfig(16, 8, 16, 1, 2, 1))


def test_differing_by_hand() -> None:
    """Both, in another order; one of two; none; and a token whose routes are not known."""
    own = jnp.array([[3, 5], [3, 5], [3, 5], [3, 5]])
    routes = jnp.array([[5, 3], [5, 1], [0, 1], [-1, -1]])
    assert measure_difference(own, routes).tolist() == [0.0, 0.5, 1.0, 0.0]


def rms(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + CONFIG.rms_norm_eps) * scale


def in_numpy(params, first: int, second: int, routes: list) -> tuple[float, list[list[int]]]:
    """log π(second | first) through the experts of each layer, None for the router's own, and those, in float64.

    A first token attends to itself alone, so that attention is its value and no angle matters.
    """
    tree = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    x, own = tree["embed"]["embedding"][first], []
    for index in range(CONFIG.num_hidden_layers):
        layer = jax.tree.map(lambda leaf, index=index: leaf[index], tree["layers"])
        normed = rms(x, layer["attention_norm"]["scale"])
        value = np.einsum("d,dhk->hk", normed, layer["attention"]["value"]["kernel"])
        x = x + np.einsum("hk,hkd->d", np.repeat(value, 2, axis=0), layer["attention"]["output"]["kernel"])
        normed, experts = rms(x, layer["feed_forward_norm"]["scale"]), layer["feed_forward"]
        scores = np.exp(normed @ experts["router"])
        own.append(np.argsort(-scores)[:2].tolist())
        visited = routes[index] or own[index]
        for expert in visited:
            gate, up = normed @ experts["gate"][expert], normed @ experts["up"][expert]
            x = x + scores[expert] / scores[visited].sum() * (gate / (1 + np.exp(-gate)) * up @ experts["down"][expert])
    logits = tree["embed"]["embedding"] @ rms(x, tree["final_norm"]["scale"])
    return float(logits[second] - np.log(np.exp(logits).sum())), own


@functools.partial(jax.jit, static_argnames="replay")
def scored(params, tokens, positions, segments, routes, replay):
    return token_scores(CONFIG, params, tokens, positions, segments, routes=routes, replay=replay)


def test_changed_routes_change_log_probs_as_numpy_says() -> None:
    """Rows of two tokens with other experts; the last is not told its routes, so that its own count."""
    params, draw = initialize(CONFIG, 0), np.random.default_rng(0)
    tokens = draw.integers(0, 29, (6, 2)).astype(np.int32)
    routes = draw.random((6, 2, 2, 8)).argsort(axis=-1)[..., :2].astype(np.int8)
    routes[5] = -1
    found = scored(params, tokens, *one_segment(tokens), routes, True)
    compared = scored(params, tokens, *one_segment(tokens), routes, False)
    for row in range(6):
        plain, own = in_numpy(params, *tokens[row], [None, None])
        assert float(compared.logprobs[row, 1]) == pytest.approx(plain, abs=2e-5)
        if row == 5:
            assert found.logprobs[row, 1] == compared.logprobs[row, 1]
            continue
        expected, chosen = in_numpy(params, *tokens[row], routes[row, 0].tolist())
        assert float(found.logprobs[row, 1]) == pytest.approx(expected, abs=2e-5)
        assert abs(expected - plain) > 1e-3
        for scores, experts in ((found, chosen), (compared, own)):
            shares = [len(set(experts[layer]) - set(routes[row, 0, layer].tolist())) / 2 for layer in range(2)]
            assert float(scores.routes_differing[row, 1]) == pytest.approx(np.mean(shares))
    for scores in (found, compared):
        assert scores.routes_known.tolist() == [[0, 1]] * 5 + [[0, 0]]
        assert not scores.routes_differing[:, 0].any()


@pytest.mark.real  # bit for bit, by the code that XLA chooses
def test_replaying_the_routers_own_routes_changes_nothing() -> None:
    """Log-probs to the bit, gradients to 1e-6; and no choice differs."""
    params = initialize(CONFIG, 0)
    tokens = np.random.default_rng(1).integers(0, 29, (2, 7)).astype(np.int32)
    positions, segments = one_segment(tokens)
    split, cache = cached.unstack(CONFIG, params), cached.make_cache(CONFIG, 2, 7)
    fed = jax.jit(cached.compute_cached_states, static_argnums=0, static_argnames="with_routes")
    _, _, own = fed(CONFIG, split, cache, tokens, positions, with_routes=True)
    assert (own.shape, own.dtype) == ((2, 7, 2, 2), np.int8)

    @jax.jit
    def gradient(params, routes):
        def total(params):
            scores = token_scores(CONFIG, params, tokens, positions, segments, routes=routes)
            return jnp.sum(jnp.cos(scores.logprobs)), scores

        return jax.value_and_grad(total, has_aux=True)(params)

    ((_, replayed), slopes), ((_, plain), expected) = gradient(params, own), gradient(params, None)
    np.testing.assert_array_equal(replayed.logprobs, plain.logprobs)
    assert float(jnp.max(replayed.routes_differing)) == 0.0
    assert replayed.routes_known.sum() == 12
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6, rtol=0), slopes, expected)
