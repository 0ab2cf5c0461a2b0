"""What makes XLA compile small programs for a CPU in less time, for tests that mostly wait for it."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cojax.policy.config import ModelConfig
    from cojax.policy.transformer import Params


def flags(devices: int) -> str:
    """XLA_FLAGS of a child with that many CPU devices, which compiles as fast as the tests themselves (conftest.py)."""
    return f"--xla_force_host_platform_device_count={devices} {os.environ['QUICK_XLA_FLAGS']}"


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
