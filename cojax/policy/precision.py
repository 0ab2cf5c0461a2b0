"""Casts parameters to the dtype of computation, where they are only read: a reference, a frozen base, an engine."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from cojax.policy.config import ModelConfig
from cojax.policy.parameters import Parameter, Params, leaf_of, parameters, with_leaf
from cojax.policy.sharding import evaluate


def is_matrix(row: Parameter) -> bool:
    """Whether the forward casts the parameter to `config.dtype` before a product; a router's product is float32."""
    return row.path[0] == "embed" or (bool(row.inputs) and "router" not in row.axes)


def compute_dtype(config: ModelConfig, row: Parameter) -> str:
    """The dtype that a parameter is computed with."""
    return config.dtype if is_matrix(row) else config.param_dtype


def cast_for_compute(config: ModelConfig, params: Params) -> Params:
    """The same policy, to the bit, with matrices as `config.dtype`; small vectors and routers keep their dtype.

    Leaves that already have their dtype are not copied; layouts over a mesh stay. Outlines give outlines,
    without a layout.
    """
    cast: Params = {}
    for row in parameters(config):
        leaf = leaf_of(params, row)
        dtype = jnp.dtype(compute_dtype(config, row))
        cast = with_leaf(cast, row, evaluate(functools.partial(_cast, dtype), leaf))
    return cast


def _cast(dtype: jnp.dtype, leaf: jax.Array) -> jax.Array:
    return leaf.astype(dtype)
