"""The decoder against transformers' own logits, packed against separate rows, cached against uncached."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from references import cached_hidden_states, hidden_states, initialize, one_segment, reference

from cojax.policy import cached, transformer
from cojax.policy.cached import Cache, make_cache, unstack
from cojax.policy.config import FAMILIES, ModelConfig
from cojax.policy.family import FULL, QWEN3, SLIDING, Family
from cojax.policy.transformer import compute_logits, make_block, make_rotation

CONFIG = ModelConfig(61, 32, 40, 2, 4, 2, 16)


@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
def test_logits_are_those_of_transformers(name: str) -> None:
    config, params, values = reference(name)
    hidden = hidden_states(config, params, values["tokens"], *one_segment(values["tokens"]))
    np.testing.assert_allclose(compute_logits(config, params, hidden)[0], values["logits"], atol=1e-5, rtol=0)


def test_cached_logits_are_those_of_transformers() -> None:
    """A prefill of 16 tokens in page 2, then one token at a time beside other rows."""
    config, params, values = reference("qwen3")
    tokens, split = jnp.asarray(values["tokens"]), unstack(config, params)
    cache = make_cache(config, page_count=3, page_length=32)
    first = jnp.arange(16)[None]
    hidden, cache, _ = cached_hidden_states(config, split, cache, tokens[:, :16], first, jnp.array([[2]]), span=16)
    found = [hidden[0]]
    for index in range(16, 24):
        fed = jnp.array([[5], [0], [int(tokens[0, index])]])
        hidden, cache, _ = cached_hidden_states(config, split, cache, fed, jnp.array([[index - 16], [32], [index]]))
        found.append(hidden[2])
    np.testing.assert_allclose(
        compute_logits(config, params, jnp.concatenate(found)), values["logits"], atol=1e-5, rtol=0
    )


@pytest.mark.parametrize(("layers", "reach"), [((SLIDING,), 4), ((SLIDING, FULL), 12)])
def test_layers_that_differ_in_their_windows(
    layers: tuple[str, ...], reach: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token is seen `reach` tokens later at most, by all layers together; cached states are the uncached ones."""
    monkeypatch.setitem(FAMILIES, name := "-".join(layers), Family(name, "", QWEN3.rows, layers=layers))  # type: ignore[arg-type]
    config = dataclasses.replace(CONFIG, model_type=name, sliding_window=3)
    params, tokens = initialize(config, 0), np.arange(12, dtype=np.int32)[None]
    row = one_segment(tokens)
    found = hidden_states(config, params, tokens, *row)
    other = hidden_states(config, params, np.where(tokens == 0, 60, tokens), *row)
    assert np.flatnonzero(np.any(np.asarray(found != other)[0], axis=-1)).tolist() == list(range(min(reach + 1, 12)))
    cache, split = make_cache(config, page_count=1, page_length=16), unstack(config, params)
    states = []
    for index in range(12):
        fed = jnp.array([[index]])
        hidden, cache, _ = cached_hidden_states(config, split, cache, fed, fed)
        states.append(hidden[0])
    np.testing.assert_allclose(jnp.concatenate(states), found[0], atol=1e-5, rtol=0)


def test_a_family_has_its_own_activation(monkeypatch: pytest.MonkeyPatch) -> None:
    family = Family("gelu", "", QWEN3.rows, hidden_act="gelu", activation=jax.nn.gelu)
    monkeypatch.setitem(FAMILIES, "gelu", family)  # type: ignore[arg-type]
    config = dataclasses.replace(CONFIG, model_type="gelu")
    kernels = {name: np.eye(32, 40, dtype=np.float32) for name in ("gate", "up")} | {"down": np.eye(40, 32)}
    layer = jax.tree.map(lambda leaf: leaf[0], initialize(config, 0)["layers"])
    layer["feed_forward"] = {name: {"kernel": jnp.asarray(kernel, jnp.float32)} for name, kernel in kernels.items()}
    x = jax.random.normal(jax.random.key(0), (3, 32))
    np.testing.assert_allclose(make_block(config, layer).feed_forward(x), jax.nn.gelu(x) * x, atol=1e-6, rtol=0)


