"""The programs of one replica: they feed tokens, and own its cache and its weights. They decide nothing.

`cojax.rollout.batching` says what is computed next. Rows of a program do not interact.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cojax.policy import cached, transformer
from cojax.policy.cached import Cache
from cojax.policy.config import ModelConfig
from cojax.policy.parameters import jit_policy
from cojax.policy.sharding import Mesh, constrain
from cojax.policy.transformer import Params

# What a forward computes: the names of programs of `Forwards`, each with its arguments. The last one gives the result.
Calls = tuple[tuple[Any, ...], ...]


class Forwards:
    """The arrays of one replica. `calls` name its methods `copy`, `save`, `restore`, `forget`, `prefill`, `decode`."""

    def __init__(
        self, config: ModelConfig, page_count: int, page_length: int, with_routes: bool, mesh: Mesh | None
    ) -> None:
        self._config, self._routes, self.mesh = config, with_routes, mesh
        self._cache = cached.make_cache(config, page_count, page_length, mesh)
        # Pages of conversations that had to make room, on the host, by key: of each array its shape, its sharding, and
        # its parts with their devices.
        self._saved = dict[int, list[tuple[Any, ...]]]()
        self.params: Params = {}

    def run_all(self, plans: Sequence[Calls]) -> Sequence[Any]:
        """The results of these plans."""
        return [self.run(calls) for calls in plans]

    def run(self, calls: Calls) -> Any:
        """Starts the programs one after another; returns the result of the last."""
        result = None
        for name, *arguments in calls:
            result = getattr(self, name)(*arguments)
        return result

    def copy(self, sources: np.ndarray, targets: np.ndarray, copy_count: np.int32, span: int) -> None:
        """Runs `copy_pages`."""
        self._cache = copy_pages(self._cache, sources, targets, copy_count, span)

    def save(self, key: int, pages: np.ndarray) -> None:
        """Copies pages to the host, where `key` names them."""
        arrays = jax.tree.leaves(take_pages(self._cache, pages))
        self._saved[key] = [
            (
                array.shape,
                array.sharding,
                [(np.asarray(shard.data), shard.device) for shard in array.addressable_shards],
            )
            for array in arrays
        ]

    def restore(self, key: int, pages: np.ndarray) -> None:
        """Copies saved pages back, to these pages, and forgets them."""
        arrays = [
            jax.make_array_from_single_device_arrays(
                shape, sharding, [jax.device_put(part, device) for part, device in parts]
            )
            for shape, sharding, parts in self._saved.pop(key)
        ]
        tree = jax.tree.unflatten(jax.tree.structure(self._cache), arrays)
        self._cache = put_pages(self._cache, tree, pages)

    def forget(self, key: int) -> None:
        """Forgets saved pages."""
        del self._saved[key]

    def prefill(self, tokens: np.ndarray, first_positions: np.ndarray, pages: np.ndarray, span: int) -> Any:
        """Runs `prefill`; returns the routes of its tokens, or None."""
        self._cache, routes = prefill(
            self._config, self.params, self._cache, tokens, first_positions, pages, span, self._routes, self.mesh
        )
        return routes

    def decode(
        self, inputs: np.ndarray, draw_settings: np.ndarray, steps: np.int32, pages: np.ndarray | None
    ) -> tuple[Any, Any, Any]:
        """Runs `decode`; returns tokens, log-probabilities and routes."""
        tokens, logprobs, self._cache, routes = decode(
            self._config, self.params, self._cache, inputs, draw_settings, steps, pages, self._routes, self.mesh
        )
        return tokens, logprobs, routes

    def wait(self) -> None:
        """Waits until the devices have finished their work."""
        for layer in self._cache:
            layer.value.block_until_ready()


def prefill(
    config: ModelConfig,
    params: Params,
    cache: tuple[Cache, ...],
    tokens: np.ndarray,
    start_positions: np.ndarray,
    pages: np.ndarray,
    span: int,
    with_routes: bool = False,
    mesh: Mesh | None = None,
) -> tuple[tuple[Cache, ...], jax.Array | None]:
    """Writes tokens int32[R, C] to pages int32[R, N] of R conversations, from position start int32[R] on.

    Returns the cache, whose old arrays are donated, and, if `with_routes`, the tokens' routes int[R, C, L, k]. A
    negative token is padding. Every position must be below `span`, which N pages hold. `pages` and `mesh` are as in
    `compute_cached_states`.

    Each layer is one run of a small program. A program of all layers would take L times as long to compile, for each
    size and span.
    """
    length, layers = pages.shape[1] * cache[0].key.shape[-1], params["layers"]
    embedding_params = {param_name: arrays for param_name, arrays in params.items() if param_name != "layers"}
    x, positions = _embed_tokens(config, embedding_params, tokens, start_positions, length, mesh)
    new_cache, layer_routes = [], []
    windows = config.layer_windows or (None,) * len(layers)
    for layer_number, (layer, arrays, window) in enumerate(zip(cache, layers, windows, strict=True), 1):
        last = layer_number == len(layers)
        x, layer, routes = _run_layer(config, arrays, layer, x, positions, pages, span, window, last, with_routes, mesh)
        new_cache.append(layer)
        if routes is not None:
            layer_routes.append(routes)
    return tuple(new_cache), jnp.stack(layer_routes, axis=2) if with_routes else None


@functools.partial(jit_policy, static_argnames=("config", "length", "mesh"))
def _embed_tokens(
    config: ModelConfig, end_params: Params, tokens: jax.Array, starts: jax.Array, length: int, mesh: Mesh | None
) -> tuple[jax.Array, jax.Array]:
    positions = jnp.where(tokens < 0, length, starts[:, None] + jnp.arange(tokens.shape[1]))
    return constrain(transformer.embedding_and_head(config, end_params).embed(jnp.maximum(tokens, 0)), mesh), positions


@functools.partial(
    jit_policy, static_argnames=("config", "span", "is_last", "with_routes", "mesh"), donate_argnames="old_cache"
)
def _run_layer(
    config: ModelConfig,
    arrays: Params,
    old_cache: Cache,
    x: jax.Array,
    positions: jax.Array,
    pages: jax.Array,
    span: int,
    window: jax.Array | int | None,
    is_last: bool,
    with_routes: bool,
    mesh: Mesh | None,
) -> tuple[jax.Array | None, Cache, jax.Array | None]:
    """Runs one layer. Nobody reads the output of the last layer (`is_last`), so it is not computed."""
    x, new_cache, routes = cached.run_cached_layer(
        config, arrays, old_cache, x, positions, pages, span, window, with_routes=with_routes, mesh=mesh
    )
    return None if is_last else x, new_cache, routes


@functools.partial(jax.jit, static_argnames="span", donate_argnames="cache")
def copy_pages(
    cache: tuple[Cache, ...], sources: jax.Array, targets: jax.Array, copy_count: jax.Array, span: int
) -> tuple[Cache, ...]:
    """Copies keys and values of the first `span` positions from page to page, one copy after another.

    sources and targets are int32[N]. Only the first `copy_count`, int32[], are copied, so one program serves any number
    of copies up to N.
    """

    def move(index: jax.Array, array: jax.Array, *sizes: int) -> jax.Array:
        # One slice: a slice of a slice would make XLA copy the whole cache.
        prefix = jax.lax.dynamic_slice(array, (sources[index], 0, 0, 0), (1, array.shape[1], *sizes))
        return jax.lax.dynamic_update_slice(array, prefix, (targets[index], 0, 0, 0))

    def copy_layers(index: jax.Array, cache: tuple[Cache, ...]) -> tuple[Cache, ...]:
        return tuple(Cache(move(index, key, width, span), move(index, value, span, width)) for key, value in cache)

    width = cache[0].key.shape[2]
    return jax.lax.fori_loop(0, copy_count, copy_layers, cache)


@jax.jit
def take_pages(cache: tuple[Cache, ...], pages: jax.Array) -> tuple[Cache, ...]:
    """Copies of pages int32[N]; a page ≥ P gives any one."""
    return jax.tree.map(lambda array: array.at[pages].get(mode="clip"), cache)


@functools.partial(jax.jit, donate_argnames="cache")
def put_pages(cache: tuple[Cache, ...], content: tuple[Cache, ...], pages: jax.Array) -> tuple[Cache, ...]:
    """Writes what `take_pages` returned to pages int32[N]; a page ≥ P is left out."""
    return jax.tree.map(lambda array, copy: array.at[pages].set(copy, mode="drop"), cache, content)


@functools.partial(jit_policy, static_argnames=("config", "with_routes", "mesh"), donate_argnames="cache")
def decode(
    config: ModelConfig,
    params: Params,
    cache: tuple[Cache, ...],
    inputs: jax.Array,
    draw_settings: jax.Array,
    steps: jax.Array,
    pages: jax.Array | None = None,
    with_routes: bool = False,
    mesh: Mesh | None = None,
) -> tuple[jax.Array, jax.Array, tuple[Cache, ...], jax.Array | None]:
    """Feeds one token to every slot and samples the next, `steps` int32[] times one after another, N at most.

    inputs int32[2, S] holds tokens and positions; a position ≥ the cache's length marks an idle slot. pages int32[S, …]
    are those of each slot's conversation; None means that each slot has the page of its number. draw_settings
    float32[N, 2, S] holds a uniform random number and the temperature for each step. Returns the sampled tokens
    int32[N, S], their log-probabilities float32[N, S], the cache and, if `with_routes`, the routes of the tokens fed,
    int[N, S, L, k]; 0 beyond `steps`. `mesh` is as in `compute_cached_states`.
    """

    def run_step(cache: tuple[Cache, ...], tokens: jax.Array, positions: jax.Array, settings: jax.Array) -> Any:
        hidden, cache, routes = cached.compute_cached_states(
            config, params, cache, tokens[:, None], positions[:, None], pages, with_routes=with_routes, mesh=mesh
        )
        # Each device scores its part of the vocabulary and samples from all scores; otherwise XLA would gather the
        # matrix.
        logits = transformer.compute_logits(config, params, hidden[:, 0])
        scores = constrain(constrain(logits, mesh, "vocabulary"), mesh)
        return cache, (*sample(scores, *settings), None if routes is None else routes[:, 0])

    def add_step(index: jax.Array, carry: tuple[Any, ...]) -> tuple[Any, ...]:
        cache, tokens, positions, results = carry
        cache, step_results = run_step(cache, tokens, positions, draw_settings[index])
        results = jax.tree.map(lambda buffer, row: buffer.at[index].set(row), results, step_results)
        return cache, step_results[0], positions + 1, results

    shapes = jax.eval_shape(run_step, cache, *inputs, draw_settings[0])[1]
    results = jax.tree.map(lambda row: jnp.zeros((len(draw_settings), *row.shape), row.dtype), shapes)
    cache, _, _, (tokens, logprobs, routes) = jax.lax.fori_loop(0, steps, add_step, (cache, *inputs, results))
    return tokens, logprobs, cache, routes


def sample(scores: jax.Array, uniforms: jax.Array, temperature: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Inverse-CDF sampling of float32[S, V] logits / temperature: the first token i with Σ_{j≤i} p_j > u · Σ_j p_j.

    uniforms, temperature are float32[S]. At temperature 0 it is the most likely token, scored at temperature 1.
    """
    is_greedy = temperature == 0
    logits = scores / jnp.where(is_greedy, 1.0, temperature)[:, None]
    max_logit = jnp.max(logits, axis=-1)
    weights = jnp.exp(logits - max_logit[:, None])
    drawn_tokens, weight_sum = _draw_tokens(weights, uniforms)
    tokens = jnp.where(is_greedy, jnp.argmax(logits, axis=-1), drawn_tokens).astype(jnp.int32)
    token_logits = jnp.take_along_axis(logits, tokens[:, None], axis=-1)[:, 0]
    return tokens, token_logits - max_logit - jnp.log(weight_sum)


