"""From a configuration and a target to the report of its learner's programs, and what would make them fit."""

import contextlib
import importlib.metadata
import itertools
import operator
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from cojax.compile import targets
from cojax.compile.report import device_bytes, report
from cojax.compile.targets import Chip, Target
from cojax.learner.learner import Learner
from cojax.learner.update import TrainState
from cojax.policy.config import ModelConfig
from cojax.policy.sharding import check_divides, make_mesh
from cojax.policy.transformer import initialize
from cojax.run import assemble, checks, methods, policies
from cojax.run.entries import entry
from cojax.run.machine import facts
from cojax.run.processes import check_rows
from cojax.settings.base import put
from cojax.settings.reading import settings

_COMPILERS = ("jax", "jaxlib", "libtpu", "jax-cuda12-pjrt")
_SHARE = "XLA_PYTHON_CLIENT_MEM_FRACTION"
_LARGEST_SHARE = 0.92
_SHORTEST_ROW = 1024
_RANK = 16
Settings = dict[str, Any]
# A configuration → its learner, and the outline of its first state.
Made = Callable[[ConfigDict], tuple[Learner, TrainState]]


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
        devices = list(mesh.devices.flat)
        found["suggestion"] = suggestion(
            config,
            found,
            target.chip,
            lambda own: outlined(own, shape(own), make_mesh(**settings(own.mesh), devices=devices)),
        )
    return {**_about(learner, target, mesh), **found}


def shape(config: ConfigDict) -> ModelConfig:
    """The model's shape. A model folder needs its config.json alone; a policy from scratch needs its environment."""
    policies.check_folder(config)
    if config.model.path:
        return policies.stored_shape(config, Path(config.model.path))
    environment = entry(config, "environment.name").bound()()
    return policies.tokenizer_and_shape(config, environment)[1]


def outlined(config: ConfigDict, model: ModelConfig, mesh: Mesh) -> tuple[Learner, TrainState]:
    """The learner and the outline of its first state. Nothing is computed on the mesh."""
    params = jax.eval_shape(lambda: initialize(model, 0))
    learner = assemble.learner_on(config, model, mesh, params)
    return learner, learner.init(params)


def _about(learner: Learner, target: Target, mesh: Mesh) -> dict[str, Any]:
    versions = {}
    for name in _COMPILERS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
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


def suggestion(config: ConfigDict, found: Mapping[str, Any], chip: Chip, made: Made) -> dict[str, Any]:
    """The first setting with which the learner is estimated to fit, or the fewest of them in order.

    Arguments are exact. Of the temporaries the gradients are exact, and the rest is taken to be proportional to the
    tokens that go through the model at a time. So an estimate needs a compilation to confirm it. `settings` is empty
    where none is estimated to fit.
    """
    before = made(config)
    single = list(changes(config, before[0], chip))
    together = list(itertools.accumulate(single, operator.or_))[1:]
    for chosen in (*single, *together):
        share = float(chosen.get(_SHARE, 0.0))
        limit = int(chip.memory * share) if share else chip.limit
        if (peak := estimated_peak(config, found, before, chosen, made)) <= limit:
            return {"settings": chosen, "bytes_peak_estimated": peak, "bytes_limit": limit}
    return {"settings": {}}


def changes(config: ConfigDict, learner: Learner, chip: Chip) -> Iterator[Settings]:
    """Changes that make an update smaller: first those that change no result, then less precision, then what is
    learned from, last what learns."""
    if chip.platform == "cuda" and chip.limit < int(chip.memory * _LARGEST_SHARE):
        yield {_SHARE: _LARGEST_SHARE}
    if learner.remat != "layers":
        yield {"learner.remat": "layers"}
    if learner.micro_rows > (shards := learner.placement.row_shards):
        yield {"learner.micro_rows": shards}
    if config.mesh.data > 1:
        yield {"mesh.data": 1, "mesh.fsdp": config.mesh.data * config.mesh.fsdp}
    full = learner.lora is None
    if full and not config.optimizer.moments_dtype and learner.config.param_dtype == "float32":
        yield {"optimizer.moments_dtype": "bfloat16"}
    if full and learner.config.param_dtype == "float32":
        yield {"model.param_dtype": "bfloat16"}
    if learner.config.dtype == "float32":
        yield {"model.dtype": "bfloat16"}
    length = learner.row_length // 2
    while length >= _SHORTEST_ROW:
        yield {"learner.row_length": length, "engine.max_length": min(length, config.engine.max_length)}
        length //= 2
    if full:
        yield {"learner.lora.rank": _RANK}


def estimated_peak(
    config: ConfigDict,
    found: Mapping[str, Any],
    before: tuple[Learner, TrainState],
    chosen: Mapping[str, Any],
    made: Made,
) -> int:
    """Bytes of a device at the peak with these settings, estimated from the report without them."""
    changed = config.copy_and_resolve_references()
    with changed.unlocked(), changed.ignore_type():
        for name, value in chosen.items():
            if name != _SHARE:
                put(changed, name, value)
    after = made(changed)
    update = found["programs"]["update"]
    tokens = [learner.micro_rows // learner.placement.row_shards * learner.row_length for learner, _ in (before, after)]
    gradients = [device_bytes(state.params) for _, state in (before, after)]
    activations = max(0, update["bytes_peak"] - update["bytes_argument"] - gradients[0])
    held = methods.agents(config) * device_bytes(after[1]) + device_bytes(after[0].reference)
    return held + gradients[1] + activations * tokens[1] // tokens[0]
