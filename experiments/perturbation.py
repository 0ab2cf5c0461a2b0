"""The same policy but for rounding: each parameter keeps its last bit or has it flipped, at random."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from cojax.policy.transformer import Params


def perturbed(params: Params, number: int) -> Params:
    """`params` with the last bit of each floating-point number flipped with probability ½, drawn by `number`.

    A number x changes by at most 2⁻²³ |x| in float32, as much as one rounding of a sum may change it; `number` 0 flips
    none.
    """
    if not number:
        return params
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(number), len(leaves))
    return jax.tree.unflatten(structure, [_flipped(leaf, key) for leaf, key in zip(leaves, keys, strict=True)])


def _flipped(leaf: jax.Array, key: jax.Array) -> jax.Array:
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return leaf
    word = jnp.dtype(f"uint{8 * leaf.dtype.itemsize}")
    flips = jax.random.bits(key, leaf.shape, word) & word.type(1)
    return jax.lax.bitcast_convert_type(jax.lax.bitcast_convert_type(leaf, word) ^ flips, leaf.dtype)
