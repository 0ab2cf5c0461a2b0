"""Logits and gradients of every architecture against transformers' own, and mistakes that must show."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, FIXTURES, Case
from references import cached_hidden_states, hidden_states

from cojax.policy import transformer
from cojax.policy.cached import make_cache, unstack
from cojax.policy.config import ModelConfig, compute_frequencies
from cojax.policy.logprobs import token_logprobs
from cojax.policy.parameters import Params, parameters, to_hf
from cojax.policy.transformer import compute_logits

SHARE = 1e-4  # of the largest magnitude of the reference
EVERY = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
head = jax.jit(compute_logits, static_argnums=0)


@functools.cache
def reference(name: str) -> dict[str, np.ndarray]:
    with np.load(FIXTURES / "parity.npz") as file:
        return {key.partition("/")[2]: file[key] for key in file if key.startswith(f"{name}/")}


@functools.partial(jax.jit, static_argnums=0)
def gradient(config: ModelConfig, params: Params, batch: tuple) -> tuple[jax.Array, Params]:
    return jax.value_and_grad(lambda p: -token_logprobs(config, p, *batch).sum())(params)


def places(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """The reference's places in the padded rows, and the same tokens' places in the packed row."""
    padded = reference(case.name)["places"].astype(int)
    starts = np.cumsum([0, *(len(row) for row in case.rows)])
    first = np.argmax(case.padded()[2], axis=1)
    return padded, np.array([starts[row] + column - first[row] for row, column in padded])


def found_logits(case: Case, config: ModelConfig, params: Params) -> np.ndarray:
    """At the reference's places, of the padded rows."""
    scores = head(config, params, hidden_states(config, params, *case.padded()))
    return np.asarray(scores)[tuple(places(case)[0].T)]


@pytest.mark.compiles
@EVERY
def test_logits_are_those_of_transformers_padded_and_packed(case: Case) -> None:
    """In one batch: the padded rows, padded further on their right, and the packed one."""
    expected = reference(case.name)
    assert expected["deviation"] >= 1.0
    batch = []
    for padded, packed in zip(case.padded(), case.packed(), strict=True):
        batch.append(np.concatenate([np.pad(padded, ((0, 0), (0, packed.size - padded.shape[1]))), packed]))
    scores = np.asarray(head(case.config, case.params, hidden_states(case.config, case.params, *batch)))
    in_padded, in_packed = places(case)
    for found in (scores[tuple(in_padded.T)], scores[len(case.rows), in_packed]):
        np.testing.assert_allclose(found, expected["logits"], atol=SHARE * expected["scale"], rtol=0)


