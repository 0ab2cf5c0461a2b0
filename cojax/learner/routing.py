"""Routing replay: an update goes through the experts that the sampler went through (R3, arXiv 2510.11370)."""

from __future__ import annotations

import numpy as np

from cojax.policy.config import ModelConfig
from cojax.policy.routes import RouteShape
from cojax.types import Trajectory

# The experts of a sparse model's update: the router's own; those, and how far the sampler's were others; the sampler's.
ROUTES = ("own", "compared", "replayed")


def shape_read(routes: str, config: ModelConfig, loss: str, reads: bool) -> RouteShape | None:
    """The shape of the routes that batches hold, None where they hold none; `reads`: whether the loss reads them.

    Raises ValueError for routes of a dense model, and for a loss that reads what nobody asked for.
    """
    if routes != "own":
        return RouteShape.of(config)
    if reads:
        raise ValueError(
            f"loss {loss!r} reads routes_differing, but the sampler is not asked for its routes; set "
            "--config.learner.routes=compared or replayed"
        )
    return None


def routes_of(trajectory: Trajectory, shape: RouteShape) -> np.ndarray:
    """[n, L, k]: the routes of its tokens, -1 for those that were not told.

    Those of a turn are of the tokens before its last. Of a token that a later turn told again the first stay: by those
    the tokens after it were sampled. Raises ValueError for routes that are not of this shape or of so many tokens.
    """
    ends = np.cumsum([len(turn.prompt_tokens) + len(turn.action_tokens) for turn in trajectory.turns])
    found = shape.unknown(int(ends[-1]))
    for number in reversed(range(len(ends))):
        try:
            told = shape.decode(trajectory.turns[number].routes)
            if len(told) >= max(1, ends[number]):
                raise ValueError(f"routes of {len(told)} tokens, where {ends[number] - 1} were fed")
        except ValueError as error:
            raise ValueError(f"episode {trajectory.episode!r}, turn {number}: {error}") from error
        found[ends[number] - 1 - len(told) : ends[number] - 1] = told
    return found
