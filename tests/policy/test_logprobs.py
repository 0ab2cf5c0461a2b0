"""Token log-probabilities against transformers' own, and what must be zero."""

import math
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from references import one_segment, reference

from cojax.policy import logprobs, transformer
from cojax.policy.logprobs import chunk_size
from cojax.policy.sharding import AXES

_SETTINGS = ("temperature", "chunk", "remat", "entropy")
token_logprobs = jax.jit(logprobs.token_logprobs, static_argnums=0, static_argnames=_SETTINGS[:3])
token_scores = jax.jit(logprobs.token_scores, static_argnums=0, static_argnames=_SETTINGS)


@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
@pytest.mark.parametrize("chunk", [7, 256])
def test_are_those_of_transformers(name: str, chunk: int) -> None:
    config, params, values = reference(name)
    found = token_logprobs(config, params, values["tokens"], *one_segment(values["tokens"]), chunk=chunk)
    assert found.dtype == jnp.float32
    assert found[0, 0] == 0
    np.testing.assert_allclose(found[0, 1:], values["logprobs"], atol=1e-5, rtol=0)


def test_are_of_logits_over_temperature() -> None:
    config, params, values = reference("qwen3")
    found = token_logprobs(config, params, values["tokens"], *one_segment(values["tokens"]), temperature=0.5)
    scaled = values["logits"][:-1].astype(np.float64) / 0.5
    expected = scaled - np.log(np.exp(scaled).sum(-1, keepdims=True))
    expected = np.take_along_axis(expected, values["tokens"][0, 1:, None], -1)[:, 0]
    np.testing.assert_allclose(found[0, 1:], expected, atol=2e-5, rtol=0)


def test_are_zero_at_padding_and_where_a_segment_starts() -> None:
    """With an embedding of zeros every distribution is uniform over 61 tokens: log 61 = 4.1108739 nats."""
    config, params, _ = reference("qwen3")
    params = {**params, "embed": {"embedding": jnp.zeros((61, 32))}}
    segments = np.array([[3, 3, 3, 1, 1, 0, 0], [2, 2, 2, 2, 2, 2, 2]], np.int32)
    positions = np.array([[0, 1, 2, 0, 1, 0, 0], [0, 1, 2, 3, 4, 5, 6]], np.int32)
    found = token_logprobs(config, params, np.ones_like(segments), positions, segments)
    here = [[0, 1, 1, 0, 1, 0, 0], [0, 1, 1, 1, 1, 1, 1]]
    np.testing.assert_allclose(found, np.multiply(here, -4.1108739), atol=1e-6)


@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
@pytest.mark.parametrize("chunk", [3, 8, 128])
def test_what_is_not_wanted_is_zero_and_the_rest_as_before(name: str, chunk: int) -> None:
    config, params, values = reference(name)
    tokens = np.concatenate([values["tokens"], values["tokens"][:, ::-1]])
    batch = (tokens, *one_segment(tokens))
    wanted = np.random.default_rng(0).random(tokens.shape) < [[0.6], [0.1]]
    factors = np.random.default_rng(1).normal(size=tokens.shape)

    def learn(**settings: object) -> tuple:
        def total(p: dict) -> jax.Array:
            return (token_logprobs(config, p, *batch, temperature=0.7, **settings) * wanted * factors).sum()

        return jax.value_and_grad(total)(params)

    found = token_logprobs(config, params, *batch, mask=wanted, chunk=chunk)
    np.testing.assert_array_equal(found[~wanted], 0.0)
    every = token_logprobs(config, params, *batch)
    np.testing.assert_allclose(found, np.where(wanted, every, 0.0), atol=1e-5)
    some, whole = learn(mask=wanted, chunk=chunk), learn()
    np.testing.assert_allclose(some[0], whole[0], rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5, rtol=1e-4), some[1], whole[1])


def test_without_a_wanted_token_there_is_no_gradient() -> None:
    config, params, values = reference("qwen3")
    batch = (values["tokens"], *one_segment(values["tokens"]))
    nothing = np.zeros(values["tokens"].shape, bool)
    gradient = jax.grad(lambda p: token_logprobs(config, p, *batch, mask=nothing).sum())(params)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(gradient))


def test_gradient_does_not_depend_on_chunk_or_remat() -> None:
    config, params, values = reference("qwen2")
    batch = (values["tokens"], *one_segment(values["tokens"]))

    def gradient(**settings: object) -> dict:
        return jax.grad(lambda p: token_logprobs(config, p, *batch, **settings).sum())(params)

    whole, cut = gradient(chunk=256), gradient(chunk=5, remat="layers")
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5, rtol=1e-4), whole, cut)


def test_entropy_is_that_of_the_distribution_over_temperature() -> None:
    config, params, values = reference("qwen3")
    scaled = values["logits"][:-1].astype(np.float64) / 0.7
    logs = scaled - np.log(np.exp(scaled).sum(-1, keepdims=True))
    found = token_scores(config, params, values["tokens"], *one_segment(values["tokens"]), temperature=0.7, chunk=5)
    assert found.entropy[0, 0] == 0
    np.testing.assert_allclose(found.entropy[0, 1:], -(np.exp(logs) * logs).sum(-1), atol=2e-5, rtol=0)


