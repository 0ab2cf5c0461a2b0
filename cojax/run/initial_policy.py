"""The parameters before the first step: read, drawn at random, or warm-started once and cached."""

import dataclasses
import functools
import hashlib
import inspect
import itertools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from cojax import warm_start
from cojax.environment import Demonstrated, Environment
from cojax.learner.learner import Learner
from cojax.learner.optimizer import adamw
from cojax.learner.rehearsal import AUTO_REMAT, choose_fastest, count_engine_bytes, rehearse
from cojax.policy.adapters import Lora, merge
from cojax.policy.config import ModelConfig
from cojax.policy.transformer import Params, initialize
from cojax.report.console import CONSOLE, percent, show_bar
from cojax.report.run import describe_origin
from cojax.rollout.export import load_params
from cojax.run import trained
from cojax.run.machine import find_bit_facts
from cojax.run.parts import Parts
from cojax.run.policies import find_held_out
from cojax.run.processes import read_params
from cojax.settings.base import settings
from cojax.storage.checkpoint import Checkpointer
from cojax.types import Action, Task, content_hash

# The value of warm_start.split that stands for the run's own initial tasks.
INITIAL_SPLIT = "initial"
Demonstrations = Iterable[tuple[Task, Sequence[Action]]]
# Share of the batches over which the rate rises, on pretrained weights; from scratch it rises over 50 batches.
_WARMUP_SHARE = 0.1


def initial_policy(
    config: ConfigDict, parts: Parts, score: Callable[[int], float], find_tasks: Callable[[], Sequence[Task]]
) -> tuple[Params, Mapping[str, Any]]:
    """π_θ before the first step: read from model.path or drawn at random, then warm-started if warm_start.steps > 0.

    The second value is its `origin`, as in cojax/run/trained.py.

    A warm start is made once and cached. `score(step)` is the success of the engine's policy on the development split.
    `find_tasks` finds D_0. Raises ValueError or OSError, with what to do about it.
    """
    section, model_path, chat = config.warm_start, config.model.path, parts.chat
    if not section.steps:
        origin = {"folder": model_path, "shown": 0}
        CONSOLE.print(f"policy: {describe_origin(origin)} (warm_start.steps=0)")
        return read_params(parts.together, model_path, parts.model, config.seed, parts.mesh), origin
    if model_path:
        plan = f"at most {section.steps} batches of {section.batch_size} of {section.demonstrations} demonstrations"
        CONSOLE.print(f"policy: pretrained from {model_path}, to be shown {plan}, once for all runs")
    list_pairs = functools.partial(
        find_demonstrations, config, parts.environment, find_tasks=functools.cache(find_tasks)
    )
    weights_digest = hash_weights(Path(model_path)) if model_path else ""
    cache_key = {
        "environment": parts.environment.name,
        "environment_settings": settings(config.environment, "name", "isolated", "cluster"),
        "seed": config.seed,
        "settings": section.to_dict(),
        "model": dataclasses.asdict(parts.model),
        "tools": config.model.tools,
        "row_length": config.learner.row_length,
        "max_length": config.engine.max_length,
        "tokenizer": chat.tokenizer.get_vocab(),
        "template": chat.tokenizer.chat_template,
        "demonstrations": [
            [task.id, [[[call.name, dict(call.arguments)] for call in action.calls] for action in actions]]
            for task, actions in itertools.islice(list_pairs((0.0, 1.0)), 100)
        ],
        # The code of this file chooses the optimiser.
        "code": content_hash(
            [warm_start.hash_code(), warm_start.strip_prose(inspect.getsource(sys.modules[__name__]))]
        ),
        "machine": find_bit_facts(),
        **({"initial_tasks": config.initial_tasks} if section.split == INITIAL_SPLIT else {}),
    }
    if model_path:
        cache_key |= {
            "weights": weights_digest,
            "tokenizer_file": chat.tokenizer.backend_tokenizer.to_str(),
            "computed": [config.learner.micro_rows, config.learner.remat, settings(config.mesh)],
            # Settings of the development score decide when the target is reached.
            "scored": [
                *(config.evaluation[name] for name in ("dev_split", "dev_tasks", "temperature")),
                config.limits.max_turns,
                config.sampling.max_tokens,
            ],
        }
    folder, _ = warm_start.obtain(
        cache_key, functools.partial(_train, config, parts, list_pairs, score), parts.model, chat.tokenizer
    )
    CONSOLE.print(f"warm start: {warm_start.describe_model(folder)}")
    origin = trained.make_origin(model_path, weights_digest, warm_start.read_record(folder))
    CONSOLE.print(f"policy: {describe_origin(origin)}")
    return read_params(parts.together, str(folder), parts.model, config.seed, parts.mesh), origin


