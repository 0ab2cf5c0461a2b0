"""Causal attention over packed rows in plain XLA, written so that a CPU runs it well too."""

from __future__ import annotations

import jax
import jax.numpy as jnp

# Query blocks a row is cut into; the block at place i of n reads only the first (i + 1)/n of the keys.
_BLOCKS = 8
_SMALLEST = 32  # tokens a block, below which matrix products are too small to be fast


def packed_attention(query: jax.Array, key: jax.Array, value: jax.Array, segment_ids: jax.Array) -> jax.Array:
    """softmax(q·k / √S) v, where a token sees the earlier tokens of its own segment and itself.

    query [B, T, H, S], key and value [B, T, K, S] with H a multiple of K; segment_ids int32[B, T]. Returns
    [B, T, H, S] in the dtype of the query; the softmax is in float32.
    """
    rows, length, heads, size = query.shape
    groups = key.shape[2]
    shared = heads // groups
    # [B·K, …]: one batch axis in front lets every product run as a plain batched matrix product.
    query = query.reshape(rows, length, groups, shared, size).transpose(0, 2, 3, 1, 4)
    key, value = (x.transpose(0, 2, 1, 3).reshape(rows * groups, length, size) for x in (key, value))
    block = max(_SMALLEST, -(-length // _BLOCKS))
    mixed = []
    for start in range(0, length, block):
        end = min(start + block, length)
        part = query[:, :, :, start:end].reshape(rows * groups, shared * (end - start), size)
        scores = _product(part, key[:, :end], 2).astype(jnp.float32) * size**-0.5
        scores = scores.reshape(rows, groups, shared, end - start, end)
        seen = segment_ids[:, start:end, None] == segment_ids[:, None, :end]
        seen &= jnp.arange(start, end)[:, None] >= jnp.arange(end)[None]
        scores = jnp.where(seen[:, None, None], scores, jnp.finfo(jnp.float32).min)
        weights = jax.nn.softmax(scores, axis=-1).astype(value.dtype).reshape(rows * groups, -1, end)
        mixed.append(_product(weights, value[:, :end], 1).reshape(rows, groups, shared, end - start, size))
    joined = jnp.concatenate(mixed, axis=3)
    return joined.transpose(0, 3, 1, 2, 4).reshape(rows, length, heads, size)


def _product(left: jax.Array, right: jax.Array, axis: int) -> jax.Array:
    """[N, a, c] with [N, …], summed over the last axis of the left and `axis` of the right."""
    return jax.lax.dot_general(left, right, (((2,), (axis,)), ((0,), (0,))))