@pytest.fixture(params=[True, False], ids=["kept", "computed again"])
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a gradient keeps the logits of its forward pass."""
    monkeypatch.setattr(logprobs, "KEPT_BYTES", 2**20 if request.param else 0)
    return request.param


@pytest.mark.parametrize("entropy", ["none", "value", "gradient"])
@pytest.mark.parametrize("name", ["qwen2", "qwen3"])  # untied and tied
def test_values_and_gradients_are_those_of_float64(name: str, entropy: str, kept: bool) -> None:
    """By the formulas in NumPy, from the hidden states on: of the last norm's scale and, where untied, of the head."""
    config, params, values = reference(name)
    tokens = np.concatenate([values["tokens"], values["tokens"][:, ::-1]])
    batch = (tokens, *one_segment(tokens))
    wanted = np.random.default_rng(0).random(tokens.shape) < 0.5
    wanted[:, 0] = False
    factors = np.random.default_rng(1).normal(size=(2, *tokens.shape)) * wanted

    def loss(params: dict) -> tuple:
        scores = logprobs.token_scores(config, params, *batch, mask=wanted, temperature=0.7, chunk=5, entropy=entropy)
        return (scores.logprobs * factors[0] + scores.entropy * factors[1]).sum(), scores

    (_, scores), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    hidden = np.float64(transformer.hidden_states(config, params, *batch))[:, :-1]
    matrix = np.float64(transformer.scoring_matrix(config, params))
    matrix = matrix.T if config.tie_word_embeddings else matrix
    logs = hidden @ matrix / 0.7
    logs -= np.log(np.exp(logs).sum(-1, keepdims=True))
    chosen, here = np.eye(config.vocab_size)[tokens[:, 1:]], wanted[:, 1:]
    entropies = -(np.exp(logs) * logs).sum(-1)
    np.testing.assert_allclose(scores.logprobs[:, 1:], (chosen * logs).sum(-1) * here, atol=2e-5, rtol=0)
    np.testing.assert_allclose(scores.entropy[:, 1:], entropies * here * (entropy != "none"), atol=2e-5, rtol=0)
    of_logprobs, of_entropy = factors[:, :, 1:, None] * np.array([1, entropy == "gradient"])[:, None, None, None]
    slopes = (chosen - np.exp(logs)) * of_logprobs - np.exp(logs) * (logs + entropies[..., None]) * of_entropy
    scale = np.float64(params["final_norm"]["scale"])
    of_scale = (hidden / scale * (slopes @ matrix.T) / 0.7).sum((0, 1))
    np.testing.assert_allclose(gradient["final_norm"]["scale"], of_scale, atol=2e-5, rtol=1e-4)
    if not config.tie_word_embeddings:
        of_matrix = np.einsum("btd,btv->dv", hidden, slopes) / 0.7
        np.testing.assert_allclose(gradient["head"]["kernel"], of_matrix, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["qwen2", "qwen3"])  # untied and tied: the matrix lies both ways
def test_gradients_are_those_of_the_whole_table_of_logits(name: str, kept: bool) -> None:
    """Of log-probs and entropies together, where wanted, against a softmax that JAX differentiates itself."""
    config, params, values = reference(name)
    tokens = np.concatenate([values["tokens"], values["tokens"][:, ::-1]])
    batch = (tokens, *one_segment(tokens))
    wanted = np.random.default_rng(0).random(tokens.shape) < 0.5
    wanted[:, 0] = False
    of_logprobs, of_entropy = np.random.default_rng(1).normal(size=(2, *tokens.shape)).astype(np.float32) * wanted

    def own(params: dict) -> jax.Array:
        scores = logprobs.token_scores(
            config, params, *batch, mask=wanted, temperature=0.7, chunk=5, entropy="gradient"
        )
        return (scores.logprobs * of_logprobs + scores.entropy * of_entropy).sum()

    def plain(params: dict) -> jax.Array:
        hidden = transformer.hidden_states(config, params, *batch)
        logs = jax.nn.log_softmax(transformer.logits(config, params, hidden[:, :-1]) / 0.7)
        chosen = jnp.take_along_axis(logs, tokens[:, 1:, None], -1)[..., 0]
        entropy = -(jnp.exp(logs) * logs).sum(-1)
        return (chosen * of_logprobs[:, 1:] + entropy * of_entropy[:, 1:]).sum()

    (value, found), (expected, gradient) = (jax.jit(jax.value_and_grad(f))(params) for f in (own, plain))
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5, rtol=1e-4), found, gradient)


