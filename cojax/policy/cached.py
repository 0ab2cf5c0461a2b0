"""The decoder with a cache of keys and values, which is cut into pages: it samples.

A conversation's positions are cut at multiples of a page's length, and its pages need not be neighbours. Several
conversations may read one page. A page that nobody has reads as stale numbers, whose weight is exactly 0.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cojax.policy.config import ModelConfig
from cojax.policy.moe import RouteShape
from cojax.policy.parameters import Params
from cojax.policy.sharding import RULES, constrain, find_platform
from cojax.policy.transformer import embedding_and_head, make_block, make_rotation

# The most positions that a decoding step reads at a time: copying smaller blocks takes longer than it saves on a CPU,
# and on an accelerator each block is a few small programs.
BLOCK = 512
_ACCELERATOR_BLOCK = 2048
_HIDDEN_SCORE = -1e30


class Cache(NamedTuple):
    """Keys and values of one layer: [P, kv_heads, head_dim, T] and [P, kv_heads, T, head_dim] for P pages.

    Positions run along the last axis of the keys, so that both products read memory in order.
    """

    key: jax.Array
    value: jax.Array


def make_cache(config: ModelConfig, page_count: int, page_length: int, mesh: Mesh | None = None) -> tuple[Cache, ...]:
    """An empty cache per layer, with its heads split over the tensor axis of a `mesh`.

    Stale entries have weight 0, but must be finite: 0 · NaN is not 0.
    """
    head_count, head_dim = config.num_key_value_heads, config.head_dim
    device = None if mesh is None else NamedSharding(mesh, PartitionSpec(None, RULES["kv_heads"]))
    zeros = functools.partial(jnp.zeros, dtype=jnp.dtype(config.dtype), device=device)
    shapes = (page_count, head_count, head_dim, page_length), (page_count, head_count, page_length, head_dim)
    return tuple(Cache(*map(zeros, shapes)) for _ in range(config.num_hidden_layers))


def unstack(config: ModelConfig, params: Params) -> Params:
    """The same parameters with `layers` as a tuple of L trees, for `compute_cached_states`.

    A leaf of layers is an array [L, ...] or a list of L arrays.
    """
    map_leaves = functools.partial(jax.tree.map, is_leaf=lambda leaf: isinstance(leaf, list))
    layers = tuple(map_leaves(lambda x, i=i: x[i], params["layers"]) for i in range(config.num_hidden_layers))
    return {**params, "layers": layers}


def compute_cached_states(
    config: ModelConfig,
    params: Params,
    cache: tuple[Cache, ...],
    tokens: jax.Array,
    positions: jax.Array,
    pages: jax.Array | None = None,
    span: int | None = None,
    *,
    with_routes: bool = False,
    mesh: Mesh | None = None,
) -> tuple[jax.Array, tuple[Cache, ...], jax.Array | None]:
    """Final hidden states, dtype[R, C, D], of new tokens, and the cache with them written to it.

    With `with_routes`, a sparse model also returns the tokens' routes, int[R, C, L, k]; otherwise they are None. tokens
    and positions are int32[R, C]. pages int32[R, N] are the pages of each row's conversation, in order; None means that
    row i has page i alone. A position ≥ N · T, or one in a page ≥ P, is padding: nothing is written and its state is
    meaningless. With a `span`, a row attends to its first `span` positions, which must exceed each of its positions;
    without, C is 1, and it reads no further than the last block that a row uses. With a `mesh`, one of
    `list_replicas`, parameters and cache are laid out over it, and each device computes its own heads and experts.
    `params` come from `unstack`. Layers are unrolled: a cache carried through a scan would be copied every step.
    """
    modules = embedding_and_head(config, params)
    x = constrain(modules.embed(tokens), mesh)
    new_cache, token_routes = [], []
    windows = config.layer_windows or (None,) * len(cache)
    for layer_cache, arrays, window in zip(cache, params["layers"], windows, strict=True):
        x, new_layer_cache, routes = run_cached_layer(
            config, arrays, layer_cache, x, positions, pages, span, window, with_routes=with_routes, mesh=mesh
        )
        new_cache.append(new_layer_cache)
        if routes is not None:
            token_routes.append(routes)
    return modules.final_norm(x), tuple(new_cache), jnp.stack(token_routes, axis=2) if with_routes else None


def run_cached_layer(
    config: ModelConfig,
    arrays: Params,
    old_cache: Cache,
    x: jax.Array,
    positions: jax.Array,
    pages: jax.Array | None,
    span: int | None,
    window: jax.Array | int | None,
    *,
    with_routes: bool,
    mesh: Mesh | None,
) -> tuple[jax.Array, Cache, jax.Array | None]:
    """One layer of `compute_cached_states` with parameters `arrays`: its output dtype[R, C, D], its new cache, and its
    routes int[R, C, k] or None. `window` is the layer's window; None means none."""
    new_cache, page_length = old_cache, old_cache.key.shape[-1]
    row_pages = jnp.arange(x.shape[0])[:, None] if pages is None else pages

    def attend(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        nonlocal new_cache
        # Write before reading: the other order would make XLA copy the whole cache.
        page_index, offset = positions // page_length, positions % page_length
        is_padding = page_index >= row_pages.shape[1]
        offset = jnp.where(is_padding, page_length, offset)
        page = jnp.take_along_axis(row_pages, jnp.where(is_padding, 0, page_index), axis=1)
        keys = old_cache.key.at[page, :, :, offset].set(key, mode="drop")
        values = old_cache.value.at[page, :, offset].set(value, mode="drop")
        new_cache = Cache(constrain(keys, mesh, "kv_heads"), constrain(values, mesh, "kv_heads"))
        if span is not None:
            return _attend_cache(query, _gather(new_cache, row_pages, span), positions, window)
        if pages is None:
            return _attend_cache(query, new_cache, positions, window)
        block_length = BLOCK if find_platform(mesh) == "cpu" else _ACCELERATOR_BLOCK
        return _attend_blocks(query, new_cache, pages, positions, window, block_length)

    block, rotate, routes = make_block(config, arrays), make_rotation(config, positions), None
    if with_routes:
        x, experts = block.call_with_routes(x, rotate, attend, mesh=mesh)
        routes = experts.reshape(*positions.shape, -1).astype(RouteShape.of(config).dtype)
    else:
        x = block(x, rotate, attend, mesh)
    return constrain(x, mesh), new_cache, routes


def _gather(cache: Cache, pages: jax.Array, span: int) -> Cache:
    """The first `span` positions of each row, [R, kv_heads, …]; more positions than a page has are whole pages."""
    page_length = cache.key.shape[-1]
    if span <= page_length:
        first_pages = pages[:, 0]
        key, value = (
            array.at[first_pages].get(mode="clip") for array in (cache.key[..., :span], cache.value[:, :, :span])
        )
        return Cache(key, value)
    key, value = (array.at[pages[:, : span // page_length]].get(mode="clip") for array in cache)
    row_count, _, head_count, head_dim, _ = key.shape
    key = jnp.moveaxis(key, 1, 3).reshape(row_count, head_count, head_dim, -1)
    return Cache(key, jnp.moveaxis(value, 1, 2).reshape(row_count, head_count, -1, head_dim))


def _attend_cache(query: jax.Array, cache: Cache, positions: jax.Array, window: jax.Array | int | None) -> jax.Array:
    """Softmax over the cache's whole fixed length; positions after the query's have weight exactly 0."""
    rows, chunk, heads, head_dim = query.shape
    kv_heads, length = cache.key.shape[1], cache.key.shape[-1]
    query = query.reshape(rows, chunk, kv_heads, -1, head_dim) * head_dim**-0.5
    query = jnp.moveaxis(query, 1, 3).reshape(rows, kv_heads, -1, head_dim)
    scores = jnp.einsum("rkqh,rkht->rkqt", query, cache.key, preferred_element_type=jnp.float32)
    scores = scores.reshape(rows, kv_heads, -1, chunk, length)
    is_visible = (jnp.arange(length) <= positions[..., None])[:, None, None]
    if window is not None:
        is_visible &= (positions[..., None] - jnp.arange(length) < window)[:, None, None]
    weights = jax.nn.softmax(jnp.where(is_visible, scores, _HIDDEN_SCORE), axis=-1).reshape(rows, kv_heads, -1, length)
    output = jnp.einsum("rkqt,rkth->rkqh", weights.astype(cache.value.dtype), cache.value)
    return jnp.moveaxis(output.reshape(rows, kv_heads, -1, chunk, head_dim), 3, 1).reshape(rows, chunk, heads, head_dim)


def _attend_blocks(
    query: jax.Array,
    cache: Cache,
    pages: jax.Array,
    positions: jax.Array,
    window: jax.Array | int | None,
    block_length: int,
) -> jax.Array:
    """`_attend_cache` by blocks of whole pages, up to the last block that a row uses: positions int32[R, 1].

    The blocks after a row's own change no bit of its result: their weights are exactly 0. So it does not depend on the
    other rows, whose positions decide how many blocks are read.
    """
    rows, chunk, heads, head_dim = query.shape
    kv_heads, page_length = cache.key.shape[1], cache.key.shape[-1]
    length = pages.shape[1] * page_length
    block_length = min(block_length, length)
    query = query.reshape(rows, kv_heads, -1, head_dim) * head_dim**-0.5
    last_position = jnp.max(jnp.where(positions < length, positions, 0))

    def add_block(index: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        max_scores, weight_sum, output = carry
        start = jnp.minimum(index * block_length, length - block_length)  # the last block overlaps the one before it
        block_pages = jax.lax.dynamic_slice_in_dim(pages, start // page_length, block_length // page_length, axis=1)
        key, value = _gather(cache, block_pages, block_length)
        scores = jnp.einsum("rkqh,rkht->rkqt", query, key, preferred_element_type=jnp.float32)
        key_positions = start + jnp.arange(block_length)
        distance = (positions - key_positions)[:, None, None]
        is_visible = (key_positions >= index * block_length) & (distance >= 0)
        if window is not None:
            is_visible &= distance < window
        scores = jnp.where(is_visible, scores, _HIDDEN_SCORE)
        new_max = jnp.maximum(max_scores, jnp.max(scores, axis=-1, keepdims=True))
        # A row that has seen nothing yet has max_scores = _HIDDEN_SCORE, and exp(0) would count what is hidden.
        weights = jnp.where(is_visible, jnp.exp(scores - new_max), 0.0)
        scale = jnp.exp(max_scores - new_max)
        product = jnp.einsum("rkqt,rkth->rkqh", weights.astype(value.dtype), value, preferred_element_type=jnp.float32)
        return new_max, weight_sum * scale + jnp.sum(weights, axis=-1, keepdims=True), output * scale + product

    zeros = jnp.zeros((*query.shape[:-1], 1))
    carry = zeros + _HIDDEN_SCORE, zeros, jnp.zeros(query.shape, jnp.float32)
    _, weight_sum, output = jax.lax.fori_loop(0, last_position // block_length + 1, add_block, carry)
    return (output / weight_sum).astype(query.dtype).reshape(rows, chunk, heads, head_dim)