def test_packed_segments_do_not_see_each_other() -> None:
    params = initialize(CONFIG, 0)
    tokens = np.random.default_rng(0).integers(0, 61, (1, 12)).astype(np.int32)
    segments = np.array([[7, 7, 7, 7, 7, 2, 2, 2, 2, 0, 0, 0]], np.int32)
    positions = np.array([[0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 0, 0]], np.int32)
    packed = hidden_states(CONFIG, params, tokens, positions, segments)
    for start, stop in ((0, 5), (5, 9)):
        alone = [np.pad(row[:, start:stop], ((0, 0), (0, 12 - stop + start))) for row in (tokens, positions, segments)]
        found = hidden_states(CONFIG, params, *alone)[:, : stop - start]
        np.testing.assert_allclose(packed[:, start:stop], found, atol=1e-5, rtol=0)
    changed = hidden_states(CONFIG, params, np.where(segments == 7, 60 - tokens, tokens), positions, segments)
    assert not np.array_equal(packed[:, :5], changed[:, :5])
    np.testing.assert_array_equal(packed[:, 5:9], changed[:, 5:9])


def test_a_token_sees_no_later_one() -> None:
    params = initialize(CONFIG, 0)
    tokens = np.arange(12, dtype=np.int32)[None]
    positions, segments = one_segment(tokens)
    before = hidden_states(CONFIG, params, tokens, positions, segments)
    after = hidden_states(CONFIG, params, np.where(tokens == 6, 60, tokens), positions, segments)
    changed = np.any(np.asarray(before != after)[0], axis=-1)
    assert changed.tolist() == [False] * 6 + [True] * 6


def test_rotation_pairs_the_halves() -> None:
    """head_dim 4, θ = 100: at position 2 the pairs (0, 2) and (1, 3) turn by 2 and by 2 · 100^(−1/2) = 0.2."""
    config = ModelConfig(61, 8, 8, 1, 2, 2, 4, rope_theta=100.0)
    x = jnp.array([1.0, 2.0, 0.0, 0.0]).reshape(1, 1, 1, 4)
    turned = make_rotation(config, jnp.array([[2]]))(x).ravel()
    np.testing.assert_allclose(turned, [-0.4161468, 1.9601332, 0.9092974, 0.3973387], atol=1e-6)


def test_initialize_depends_on_the_seed_alone() -> None:
    first, again, other = (transformer.initialize(CONFIG, seed) for seed in (3, 3, 4))
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, first, again)))
    kernel = ("layers", "attention", "query", "kernel")
    a, b = first, other
    for key in kernel:
        a, b = a[key], b[key]
    assert not np.array_equal(a, b)
    assert not np.array_equal(a[0], a[1])
    assert float(jnp.std(a)) == pytest.approx(32**-0.5, rel=0.05)


@pytest.mark.parametrize("window", [None, 9])
def test_pages_that_are_read_by_blocks_give_what_the_whole_gives_whoever_reads_beside(window):
    """Of 40 positions in pages of 4 and blocks of 16, the last of which overlaps; the fourth row is idle."""
    draw = np.random.default_rng(0)
    query, key, value = (
        draw.normal(size=shape).astype(np.float32) for shape in [(4, 1, 4, 8), (4, 2, 8, 40), (4, 2, 40, 8)]
    )
    pages = draw.permutation(50)[:40].reshape(4, 10).astype(np.int32)
    cut = Cache(np.zeros((50, 2, 8, 4), np.float32), np.zeros((50, 2, 4, 8), np.float32))
    cut.key[pages] = key.reshape(4, 2, 8, 10, 4).transpose(0, 3, 1, 2, 4)
    cut.value[pages] = value.reshape(4, 2, 10, 4, 8).swapaxes(1, 2)
    paged = Cache(*map(jnp.asarray, cut))
    pages[0, 1:] = 50  # a page that the row does not have
    pages = jnp.asarray(pages)
    blocks = jax.jit(lambda positions: cached._attend_blocks(query, paged, pages, positions, window, 16))
    whole = jax.jit(lambda positions: cached._attend_cache(query, Cache(key, value), positions, window))
    positions = np.array([[3], [17], [39], [40]], np.int32)
    found = np.asarray(blocks(positions))
    np.testing.assert_allclose(found[:3], whole(positions)[:3], atol=1e-6)
    assert found[:2].tobytes() == np.asarray(blocks(np.where(positions == 39, 2, positions)))[:2].tobytes()
