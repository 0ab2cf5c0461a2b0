"""What makes XLA compile small programs for a CPU in less time, for tests that mostly wait for it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cojax.policy.config import ModelConfig
    from cojax.policy.transformer import Params

# Its older code generator takes half the time. Results differ in their last bits from those of the newer one, so that
# what is compared bit for bit must be compiled by one of them alone.
QUICK = "--xla_cpu_use_fusion_emitters=false"


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
