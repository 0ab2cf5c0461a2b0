"""Token log-probabilities against transformers' own, and what must be zero."""

import math
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from references import hidden_states, one_segment, reference

from cojax.policy import logprobs, transformer
from cojax.policy.logprobs import choose_chunk
from cojax.policy.sharding import MESH_AXES

_SETTINGS = ("temperature", "chunk", "remat", "entropy")
token_logprobs = jax.jit(logprobs.token_logprobs, static_argnums=0, static_argnames=_SETTINGS[:3])
token_scores = jax.jit(logprobs.token_scores, static_argnums=0, static_argnames=_SETTINGS)


@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
def test_are_those_of_transformers(name: str) -> None:
    config, params, values = reference(name)
    found = token_logprobs(config, params, values["tokens"], *one_segment(values["tokens"]), chunk=7)
    assert found.dtype == jnp.float32
    assert found[0, 0] == 0
    np.testing.assert_allclose(found[0, 1:], values["logprobs"], atol=1e-5, rtol=0)


def test_log_probs_and_entropies_are_of_logits_over_temperature() -> None:
    config, params, values = reference("qwen3")
    found = token_scores(config, params, values["tokens"], *one_segment(values["tokens"]), temperature=0.7, chunk=5)
    scaled = values["logits"][:-1].astype(np.float64) / 0.7
    logs = scaled - np.log(np.exp(scaled).sum(-1, keepdims=True))
    chosen = np.take_along_axis(logs, values["tokens"][0, 1:, None], -1)[:, 0]
    np.testing.assert_allclose(found.logprobs[0, 1:], chosen, atol=2e-5, rtol=0)
    assert found.entropy[0, 0] == 0
    np.testing.assert_allclose(found.entropy[0, 1:], -(np.exp(logs) * logs).sum(-1), atol=2e-5, rtol=0)


def test_are_zero_at_padding_and_where_a_segment_starts() -> None:
    """With an embedding of zeros every distribution is uniform over 61 tokens: log 61 = 4.1108739 nats."""
    config, params, _ = reference("qwen3")
    params = {**params, "embed": {"embedding": jnp.zeros((61, 32))}}
    segments = np.array([[3, 3, 3, 1, 1, 0, 0], [2, 2, 2, 2, 2, 2, 2]], np.int32)
    positions = np.array([[0, 1, 2, 0, 1, 0, 0], [0, 1, 2, 3, 4, 5, 6]], np.int32)
    found = token_logprobs(config, params, np.ones_like(segments), positions, segments)
    here = [[0, 1, 1, 0, 1, 0, 0], [0, 1, 1, 1, 1, 1, 1]]
    np.testing.assert_allclose(found, np.multiply(here, -4.1108739), atol=1e-6)


KEPT, COMPUTED_AGAIN = 2**20, 0  # bytes that a gradient may keep of the logits of its forward pass


