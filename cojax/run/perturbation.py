"""The same policy but for rounding: each parameter keeps its last bit or has it flipped, at random."""

import jax
import jax.numpy as jnp
import numpy as np

from cojax.policy.transformer import Params


def perturbed(params: Params, number: int) -> Params:
    """`params` with the last bit of each floating-point number flipped with probability ½, drawn by `number`.

    A number x changes by at most 2⁻²³ |x| in float32, as much as one rounding of a sum may change it; `number` 0 flips
    none. Drawn on the host, so the flips are the same on every machine.
    """
    if not number:
        return params
    draws = np.random.default_rng(number)
    return jax.tree.map(lambda leaf: _flipped(leaf, draws), params)


def _flipped(leaf: jax.Array, draws: np.random.Generator) -> jax.Array:
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return leaf
    word = np.dtype(f"uint{8 * leaf.dtype.itemsize}")
    bits = np.asarray(leaf).view(word) ^ draws.integers(0, 2, leaf.shape, word)
    return jax.device_put(bits.view(leaf.dtype), leaf.sharding)
