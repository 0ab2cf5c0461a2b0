"""`compensate_rounding`: lets parameters stored as bfloat16 learn exactly as float32 parameters would."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

Params = Any  # a nested dict of jax.Array


class CompensatedState(NamedTuple):
    """inner: the state of the inner transformation; low: int16 of each parameter's shape, the bits of its float32 value
    beyond those of the bfloat16 parameter."""

    inner: Any
    low: Params


def compensate_rounding(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Applies `inner` to bfloat16 parameters without losing any update to rounding.

    A bfloat16 above 0.004 does not move by 1e-6, the paper's learning rate: its neighbours are further away. So the
    state keeps the lower 16 bits of each parameter's float32 value, as Kahan's summation keeps what was rounded away.
    That takes two bytes a parameter and is exact. `inner` keeps its own state as it would for bfloat16 parameters.
    """

    def init(params: Params) -> CompensatedState:
        return CompensatedState(
            inner.init(params), jax.tree.map(lambda param: jnp.zeros(param.shape, jnp.int16), params)
        )

    def update(updates: Any, state: CompensatedState, params: Params = None) -> tuple[Any, CompensatedState]:
        exact = exact_values(params, state.low)
        updates, inner_state = inner.update(updates, state.inner, exact)
        wanted = jax.tree.map(lambda value, change: _bits(value + change.astype(jnp.float32)), exact, updates)
        # Rounding to the nearest bfloat16: add half of the last kept bit, then keep the upper 16 bits.
        upper = jax.tree.map(lambda bits: ((bits + 0x8000) >> 16) << 16, wanted)
        low = jax.tree.map(lambda bits, high: (bits - high).astype(jnp.int16), wanted, upper)
        changes = jax.tree.map(lambda high, param: _value(high) - param.astype(jnp.float32), upper, params)
        return changes, CompensatedState(inner_state, low)

    return optax.GradientTransformation(init, update)


def exact_values(params: Params, low: Params) -> Params:
    """The float32 values whose upper bits are the bfloat16 parameters, and whose lower bits are `low`."""
    return jax.tree.map(lambda param, rest: _value(_bits(param.astype(jnp.float32)) + rest), params, low)


def _bits(x: jax.Array) -> jax.Array:
    return jax.lax.bitcast_convert_type(x, jnp.int32)


def _value(bits: jax.Array) -> jax.Array:
    return jax.lax.bitcast_convert_type(bits, jnp.float32)
