"""Directories as a run leaves them, of a policy too small to solve anything, made in a second."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
import optax
from ml_collections import ConfigDict

from cojax.learner.learner import Learner
from cojax.learner.update import TrainState
from cojax.policy.adapters import Lora, initialize_adapters
from cojax.policy.parameters import parameters, with_leaf
from cojax.run import policies, trained
from cojax.storage.checkpoint import Checkpointer
from cojax.storage.files import write_json
from environments import load
from experiments import desk

SHAPE = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1,
}  # fmt: skip


def config(**other) -> ConfigDict:
    """The desk with that policy, and few tasks; `other` by dotted names with __ for the dots."""
    run_config = desk.get_config()
    run_config.model.shape.update(SHAPE)
    run_config.engine.update({"slots": 4, "lanes": 1, "max_length": 192})
    run_config.limits.update({"concurrency": 4, "max_turns": 3})
    run_config.evaluation.update({"tasks": 3, "dev_tasks": 2})
    for name, value in other.items():
        *sections, key = name.split("__")
        section_config = run_config
        for section in sections:
            section_config = section_config[section]
        section_config[key] = value
    return run_config


def make_run(workdir: Path, settings: ConfigDict, steps: tuple[int, ...] = (1, 2)) -> tuple[Learner, list[TrainState]]:
    """A run's directory with these checkpoints, whose parameters are random and differ; the learner, the states."""
    tokenizer, model = policies.read_model(settings, load("desk"))
    # Everything is drawn on the host: nothing is compiled for it.
    initial_params = {}
    for row, leaf in zip(parameters(model), noise([row.shape(model) for row in parameters(model)], 0), strict=True):
        initial_params = with_leaf(initial_params, row, leaf)
    plain_config = json.loads(json.dumps(settings.to_dict()))
    lora = Lora(settings.learner.lora.rank) if settings.learner.lora.rank else None
    learner = Learner(config=model, optimizer=optax.sgd(0.1), reference=initial_params if lora else None, lora=lora)
    write_json(workdir / "config.json", {"config": plain_config})
    policies.keep_tokenizer(tokenizer, workdir / "tokenizer", has_begun=False)
    trained.keep(workdir, model, initial_params, plain_config, has_begun=False)
    trained_params = jax.eval_shape(lambda: initialize_adapters(model, lora, 0)) if lora else initial_params
    leaves, tree = jax.tree.flatten(trained_params)
    states = []
    for step in steps:
        params = jax.tree.unflatten(tree, noise([leaf.shape for leaf in leaves], step))
        states.append(TrainState(jax.device_put(np.int32(step)), params, ()))
        Checkpointer(workdir / "checkpoints").save(step, states[-1], {"seconds": 0.5})
    return learner, states


def noise(shapes: Sequence[tuple[int, ...]], seed: int) -> list[jax.Array]:
    """float32 arrays of N(0, 0.2²)."""
    rng = np.random.default_rng(seed)
    return [jax.device_put(rng.normal(0, 0.2, shape).astype(np.float32)) for shape in shapes]


def damage(checkpoint: Path) -> None:
    path = next(path for path in (checkpoint / "arrays").rglob("*") if path.is_file() and path.stat().st_size > 200)
    path.write_bytes(path.read_bytes()[:-1])