def hash_weights(folder: Path) -> str:
    """SHA-256 of the weights in a model folder, whatever its name. Raises FileNotFoundError if there are none."""
    digest, weight_files = hashlib.sha256(), sorted(folder.glob("*.safetensors"))
    if not weight_files:
        raise FileNotFoundError(f"no *.safetensors in {folder}; expected a model folder in HF format")
    for weight_path in weight_files:
        with open(weight_path, "rb") as weight_file:
            digest.update(hashlib.file_digest(weight_file, "sha256").digest())
    return digest.hexdigest()


def find_demonstrations(
    config: ConfigDict,
    environment: Environment,
    noise_range: tuple[float, float],
    find_tasks: Callable[[], Sequence[Task]] = tuple,
) -> Demonstrations:
    """Returns the tasks and actions that a warm start learns: the reference solutions of the split warm_start.split.

    "initial" stands for D_0, which holds no evaluation task, and "" for the environment's own demonstrator. Raises
    ValueError if there is no solution, and for a split that shares a task with the evaluation.
    """
    section = config.warm_start
    if section.split == INITIAL_SPLIT:
        solved_tasks = [(task, task.solution) for task in find_tasks() if task.solution]
        if not solved_tasks:
            raise ValueError(
                f"the initial tasks of environment {environment.name!r} bring no solutions to learn from; set "
                "--config.warm_start.steps=0"
            )
        return solved_tasks
    if not section.split:
        if isinstance(environment, Demonstrated):
            return environment.demonstrations(section.demonstrations, config.seed, noise_range)
        if config.model.path:
            raise ValueError(
                f"environment {environment.name!r} offers no demonstrations; name a split with solutions in "
                "--config.warm_start.split, or start from the model folder as it is with --config.warm_start.steps=0"
            )
        raise ValueError(
            f"environment {environment.name!r} offers no demonstrations, so no policy can be trained from scratch in "
            "it; name a split with solutions in --config.warm_start.split, start from random parameters with "
            "--config.warm_start.steps=0, or set --config.model.path to a model folder"
        )
    tasks = environment.tasks(section.split, section.demonstrations)
    if not tasks or not all(task.solution for task in tasks):
        raise ValueError(
            f"split {section.split!r} of environment {environment.name!r} brings no solutions to learn from; "
            "name another in --config.warm_start.split, or set --config.warm_start.steps=0"
        )
    exclusions = find_held_out(config, environment)
    if overlap := sum(bool(exclusions.find_rule(task)) for task in tasks):
        raise ValueError(
            f"{overlap} of the {len(tasks)} tasks of warm_start.split {section.split!r} are also in evaluation.split "
            f"{config.evaluation.split!r}, or hardly differ from a task there: what was learned by heart cannot be "
            f"evaluated. Choose another --config.evaluation.split, or --config.warm_start.split={INITIAL_SPLIT}"
        )
    return [(task, task.solution) for task in tasks]


