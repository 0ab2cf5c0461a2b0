"""TrainState: what one update takes and the next one starts from."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

Params = Any  # a nested dict of jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """step: int32[], steps of learning taken so far; params: nested dict of arrays; opt_state: optax's."""

    step: Any
    params: Params
    opt_state: Any