@pytest.mark.real
@pytest.mark.parametrize(
    ("case", "layout"),
    [*((case, "padded") for case in CASES.values()), (CASES["qwen3_yarn"], "packed"), (CASES["moe_plain"], "packed")],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_gradients_are_those_of_transformers(case: Case, layout: str) -> None:
    expected = reference(case.name)
    loss, gradients = gradient(case.config, case.params, getattr(case, layout)())
    np.testing.assert_allclose(loss, expected["loss"], rtol=1e-5)
    for index, (name, array) in enumerate(to_hf(case.config, gradients)):
        sampled = array.reshape(-1)[expected["entries"][index]]
        tolerance = SHARE * expected["peaks"][index]
        np.testing.assert_allclose(sampled, expected["gradients"][index], atol=tolerance, rtol=0, err_msg=name)
        np.testing.assert_allclose(np.abs(array).max(), expected["peaks"][index], rtol=SHARE, err_msg=name)


# Of its own, a cache has how heads share keys, and tokens without neighbours at routers: some cases show all of it.
SHOW_THE_CACHE = ("qwen2_ratio7", "qwen3_wide_heads", "moe_normalised", "llama_tied_ratio3", "llama_untied_ratio1")


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=() if case.name in SHOW_THE_CACHE else pytest.mark.nightly)
        for case in CASES.values()
        if case.first == 0 and case.stride == 1
    ],
)
def test_cached_logits_are_those_of_transformers(case: Case) -> None:
    """Token by token as the engine decodes, three texts in three slots that begin at position 0."""
    expected = reference(case.name)
    params, cache = unstack(case.config, case.params), make_cache(case.config, 3, 32)
    tokens, _, segments = case.padded()
    states = np.zeros((*tokens.shape, case.config.hidden_size), np.float32)
    for column in range(tokens.shape[1]):
        place = column - np.argmax(segments, axis=1)
        positions = np.where(segments[:, column] == 1, place, 32)[:, None].astype(np.int32)
        hidden, cache, _ = cached_hidden_states(case.config, params, cache, tokens[:, column : column + 1], positions)
        states[:, column] = hidden[:, 0]
    scores = np.asarray(head(case.config, case.params, jnp.asarray(states)))[tuple(places(case)[0].T)]
    np.testing.assert_allclose(scores, expected["logits"], atol=SHARE * expected["scale"], rtol=0)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("qwen3_wide_heads", {"model_type": "llama"}),
        ("qwen2_untied_ratio2", {"model_type": "llama"}),
        ("moe_normalised", {"norm_topk_prob": False}),
        ("moe_plain", {"norm_topk_prob": True}),
        ("moe_plain", {"num_experts_per_tok": 3}),
        ("qwen2_untied_ratio2", {"rms_norm_eps": 1e-2}),
    ],
)
def test_a_mistake_shows(name: str, change: dict) -> None:
    """A norm or bias left out, a swapped norm_topk_prob: far outside the tolerance."""
    case = CASES[name]
    config = dataclasses.replace(case.config, **change)
    known = {row.path for row in parameters(config)}
    assert is_far_off(name, found_logits(case, config, _only(case.params, known)))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("qwen2_untied_ratio2", [{"rope_theta": 1e6}]),
        ("qwen2_linear", [{"rope_scaling": None}]),
        ("qwen3_wide_heads", [{"rope_theta": 1e4}]),
        ("qwen3_long", [{"rope_theta": 1.0001e6}]),
        ("qwen3_yarn", [{"rope_scaling": None}]),
        ("llama_tied_ratio3", [{"rope_theta": 1e4}]),
        (
            "qwen3_yarn_tuned",
            [
                {"attention_factor": 1.139}, {"beta_fast": 32.0}, {"beta_slow": 1.0}, {"factor": 2.0},
                {"truncate": True},
            ],
        ),
        (
            "llama_rope3",
            [
                {"rope_scaling": None}, {"factor": 4.0}, {"low_freq_factor": 1.0}, {"high_freq_factor": 4.0},
                {"original_max_position_embeddings": 2_048},
            ],
        ),
    ],
)  # fmt: skip
def test_a_mistake_in_the_angles_shows(name: str, changes: list[dict], monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong base, a scaling or one of its fields ignored; all in one program, which is given its angles."""
    case = CASES[name]

    @jax.jit
    def found_with(params: Params, rates: jax.Array, factor: jax.Array) -> jax.Array:
        monkeypatch.setattr(transformer, "compute_frequencies", lambda *_: (rates, factor))
        return compute_logits(case.config, params, transformer.compute_hidden(case.config, params, *case.padded()))

    def far_off(config: ModelConfig) -> bool:
        scores = found_with(case.params, *compute_frequencies(config.rope_theta, config.head_dim, config.rope_scaling))
        return is_far_off(name, np.asarray(scores)[tuple(places(case)[0].T)])

    assert not far_off(case.config)
    for change in changes:
        if change.keys() & {"rope_theta", "rope_scaling"}:
            config = dataclasses.replace(case.config, **change)
        else:
            scaling = dataclasses.replace(case.config.rope_scaling, **change)
            config = dataclasses.replace(case.config, rope_scaling=scaling)
        assert far_off(config), change


def is_far_off(name: str, found: np.ndarray) -> bool:
    expected = reference(name)
    return bool(np.abs(found - expected["logits"]).max() > 20 * SHARE * expected["scale"])


def _only(params: Params, known: set[tuple[str, ...]], path: tuple[str, ...] = ()) -> Params:
    """The leaves that a model has: a mistake may be one without some."""
    return {
        key: _only(value, known, (*path, key)) if isinstance(value, dict) else value
        for key, value in params.items()
        if any(row[: len(path) + 1] == (*path, key) for row in known)
    }
