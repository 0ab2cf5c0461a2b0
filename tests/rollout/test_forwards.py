"""Sampling, random numbers and the division of prompts into chunks."""

import jax
import numpy as np
import pytest
from compiling import drawn

from cojax.policy.config import ModelConfig
from cojax.policy.parameters import to_hf
from cojax.rollout import batching, forwards
from cojax.rollout.engine import Sampling, Weights
from cojax.rollout.local import LocalEngine

sample = jax.jit(forwards.sample)


def test_sampling_inverts_the_cumulative_distribution() -> None:
    """p = (1/8, 4/8, 2/8, 1/8): u in [0, 1/8) gives 0, up to 5/8 gives 1, up to 7/8 gives 2, else 3."""
    scores = np.log(np.tile(np.array([1, 4, 2, 1], np.float32), (7, 1)))
    uniform = np.array([0.0, 0.124, 0.126, 0.624, 0.626, 0.876, 1 - 2**-24], np.float32)
    tokens, logprobs = sample(scores, uniform, np.ones(7, np.float32))
    assert tokens.tolist() == [0, 0, 1, 1, 2, 3, 3]
    expected = np.log([1 / 8, 1 / 8, 4 / 8, 4 / 8, 2 / 8, 1 / 8, 1 / 8])
    np.testing.assert_allclose(logprobs, expected, atol=1e-6)


def test_temperature_scales_the_logits() -> None:
    """At temperature 1/2 odds square: (1, 4, 2, 1) → (1, 16, 4, 1) / 22."""
    scores = np.log(np.array([[1, 4, 2, 1]], np.float32))
    tokens, logprobs = sample(scores, np.array([18 / 22], np.float32), np.array([0.5], np.float32))
    assert tokens.tolist() == [2]
    np.testing.assert_allclose(logprobs, [np.log(4 / 22)], atol=1e-6)


def test_temperature_zero_is_greedy_scored_at_temperature_one() -> None:
    scores = np.log(np.array([[1, 4, 2, 1]], np.float32))
    tokens, logprobs = sample(scores, np.array([0.99], np.float32), np.zeros(1, np.float32))
    assert tokens.tolist() == [1]
    np.testing.assert_allclose(logprobs, [np.log(0.5)], atol=1e-6)


def test_an_impossible_token_is_never_drawn() -> None:
    scores = np.full((3, 600), -1e9, np.float32)
    scores[:, 300] = 0.0
    tokens, logprobs = sample(scores, np.array([0, 0.5, 1 - 2**-24], np.float32), np.ones(3, np.float32))
    assert tokens.tolist() == [300, 300, 300]
    assert logprobs.tolist() == [0, 0, 0]


def test_frequencies_are_the_probabilities() -> None:
    scores = np.tile(np.random.default_rng(0).normal(size=50).astype(np.float32), (20_000, 1))
    tokens, _ = sample(scores, batching.draw_uniforms((1, 2), 20_000), np.ones(20_000, np.float32))
    expected = np.exp(scores[0]) / np.exp(scores[0]).sum()
    found = np.bincount(tokens, minlength=50) / 20_000
    assert np.abs(found - expected).max() < 4.5 * np.sqrt(expected.max() / 20_000)


def test_uniforms_follow_the_seed_alone() -> None:
    numbers = batching.draw_uniforms((0, 1, 2), 1000)
    assert numbers.dtype == np.float32
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert numbers.mean() == pytest.approx(0.5, abs=0.04)
    np.testing.assert_array_equal(numbers[:10], batching.draw_uniforms((0, 1, 2), 10))
    assert not np.array_equal(numbers[:10], batching.draw_uniforms((0, 12), 10))
    # Pinned: other numbers would change every run that is repeated.
    pinned = np.array([0.2286320924758911, 0.20307791233062744, 0.15231966972351074], np.float32)
    np.testing.assert_array_equal(batching.draw_uniforms((7,), 3), pinned)


@pytest.mark.parametrize(
    ("count", "sizes", "pieces"),
    [(0, (16,), []), (1, (16,), [16]), (16, (16,), [16]), (39, (16,), [16, 16, 16]), (90, (16, 64), [64, 16, 16])],
)
def test_chunks(count: int, sizes: tuple[int, ...], pieces: list[int]) -> None:
    assert batching.split_chunks(count, sizes) == pieces


@pytest.mark.parametrize("count", [1, 2, 7, 432, 5001])
def test_draws_where_numpy_does(count: int) -> None:
    """Against NumPy in float64, for vocabularies that fill the blocks and such that do not."""
    draw = np.random.default_rng(count)
    scores = draw.normal(scale=3.0, size=(300, count)).astype(np.float32)
    uniform = draw.random(300, np.float32)
    tokens, logprobs = sample(scores, uniform, np.full(300, 0.8, np.float32))
    scaled = scores.astype(np.float64) / np.float64(np.float32(0.8))
    chances = np.exp(scaled - scaled.max(-1, keepdims=True))
    chances /= chances.sum(-1, keepdims=True)
    ends = np.cumsum(chances, axis=-1)
    chosen = np.take_along_axis(chances, np.asarray(tokens)[:, None], -1)[:, 0]
    end = np.take_along_axis(ends, np.asarray(tokens)[:, None], -1)[:, 0]
    assert (uniform < end + 1e-6).all()
    assert (uniform > end - chosen - 1e-6).all()
    np.testing.assert_allclose(logprobs, np.log(chosen), atol=1e-5)


@pytest.mark.parametrize("layers", [2, pytest.param(5, marks=pytest.mark.nightly)])
def test_programs_of_prefill_grow_with_the_logarithm_of_the_length_and_not_with_depth(layers: int) -> None:
    """Spans of 128, 256 and 512 positions; the last layer, whose output nobody reads, is a program of its own."""
    config = ModelConfig(101, 16, 16, layers, 2, 1, 8, max_position_embeddings=600)
    engine = LocalEngine(config, slots=1, max_length=600, prefill_rows=1, prefill_chunks=(64,))
    forwards._run_layer.clear_cache()
    try:
        engine.load(Weights(0, lambda: to_hf(config, drawn(config, 0))))
        engine.generate([7] * 500, Sampling(max_tokens=1), session="long", seed=(0,))
    finally:
        engine.close()
    assert forwards._run_layer._cache_size() == 2 * 3
