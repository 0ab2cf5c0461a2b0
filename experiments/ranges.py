"""What every setting of experiments/base.py may be. A setting that is not here is none.

Names of registries are looked up by experiments/entries.py, and what an entry is set to is judged by its own signature.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from ml_collections import ConfigDict

from cojax.registry.annotations import Range, RegistryError, checked
from cojax.validation.query import MOST_CHARACTERS

Count = Annotated[int, Range(1)]
Number = Annotated[int, Range(0)]
Share = Annotated[float, "a share", Range(0.0, 1.0)]
Above = Annotated[float, Range(0.0, low_open=True)]
AtLeast0 = Annotated[float, Range(0.0)]
Seconds = Annotated[float, "a number of seconds", Range(0.0, low_open=True)]
Cosine = Annotated[float, "a cosine", Range(0.0, 1.0)]
DType = Literal["", "float32", "bfloat16"]
Devices = Annotated[int, Range(1)] | Literal[-1]

RANGES: dict[str, Any] = {
    "workdir": str,
    "seed": Annotated[int, Range(-(2**63), 2**63 - 1)],
    "steps": Number,
    "evolve": str,
    "evolve_every": Count,
    "signals": str,
    "validate": bool,
    "batch_size": Count,
    "group_size": Annotated[int, Range(2)],  # an advantage is relative to a group
    "staleness": Literal[0, 1],
    "quorum": Annotated[float, "a share", Range(0.0, 1.0, low_open=True)],
    "dynamic_sampling": Number,
    "episodes": Number,
    "fresh_fraction": Share,
    "curriculum": str,
    "initial_tasks": Count,
    "checkpoint_every": Count,
    "checkpoints_kept": Count,
    "mismatch_alarm": AtLeast0,
    "episodes_kept": Number,
    "accept_changed_code": bool,
    "environment.name": str,
    "policy": str,
    "model.path": str,
    "model.tools": str,
    "model.tokenizer": str,
    "model.vocabulary": Count,
    "model.dtype": DType,
    "model.param_dtype": DType,
    "model.shape.hidden_size": Number,
    "model.shape.intermediate_size": Number,
    "model.shape.num_hidden_layers": Number,
    "model.shape.num_attention_heads": Number,
    "model.shape.num_key_value_heads": Number,
    "warm_start.steps": Number,
    "warm_start.split": str,
    "warm_start.batch_size": Count,
    "warm_start.lengthen": Number,
    "warm_start.check_every": Count,
    "warm_start.target": AtLeast0,
    "warm_start.check_tasks": Count,
    "warm_start.demonstrations": Count,
    "warm_start.noise_low": Share,
    "warm_start.noise_high": Share,
    "warm_start.learning_rate": AtLeast0,
    "engine.name": str,
    "engine.slots": Count,
    "engine.lanes": Count,
    "engine.max_length": Annotated[int, Range(2)],
    "sglang.urls": str,
    "sglang.router": str,
    "sglang.servers": Count,
    "sglang.python": str,
    "sglang.device": str,
    "sglang.flags": str,
    "sglang.port": Annotated[int, Range(0, 65_535)],
    "sglang.dtype": Literal["", "float32", "bfloat16", "float16"],
    "sglang.folder": str,
    "sglang.startup_deadline": Seconds,
    "sglang.sync_deadline": Seconds,
    "sglang.probe_every": Seconds,
    "sglang.restarts": Number,
    "sglang.attempts": Count,
    "sglang.mixed": bool,
    "sglang.release_memory": bool,
    "sglang.follow": bool,
    "sampling.temperature": Above,
    "sampling.max_tokens": Count,
    "limits.max_turns": Count,
    "limits.environment_deadline": Seconds,
    "limits.engine_deadline": Seconds,
    "limits.retries": Number,
    "limits.error_rate": Share,
    "limits.concurrency": Count,
    "learner.loss": str,
    "learner.advantage": str,
    "learner.weighting": str,
    "learner.row_length": Annotated[int, Range(2)],
    "learner.micro_rows": Count,
    "learner.updates_per_batch": Count,
    "learner.each_update": Literal["whole", "part"],
    "learner.skip_steps": tuple[Count, ...],
    "learner.routes": Literal["own", "compared", "replayed"],
    "learner.remat": Literal["none", "dots", "layers", "auto"],
    "learner.lora.rank": Number,
    "learner.lora.alpha": Above,
    "learner.lora.targets": tuple[Literal["query", "key", "value", "output", "gate", "up", "down"], ...],
    "optimizer.learning_rate": AtLeast0,
    "optimizer.warmup_steps": Number,
    "optimizer.decay_steps": Number,
    "optimizer.decay_to": Share,
    "optimizer.weight_decay": AtLeast0,
    "optimizer.clip_norm": Above,
    "optimizer.moments_dtype": DType,
    "mesh.data": Devices,
    "mesh.fsdp": Devices,
    "mesh.tensor": Devices,
    "mesh.expert": Devices,
    "explorer.name": str,
    "explorer.runs": Count,
    "explorer.steps": Count,
    "explorer.ending": str,
    "explorer.stretch": tuple[int, ...],
    "explorer.cut": Share,
    "explorer.mistakes": Share,
    "explorer.separator": str,
    "explorer.shortest": Count,
    "explorer.window": Annotated[int, "a number of characters", Range(2_000)],
    "explorer.width": Count | None,
    "initial_explorer": str,
    "llm.base_url": str,
    "llm.model": str,
    "llm.timeout": Seconds,
    "llm.deadline": Seconds,
    "llm.attempts": Count,
    "llm.concurrency": Count,
    "llm.max_tokens": Count,
    "llm.max_tokens_per_evolution": Count,
    "llm.max_requests_per_evolution": Count,
    "llm.temperature": AtLeast0,
    "llm.price_in": AtLeast0,
    "llm.price_out": AtLeast0,
    "llm.send_schema": bool,
    "llm.send_seed": bool,
    "validation.attempts": Number | None,
    "validation.attempter": str,
    "validation.judge": str,
    "validation.evaluation_similarity": Cosine,
    "validation.evaluation_words": Number,
    "validation.pool_similarity": Cosine,
    "validation.safe": bool,
    # Each query is compared with all others.
    "validation.longest_query": Annotated[int, "a number of characters", Range(1, MOST_CHARACTERS)],
    "synthesis.contexts": Count,
    "synthesis.budget": Count,
    "synthesis.per_context": Count,
    "synthesis.select": str,
    "evaluation.split": str,
    "evaluation.tasks": Count,
    "evaluation.seed": int,
    "evaluation.temperature": AtLeast0,
    "evaluation.trials": Count,
    "evaluation.reflect": bool,
    "evaluation.dev_split": str,
    "evaluation.dev_tasks": Count,
    "evaluation.every": Number,
    "evaluation.challenge_split": str,
    "evaluation.challenge_tasks": Number,
    "evaluation.by": str,
    "quality.k": Count,
    "quality.embedding": str,
    "quality.base_url": str,
    "quality.model": str,
    "wandb.project": str,
    "wandb.name": str,
    "wandb.mode": Literal["online", "offline", "disabled", "shared"],
}
# Sections whose settings the entry declares that stands beside them.
OPEN = (
    "environment", "curriculum_settings", "signal_settings", "learner.loss_settings", "learner.advantage_settings",
    "learner.weighting_settings",
)  # fmt: skip


def check_ranges(config: ConfigDict) -> None:
    """Raises RegistryError for a setting that there is not, that is missing, or that is what it may not be."""
    given = dict(leaves(config.to_dict()))
    for name, value in given.items():
        if name in RANGES:
            checked(name, RANGES[name], value)
        elif not any(name == section or name.startswith(f"{section}.") for section in OPEN):
            raise RegistryError(f"{name} is not a setting; experiments/base.py lists them all")
    if missing := RANGES.keys() - given.keys():
        raise RegistryError(f"{min(missing)} is missing from the configuration; begin with base.get_config()")


def leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting by its dotted name."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
