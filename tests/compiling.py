"""What lets tests wait less for XLA: quick compilation of small programs for a CPU, and weights without any."""

from __future__ import annotations

import functools
import math
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cojax.policy.config import ModelConfig
    from cojax.policy.transformer import Params


def flags(devices: int) -> str:
    """XLA_FLAGS of a child with that many CPU devices, which compiles as fast as the tests themselves (conftest.py)."""
    return f"--xla_force_host_platform_device_count={devices} {os.environ['QUICK_XLA_FLAGS']}"


def drawn(config: ModelConfig, seed: int) -> Params:
    """Parameters like those of `cojax.policy.transformer.initialize`, by NumPy: tracing that takes a second a shape."""
    import jax.numpy as jnp
    import numpy as np

    from cojax.policy.parameters import parameters, with_leaf

    draw, params = np.random.default_rng(seed), dict[str, Any]()
    for row in parameters(config):
        shape, stacked = row.shape(config), len(row.lead_axes)
        if row.path[-1] in ("scale", "bias"):
            leaf = np.full(shape, float(row.path[-1] == "scale"))
        else:
            inputs = math.prod(shape[stacked : stacked + row.input_axes] if row.input_axes else shape[-1:])
            to_the_residual_stream = {"output", "down"} & {*row.path}
            inputs *= 2 * config.num_hidden_layers if to_the_residual_stream else 1
            leaf = draw.normal(scale=inputs**-0.5, size=shape)
        params = with_leaf(params, row, jnp.array(leaf, config.param_dtype))
    return params


def initialize(config: ModelConfig, seed: int) -> Params:
    """`cojax.policy.transformer.initialize`, compiled in a fifth of the time, once for all seeds of a shape.

    For weights that a file of tests makes while it is imported: every worker imports every file.
    """
    return _initializer(config)(seed)


@functools.cache
def _initializer(config: ModelConfig):
    import jax

    from cojax.policy import transformer

    drawn = jax.jit(functools.partial(transformer.initialize, config)).lower(0)
    return drawn.compile(compiler_options={"xla_backend_optimization_level": 0})
