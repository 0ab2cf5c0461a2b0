"""Finds the policy's tokenizer and shape: in a model folder, or built for the environment."""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ml_collections import ConfigDict
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from cojax import warm_start
from cojax.environment import Demonstrated, Environment, EnvironmentFailure, ask
from cojax.environment.replay import follow
from cojax.environment.watch import HangingCall, run_watched
from cojax.policy.config import ModelConfig
from cojax.report.console import CONSOLE, show_bar
from cojax.rollout.chat import Chat, names_only, whole_document
from cojax.rollout.export import load_tokenizer, write_tokenizer
from cojax.rollout.vocabulary import train_byte_tokenizer, word_tokenizer
from cojax.run.machine import choose_compute_dtype
from cojax.run.parts import make_limits
from cojax.run.trained import find_run_dtype, make_scratch_shape, read_folder_shape
from cojax.settings.base import choose, settings
from cojax.storage.files import read_whole
from cojax.types import Task
from cojax.validation import Exclusions

# Tasks of the training split whose wording teaches the word-level tokenizer.
_LEXICON_TASK_COUNT = 500
# Setups that teach the byte-level tokenizer where there are no development tasks.
_MAX_SETUPS = 50


# Printed if documentation is shortened, because that changes the figures.
_NOTES = {"brief": "their documentation is cut to names and arguments", "none": "the policy is shown no documentation"}


def announce(chat: Chat, tools_setting: str) -> None:
    """Prints how the tools' documentation is shortened, if it is, and what the template does by itself."""
    if tools_setting in _NOTES:
        CONSOLE.print(f"tools: {_NOTES[tools_setting]} (model.tools={tools_setting})")
    for note in chat.notes:
        CONSOLE.print(f"template: {note}")


def settle_model(config: ConfigDict) -> ConfigDict:
    """The configuration with what a run records of its model, so that it can be resumed from any folder and machine: an
    absolute model.path, and the dtype that model.dtype=auto chose when the run began."""
    config = config.copy_and_resolve_references()
    if config.model.path:
        config.model.path = os.path.abspath(config.model.path)
    if config.model.dtype == "auto":
        run_dtype = find_run_dtype(Path(config.workdir))
        config.model.dtype = choose_compute_dtype() if run_dtype is None else run_dtype
    return config


def check_folder(config: ConfigDict) -> None:
    """Raises ValueError if model.path names no folder."""
    if config.model.path and not Path(config.model.path).is_dir():
        raise ValueError(
            f"model.path {config.model.path!r} is not a folder; expected a model in HF format. Get one, for example by "
            "`make smollm2` (135 million parameters) or `hf download Qwen/Qwen3-4B-Instruct-2507 --local-dir "
            "models/Qwen3-4B`, and name its folder in --config.model.path, or choose a small policy from scratch with "
            "--config.policy=tiny"
        )


def read_model(config: ConfigDict, environment: Environment) -> tuple[PreTrainedTokenizerBase, ModelConfig]:
    """Reads them from the folder model.path, or builds them for the environment. Raises ValueError or OSError."""
    if config.model.path:
        folder = Path(config.model.path)
        check_folder(config)
        return load_tokenizer(folder), read_folder_shape(config, folder)
    make_tokenizer = choose(TOKENIZERS, config.model.tokenizer, "model.tokenizer")
    tokenizer = make_tokenizer(config, environment)
    return tokenizer, make_scratch_shape(settings(config.model), tokenizer)


def make_word_tokenizer(config: ConfigDict, environment: Environment) -> PreTrainedTokenizerBase:
    """Builds the word-level tokenizer of an environment that can name its words."""
    if not isinstance(environment, Demonstrated):
        raise ValueError(
            f"environment {environment.name!r} offers no lexicon, so its words cannot be the tokens; "
            "set --config.model.tokenizer=bytes, or --config.model.path to a model folder"
        )
    argument_words, lexicon_texts = environment.lexicon()
    queries = [task.query for task in environment.tasks("seed", _LEXICON_TASK_COUNT)]
    return word_tokenizer(argument_words, [*lexicon_texts, *queries], environment.tools())


