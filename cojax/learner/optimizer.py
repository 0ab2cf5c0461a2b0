"""Optimisers as optax transformations; one of them trains bfloat16 parameters exactly like float32 ones."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

Params = Any  # a nested dict of jax.Array


def adamw(
    learning_rate: float | optax.Schedule,
    *,
    warmup_steps: int = 0,
    decay_steps: int = 0,
    decay_to: float = 0.1,
    b1: float = 0.9,
    b2: float = 0.95,
    weight_decay: float = 0.0,
    clip_norm: float = 1.0,
    moments_dtype: str = "",
) -> optax.GradientTransformation:
    """AdamW after clipping the global gradient norm.

    The rate rises linearly over `warmup_steps` updates, falls linearly to the share `decay_to` of itself until update
    `decay_steps`, and stays there; with `decay_steps` 0 it does not fall. Weight decay leaves norm scales and biases
    out. Both moments are stored as `moments_dtype` (float32 or bfloat16) and computed in float32; with "" they have the
    dtype of the parameters, and decay in it. Raises ValueError for another dtype, and for numbers of updates below
    0 or a share outside [0, 1].
    """
    if moments_dtype not in ("", "float32", "bfloat16"):
        # In float16 the squares of gradients below 2e-4 would be 0.
        raise ValueError(f"moments_dtype {moments_dtype!r} is not supported; available: '', float32, bfloat16")
    if warmup_steps < 0 or decay_steps < 0 or not 0 <= decay_to <= 1:
        raise ValueError(
            f"warmup_steps={warmup_steps}, decay_steps={decay_steps}, decay_to={decay_to}; expected numbers of updates "
            "and a share of the rate from 0 to 1"
        )
    rate_schedule = learning_rate if callable(learning_rate) else optax.constant_schedule(learning_rate)
    decay_schedule = optax.linear_schedule(1.0, decay_to, decay_steps) if decay_steps else optax.constant_schedule(1.0)

    def schedule(count: jax.Array) -> jax.Array:
        return rate_schedule(count) * decay_schedule(count) * jnp.minimum(1.0, (count + 1) / max(1, warmup_steps))

    def mask_decay(params: Params) -> Any:
        return jax.tree_util.tree_map_with_path(
            lambda path, _: not any(word in jax.tree_util.keystr(path) for word in ("norm", "bias")), params
        )

    adam = optax.adamw(schedule, b1=b1, b2=b2, weight_decay=weight_decay, mask=mask_decay)
    return optax.chain(
        optax.clip_by_global_norm(clip_norm), _store_state_as(jnp.dtype(moments_dtype), adam) if moments_dtype else adam
    )


def _store_state_as(dtype: jnp.dtype, inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Computes `inner` in float32, and stores the floating arrays of its state as `dtype`."""

    def init(params: Params) -> Any:
        return _cast_floats(inner.init(params), dtype)

    def update(updates: Any, state: Any, params: Params = None) -> tuple[Any, Any]:
        updates, state = inner.update(_cast_floats(updates, jnp.float32), _cast_floats(state, jnp.float32), params)
        return updates, _cast_floats(state, dtype)

    return optax.GradientTransformation(init, update)


def _cast_floats(tree: Any, dtype: Any) -> Any:
    """Casts the tree's floating arrays to `dtype`."""
    return jax.tree.map(lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)


class CompensatedState(NamedTuple):
    """inner: the state of the inner transformation; low: int16 of each parameter's shape, the bits of its float32 value
    below those of the bfloat16 parameter."""

    inner: Any
    low: Params


def compensate_rounding(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Applies `inner` to bfloat16 parameters without losing any update to rounding.

    A bfloat16 above 0.004 cannot move by 1e-6, the paper's learning rate, because its neighbours are further away. So
    the state keeps the lower 16 bits of each parameter's float32 value, as Kahan's summation keeps the rounding error.
    This is exact and takes two bytes a parameter. `inner` keeps its own state as it would for bfloat16 parameters; the
    gradients are float32.
    """

    def init(params: Params) -> CompensatedState:
        return CompensatedState(inner.init(params), jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.int16), params))

    def update(updates: Any, state: CompensatedState, params: Params = None) -> tuple[Any, CompensatedState]:
        exact = exact_values(params, state.low)
        updates, inner_state = inner.update(updates, state.inner, exact)
        inner_state = jax.tree.map(lambda new, old: new.astype(old.dtype), inner_state, state.inner)
        target_bits = jax.tree.map(lambda value, change: _to_bits(value + change.astype(jnp.float32)), exact, updates)
        # Round to the nearest bfloat16: add half of its last bit, then keep the upper 16 bits.
        upper_bits = jax.tree.map(lambda bits: ((bits + 0x8000) >> 16) << 16, target_bits)
        low_bits = jax.tree.map(lambda bits, high: (bits - high).astype(jnp.int16), target_bits, upper_bits)
        changes = jax.tree.map(lambda high, param: _from_bits(high) - param.astype(jnp.float32), upper_bits, params)
        return changes, CompensatedState(inner_state, low_bits)

    return optax.GradientTransformation(init, update)


def exact_values(params: Params, low: Params) -> Params:
    """The float32 values whose upper bits are the bfloat16 parameters and whose lower bits are `low`."""
    return jax.tree.map(lambda param, low_bits: _from_bits(_to_bits(param.astype(jnp.float32)) + low_bits), params, low)


def _to_bits(x: jax.Array) -> jax.Array:
    return jax.lax.bitcast_convert_type(x, jnp.int32)


def _from_bits(bits: jax.Array) -> jax.Array:
    return jax.lax.bitcast_convert_type(bits, jnp.float32)
