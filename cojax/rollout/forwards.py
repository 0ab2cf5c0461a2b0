"""The local engine's computations: prefill, decode, sampling, random numbers, and the chunks of a prompt."""

import functools
import hashlib
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from cojax.policy.config import ModelConfig
from cojax.policy.sharding import constrain
from cojax.policy.transformer import Cache, Params, cached_hidden_states, cached_layer, embedding_and_head, logits


def prefill(
    config: ModelConfig,
    params: Params,
    cache: tuple[Cache, ...],
    tokens: np.ndarray,
    start: np.ndarray,
    slots: np.ndarray,
    span: int,
    routed: bool = False,
    mesh: Mesh | None = None,
) -> tuple[tuple[Cache, ...], jax.Array | None]:
    """Writes tokens int32[P, C] to the cache of slots int32[P], from position start int32[P] on. The cache is donated.

    Returns the cache and, if `routed`, the tokens' routes int[P, C, L, k]. A negative token is padding; a slot ≥ S
    marks an unused row. Every position must be below `span`. `mesh` is as in `cached_hidden_states`.

    All layers run one program after another. A program of all of them would take L times as long to compile, at each
    size and span.
    """
    length, layers = cache[0].key.shape[-1], params["layers"]
    ends = {name: arrays for name, arrays in params.items() if name != "layers"}
    x, positions = _embed(config, ends, tokens, start, length, mesh)
    written, chosen = [], []
    windows = config.layer_windows or (None,) * len(layers)
    for number, (old, arrays, window) in enumerate(zip(cache, layers, windows, strict=True), 1):
        last = number == len(layers)
        x, new, routes = _layer(config, arrays, old, x, positions, slots, span, window, last, routed, mesh)
        written.append(new)
        if routes is not None:
            chosen.append(routes)
    return tuple(written), jnp.stack(chosen, axis=2) if routed else None


@functools.partial(jax.jit, static_argnames=("config", "length", "mesh"))
def _embed(
    config: ModelConfig, ends: Params, tokens: jax.Array, start: jax.Array, length: int, mesh: Mesh | None
) -> tuple[jax.Array, jax.Array]:
    positions = jnp.where(tokens < 0, length, start[:, None] + jnp.arange(tokens.shape[1]))
    return constrain(embedding_and_head(config, ends).embed(jnp.maximum(tokens, 0)), mesh), positions


@functools.partial(jax.jit, static_argnames=("config", "span", "last", "routed", "mesh"), donate_argnames="old")
def _layer(
    config: ModelConfig,
    arrays: Params,
    old: Cache,
    x: jax.Array,
    positions: jax.Array,
    slots: jax.Array,
    span: int,
    window: jax.Array | int | None,
    last: bool,
    routed: bool,
    mesh: Mesh | None,
) -> tuple[jax.Array | None, Cache, jax.Array | None]:
    """Nobody reads the output of the `last` layer, so it is not computed."""
    x, new, routes = cached_layer(config, arrays, old, x, positions, slots, span, window, routed=routed, mesh=mesh)
    return None if last else x, new, routes


@functools.partial(jax.jit, static_argnames="span", donate_argnames="cache")
def copy_prefixes(
    cache: tuple[Cache, ...], sources: jax.Array, targets: jax.Array, count: jax.Array, span: int
) -> tuple[Cache, ...]:
    """Copies keys and values of the first `span` positions from slot to slot, one copy after another.

    sources and targets are int32[N], of which the first `count`, int32[], are made; so one program serves any number
    of copies up to N.
    """

    def copied(index: jax.Array, array: jax.Array, *sizes: int) -> jax.Array:
        # One slice: a slice of a slice would make XLA copy the whole cache.
        taken = jax.lax.dynamic_slice(array, (sources[index], 0, 0, 0), (1, array.shape[1], *sizes))
        return jax.lax.dynamic_update_slice(array, taken, (targets[index], 0, 0, 0))

    def copy(index: jax.Array, cache: tuple[Cache, ...]) -> tuple[Cache, ...]:
        return tuple(Cache(copied(index, key, size, span), copied(index, value, span, size)) for key, value in cache)

    size = cache[0].key.shape[2]
    return jax.lax.fori_loop(0, count, copy, cache)


