"""Reads and writes the parameters of a run, in all of its processes together."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

from jax.sharding import Mesh

from cojax.learner.hosts import hf_arrays
from cojax.policy.config import ModelConfig
from cojax.policy.model_folder import write_model
from cojax.policy.transformer import Params, initialize
from cojax.rollout.export import load_params, write_weights
from cojax.run.processes import ALONE, Together


def begun(together: Together, folder: str, model: ModelConfig, seed: int, mesh: Mesh | None) -> Params:
    """The parameters of a model folder, in all processes; drawn by `seed` where the folder is ""."""

    def load(*_: object) -> Params:
        return load_params(Path(folder), model, mesh) if folder else initialize(model, seed)

    return together.run("load", load, os.path.abspath(folder) if folder else "", seed, as_text(model))


def write_params(folder: Path, model: ModelConfig, params: Params, together: Together) -> None:
    """Writes a model folder. Parameters that are spread over processes are gathered array by array."""
    if together is ALONE:
        write_model(folder, model, params)
    else:
        write_weights(folder, model, hf_arrays(model, lambda: params, together))


def as_text(model: ModelConfig) -> str:
    """A model's shape as one process sends it to another."""
    return json.dumps(dataclasses.asdict(model))
