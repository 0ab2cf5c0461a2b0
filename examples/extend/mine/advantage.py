"""What an episode is worth: its reward, less what it took."""

from typing import Annotated

import numpy as np

from cojax.registry.annotations import Range


def brisk(trajectories, *, cost: Annotated[float, Range(0)] = 0.02):
    """Reward less `cost` a turn, relative to the group's mean."""
    worth = np.array([one.reward - cost * len(one.turns) for one in trajectories])
    return worth - worth.mean()