@functools.partial(jax.jit, static_argnames=("config", "routed", "mesh"), donate_argnames="cache")
def decode(
    config: ModelConfig,
    params: Params,
    cache: tuple[Cache, ...],
    fed: jax.Array,
    chance: jax.Array,
    routed: bool = False,
    mesh: Mesh | None = None,
) -> tuple[jax.Array, jax.Array, tuple[Cache, ...], jax.Array | None]:
    """Feeds one token to every slot and samples the next.

    fed int32[2, S] holds token and position; a position ≥ the cache's length marks an idle slot. chance float32[2, S]
    holds a uniform random number and the temperature. Returns the sampled tokens int32[S], their log-probabilities
    float32[S], the cache and, if `routed`, the routes of the tokens fed, int[S, L, k]. `mesh` is as in
    `cached_hidden_states`.
    """
    hidden, cache, routes = cached_hidden_states(
        config, params, cache, fed[0][:, None], fed[1][:, None], routed=routed, mesh=mesh
    )
    # Each device scores its part of the vocabulary and samples from all scores; otherwise XLA would gather the matrix.
    scores = constrain(constrain(logits(config, params, hidden[:, 0]), mesh, "vocabulary"), mesh)
    tokens, logprobs = sample(scores, chance[0], chance[1])
    return tokens, logprobs, cache, None if routes is None else routes[:, 0]


def sample(scores: jax.Array, uniform: jax.Array, temperature: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Inverse-CDF sampling of float32[S, V] logits / temperature: the first token i with Σ_{j≤i} p_j > u · Σ_j p_j.

    uniform, temperature are float32[S]. At temperature 0 it is the most likely token, scored at temperature 1.
    """
    greedy = temperature == 0
    scaled = scores / jnp.where(greedy, 1.0, temperature)[:, None]
    top = jnp.max(scaled, axis=-1)
    weights = jnp.exp(scaled - top[:, None])
    drawn, total = _draw(weights, uniform)
    tokens = jnp.where(greedy, jnp.argmax(scaled, axis=-1), drawn).astype(jnp.int32)
    chosen = jnp.take_along_axis(scaled, tokens[:, None], axis=-1)[:, 0]
    return tokens, chosen - top - jnp.log(total)


def _draw(weights: jax.Array, uniform: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The token drawn from each row of float32[S, V], and the row's sum float32[S].

    The token's block is found first, then the token within the block: a cumulative sum over the vocabulary is slow.
    """
    count = weights.shape[-1]
    size = max(1, math.isqrt(count))
    blocks = jnp.pad(weights, ((0, 0), (0, -count % size))).reshape(weights.shape[0], -1, size)
    sums = jnp.sum(blocks, axis=-1)
    ends = jnp.cumsum(sums, axis=-1)
    total = ends[:, -1]
    block = _first_above(ends, sums, uniform * total)
    inside = jnp.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0]
    before = jnp.take_along_axis(ends - sums, block[:, None], axis=1)[:, 0]
    index = _first_above(jnp.cumsum(inside, axis=-1), inside, uniform * total - before)
    return block * size + index, total


def _first_above(sums: jax.Array, weights: jax.Array, target: jax.Array) -> jax.Array:
    """int32[S]: the first index whose cumulative sum exceeds the target.

    If rounding leaves no such index, it is the last one with a weight above 0. An index of weight 0 is never returned.
    """
    possible = weights > 0
    above = (sums > target[:, None]) & possible
    last = weights.shape[-1] - 1 - jnp.argmax(possible[:, ::-1], axis=-1)
    return jnp.where(jnp.any(above, axis=-1), jnp.argmax(above, axis=-1), last)


def uniforms(seed: Sequence[int], count: int) -> np.ndarray:
    """float32[count] in [0, 1): the request's random numbers, one per token, from the SHA-256 of `seed`.

    A larger `count` appends numbers; the first ones stay the same.
    """
    digest = hashlib.sha256(repr(tuple(int(part) for part in seed)).encode()).digest()
    bits = np.random.Philox(key=int.from_bytes(digest[:16], "little")).random_raw(count)
    return ((bits >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)).astype(np.float32)


def chunks(count: int, sizes: Sequence[int]) -> list[int]:
    """Sizes of the chunks that hold `count` tokens: each is the largest size that is filled, or else the smallest."""
    pieces: list[int] = []
    while count > 0:
        piece = max((size for size in sizes if size <= count), default=min(sizes))
        pieces.append(piece)
        count -= piece
    return pieces