def test_the_value_of_an_entropy_has_no_gradient() -> None:
    config, params, values = reference("qwen3")
    batch = (values["tokens"], *one_segment(values["tokens"]))

    @jax.jit
    def gradient(params: dict) -> dict:
        return jax.grad(lambda p: logprobs.token_scores(config, p, *batch, entropy="value").entropy.sum())(params)

    assert all(not np.any(leaf) for leaf in jax.tree.leaves(gradient(params)))


@pytest.mark.parametrize("entropy", ["value", "gradient"])
def test_kept_logits_change_nothing(entropy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config, params, values = reference("qwen2")
    tokens = np.concatenate([values["tokens"], values["tokens"][:, ::-1]])
    batch = (tokens, *one_segment(tokens))

    def loss(params: dict) -> jax.Array:
        scores = logprobs.token_scores(config, params, *batch, temperature=0.7, chunk=5, entropy=entropy)
        return (scores.logprobs + 0.1 * scores.entropy).sum()

    found = []
    for size in (0, 2**20):
        monkeypatch.setattr(logprobs, "KEPT_BYTES", size)
        found.append(jax.jit(jax.value_and_grad(lambda p: loss(p)))(params))
    assert found[0][0] == found[1][0]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5), *(pair[1] for pair in found))


def _program(*, gradient: bool) -> str:
    """Scores of 3 rows of 65 tokens, 64 of them predicted, over a vocabulary of 61, in chunks of 16."""
    config, params, _ = reference("qwen3")
    tokens = np.zeros((3, 65), np.int32)
    batch = (tokens, *one_segment(tokens))

    def total(params: dict) -> jax.Array:
        return logprobs.token_logprobs(config, params, *batch, chunk=16).sum()

    return str(jax.make_jaxpr(jax.grad(total) if gradient else total)(params))


def test_a_gradient_keeps_the_logits_only_where_all_of_them_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprobs, "KEPT_BYTES", 4 * 3 * 64 * 61)
    assert "f32[3,64,61]" in _program(gradient=True)
    assert "f32[3,64,61]" not in _program(gradient=False)
    monkeypatch.setattr(logprobs, "KEPT_BYTES", 4 * 3 * 64 * 61 - 1)
    program = _program(gradient=True)
    assert "f32[3,16,61]" in program
    assert "f32[3,64,61]" not in program
    assert "f32[4,3,16,61]" not in program  # nor saved piece by piece for the backward pass


def test_refuses_an_unknown_kind_of_entropy() -> None:
    config, params, values = reference("qwen3")
    with pytest.raises(ValueError, match="entropy is 'mean'; expected none, value or gradient"):
        token_scores(config, params, values["tokens"], *one_segment(values["tokens"]), entropy="mean")


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": np.ones((1, 8), np.float32)},
        {"positions": np.arange(8, dtype=np.int32)},
        {"segments": np.ones((1, 1), np.int32)},  # broadcasts
        {"mask": np.ones((1, 1), bool)},
        {"routes": np.zeros((1, 8, 2, 1), np.int8)},  # config: no experts
    ],
)
def test_an_array_of_another_shape_or_dtype_is_an_error(changes: dict[str, Any]) -> None:
    config, params, _ = reference("qwen3")
    rows = {"tokens": np.ones((1, 8), np.int32), "positions": np.arange(8, dtype=np.int32)[None],
            "segments": np.ones((1, 8), np.int32)}  # fmt: skip
    rows |= {name: array for name, array in changes.items() if name in rows}
    others = {name: array for name, array in changes.items() if name not in rows}
    with pytest.raises(AssertionError, match=r"shape|rank|type"):
        logprobs.token_scores(config, params, *rows.values(), **others)


def test_refuses_temperature_zero() -> None:
    config, params, values = reference("qwen3")
    with pytest.raises(ValueError, match="temperature is 0"):
        token_logprobs(config, params, values["tokens"], *one_segment(values["tokens"]), temperature=0)


@pytest.mark.parametrize(
    ("platform", "rows", "sizes", "expected"),
    [
        ("cpu", 1, {}, 128),
        ("tpu", 1, {}, 128),
        ("gpu", 1, {}, 1024),
        ("gpu", 4, {}, 256),
        ("gpu", 16, {}, 128),
        # Eight rows on four devices: two on each.
        ("gpu", 8, {"data": 2, "fsdp": 2, "tensor": 2}, 512),
    ],
)
def test_a_gpu_makes_more_logits_at_a_time_and_never_more_than_a_few_rows_need(
    platform: str, rows: int, sizes: dict[str, int], expected: int
) -> None:
    count = math.prod(sizes.values())
    devices = np.array([types.SimpleNamespace(platform=platform)] * count).reshape([sizes.get(x, 1) for x in AXES])
    mesh: Any = types.SimpleNamespace(devices=devices, shape={axis: sizes.get(axis, 1) for axis in AXES})
    assert chunk_size(rows, 4096, mesh) == expected
    assert chunk_size(rows, 4096, None) == 128
    assert chunk_size(rows, 100, mesh) == chunk_size(rows, 100, None) == 99