def _train(
    config: ConfigDict,
    parts: Parts,
    find_demonstrations: Callable[[tuple[float, float]], Demonstrations],
    score: Callable[[int], float],
    checkpointer: Checkpointer | None,
) -> tuple[Params, dict[str, Any]]:
    section, model = config.warm_start, parts.model
    schedule = warm_start.Schedule(**{f.name: section[f.name] for f in dataclasses.fields(warm_start.Schedule)})
    played_count, fitting_examples = _play_demonstrations(config, parts, find_demonstrations, schedule.batch_size)
    group_sizes = [1] * schedule.batch_size
    base_params = (
        load_params(Path(config.model.path), model, parts.mesh) if config.model.path else initialize(model, config.seed)
    )
    learner = _build_learner(config, model, schedule.steps, base_params, parts.mesh)
    state = learner.init(base_params, config.seed)
    if config.model.path and config.learner.remat == AUTO_REMAT:
        learner = choose_fastest(learner, state, group_sizes, count_engine_bytes(learner, state))
    if learner.lora is None:
        del base_params  # the state holds a copy
    state = rehearse(learner, state, group_sizes)
    if checkpointer is not None and checkpointer.steps():
        CONSOLE.print(f"warm start: goes on after batch {checkpointer.steps()[-1]}, where it was stopped")
    with show_bar("warm start", schedule.steps) as advance:
        state, checks, shown_count = warm_start.train_policy(
            state,
            learner,
            parts.engine,
            fitting_examples,
            score,
            schedule,
            seed=config.seed,
            advance=advance,
            checkpointer=checkpointer,
            on_check=lambda check: CONSOLE.print(
                f"warm start: batch {check['step']}, loss {check['loss']:.3f}, dev success {percent(check['success'])}"
            ),
        )
    # Adapters are summed into the matrices as they were read, not into the copy that the learner computed with.
    params = state.params if learner.lora is None else merge(model, learner.lora, base_params, state.params)
    dropped_count = played_count - len(fitting_examples)
    return params, {"checks": checks, "demonstrations": played_count, "dropped": dropped_count, "shown": shown_count}


def _play_demonstrations(
    config: ConfigDict, parts: Parts, list_pairs: Callable[[tuple[float, float]], Demonstrations], batch_size: int
) -> tuple[int, list[warm_start.Demonstration]]:
    """Plays demonstrations; returns their number and those that fit a row. Raises ValueError if a batch needs more."""
    section = config.warm_start
    pairs = list_pairs((section.noise_low, section.noise_high))
    with show_bar("demonstrations", len(pairs) if isinstance(pairs, Sequence) else section.demonstrations) as advance:
        all_examples = []
        for demonstration in warm_start.demonstrate(parts.environment, parts.chat, pairs):
            all_examples.append(demonstration)
            advance()
    # A longer demonstration could neither be packed nor played by the policy.
    max_length = config.engine.max_length
    fitting_examples = [demonstration for demonstration in all_examples if len(demonstration[0]) <= max_length]
    if len(fitting_examples) < batch_size:
        raise ValueError(
            f"{len(fitting_examples)} of {len(all_examples)} demonstrations fit the {max_length} tokens of "
            f"engine.max_length (the longest has {max(len(tokens) for tokens, _ in all_examples)}), a batch needs "
            f"{batch_size}; raise engine.max_length and learner.row_length, or lower warm_start.batch_size"
        )
    return len(all_examples), fitting_examples


def _build_learner(config: ConfigDict, model: ModelConfig, step_count: int, base: Params, mesh: Mesh | None) -> Learner:
    """Builds a warm start's learner. From scratch it uses one device, and recomputes layers in the backward pass."""
    section = config.warm_start
    rate, warmup_steps, extra_keywords = section.learning_rate, 50, dict[str, Any]()
    if config.model.path:
        lora = Lora(**settings(section.lora, "learning_rate")) if section.lora.rank else None
        rate = section.lora.learning_rate if lora else section.pretrained_learning_rate
        warmup_steps = round(_WARMUP_SHARE * step_count)
        remat = "layers" if config.learner.remat == AUTO_REMAT else config.learner.remat
        extra_keywords = {"reference": base if lora else None, "lora": lora, "mesh": mesh, "remat": remat}
    return Learner(
        config=model,
        optimizer=adamw(optax.linear_schedule(rate, 0.05 * rate, step_count), warmup_steps=warmup_steps),
        loss="sft",
        row_length=config.learner.row_length,
        micro_rows=config.learner.micro_rows,
        **extra_keywords,
    )