def train_tokenizer(config: ConfigDict, environment: Environment) -> PreTrainedTokenizerBase:
    """Trains the byte-level tokenizer on the environment's documentation and its development tasks.

    A development task that is also evaluated is left out. Without development tasks, setups replace them. Raises
    EnvironmentFailure if a call takes longer than the run's deadline.
    """
    exclusions = find_held_out(config, environment)
    development_tasks = environment.tasks(config.evaluation.dev_split, config.evaluation.dev_tasks)
    tasks = [task for task in development_tasks if not exclusions.find_rule(task)]
    if not development_tasks:
        tasks = list(environment.tasks("seed", _MAX_SETUPS))
    with show_bar("tokenizer: replays", len(tasks)) as advance:
        try:
            timeout_s = make_limits(config, environment).environment_deadline
            corpus_texts = run_watched(environment, timeout_s, lambda world: list(texts(world, tasks, advance)))
        except HangingCall as error:
            raise EnvironmentFailure(str(error)) from error
    return train_byte_tokenizer(corpus_texts, config.model.vocabulary)


def keep_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path, has_begun: bool, is_lost: bool = True) -> None:
    """Saves the tokenizer of a run. A run that has begun saves it only if it is lost.

    Raises ValueError if such a run learned with another tokenizer.
    """
    tokenizer_path = folder / "tokenizer.json"
    if has_begun and tokenizer_path.exists():
        try:
            vocabulary = Tokenizer.from_buffer(read_whole(tokenizer_path)).get_vocab()
        except Exception as error:  # the package raises no other type
            raise ValueError(f"{tokenizer_path} cannot be read ({error}). Delete it: it is made again.") from error
        if vocabulary != tokenizer.get_vocab():
            raise ValueError(
                f"the tokenizer is no longer the one in {folder} that this run began with: the environment or its "
                "package has changed. Choose another --config.workdir, or restore the package"
            )
    if is_lost or not has_begun:
        write_tokenizer(folder, tokenizer)


TOKENIZERS: dict[str, Callable[[ConfigDict, Environment], PreTrainedTokenizerBase]] = {
    "words": make_word_tokenizer,
    "bytes": train_tokenizer,
}


def texts(environment: Environment, tasks: Iterable[Task], advance: Callable[[], None] = lambda: None) -> Iterator[str]:
    """Yields all texts of an environment: its tools' documentation, full and brief, and episodes that solve the tasks.

    A task without a solution gives only its query. Raises EnvironmentFailure for a lost episode.
    """
    for tool in environment.tools():
        yield from (json.dumps(render(tool), ensure_ascii=False) for render in (whole_document, names_only))
    for task in tasks:
        if task.solution:
            trajectory = warm_start.play_actions(environment, task, follow(task.solution), len(task.solution))
            yield from (message.content for message in trajectory.opening)
            for turn in trajectory.turns:
                yield Chat.write(turn.action.calls)
                yield from (message.content for message in turn.observation.messages)
        elif task.query:
            yield task.query
        else:
            yield from _list_setup_texts(environment, task)
        advance()


def _list_setup_texts(environment: Environment, setup: Task) -> Iterator[str]:
    """Yields the texts with which an episode on a bare setup opens, and its calls. Raises EnvironmentFailure."""
    episode = environment.start(setup)
    try:
        yield from (message.content for message in ask(episode.reset))
        yield json.dumps(setup.setup, ensure_ascii=False)
        yield from (Chat.write(action.calls) for action in ask(episode.affordances))
    finally:
        episode.close()


def find_held_out(config: ConfigDict, environment: Environment) -> Exclusions:
    """Returns the evaluation tasks, whose queries and solutions must not be learned, as exclusions.

    A query that contains another one is allowed, because both are the benchmark's.
    """
    section = config.evaluation
    return Exclusions.of(environment.tasks(section.split, section.tasks, section.seed), min_words=0)
