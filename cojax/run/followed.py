"""What a process that follows can do: the operations of a run, by the names that process 0 gives them."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from cojax.distributed.checkpoints import divided, united
from cojax.learner.hosts import advanced, copied, piece, replicated
from cojax.learner.learner import Learner
from cojax.learner.saved_policy import finite
from cojax.learner.train_state import TrainState
from cojax.policy.config import ModelConfig
from cojax.policy.parameters import fingerprint
from cojax.policy.transformer import Params
from cojax.run import assemble, methods
from cojax.run.loading import begun
from cojax.run.mesh import mesh_of
from cojax.run.policies import with_absolute_path
from cojax.run.processes import ALONE
from cojax.storage.checkpoint import ArrayFiles, save_params


def operations(config: ConfigDict) -> dict[str, Callable[..., Any]]:
    """The operations of the run of this configuration. `build` adds those of a learner."""
    config = methods.settled(with_absolute_path(config))
    files = ArrayFiles()
    found: dict[str, Callable[..., Any]] = {}
    outlines: list[TrainState] = []

    def load(folder: str, seed: int, model: str) -> Params:
        found["piece"] = functools.partial(piece, shape(model))
        return begun(ALONE, folder, shape(model), seed, mesh_of(config))

    def build(name: str, model: str, params: Params) -> None:
        made = assemble.learner_on(config, shape(model), mesh_of(config), params)
        found.update({f"{name}.{operation}": compute for operation, compute in of_learner(made).items()})

        def init(params: Params, seed: int) -> TrainState:
            state = made.init(params, seed)
            outlines[:] = [jax.tree.map(_outline, state)]
            return state

        found[f"{name}.init"] = init

    def save(folder: str, target: TrainState, second: TrainState | None) -> None:
        files.save(Path(folder), united(target, second))

    def restore(folder: str, with_second: bool) -> tuple[TrainState, TrainState | None]:
        return divided(files.restore(Path(folder), united(outlines[0], outlines[0] if with_second else None)))

    found |= {"load": load, "build": build, "save": save, "restore": restore, "fingerprint": fingerprint}
    return found


def of_learner(learner: Learner) -> dict[str, Callable[..., Any]]:
    """What a learner computes, by the names of `Hosts.run`."""

    return {
        "init": learner.init,
        "advance": advanced,
        "copy": copied,
        "prepare": learner.prepare,
        "prepare_pairs": learner.prepare_pairs,
        "apply": learner.apply,
        "policy": learner.policy,
        "fingerprint": learner.fingerprint,
        "replicate": replicated,
        "piece": functools.partial(piece, learner.config),
        "finite": functools.partial(finite, learner.config),
        "save_params": save_params,
    }


def shape(text: str) -> ModelConfig:
    """The model's shape that process 0 sent."""
    return ModelConfig(**json.loads(text))


def _outline(leaf: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
