"""The policy before the first step: tokenizer, shape, parameters."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import optax
import transformers
from jax.sharding import Mesh
from ml_collections import ConfigDict
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from cojax import warm_start
from cojax.environment import Demonstrated, Environment
from cojax.environment.replay import follow
from cojax.learner.learner import Learner
from cojax.learner.optimizer import adamw
from cojax.learner.rehearsal import rehearse
from cojax.policy.config import ModelConfig
from cojax.policy.transformer import Params, initialize
from cojax.report.console import CONSOLE, bar, percent
from cojax.rollout.chat import Chat, names_only, whole_document
from cojax.rollout.engine import Engine
from cojax.rollout.export import load_params
from cojax.rollout.vocabulary import byte_tokenizer, word_tokenizer
from cojax.types import Action, Task
from cojax.validation import Exclusions
from experiments.settings import choose, settings
from experiments.trained import from_scratch

# Tasks of the training split whose wording teaches the word-level tokenizer.
_SAMPLE = 500
# The value of warm_start.split that stands for the run's own initial tasks.
INITIAL = "initial"
Demonstrations = Iterable[tuple[Task, Sequence[Action]]]


def check_folder(config: ConfigDict) -> None:
    """Raises ValueError where model.path names no folder."""
    if config.model.path and not Path(config.model.path).is_dir():
        raise ValueError(
            f"model.path {config.model.path!r} is no folder; expected a model in HF format. Get one, for example by "
            "`hf download Qwen/Qwen3-4B-Instruct-2507 --local-dir models/Qwen3-4B`, and name its folder in "
            "--config.model.path, or choose a small policy from scratch with --config.policy=tiny"
        )


def tokenizer_and_shape(config: ConfigDict, environment: Environment) -> tuple[PreTrainedTokenizerBase, ModelConfig]:
    """From the folder model.path, or made for the environment. Raises ValueError or OSError with the fix."""
    if config.model.path:
        folder = Path(config.model.path)
        check_folder(config)
        # AutoTokenizer imports torch, where it is installed: only now, so that errors of a configuration come first.
        return transformers.AutoTokenizer.from_pretrained(folder), stored_shape(config, folder)
    make = choose(TOKENIZERS, config.model.tokenizer, "model.tokenizer")
    tokenizer = make(config, environment)
    return tokenizer, from_scratch(settings(config.model), tokenizer)


def stored_shape(config: ConfigDict, folder: Path) -> ModelConfig:
    """The shape of a model folder, with the dtypes of the configuration."""
    own = ModelConfig.from_hf(folder)
    dtype = config.model.dtype or own.dtype
    # Adapters leave the model frozen: it is only computed with.
    stored = dtype if config.learner.lora.rank else config.model.param_dtype or own.param_dtype
    return dataclasses.replace(own, dtype=dtype, param_dtype=stored)


def closed_world(config: ConfigDict, environment: Environment) -> PreTrainedTokenizerBase:
    """The word-level tokenizer of an environment that can name its words."""
    if not isinstance(environment, Demonstrated):
        raise ValueError(
            f"environment {environment.name!r} offers no lexicon, so its words cannot be the tokens; "
            "set --config.model.tokenizer=bytes, or --config.model.path to a model folder"
        )
    names, texts = environment.lexicon()
    queries = [task.query for task in environment.tasks("seed", _SAMPLE)]
    return word_tokenizer(names, [*texts, *queries], environment.tools())


def open_world(config: ConfigDict, environment: Environment) -> PreTrainedTokenizerBase:
    """The byte-level tokenizer, trained on the environment's documentation and its development tasks.

    A development task that is also evaluated is left out.
    """
    held_out = _held_out(config, environment)
    development = environment.tasks(config.evaluation.dev_split, config.evaluation.dev_tasks)
    tasks = [task for task in development if not held_out.why(task)]
    with bar("tokenizer: replays", len(tasks)) as advance:
        return byte_tokenizer(texts(environment, tasks, advance), config.model.vocabulary)


def keep_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path, begun: bool, lost: bool = True) -> None:
    """Saves the tokenizer of a run. A run that has `begun` saves it only where it is `lost`.

    Raises ValueError where such a run learned with another tokenizer.
    """
    saved = folder / "tokenizer.json"
    if begun and saved.exists():
        try:
            before = Tokenizer.from_file(str(saved)).get_vocab()
        except Exception as error:  # the package raises no other type
            raise ValueError(f"{saved} cannot be read ({error}). Delete it: it is made again.") from error
        if before != tokenizer.get_vocab():
            raise ValueError(
                f"the tokenizer is no longer the one in {folder} that this run began with: the environment or its "
                "package has changed. Choose another --config.workdir, or restore the package"
            )
    if lost or not begun:
        tokenizer.save_pretrained(folder)


TOKENIZERS: dict[str, Callable[[ConfigDict, Environment], PreTrainedTokenizerBase]] = {
    "words": closed_world,
    "bytes": open_world,
}


def texts(environment: Environment, tasks: Iterable[Task], advance: Callable[[], None] = lambda: None) -> Iterator[str]:
    """All texts of an environment: its tools' documentation, full and brief, and the episodes that solve these tasks.

    A task without a solution gives only its query. Raises EnvironmentFailure for an episode that is lost.
    """
    for tool in environment.tools():
        yield from (json.dumps(shown(tool), ensure_ascii=False) for shown in (whole_document, names_only))
    for task in tasks:
        if task.solution:
            trajectory = warm_start.perform(environment, task, follow(task.solution), len(task.solution))
            yield from (message.content for message in trajectory.opening)
            for turn in trajectory.turns:
                yield Chat.write(turn.action.calls)
                yield from (message.content for message in turn.observation.messages)
        else:
            yield task.query
        advance()


def initial_params(
    config: ConfigDict,
    environment: Environment,
    chat: Chat,
    model: ModelConfig,
    engine: Engine,
    score: Callable[[int], float],
    initial: Callable[[], Sequence[Task]],
    mesh: Mesh | None = None,
) -> Params:
    """π_θ before the first step: read from model.path, drawn at random, or warm-started once and cached.

    `score(step)` is the success, on the development split, of the policy that `engine` holds. `initial` finds D_0.
    """
    if config.model.path:
        return load_params(Path(config.model.path), model, mesh)
    section = config.warm_start
    if not section.steps:
        CONSOLE.print("policy: random parameters, no warm start (warm_start.steps=0)", soft_wrap=True)
        return initialize(model, config.seed)

    learned = functools.partial(demonstrations, config, environment, initial=functools.cache(initial))

    def make() -> warm_start.Trained:
        return _train(config, learned, environment, chat, model, engine, score)

    key = {
        "environment": environment.name,
        "environment_settings": settings(config.environment, "name", "isolated"),
        "seed": config.seed,
        "settings": section.to_dict(),
        "model": dataclasses.asdict(model),
        "tools": config.model.tools,
        "row_length": config.learner.row_length,
        "max_length": config.engine.max_length,
        "tokenizer": chat.tokenizer.get_vocab(),
        "template": chat.tokenizer.chat_template,
        "demonstrations": [
            [task.id, [[[call.name, dict(call.arguments)] for call in action.calls] for action in actions]]
            for task, actions in itertools.islice(learned((0.0, 1.0)), 100)
        ],
        "code": warm_start.fingerprint(),
    }
    folder, _ = warm_start.cached(key, make, model, chat.tokenizer)
    CONSOLE.print(f"warm start: {warm_start.describe(folder)}", soft_wrap=True)
    return load_params(folder, model, mesh)


def demonstrations(
    config: ConfigDict,
    environment: Environment,
    noise: tuple[float, float],
    initial: Callable[[], Sequence[Task]] = tuple,
) -> Demonstrations:
    """The tasks and actions that a warm start learns: the reference solutions of the split warm_start.split.

    "initial" stands for D_0, which holds no evaluation task, and "" for the environment's own demonstrator. Raises
    ValueError where there is no solution, and for a split that shares a task with the evaluation.
    """
    section = config.warm_start
    if section.split == INITIAL:
        return [(task, task.solution) for task in initial()]
    if not section.split:
        if isinstance(environment, Demonstrated):
            return environment.demonstrations(section.demonstrations, config.seed, noise)
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
    held_out = _held_out(config, environment)
    if shared := sum(bool(held_out.why(task)) for task in tasks):
        raise ValueError(
            f"{shared} of the {len(tasks)} tasks of warm_start.split {section.split!r} are also in evaluation.split "
            f"{config.evaluation.split!r}: what was learned by heart cannot be evaluated. Choose another "
            "--config.evaluation.split"
        )
    return [(task, task.solution) for task in tasks]


def _held_out(config: ConfigDict, environment: Environment) -> Exclusions:
    """The evaluation tasks, whose queries and solutions must not be learned.

    A query within another one is allowed: both are the benchmark's.
    """
    held_out = config.evaluation
    return Exclusions.of(environment.tasks(held_out.split, held_out.tasks, held_out.seed), words=0)


def _train(
    config: ConfigDict,
    learned: Callable[[tuple[float, float]], Demonstrations],
    environment: Environment,
    chat: Chat,
    model: ModelConfig,
    engine: Engine,
    score: Callable[[int], float],
) -> warm_start.Trained:
    section = config.warm_start
    schedule = warm_start.Schedule(**{f.name: section[f.name] for f in dataclasses.fields(warm_start.Schedule)})
    learner = Learner(
        config=model,
        optimizer=adamw(
            optax.linear_schedule(section.learning_rate, 0.05 * section.learning_rate, schedule.steps),
            warmup_steps=50,
        ),
        loss="sft",
        row_length=config.learner.row_length,
        micro_rows=config.learner.micro_rows,
    )
    rehearse(learner, learner.init(initialize(model, config.seed)), [1] * schedule.batch_size)
    pairs = learned((section.noise_low, section.noise_high))
    with bar("demonstrations", len(pairs) if isinstance(pairs, Sequence) else section.demonstrations) as advance:
        played = []
        for demonstration in warm_start.demonstrate(environment, chat, pairs):
            played.append(demonstration)
            advance()
    # A longer demonstration could neither be packed nor played by the policy.
    room = config.engine.max_length
    fitting = [demonstration for demonstration in played if len(demonstration[0]) <= room]
    if len(fitting) < schedule.batch_size:
        raise ValueError(
            f"{len(fitting)} of {len(played)} demonstrations fit the {room} tokens of engine.max_length (the longest "
            f"has {max(len(tokens) for tokens, _ in played)}), a batch needs {schedule.batch_size}; raise "
            "engine.max_length and learner.row_length, or lower warm_start.batch_size"
        )
    with bar("warm start", schedule.steps) as advance:
        params, checks = warm_start.train(
            model,
            learner,
            engine,
            fitting,
            score,
            schedule,
            seed=config.seed,
            advance=advance,
            on_check=lambda done: CONSOLE.print(
                f"warm start: batch {done.step}, loss {done.loss:.3f}, dev success {percent(done.success)}"
            ),
        )
    return warm_start.Trained(params, checks, len(played), len(played) - len(fitting))
