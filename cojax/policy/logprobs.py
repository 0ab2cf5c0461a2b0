"""Log-probabilities of given tokens; the [B, T, V] array of logits never exists."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from cojax.policy.config import ModelConfig
from cojax.policy.parameters import Params
from cojax.policy.transformer import hidden_states, logits


class TokenScores(NamedTuple):
    """Per token, float32[B, T]: its log-probability, and the entropy in nats of the distribution it was drawn from."""

    logprobs: jax.Array
    entropy: jax.Array


def token_logprobs(
    config: ModelConfig,
    params: Params,
    tokens: jax.Array,
    positions: jax.Array,
    segment_ids: jax.Array,
    *,
    temperature: float = 1.0,
    chunk: int = 256,
    remat: bool = False,
    mesh: Mesh | None = None,
) -> jax.Array:
    """log π(tokens[t] | earlier tokens of its segment) of logits / temperature, float32[B, T].

    tokens, positions, segment_ids are int32[B, T], segment 0 is padding; the entry is 0 at padding and at the first
    token of a segment, which nothing predicts. Logits are made for `chunk` positions of every row at a time, and made
    again in the backward pass, so that memory is B · chunk · V.
    `mesh` is as in `hidden_states`. Raises ValueError unless temperature > 0.
    """
    scores = token_scores(
        config, params, tokens, positions, segment_ids, temperature=temperature, chunk=chunk, remat=remat, mesh=mesh
    )
    return scores.logprobs


def token_scores(
    config: ModelConfig,
    params: Params,
    tokens: jax.Array,
    positions: jax.Array,
    segment_ids: jax.Array,
    *,
    temperature: float = 1.0,
    chunk: int = 256,
    remat: bool = False,
    mesh: Mesh | None = None,
) -> TokenScores:
    """`token_logprobs` together with the entropy at the same places."""
    if not isinstance(temperature, jax.core.Tracer) and temperature <= 0:
        raise ValueError(f"temperature {temperature}; log-probabilities of greedy decoding are those at temperature 1")
    hidden = hidden_states(config, params, tokens, positions, segment_ids, remat=remat, mesh=mesh)
    predicted = (segment_ids[:, 1:] == segment_ids[:, :-1]) & (segment_ids[:, 1:] != 0)

    @jax.checkpoint
    def score(_: None, piece: tuple[jax.Array, jax.Array]) -> tuple[None, TokenScores]:
        states, targets = piece
        scaled = logits(config, params, states) / temperature
        log_z = jax.nn.logsumexp(scaled, axis=-1)
        chosen = jnp.take_along_axis(scaled, targets[..., None], axis=-1)[..., 0]
        mean = jnp.sum(jax.nn.softmax(scaled, axis=-1) * scaled, axis=-1)
        return None, TokenScores(chosen - log_z, log_z - mean)

    # The state at t scores the token at t + 1.
    _, pieces = jax.lax.scan(score, None, (_pieces(hidden[:, :-1], chunk), _pieces(tokens[:, 1:], chunk)))
    length = tokens.shape[1] - 1
    joined = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(tokens.shape[0], -1)[:, :length], pieces)
    return jax.tree.map(lambda x: jnp.pad(jnp.where(predicted, x, 0.0), ((0, 0), (1, 0))), joined)


def _pieces(x: jax.Array, chunk: int) -> jax.Array:
    """[B, T, ...] → [ceil(T / chunk), B, chunk, ...], zeros at the end."""
    batch, length = x.shape[:2]
    chunk = max(1, min(chunk, length))
    padding = [(0, 0), (0, -length % chunk)] + [(0, 0)] * (x.ndim - 2)
    return jnp.moveaxis(jnp.pad(x, padding).reshape(batch, -1, chunk, *x.shape[2:]), 1, 0)