def _draw_tokens(weights: jax.Array, uniforms: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The token drawn from each row of float32[S, V], and the row's sum float32[S].

    The token's block is found first, then the token within the block: a cumulative sum over the vocabulary is slow.
    """
    vocabulary_size = weights.shape[-1]
    block_size = max(1, math.isqrt(vocabulary_size))
    blocks = jnp.pad(weights, ((0, 0), (0, -vocabulary_size % block_size))).reshape(weights.shape[0], -1, block_size)
    block_sums = jnp.sum(blocks, axis=-1)
    cumulative_sums = jnp.cumsum(block_sums, axis=-1)
    weight_sum = cumulative_sums[:, -1]
    block_index = _first_above(cumulative_sums, block_sums, uniforms * weight_sum)
    block_weights = jnp.take_along_axis(blocks, block_index[:, None, None], axis=1)[:, 0]
    sum_before = jnp.take_along_axis(cumulative_sums - block_sums, block_index[:, None], axis=1)[:, 0]
    index_in_block = _first_above(jnp.cumsum(block_weights, axis=-1), block_weights, uniforms * weight_sum - sum_before)
    return block_index * block_size + index_in_block, weight_sum


def _first_above(cumulative_weights: jax.Array, weights: jax.Array, target: jax.Array) -> jax.Array:
    """int32[S]: the first index whose cumulative sum exceeds the target.

    If rounding leaves no such index, it is the last one with a weight above 0. An index of weight 0 is never returned.
    """
    is_possible = weights > 0
    is_above = (cumulative_weights > target[:, None]) & is_possible
    last_possible = weights.shape[-1] - 1 - jnp.argmax(is_possible[:, ::-1], axis=-1)
    return jnp.where(jnp.any(is_above, axis=-1), jnp.argmax(is_above, axis=-1), last_possible)
