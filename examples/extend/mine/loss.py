"""What one learns less from: failures."""

from typing import Annotated

import jax.numpy as jnp

from cojax.learner.losses import bounded_exp, where_learned
from cojax.registry.annotations import Range


def careful(
    logprobs,
    advantages,
    old_logprobs,
    weights,
    *,
    clip: Annotated[float, Range(0, low_open=True)] = 0.2,
    caution: Annotated[float, Range(0, 1)] = 0.5,
):
    """The clipped surrogate; what speaks against an action counts `caution` times as much as what speaks for it."""
    ratio = bounded_exp(where_learned(weights > 0, logprobs - old_logprobs))
    gain = jnp.minimum(ratio * advantages, jnp.clip(ratio, 1 - clip, 1 + clip) * advantages)
    return -jnp.where(advantages < 0, caution, 1.0) * gain, {"ratio": ratio}
