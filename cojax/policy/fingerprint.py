"""A fingerprint of arrays: arrays with other contents have another fingerprint."""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_BITS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}


def fingerprint(tree: Any) -> str:
    """32 hexadecimal digits from the bits, shapes and dtypes of all leaves in order, computed on their devices.

    Two trees of one shape that differ in any bit have the same fingerprint with a probability of about 2⁻⁶⁴. It does
    not protect against someone who looks for such a pair.
    """
    leaves = jax.tree.leaves(tree)
    digest = hashlib.sha256(repr([(leaf.shape, str(leaf.dtype)) for leaf in leaves]).encode())
    digest.update(np.asarray(_sums(leaves)).tobytes())
    return digest.hexdigest()[:32]


@jax.jit
def _sums(leaves: list[jax.Array]) -> jax.Array:
    """uint32[leaves, 2]: two different sums over the numbers of a leaf, each number mixed with its index."""
    rows = []
    for leaf in leaves:
        bits = jax.lax.bitcast_convert_type(leaf, _BITS[leaf.dtype.itemsize]).astype(jnp.uint32)
        # The index is computed axis by axis: flattening an array that is spread over devices would gather it.
        index = jnp.zeros(leaf.shape, jnp.uint32)
        for axis, size in enumerate(leaf.shape):
            index = index * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, leaf.shape, axis)
        mixed = _mix(bits + _mix(index))
        rows.append(jnp.stack([mixed.sum(dtype=jnp.uint32), _mix(mixed ^ index).sum(dtype=jnp.uint32)]))
    return jnp.stack(rows)


def _mix(bits: jax.Array) -> jax.Array:
    """A bijection of 32 bits after which each bit depends on all (the constants are lowbias32's)."""
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x7FEB352D)
    bits = (bits ^ (bits >> 15)) * jnp.uint32(0x846CA68B)
    return bits ^ (bits >> 16)
