"""Which tasks a step wants: those that the policy is about to solve."""

import math
from typing import Annotated

from cojax.registry.annotations import Range


def nearly(scores, *, target: Annotated[float, Range(0, 1)] = 0.7, width: Annotated[float, Range(0.01)] = 0.3):
    """Greatest where a task's last score is `target`; a task never seen is taken for one of 0.5."""
    last = scores[-1] if scores else 0.5
    return 0.05 + math.exp(-(((last - target) / width) ** 2))
