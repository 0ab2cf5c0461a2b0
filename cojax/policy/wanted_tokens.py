"""The wanted tokens of rows, gathered at the rows' beginnings and taken from there in chunks."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from cojax.policy.sharding import ROWS, devices_along, platform_of


def chunk_size(rows: int, length: int, mesh: Mesh | None) -> int:
    """How many tokens of each of so many rows, which are spread over the mesh, have their logits made at a time.

    128; on a GPU as many as make 1,024 tokens of a device's rows, where that is more; never more than the length − 1
    tokens of a row that are scored. On a GPU, a chunk's products take less time than reading and writing the whole
    float32 gradient of the matrix, which each chunk does.
    """
    few, many = 128, 1024
    size = few if platform_of(mesh) != "gpu" else max(few, many * devices_along(mesh, *ROWS) // rows)
    return min(size, length - 1)


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
