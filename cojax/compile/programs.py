"""From a configuration and a target to the report of its learner's programs."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from cojax.compile import targets
from cojax.compile.report import report
from cojax.compile.suggestions import suggestion
from cojax.compile.targets import Target
from cojax.learner.learner import Learner
from cojax.learner.update import TrainState
from cojax.policy.config import ModelConfig
from cojax.policy.sharding import check_divides, make_mesh
from cojax.policy.transformer import initialize
from cojax.run import assemble, checks, methods, policies
from cojax.run.entries import entry
from cojax.run.facts import facts
from cojax.run.mesh import check_rows
from cojax.settings.reading import settings

_COMPILERS = ("jax", "jaxlib", "libtpu", "jax-cuda12-pjrt")


def examine(config: ConfigDict, target: Target) -> dict[str, Any]:
    """The report of the configuration's learner on a target, and a suggestion where it does not fit.

    Raises ValueError for a configuration that cannot be run, also for a mesh that does not fit the target or the model,
    and ModuleNotFoundError where the target's compiler is missing.
    """
    config = methods.settled(config)
    checks.check(config)
    model = shape(config)
    mesh = make_mesh(**settings(config.mesh), devices=targets.devices(target))
    check_rows(config, mesh)
    check_divides(model, mesh)
    learner, outline = outlined(config, model, mesh)
    found = report(learner, outline, methods.update_sizes(config), target.chip, agents=methods.agents(config))
    if not found["fits"]:
        found["suggestion"] = suggestion(
            config, found, target.chip, lambda changed: outlined(changed, shape(changed), mesh_like(changed, mesh))
        )
    return {**_about(learner, target, mesh), **found}


def shape(config: ConfigDict) -> ModelConfig:
    """The model's shape. A model folder needs its config.json alone; a policy from scratch needs its environment."""
    policies.check_folder(config)
    if config.model.path:
        return policies.stored_shape(config, Path(config.model.path))
    environment = entry(config, "environment.name").bound()()
    return policies.tokenizer_and_shape(config, environment)[1]


def mesh_like(config: ConfigDict, mesh: Mesh) -> Mesh:
    """The mesh of a configuration on the devices of another mesh."""
    return make_mesh(**settings(config.mesh), devices=list(mesh.devices.flat))


def outlined(config: ConfigDict, model: ModelConfig, mesh: Mesh) -> tuple[Learner, TrainState]:
    """The learner and the outline of its first state. Nothing is computed on the mesh."""
    params = jax.eval_shape(lambda: initialize(model, 0))
    learner = assemble.learner_on(config, model, mesh, params)
    return learner, learner.init(params)


def _about(learner: Learner, target: Target, mesh: Mesh) -> dict[str, Any]:
    versions = {}
    for name in _COMPILERS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "target": target.name,
        "chip": target.chip.name,
        "devices": target.count,
        "mesh": {name: size for name, size in mesh.shape.items() if size > 1},
        "method": "full" if learner.lora is None else f"LoRA {learner.lora.rank}",
        "loss": learner.loss,
        "reference": learner.reads_reference,
        "row_length": learner.row_length,
        "micro_rows": learner.micro_rows,
        "remat": learner.remat,
        "dtype": learner.config.dtype,
        "param_dtype": learner.config.param_dtype,
        "versions": versions,
        "commit": facts()["commit"],
    }
