"""Routing replay: the routes of trajectories, so that updates use the sampler's experts (R3, arXiv 2510.11370)."""

from __future__ import annotations

import numpy as np

from cojax.policy.config import ModelConfig
from cojax.policy.moe import RouteShape
from cojax.types import Trajectory

# Experts that an update of a sparse model uses. "own": the router's; "compared": the same, and the sampler's are
# compared with them; "replayed": the sampler's.
ROUTES = ("own", "compared", "replayed")


def required_route_shape(routes: str, config: ModelConfig, loss: str, reads: bool) -> RouteShape | None:
    """The shape of the routes that batches hold; None where they hold none. `reads`: whether the loss reads routes.

    Raises ValueError for routes of a dense model, and for a loss that reads routes while `routes` is "own".
    """
    if routes != "own":
        return RouteShape.of(config)
    if reads:
        raise ValueError(
            f"loss {loss!r} reads routes_differing, but the sampler is not asked for its routes; set "
            "--config.learner.routes=compared or replayed"
        )
    return None


def decode_routes(trajectory: Trajectory, shape: RouteShape) -> np.ndarray:
    """Decodes the routes of a trajectory's n tokens, [n, L, k]; -1 for tokens whose routes are not known.

    A turn reports routes of the tokens before its last one, which was not fed to the model. If a later turn reports a
    token again, the earlier routes stay: the tokens that followed were sampled under them. Raises ValueError for routes
    of another shape, and for routes of more tokens than were fed to the model.
    """
    ends = np.cumsum([len(turn.prompt_tokens) + len(turn.action_tokens) for turn in trajectory.turns])
    found = shape.unknown(int(ends[-1]))
    for number in reversed(range(len(ends))):
        try:
            routes = shape.decode(trajectory.turns[number].routes)
            if len(routes) >= max(1, ends[number]):
                raise ValueError(f"routes of {len(routes)} tokens, but only {ends[number] - 1} were fed to the model")
        except ValueError as error:
            raise ValueError(f"episode {trajectory.episode!r}, turn {number}: {error}") from error
        found[ends[number] - 1 - len(routes) : ends[number] - 1] = routes
    return found
