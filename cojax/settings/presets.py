"""Presets: `--config.policy=NAME` makes the settings of one size of policy; a flag wins over its preset."""

from collections.abc import Iterable, Mapping
from typing import Any

from ml_collections import ConfigDict

from cojax.settings.reading import choose

# A policy from scratch that runs through every part of the loop on two CPU cores. It first learns the solutions of its
# own initial tasks, so that it makes calls at all; none of them is an official task.
_TINY: dict[str, Any] = {
    "model.path": "",
    "model.tools": "brief",
    "model.tokenizer": "bytes",
    "model.vocabulary": 4096,
    "model.shape.hidden_size": 128,
    "model.shape.intermediate_size": 384,
    "model.shape.num_hidden_layers": 2,
    "model.shape.num_attention_heads": 4,
    "model.shape.num_key_value_heads": 2,
    "warm_start.steps": 80,
    "warm_start.split": "initial",
    "warm_start.batch_size": 8,
    "warm_start.lengthen": 0,
    "warm_start.check_every": 80,
    "warm_start.check_tasks": 20,
    "batch_size": 8,
    "group_size": 4,
    "initial_tasks": 16,
    "evolve_every": 1,
    "checkpoint_every": 1,
    "synthesis.contexts": 8,
    "synthesis.budget": 8,
    "engine.name": "local",
    "engine.slots": 16,
    "engine.lanes": 2,
    "engine.max_length": 1536,
    "limits.concurrency": 16,
    "limits.max_turns": 20,
    "sampling.max_tokens": 80,
    "learner.row_length": 1536,
    "learner.micro_rows": 1,
    "optimizer.learning_rate": 1e-4,
}

# SmolLM2-135M-Instruct, which `make smollm2` converts, on two CPU cores. It is first shown the solutions of its own
# initial tasks, as it would make no calls otherwise; on BFCL those of the split `dev`, twice.
_SMOLLM2: dict[str, Any] = {
    "model.path": "models/SmolLM2-135M-Instruct",
    "model.tools": "brief",
    "model.dtype": "float32",
    "model.param_dtype": "float32",
    "warm_start.steps": 25,
    "warm_start.split": "initial",
    "warm_start.demonstrations": 100,
    "warm_start.batch_size": 8,
    "warm_start.epochs": True,
    "warm_start.lengthen": 0,
    "warm_start.target": 1.0,
    "warm_start.check_every": 25,
    "warm_start.check_tasks": 4,
    "warm_start.pretrained_learning_rate": 3e-4,
    "batch_size": 4,
    "group_size": 8,
    "initial_tasks": 16,
    "evolve_every": 2,
    "checkpoint_every": 2,
    "checkpoints_kept": 1,
    "synthesis.contexts": 8,
    "synthesis.budget": 8,
    "engine.name": "local",
    "engine.slots": 16,
    "engine.lanes": 2,
    "engine.max_length": 2560,
    "engine.prefill_rows": 2,  # a forward of empty rows takes as long, and few episodes wait for one at a time
    "limits.concurrency": 16,
    "limits.max_turns": 20,
    "sampling.max_tokens": 96,
    "learner.row_length": 2560,
    "learner.micro_rows": 1,
    "learner.remat": "layers",
    "optimizer.learning_rate": 2e-5,
    "optimizer.decay_steps": 0,
    "evaluation.every": 0,
}

# Name → dotted setting → value. No tuples: absl does not report which of them a flag has set.
PRESETS: dict[str, dict[str, Any]] = {
    "qwen3-4b": {"model.path": "models/Qwen3-4B", "model.tools": "full"},
    "qwen2.5-7b": {"model.path": "models/Qwen2.5-7B", "model.tools": "full"},
    "qwen3-30b-a3b": {"model.path": "models/Qwen3-30B-A3B", "model.tools": "full"},
    "smollm2": _SMOLLM2,
    "tiny": _TINY,
    # The same policy, after learning the solutions of the development part by heart instead. It solves nothing else, so
    # hardly any signal is raised: the trajectories themselves guide the explorer.
    "tiny-warm": {
        **_TINY,
        "evolve": "trajectory",
        "warm_start.steps": 300,
        "warm_start.split": "dev",
        "warm_start.check_every": 150,
        "warm_start.check_tasks": 100,
        "evaluation.split": "held_out",
    },
}
_SMALL = ("smollm2", "tiny", "tiny-warm")
# (preset, environment) → further settings. A small policy has a short context, so its prompt omits the domain's rules
# in τ² and the list of commands in ScienceWorld. An episode of ScienceWorld starts a JVM, so one variation of each
# of its thirty tasks is evaluated.
IN_ENVIRONMENT: dict[tuple[str, str], dict[str, Any]] = {
    ("smollm2", "bfcl"): {"warm_start.split": "dev", "evaluation.split": "held_out"},
    **{(name, "tau2"): {"environment.instructions": "brief"} for name in _SMALL},
    **{
        (name, "scienceworld"): {
            "environment.instructions": "brief",
            "evaluation.tasks": 30,
            "evaluation.dev_tasks": 30,
        }
        for name in _SMALL
    },
}


def resolve(config: ConfigDict, flags: Iterable[str] = ()) -> ConfigDict:
    """The configuration with the settings of its preset `policy`, except those that `flags` name.

    Raises ValueError for an unknown preset and for one that names a setting this experiment does not have.
    """
    resolved = config.copy_and_resolve_references()
    if not config.policy:
        return resolved
    own = tuple(flags)
    preset: Mapping[str, Any] = choose(PRESETS, config.policy, "policy")
    for name, value in {**preset, **IN_ENVIRONMENT.get((config.policy, config.environment.name), {})}.items():
        if any(name == flag or name.startswith(f"{flag}.") for flag in own):
            continue
        *sections, leaf = name.split(".")
        place = resolved
        try:
            for section in sections:
                place = place[section]
            if leaf not in place:
                raise KeyError(f"no {leaf!r} there")
            place[leaf] = value
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(
                f"preset {config.policy!r} sets {name} to {value!r}, which this experiment does not take: {error}. "
                "Correct it in cojax/settings/presets.py"
            ) from error
    return resolved
