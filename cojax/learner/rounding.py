"""Parameters stored as bfloat16 that learn as float32 ones do."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

Params = Any  # a nested dict of jax.Array


class CompensatedState(NamedTuple):
    """low: int16, of each parameter's shape: the bits of its float32 value beyond those of the parameter itself."""

    inner: Any
    low: Params


def kept_exactly(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """`inner` on bfloat16 parameters, none of whose updates is lost to rounding.

    A bfloat16 above 0.004 does not move by 1e-6, the paper's learning rate: its neighbours are further away. So the 16
    bits by which the float32 value differs from the parameter are kept beside it, as the sum of what was rounded away
    is in Kahan's summation; two bytes a parameter, and nothing is lost at all. `inner` keeps its own state as it would
    for bfloat16.
    """

    def init(params: Params) -> CompensatedState:
        return CompensatedState(
            inner.init(params), jax.tree.map(lambda param: jnp.zeros(param.shape, jnp.int16), params)
        )

    def update(updates: Any, state: CompensatedState, params: Params = None) -> tuple[Any, CompensatedState]:
        exact = joined(params, state.low)
        updates, own = inner.update(updates, state.inner, exact)
        wanted = jax.tree.map(lambda value, change: _bits(value + change.astype(jnp.float32)), exact, updates)
        # The nearest bfloat16 has the upper 16 bits, once half of the last of them is added.
        upper = jax.tree.map(lambda bits: ((bits + 0x8000) >> 16) << 16, wanted)
        low = jax.tree.map(lambda bits, high: (bits - high).astype(jnp.int16), wanted, upper)
        changes = jax.tree.map(lambda high, param: _value(high) - param.astype(jnp.float32), upper, params)
        return changes, CompensatedState(own, low)

    return optax.GradientTransformation(init, update)


def joined(params: Params, low: Params) -> Params:
    """The float32 values that bfloat16 parameters and what is kept of them stand for."""
    return jax.tree.map(lambda param, rest: _value(_bits(param.astype(jnp.float32)) + rest), params, low)


def _bits(x: jax.Array) -> jax.Array:
    return jax.lax.bitcast_convert_type(x, jnp.int32)


def _value(bits: jax.Array) -> jax.Array:
    return jax.lax.bitcast_convert_type(bits, jnp.float32)
