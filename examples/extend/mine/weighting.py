"""What a token weighs: between a mean over tokens and a mean over episodes."""

from typing import Annotated

import numpy as np

from cojax.registry.annotations import Range


def between(lengths, *, power: Annotated[float, Range(0, 1)] = 0.5):
    """1 / |τ|^power, all weights of a batch adding up to 1: 0 is a mean over tokens, 1 over episodes."""
    raw = [np.maximum(group, 1) ** -power for group in lengths]
    total = sum(float((weight * group).sum()) for weight, group in zip(raw, lengths, strict=True))
    return [weight / max(total, 1e-9) for weight in raw]
