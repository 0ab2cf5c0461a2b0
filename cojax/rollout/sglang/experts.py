"""The experts that tokens went through, as SGLang reports them: the request and the parsing of the answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from cojax.policy.config import ModelConfig
from cojax.policy.routes import RouteShape

# Base64 of int32[tokens, layers, experts a token], row-major (sglang 0.5.23, managers/detokenizer_manager.py).
_WIRE = np.dtype("<i4")


def route_shape(config: ModelConfig, routes: bool, mixed: bool) -> RouteShape | None:
    """The shape of the routes that completions report, None if they report none.

    Raises ValueError for a model with experts that SGLang cannot serve, and for settings that exclude routes.
    """
    if config.sparse and config.tie_word_embeddings:
        raise ValueError(
            "SGLang reads no tied embedding of a model with experts, and would sample from an empty head; give the "
            "model a head of its own (tie_word_embeddings false), or set engine.name=local"
        )
    if routes and mixed:
        raise ValueError(
            "a completion during which weights changed is fed again under the new ones, so the experts that sampled "
            "its tokens are not known. Unset sglang.mixed, or set learner.routes=own"
        )
    return RouteShape.of(config) if routes else None


@dataclasses.dataclass(frozen=True)
class RoutesRequest:
    """Asks for the routes of a conversation's tokens from `start` on; earlier completions reported those before."""

    shape: RouteShape
    start: int = 0

    def body(self) -> dict[str, Any]:
        """The fields to add to the body of /generate."""
        return {"return_routed_experts": True, "routed_experts_start_len": self.start}

    def bytes(self, tokens: int) -> int:
        """An upper bound for the bytes of the routes of a conversation of `tokens` tokens, in base64."""
        return 4 * (tokens * self.shape.layers * self.shape.chosen * _WIRE.itemsize // 3 + 1)

    def read(self, about: Mapping[str, Any], tokens: int) -> str:
        """The routes in a reply's `meta_info`, as `RouteShape.encode` writes them.

        The conversation has `tokens` tokens; the last was never fed and has no route. Raises KeyError, TypeError or
        ValueError for an answer that is not the routes of exactly the other tokens from `start` on.
        """
        reported = about["routed_experts"]
        if not isinstance(reported, str):
            raise TypeError(f"routed_experts is {type(reported).__name__}; expected base64")
        routes = self.shape.read(reported, _WIRE)
        if len(routes) != tokens - 1 - self.start:
            raise ValueError(f"routed_experts of {len(routes)} tokens; expected {tokens - 1 - self.start}")
        return self.shape.encode(routes)
