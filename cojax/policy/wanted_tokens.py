"""The wanted tokens of rows, gathered at the rows' beginnings and taken from there in chunks."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def chunks_needed(wanted: jax.Array, chunk: int) -> jax.Array:
    """The number of chunks that hold the wanted entries of every row."""
    return (jnp.max(jnp.sum(wanted, axis=1)) + chunk - 1) // chunk


def wanted_first(wanted: jax.Array, chunk: int) -> jax.Array:
    """int32[B, N']: the indices of a row, wanted ones first; N' is N rounded up to whole chunks."""
    order = jnp.argsort(~wanted, axis=1, stable=True)
    return jnp.pad(order, ((0, 0), (0, -wanted.shape[1] % chunk)))


def gather(x: jax.Array, order: jax.Array) -> jax.Array:
    return jnp.take_along_axis(x, order.reshape(*order.shape, *[1] * (x.ndim - 2)), axis=1)


def ungather(x: jax.Array, wanted: jax.Array) -> jax.Array:
    """The inverse of `gather`, where wanted."""
    return gather(x, jnp.maximum(jnp.cumsum(wanted, axis=1) - 1, 0))


def piece(x: jax.Array, index: jax.Array, chunk: int) -> jax.Array:
    return jax.lax.dynamic_slice_in_dim(x, index * chunk, chunk, axis=1)


def with_piece(x: jax.Array, new: jax.Array, index: jax.Array, chunk: int) -> jax.Array:
    return jax.lax.dynamic_update_slice_in_dim(x, new, index * chunk, axis=1)