@pytest.mark.parametrize(
    ("name", "entropy", "kept"),
    [
        ("qwen2", "none", KEPT),  # untied
        ("qwen2", "value", COMPUTED_AGAIN),
        ("qwen2", "gradient", KEPT),
        ("qwen3", "none", COMPUTED_AGAIN),  # tied
        ("qwen3", "value", KEPT),
        ("qwen3", "gradient", COMPUTED_AGAIN),
    ],
)
def test_values_and_gradients_are_those_of_float64(
    name: str, entropy: str, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the formulas in NumPy, from the hidden states on: of the last norm's scale and, where untied, of the head."""
    monkeypatch.setattr(logprobs, "MAX_KEPT_BYTES", kept)
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
    hidden = np.float64(hidden_states(config, params, *batch))[:, :-1]
    matrix = np.float64(transformer.find_scoring_matrix(config, params))
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


@pytest.mark.parametrize(
    ("name", "chunk", "remat"),
    [("qwen2", 3, "layers"), ("qwen3", 256, "dots")],  # untied and tied: the matrix lies both ways
)
def test_they_and_their_gradients_are_those_of_the_whole_table_of_logits(
    name: str, chunk: int, remat: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where wanted, in rows that want more and less, against a softmax that JAX differentiates itself; zero elsewhere.

    A gradient that keeps the logits has the same value to the bit.
    """
    config, params, values = reference(name)
    tokens = np.concatenate([values["tokens"], values["tokens"][:, ::-1]])
    batch = (tokens, *one_segment(tokens))
    wanted = np.random.default_rng(0).random(tokens.shape) < [[0.6], [0.1]]
    factors = np.random.default_rng(1).normal(size=(2, *tokens.shape)).astype(np.float32)

    def own(params: dict) -> tuple:
        scores = logprobs.token_scores(
            config, params, *batch, mask=wanted, temperature=0.7, chunk=chunk, remat=remat, entropy="gradient"
        )
        return (scores.logprobs * factors[0] + scores.entropy * factors[1]).sum(), scores

    def plain(params: dict) -> tuple:
        hidden = transformer.compute_hidden(config, params, *batch)
        logs = jax.nn.log_softmax(transformer.compute_logits(config, params, hidden[:, :-1]) / 0.7)
        chosen = jnp.take_along_axis(logs, tokens[:, 1:, None], -1)[..., 0]
        entropy = -(jnp.exp(logs) * logs).sum(-1)
        scores = [jnp.pad(score * wanted[:, 1:], ((0, 0), (1, 0))) for score in (chosen, entropy)]
        return (scores[0] * factors[0] + scores[1] * factors[1]).sum(), scores

    (_, expected), gradient = jax.jit(jax.value_and_grad(plain, has_aux=True))(params)
    totals, gradients = [], []
    for size in (KEPT, COMPUTED_AGAIN):
        monkeypatch.setattr(logprobs, "MAX_KEPT_BYTES", size)
        (total, scores), found = jax.jit(jax.value_and_grad(lambda p: own(p), has_aux=True))(params)
        for score, whole in zip((scores.logprobs, scores.entropy), expected, strict=True):
            np.testing.assert_array_equal(score[~wanted], 0.0)
            np.testing.assert_allclose(score, whole, atol=1e-5, rtol=0)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5, rtol=1e-4), found, gradient)
        totals.append(total)
        gradients.append(found)
    assert totals[0] == totals[1]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5), *gradients)


def test_neither_what_is_not_wanted_nor_the_value_of_an_entropy_has_a_gradient() -> None:
    config, params, values = reference("qwen3")
    batch = (values["tokens"], *one_segment(values["tokens"]))

    @jax.jit
    def gradient(params: dict, wanted: np.ndarray, of_logprobs: float) -> dict:
        def total(params: dict) -> jax.Array:
            scores = logprobs.token_scores(config, params, *batch, mask=wanted, entropy="value")
            return (of_logprobs * scores.logprobs + scores.entropy).sum()

        return jax.grad(total)(params)

    every = np.ones(values["tokens"].shape, bool)
    for wanted, of_logprobs, some in ((~every, 1.0, False), (every, 0.0, False), (every, 1.0, True)):
        assert any(np.any(leaf) for leaf in jax.tree.leaves(gradient(params, wanted, of_logprobs))) == some


def _program(*, gradient: bool) -> str:
    """Scores of 3 rows of 65 tokens, 64 of them predicted, over a vocabulary of 61, in chunks of 16."""
    config, params, _ = reference("qwen3")
    tokens = np.zeros((3, 65), np.int32)
    batch = (tokens, *one_segment(tokens))

    def total(params: dict) -> jax.Array:
        return logprobs.token_logprobs(config, params, *batch, chunk=16).sum()

    return str(jax.make_jaxpr(jax.grad(total) if gradient else total)(params))


def test_a_gradient_keeps_the_logits_only_where_all_of_them_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprobs, "MAX_KEPT_BYTES", 4 * 3 * 64 * 61)
    assert "f32[3,64,61]" in _program(gradient=True)
    assert "f32[3,64,61]" not in _program(gradient=False)
    monkeypatch.setattr(logprobs, "MAX_KEPT_BYTES", 4 * 3 * 64 * 61 - 1)
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
    devices = np.array([types.SimpleNamespace(platform=platform)] * count).reshape([sizes.get(x, 1) for x in MESH_AXES])
    mesh: Any = types.SimpleNamespace(devices=devices, shape={axis: sizes.get(axis, 1) for axis in MESH_AXES})
    assert choose_chunk(rows, 4096, mesh) == expected
    assert choose_chunk(rows, 4096, None) == 128
    assert choose_chunk(rows, 100, mesh) == choose_chunk(rows, 100, None) == 99
