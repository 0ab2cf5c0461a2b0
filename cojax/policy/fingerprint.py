"""A short name for the contents of arrays: another content has another name."""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_BITS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}


def fingerprint(tree: Any) -> str:
    """Of the bits, shapes and dtypes of all leaves in order, computed where they lie, without a copy of them.

    Two trees of one shape that differ in any bit have the same name with a chance of about 2⁻⁶⁴; it is no protection
    against someone who looks for such a pair.
    """
    leaves = jax.tree.leaves(tree)
    digest = hashlib.sha256(repr([(leaf.shape, str(leaf.dtype)) for leaf in leaves]).encode())
    digest.update(np.asarray(_sums(leaves)).tobytes())
    return digest.hexdigest()[:32]


@jax.jit
def _sums(leaves: list[jax.Array]) -> jax.Array:
    """uint32[leaves, 2]: sums over the numbers of a leaf, each mixed with its place, of two kinds."""
    rows = []
    for leaf in leaves:
        bits = jax.lax.bitcast_convert_type(leaf, _BITS[leaf.dtype.itemsize]).astype(jnp.uint32)
        # The place on every axis, rather than in the flat array: reshaping one that is spread over devices gathers it.
        place = jnp.zeros(leaf.shape, jnp.uint32)
        for axis, size in enumerate(leaf.shape):
            place = place * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, leaf.shape, axis)
        mixed = _mix(bits + _mix(place))
        rows.append(jnp.stack([mixed.sum(dtype=jnp.uint32), _mix(mixed ^ place).sum(dtype=jnp.uint32)]))
    return jnp.stack(rows)


def _mix(bits: jax.Array) -> jax.Array:
    """A bijection of 32 bits after which each bit depends on all (the constants are lowbias32's)."""
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x7FEB352D)
    bits = (bits ^ (bits >> 15)) * jnp.uint32(0x846CA68B)
    return bits ^ (bits >> 16)
