"""Log-probabilities of given tokens; the [B, T, V] array of logits never exists."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from cojax.policy.config import ModelConfig
from cojax.policy.parameters import Params
from cojax.policy.transformer import hidden_states, score_tokens, scoring_matrix


def token_logprobs(
    config: ModelConfig,
    params: Params,
    tokens: jax.Array,
    positions: jax.Array,
    segment_ids: jax.Array,
    *,
    wanted: jax.Array | None = None,
    temperature: float = 1.0,
    chunk: int = 128,
    remat: str = "none",
    mesh: Mesh | None = None,
) -> jax.Array:
    """log π(tokens[t] | earlier tokens of its segment) of logits / temperature, float32[B, T].

    tokens, positions, segment_ids are int32[B, T], segment 0 is padding; the entry is 0 at padding, at the first token
    of a segment, which nothing predicts, and where `wanted` bool[B, T] is false. Logits are made for `chunk` wanted
    tokens of every row at a time, as often as the row with most of them needs, and made again in the backward pass: the
    memory is B · chunk · V, and what is not wanted costs nothing here. `remat` and `mesh` are as in `hidden_states`.
    Raises ValueError unless temperature > 0.
    """
    if temperature <= 0:
        raise ValueError(f"temperature {temperature}; log-probabilities of greedy decoding are those at temperature 1")
    hidden = hidden_states(config, params, tokens, positions, segment_ids, remat=remat, mesh=mesh)
    if tokens.shape[1] < 2:
        return jnp.zeros(tokens.shape, jnp.float32)
    # The state at t scores the token at t + 1.
    predicted = (segment_ids[:, 1:] == segment_ids[:, :-1]) & (segment_ids[:, 1:] != 0)
    if wanted is not None:
        predicted &= wanted[:, 1:]
    matrix = scoring_matrix(config, params)
    chunk = min(chunk, tokens.shape[1] - 1)
    logprobs = _chosen(config, temperature, chunk, matrix, hidden[:, :-1], tokens[:, 1:], predicted)
    return jnp.pad(logprobs, ((0, 0), (1, 0)))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _chosen(
    config: ModelConfig,
    temperature: float,
    chunk: int,
    matrix: jax.Array,
    hidden: jax.Array,
    targets: jax.Array,
    wanted: jax.Array,
) -> jax.Array:
    """float32[B, N]: log softmax(hidden · matrix / temperature)[target] where wanted, else 0.

    hidden [B, N, D], targets int32[B, N], wanted bool[B, N]. A loop of its own: how far it runs depends on the data,
    which JAX cannot differentiate backwards.
    """
    return _forward(config, temperature, chunk, matrix, hidden, targets, wanted)[0]


def _forward(config: ModelConfig, temperature: float, chunk: int, *arrays: jax.Array) -> tuple[jax.Array, Any]:
    matrix, hidden, targets, wanted = arrays
    rounds, order = _gathering(wanted, chunk)
    states, goals = _taken(hidden, order), _taken(targets, order)

    def fill(index: jax.Array, found: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        scaled = score_tokens(config, matrix, _piece(states, index, chunk)) / temperature
        log_sum = jax.nn.logsumexp(scaled, axis=-1)
        chosen = jnp.sum(jnp.where(_is(_piece(goals, index, chunk), scaled), scaled, 0.0), axis=-1)
        return _with_piece(found[0], chosen - log_sum, index, chunk), _with_piece(found[1], log_sum, index, chunk)

    empty = jnp.zeros(order.shape, jnp.float32)
    logprobs, log_sums = jax.lax.fori_loop(0, rounds, fill, (empty, empty))
    return jnp.where(wanted, _put_back(logprobs, wanted), 0.0), (matrix, hidden, targets, wanted, log_sums)


def _backward(config: ModelConfig, temperature: float, chunk: int, kept: Any, given: jax.Array) -> tuple[Any, ...]:
    """∂ log p_t / ∂ logits = (1[target] − p) / temperature."""
    matrix, hidden, targets, wanted, log_sums = kept
    rounds, order = _gathering(wanted, chunk)
    states, goals, weights = (_taken(x, order) for x in (hidden, targets, given))
    weights = jnp.where(jnp.arange(order.shape[1]) < jnp.sum(wanted, axis=1, keepdims=True), weights, 0.0)

    def add(index: jax.Array, total: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        state, goal, log_sum, weight = (_piece(x, index, chunk) for x in (states, goals, log_sums, weights))
        scaled = score_tokens(config, matrix, state) / temperature
        slopes = _is(goal, scaled).astype(jnp.float32) - jnp.exp(scaled - log_sum[..., None])
        # In the dtype of the forward's products: a product of float32 is many times slower on an accelerator.
        slopes = (slopes * weight[..., None] / temperature).astype(state.dtype)
        of_matrix = _outer(slopes, state) if config.tie_word_embeddings else _outer(state, slopes)
        of_state = jnp.tensordot(slopes, matrix.astype(state.dtype), (2, 0 if config.tie_word_embeddings else 1))
        return total[0] + of_matrix, _with_piece(total[1], of_state, index, chunk)

    nothing = jnp.zeros(matrix.shape, jnp.float32), jnp.zeros_like(states)
    of_matrix, of_states = jax.lax.fori_loop(0, rounds, add, nothing)
    of_hidden = jnp.where(wanted[..., None], _put_back(of_states, wanted), 0)
    return of_matrix.astype(matrix.dtype), of_hidden, None, None


_chosen.defvjp(_forward, _backward)


def _gathering(wanted: jax.Array, chunk: int) -> tuple[jax.Array, jax.Array]:
    """How many chunks hold the wanted entries of every row, and int32[B, N'] the places in the order of visiting:
    wanted ones first; N' is N rounded up to whole chunks."""
    rounds = (jnp.max(jnp.sum(wanted, axis=1)) + chunk - 1) // chunk
    order = jnp.argsort(~wanted, axis=1, stable=True)
    return rounds, jnp.pad(order, ((0, 0), (0, -wanted.shape[1] % chunk)))


def _taken(x: jax.Array, order: jax.Array) -> jax.Array:
    return jnp.take_along_axis(x, order.reshape(*order.shape, *[1] * (x.ndim - 2)), axis=1)


def _put_back(x: jax.Array, wanted: jax.Array) -> jax.Array:
    """Inverse of `_taken` where wanted."""
    return _taken(x, jnp.maximum(jnp.cumsum(wanted, axis=1) - 1, 0))


def _outer(left: jax.Array, right: jax.Array) -> jax.Array:
    """float32[a, b]: [B, c, a] and [B, c, b] multiplied and summed over their tokens."""
    left, right = (x.reshape(-1, x.shape[-1]) for x in (left, right))
    return jax.lax.dot_general(left, right, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32)


def _is(targets: jax.Array, scores: jax.Array) -> jax.Array:
    """bool[..., V]: a comparison instead of an index, which a vocabulary split over devices would have to gather."""
    return targets[..., None] == jax.lax.broadcasted_iota(jnp.int32, scores.shape, scores.ndim - 1)


def _piece(x: jax.Array, index: jax.Array, chunk: int) -> jax.Array:
    return jax.lax.dynamic_slice_in_dim(x, index * chunk, chunk, axis=1)


def _with_piece(x: jax.Array, piece: jax.Array, index: jax.Array, chunk: int) -> jax.Array:
    return jax.lax.dynamic_update_slice_in_dim(x, piece, index * chunk, axis=1)
