"""Configuration → objects. Nothing below this file sees a ConfigDict."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import optax
from ml_collections import ConfigDict
from transformers import AutoTokenizer, PreTrainedTokenizerBase

import environments
from cojax import warm_start
from cojax.coevolve import Loop
from cojax.console import CONSOLE, bar, percent
from cojax.environment import Charted, Demonstrated, Environment
from cojax.evaluate import Score, evaluate
from cojax.explorer.scripted import ScriptedExplorer, no_neighbours
from cojax.learner.step import Learner, adamw
from cojax.metrics import Clock
from cojax.policy.config import ModelConfig
from cojax.policy.transformer import Params
from cojax.rollout.chat import SHOWN, Chat
from cojax.rollout.collect import Limits
from cojax.rollout.engine import Engine, Sampling
from cojax.rollout.export import load_params
from cojax.rollout.local import LocalEngine
from cojax.rollout.vocabulary import word_tokenizer
from cojax.signals import SIGNALS
from cojax.synthesis import EVOLUTIONS
from cojax.types import SignalKind, Task
from cojax.validation import Exclusions, Validation
from cojax.watch import Watched

ENGINES: dict[str, Callable[..., Engine]] = {"local": LocalEngine}
EXPLORERS: dict[str, Callable[..., Any]] = {"scripted": ScriptedExplorer}
# Tasks of the training split whose wording teaches the word-level tokenizer.
_SAMPLE = 500


@dataclasses.dataclass(frozen=True)
class Parts:
    """The objects of one run that need no parameters yet."""

    environment: Environment
    chat: Chat
    model: ModelConfig
    engine: Engine
    limits: Limits
    evaluation: tuple[Task, ...]
    development: tuple[Task, ...]
    challenge: tuple[Task, ...]


def choose(table: Mapping[Any, Any], name: str, kind: str) -> Any:
    """The entry of a registry. Raises ValueError, which lists the others."""
    if name not in table:
        raise ValueError(f"{kind} {name!r} not found; available: {', '.join(table)}")
    return table[name]


def settings(config: ConfigDict, *without: str) -> dict[str, Any]:
    """A section of the configuration as keywords."""
    return {name: value for name, value in config.to_dict().items() if name not in without}


def parts(config: ConfigDict) -> Parts:
    """Environment, tokenizer, model shape and engine. Raises ValueError or OSError with the fix."""
    check(config)
    environment = environments.load(config.environment.name, **settings(config.environment, "name"))
    if config.policy.path:
        folder = Path(config.policy.path)
        if not folder.is_dir():
            raise ValueError(f"policy.path {str(folder)!r} is no folder; expected a model in HF format")
        model = ModelConfig.from_hf(folder)
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
    else:
        tokenizer = closed_world(environment)
        model = ModelConfig(vocab_size=_round_up(len(tokenizer), 16), **settings(config.policy.model))
    chat = Chat(tokenizer, choose(SHOWN, config.policy.tools, "policy.tools"))
    engine = choose(ENGINES, config.engine.name, "engine")(model, **settings(config.engine, "name"))
    held_out = config.evaluation
    return Parts(
        environment,
        chat,
        model,
        engine,
        Limits(**settings(config.limits)),
        environment.tasks(held_out.split, held_out.tasks),
        environment.tasks(held_out.dev_split, held_out.dev_tasks),
        environment.tasks(held_out.challenge_split, held_out.challenge_tasks),
    )


# The least value of settings that count something. An advantage relative to a group needs a group of two.
_BOUNDS = {
    "batch_size": 1, "group_size": 2, "evolve_every": 1, "initial_tasks": 1, "checkpoint_every": 1,
    "checkpoints_kept": 1, "steps": 0, "episodes_kept": 0, "synthesis.contexts": 1, "synthesis.budget": 1,
    "synthesis.per_context": 1, "explorer.runs": 1, "explorer.steps": 1, "evaluation.tasks": 1,
    "evaluation.dev_tasks": 1, "evaluation.every": 0, "limits.concurrency": 1, "limits.max_turns": 1,
    "limits.retries": 0, "sampling.max_tokens": 1, "engine.slots": 1, "learner.micro_rows": 1,
    "learner.updates_per_batch": 1, "warm_start.steps": 1, "warm_start.batch_size": 1, "warm_start.check_every": 1,
    "warm_start.check_tasks": 1, "warm_start.demonstrations": 1,
}  # fmt: skip


def check(config: ConfigDict) -> None:
    """Settings that only make sense together or within bounds. Raises ValueError."""
    choose(EVOLUTIONS, config.evolve, "evolve")
    kinds(config)
    choose(EXPLORERS, config.explorer.name, "explorer")
    for name, least in _BOUNDS.items():
        section, _, leaf = name.rpartition(".")
        place = config[section] if section else config
        if leaf in place and place[leaf] < least:
            raise ValueError(f"{name} is {place[leaf]}; expected at least {least}")
    if not config.workdir:
        raise ValueError("workdir is empty; name a folder for the run")
    if config.sampling.temperature <= 0:
        raise ValueError(f"sampling.temperature is {config.sampling.temperature}; training samples need one above 0")
    if not 0.0 <= config.fresh_fraction <= 1.0:
        raise ValueError(f"fresh_fraction is {config.fresh_fraction}; expected a share from 0 to 1")
    if config.learner.row_length < config.engine.max_length:
        raise ValueError(
            f"learner.row_length is {config.learner.row_length}, engine.max_length {config.engine.max_length}; "
            "a row must hold the longest episode, so make row_length at least max_length"
        )
    if "warm_start" in config and config.warm_start.demonstrations < config.warm_start.batch_size:
        raise ValueError(
            f"warm_start.demonstrations is {config.warm_start.demonstrations}; expected at least a batch of "
            f"{config.warm_start.batch_size}"
        )
    if not config.policy.path and "model" not in config.policy:
        raise ValueError("no policy: set policy.path to a model folder, or policy.model and warm_start to train one")


def kinds(config: ConfigDict) -> list[SignalKind]:
    """The signals switched on, from "forgetting,boundary,rare"."""
    named = [kind.strip() for kind in config.signals.split(",") if kind.strip()]
    for kind in named:
        choose(SIGNALS, kind, "signal")
    return [kind for kind in SIGNALS if kind in named]


def closed_world(environment: Environment) -> PreTrainedTokenizerBase:
    """The word-level tokenizer of an environment that can name its words."""
    if not isinstance(environment, Demonstrated):
        raise ValueError(
            f"environment {environment.name!r} offers no lexicon and no demonstrations, so no policy can be trained "
            "from scratch in it; set policy.path to a model folder"
        )
    names, texts = environment.lexicon()
    queries = [task.query for task in environment.tasks("seed", _SAMPLE)]
    return word_tokenizer(names, [*texts, *queries], environment.tools())


def learner(config: ConfigDict, model: ModelConfig, reference: Params | None) -> Learner:
    return Learner(
        config=model,
        optimizer=adamw(**settings(config.optimizer)),
        temperature=config.sampling.temperature,
        reference=reference if config.learner.loss_settings.get("kl_coefficient", 0.0) > 0 else None,
        **settings(config.learner),
    )


def initial_params(config: ConfigDict, made: Parts) -> Params:
    """π_θ before the first step: read from policy.path, or warm-started once and cached."""
    if config.policy.path:
        return load_params(Path(config.policy.path), made.model)
    world = made.environment
    assert isinstance(world, Demonstrated)
    section = config.warm_start
    schedule = warm_start.Schedule(**{f.name: section[f.name] for f in dataclasses.fields(warm_start.Schedule)})

    def make() -> tuple[Params, list[warm_start.Check]]:
        noise = (section.noise_low, section.noise_high)
        pairs = world.demonstrations(section.demonstrations, config.seed, noise)
        with bar("demonstrations", section.demonstrations) as advance:
            demonstrations = []
            for demonstration in warm_start.demonstrate(world, made.chat, pairs):
                demonstrations.append(demonstration)
                advance()
        with bar("warm start", schedule.steps) as advance:
            return warm_start.train(
                made.model,
                Learner(
                    config=made.model,
                    optimizer=adamw(
                        optax.linear_schedule(section.learning_rate, 0.05 * section.learning_rate, schedule.steps),
                        warmup_steps=50,
                    ),
                    loss="sft",
                    row_length=config.learner.row_length,
                    micro_rows=config.learner.micro_rows,
                ),
                made.engine,
                demonstrations,
                lambda step: dev_score(config, made, step, config.evaluation.temperature, section.check_tasks).success,
                schedule,
                seed=config.seed,
                advance=advance,
                on_check=lambda done: CONSOLE.print(
                    f"warm start: batch {done.step}, loss {done.loss:.3f}, dev success {percent(done.success)}"
                ),
            )

    key = {
        "environment": world.name,
        "seed": config.seed,
        "settings": section.to_dict(),
        "model": dataclasses.asdict(made.model),
        "row_length": config.learner.row_length,
        "tokenizer": made.chat.tokenizer.get_vocab(),
        "template": made.chat.tokenizer.chat_template,
        "demonstrations": [
            [task.id, [[call.name, dict(call.arguments)] for action in actions for call in action.calls]]
            for task, actions in itertools.islice(world.demonstrations(100, config.seed, (0.0, 1.0)), 100)
        ],
        "code": warm_start.fingerprint(),
    }
    folder, _ = warm_start.cached(key, make, made.model, made.chat.tokenizer)
    return load_params(folder, made.model)


def dev_score(config: ConfigDict, made: Parts, step: int, temperature: float, tasks: int) -> Score:
    """Success on the development split of the policy that the engine holds."""
    score, _ = evaluate(
        made.engine,
        made.chat,
        made.environment,
        made.development[:tasks],
        sampling=sampling(config, made.chat, temperature),
        seed=(config.seed, step),
        label=f"dev{step}",
        limits=made.limits,
    )
    return score


def held_out_score(config: ConfigDict, made: Parts, description: str) -> Score:
    """Success on the evaluation split of the policy that the engine holds."""
    with bar(description, len(made.evaluation)) as advance:
        score, _ = evaluate(
            made.engine,
            made.chat,
            made.environment,
            made.evaluation,
            sampling=sampling(config, made.chat, config.evaluation.temperature),
            seed=(config.seed, 0),
            label="eval",
            limits=made.limits,
            on_episode=lambda trajectory: advance(),
        )
    return score


def sampling(config: ConfigDict, chat: Chat, temperature: float) -> Sampling:
    return Sampling(temperature=temperature, max_tokens=config.sampling.max_tokens, stop_tokens=(chat.end,))


def loop(config: ConfigDict, made: Parts, learns: Learner, clock: Clock) -> Loop:
    """The loop's fixed parts."""
    charted = made.environment if isinstance(made.environment, Charted) else None
    watched = Watched(made.limits.environment_deadline)
    explorer = choose(EXPLORERS, config.explorer.name, "explorer")(
        neighbours=charted.neighbours if charted else no_neighbours,
        play=watched,
        **settings(config.explorer, "name"),
    )

    def score(step: int) -> Mapping[str, float] | None:
        every = config.evaluation.every
        if not every or step % every:
            return None
        result = dev_score(config, made, step, config.evaluation.temperature, config.evaluation.dev_tasks)
        return {"success": result.success, "partial": result.partial}

    return Loop(
        environment=made.environment,
        engine=made.engine,
        chat=made.chat,
        learner=learns,
        explorer=explorer,
        validate=Validation(
            made.environment, Exclusions.of(reserved(config, made)), enabled=config.validate, play=watched
        ),
        detectors={kind: SIGNALS[kind](**settings(config[kind])) for kind in kinds(config)},
        evolve=EVOLUTIONS[config.evolve],
        popularity=charted.popularity() if charted else None,
        sampling=sampling(config, made.chat, config.sampling.temperature),
        limits=made.limits,
        clock=clock,
        score=score,
        seed=config.seed,
        steps=config.steps,
        batch_size=config.batch_size,
        group_size=config.group_size,
        evolve_every=config.evolve_every,
        fresh_fraction=config.fresh_fraction,
        checkpoint_every=config.checkpoint_every,
        **settings(config.synthesis),
    )


def reserved(config: ConfigDict, made: Parts) -> Sequence[Task]:
    """Tasks that must never be trained on."""
    return (*made.evaluation, *made.development, *made.challenge)


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
