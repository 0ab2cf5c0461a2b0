"""Routed experts as an SGLang server tells them: what is asked of it, and how its answer is read."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from cojax.policy.config import ModelConfig
from cojax.policy.routes import RouteShape

# Base64 of int32[tokens, layers, experts a token], row-major (sglang 0.5.23, managers/detokenizer_manager.py).
_WIRE = np.dtype("<i4")


def shape_asked(config: ModelConfig, routes: bool, mixed: bool) -> RouteShape | None:
    """The shape of the routes to ask for, None for none.

    Raises ValueError for a model with experts that SGLang does not serve as it is, and for routes that cannot be told.
    """
    if config.sparse and config.tie_word_embeddings:
        raise ValueError(
            "SGLang reads no tied embedding of a model with experts, and would sample from an empty head; give the "
            "model a head of its own (tie_word_embeddings false), or set engine.name=local"
        )
    if routes and mixed:
        raise ValueError(
            "a completion during which weights changed was fed again under the new ones: what its tokens were sampled "
            "by is not known. Unset sglang.mixed, or set learner.routes=own"
        )
    return RouteShape.of(config) if routes else None


@dataclasses.dataclass(frozen=True)
class Asked:
    """The routes of a conversation's tokens from `start` on; those before were told with an earlier completion."""

    shape: RouteShape
    start: int = 0

    def request(self) -> dict[str, Any]:
        """What is added to the body of /generate."""
        return {"return_routed_experts": True, "routed_experts_start_len": self.start}

    def read(self, about: Mapping[str, Any], tokens: int) -> str:
        """The routes in a reply's `meta_info`, as `RouteShape.encode` writes them; the last of the conversation's
        `tokens` was never fed and has none.

        Raises KeyError, TypeError or ValueError for what is not those of just these tokens.
        """
        told = about["routed_experts"]
        if not isinstance(told, str):
            raise TypeError(f"routed_experts is {type(told).__name__}; expected base64")
        routes = self.shape.read(told, _WIRE)
        if len(routes) != tokens - 1 - self.start:
            raise ValueError(f"routed_experts of {len(routes)} tokens; expected {tokens - 1 - self.start}")
        return self.shape.encode(routes)
