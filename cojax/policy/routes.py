"""Routes: the experts that a token went through when it was sampled, as arrays and as the text stored in a turn."""

from __future__ import annotations

import base64
import binascii
import dataclasses

import numpy as np

from cojax.policy.config import ModelConfig

# The most experts whose numbers, and -1, fit into one byte.
_BYTE = 128


@dataclasses.dataclass(frozen=True)
class RouteShape:
    """The shape of routes of a sparse model, [..., L, k]: `chosen` (k) of `experts` in each of `layers` (L).

    A token whose routes are not known has -1 throughout: the learner's own router then chooses for it.
    """

    layers: int
    chosen: int
    experts: int

    @classmethod
    def of(cls, config: ModelConfig) -> RouteShape:
        """Raises ValueError for a dense model."""
        if not config.sparse:
            raise ValueError("the model has num_experts 0: its tokens have no routes; set --config.learner.routes=own")
        return cls(config.num_hidden_layers, config.num_experts_per_tok, config.num_experts)

    @property
    def dtype(self) -> np.dtype:
        """int8, or int16 where there are more than 128 experts; little-endian."""
        return np.dtype("<i1" if self.experts <= _BYTE else "<i2")

    def unknown(self, *leading: int) -> np.ndarray:
        """Routes that are not known: -1 throughout, [*leading, L, k]."""
        return np.full((*leading, self.layers, self.chosen), -1, self.dtype)

    def encode(self, routes: np.ndarray) -> str:
        """Base64 of [N, L, k] in `dtype`: L · k bytes a token, or twice as many."""
        return base64.b64encode(np.ascontiguousarray(routes, self.dtype).tobytes()).decode("ascii")

    def decode(self, text: str) -> np.ndarray:
        """[N, L, k] in `dtype`. Raises ValueError for text that `encode` cannot have written for this shape."""
        return self.read(text, self.dtype)

    def read(self, text: str, dtype: np.dtype) -> np.ndarray:
        """Like `decode`, for numbers written in another dtype."""
        try:
            content = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise ValueError(f"routes are no base64: {error}") from error
        token = self.layers * self.chosen * dtype.itemsize
        if len(content) % token:
            raise ValueError(
                f"routes have {len(content)} bytes; expected a multiple of {token}, which are {self.layers} layers × "
                f"{self.chosen} experts of {dtype.itemsize} bytes"
            )
        routes = np.frombuffer(content, dtype).reshape(-1, self.layers, self.chosen)
        if routes.size and (routes.min() < 0 or routes.max() >= self.experts):
            raise ValueError(f"routes name experts {routes.min()}–{routes.max()}; the model has 0–{self.experts - 1}")
        ordered = np.sort(routes, axis=-1)
        if (ordered[..., 1:] == ordered[..., :-1]).any():
            raise ValueError("routes name an expert twice for one token and layer; expected each at most once")
        return routes.astype(self.dtype)
