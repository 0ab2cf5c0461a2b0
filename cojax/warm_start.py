"""Warm start: trains a policy on demonstrations, from scratch or from pretrained weights, until it solves some tasks.

The result is an ordinary model folder in HF format (config.json, model.safetensors, tokenizer). It is cached under
`$COJAX_CACHE`, keyed by everything that decides it, so that a command trains it only once.
"""

import ast
import contextlib
import dataclasses
import functools
import importlib.metadata
import inspect
import itertools
import logging
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from transformers import PreTrainedTokenizerBase

from cojax.durable import sync_folder
from cojax.environment import Actor, Environment, EnvironmentFailure, Episode, play
from cojax.learner import batch as packing
from cojax.learner import learner as learning
from cojax.learner import losses, objective, optimizer, update
from cojax.learner import placement as placing
from cojax.learner.batch import pack_sequences
from cojax.learner.learner import Learner, StepBatches
from cojax.learner.update import TrainState
from cojax.policy import adapters, attention, family, logprobs, moe, transformer
from cojax.policy import config as model_shape
from cojax.policy.config import ModelConfig
from cojax.policy.transformer import Params
from cojax.rollout import chat as rendering
from cojax.rollout import control_tokens, vocabulary
from cojax.rollout.chat import Chat
from cojax.rollout.engine import Engine
from cojax.rollout.export import save_model
from cojax.settings.tree import TeachingSettings
from cojax.storage.checkpoint import Checkpointer, CheckpointError
from cojax.storage.files import RunDirectoryError, lock_folder, read_json, write_json
from cojax.types import Action, Message, Task, Trajectory, Turn, content_hash

# Modules whose code, with the settings, decides the policy.
_KEY_MODULES = (
    adapters, attention, control_tokens, family, logprobs, losses, moe, objective, optimizer, packing,
    placing, rendering, model_shape, learning, transformer, update, vocabulary,
)  # fmt: skip
_LOG = logging.getLogger(__name__)
Demonstration = tuple[Sequence[int], Sequence[bool]]  # tokens, and for each whether it is learned
Score = dict[str, Any]  # on the development split: batches seen (`step`), loss per token in nats, success in [0, 1]


@dataclasses.dataclass(frozen=True)
class Schedule:
    """How long to train, and from which demonstrations to draw.

    Batches of `batch_size` are drawn from the shortest fifth of the demonstrations at first, and from all of them after
    `lengthen` batches: a policy learns to copy many times sooner on short ones. After every `check_every` batches the
    policy is scored on the development split. Training ends once the score reaches `target`, or after `steps` batches.

    With `epochs` all demonstrations are in use from the first batch on: each is learned once, in random order, before
    any is learned again. Use it when demonstrations are few.
    """

    steps: int = 600
    batch_size: int = TeachingSettings.batch_size
    lengthen: int = 250
    check_every: int = 50
    target: float = 0.2
    epochs: bool = TeachingSettings.epochs

    def count_reachable(self, step: int, pool_size: int) -> int:
        """From how many of `pool_size` demonstrations, shortest first, batch `step` draws; at least `batch_size`."""
        pool_share = min(1.0, 0.2 + 0.8 * step / max(1, self.lengthen))
        return min(pool_size, max(self.batch_size, round(pool_share * pool_size)))

    def draw_batch(self, seed: int, step: int, pool_size: int) -> list[int]:
        """The demonstrations of batch `step`, from 1 on: indices into `pool_size` of them, the shortest first."""
        if not self.epochs:
            return _random(seed, step).sample(range(self.count_reachable(step, pool_size)), self.batch_size)
        draw_numbers = range((step - 1) * self.batch_size, step * self.batch_size)
        epochs = {draw_number // pool_size for draw_number in draw_numbers}
        order_by_epoch = {epoch: _random(seed, "epoch", epoch).sample(range(pool_size), pool_size) for epoch in epochs}
        return [order_by_epoch[draw_number // pool_size][draw_number % pool_size] for draw_number in draw_numbers]


def demonstrate(
    environment: Environment, chat: Chat, demonstrations: Iterable[tuple[Task, Sequence[Action]]]
) -> Iterator[Demonstration]:
    """Plays the demonstrated actions in the real environment and renders each episode as a policy would see it.

    Raises EnvironmentFailure as `play_actions` does.
    """
    for task, actions in demonstrations:
        trajectory = play_actions(environment, task, _make_demonstrator(chat, actions), len(actions))
        tokens = [token for turn in trajectory.turns for token in (*turn.prompt_tokens, *turn.action_tokens)]
        mask = [
            is_action
            for turn in trajectory.turns
            for is_action in [False] * len(turn.prompt_tokens) + [True] * len(turn.action_tokens)
        ]
        yield tokens, mask


def play_actions(environment: Environment, task: Task, act: Actor, turn_count: int) -> Trajectory:
    """Plays an episode of actions that are known to work.

    Raises EnvironmentFailure if the machinery ended it early: demonstrations must not depend on that.
    """
    trajectory = play(environment, task, act, max_turns=turn_count)
    if trajectory.outcome not in ("finished", "truncated"):
        raise EnvironmentFailure(
            f"a demonstration of task {task.id} in {environment.name!r} ended in {trajectory.outcome} "
            f"({trajectory.error}); run the same command again, or cojax check {environment.name}"
        )
    return trajectory


def _make_demonstrator(chat: Chat, actions: Sequence[Action]) -> Callable[[Episode, tuple[Message, ...]], Turn]:
    turn_numbers = itertools.count()

    def act(episode: Episode, messages: tuple[Message, ...]) -> Turn:
        turn_number = next(turn_numbers)
        prompt = chat.extend(messages, True) if turn_number else chat.open(messages, episode.tools())
        action = dataclasses.replace(actions[turn_number], text=chat.write(actions[turn_number].calls))
        return Turn(action, prompt_tokens=prompt, action_tokens=chat.encode_action(action))

    return act


def train_policy(
    state: TrainState,
    learner: Learner,
    engine: Engine,
    demonstrations: Sequence[Demonstration],
    check: Callable[[int], float],
    schedule: Schedule,
    *,
    seed: int,
    advance: Callable[[], None] = lambda: None,
    on_check: Callable[[Score], None] = lambda check: None,
    checkpointer: Checkpointer | None = None,
) -> tuple[TrainState, list[Score], int]:
    """Trains from `state`, which is donated; returns the last state, the scores of all checks, and the number of
    different demonstrations that were learned.

    `check(step)` returns the success of the policy that `engine` holds. `advance` is called after every batch, and
    `on_check` after every check. With a `checkpointer` it goes on where a training with the same arguments was stopped,
    from its last check, to the same result bit for bit.
    """
    first_batch, checks, learned_indices = 1, list[Score](), set[int]()
    if checkpointer is not None and (checkpoint := checkpointer.find_newest()) is not None:
        batch_number, host_state, _ = checkpoint
        state = checkpointer.read_arrays(batch_number, state)
        first_batch, checks, learned_indices = batch_number + 1, host_state["checks"], set(host_state["learned"])
        for _ in range(batch_number):
            advance()
    sorted_demonstrations = sorted(demonstrations, key=lambda demonstration: len(demonstration[0]))
    for batch_number in range(first_batch, schedule.steps + 1):
        indices = schedule.draw_batch(seed, batch_number, len(demonstrations))
        learned_indices.update(indices)
        batch = pack_sequences([sorted_demonstrations[index] for index in indices], learner.shape)
        state, metrics = learner.update(state, StepBatches([batch]))
        advance()
        if batch_number % schedule.check_every == 0 or batch_number == schedule.steps:
            engine.load(learner.weights(state, batch_number))
            checks.append({"step": batch_number, "loss": metrics["loss"], "success": check(batch_number)})
            engine.rest()
            on_check(checks[-1])
            _LOG.info("warm start: %s", checks[-1])
            if checks[-1]["success"] >= schedule.target:
                break
            if checkpointer is not None and batch_number < schedule.steps:
                checkpointer.save(batch_number, state, {"checks": checks, "learned": sorted(learned_indices)})
    return state, checks, len(learned_indices)


def _random(seed: int, *purpose: int | str) -> random.Random:
    return random.Random(repr(("warm start", seed, *purpose)))


def obtain(
    key: Mapping[str, Any],
    make_params: Callable[[Checkpointer | None], tuple[Params, Mapping[str, Any]]],
    config: ModelConfig,
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[Path, bool]:
    """The model folder of this key, and whether this call made it. A new folder appears whole or not at all.

    `key` holds every setting that decides the result; the versions of packages are added. `make_params` returns the
    parameters and the other entries of `read_record`; its argument keeps its checkpoints until the folder is made, so
    that the next call with this key can go on, or is None as `_keep_checkpoints` says. Raises OSError, naming
    COJAX_CACHE, if the cache cannot be written.
    """
    key = {**key, "versions": {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "flax", "optax")}}
    folder = find_cache() / "warm-start" / content_hash(key)
    if (folder / "warm_start.json").exists():
        return folder, False
    partial_folder = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        partial_folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            f"cannot write the cache {partial_folder.parent}: {error}. Set COJAX_CACHE to a writable folder."
        ) from error
    try:
        with _keep_checkpoints(folder) as checkpointer:
            params, record = make_params(checkpointer)
            save_model(partial_folder, config, params, tokenizer)
            write_json(partial_folder / "warm_start.json", {"key": key, **record})
            sync_folder(partial_folder)
            try:
                partial_folder.rename(folder)
            except OSError:
                # Another run made the folder of the same key first.
                if not (folder / "warm_start.json").exists():
                    raise
    finally:
        shutil.rmtree(partial_folder, ignore_errors=True)
    return folder, True


@contextlib.contextmanager
def _keep_checkpoints(folder: Path) -> Iterator[Checkpointer | None]:
    """The checkpoints of the training that makes `folder`; they are removed when the block ends without an error.

    None while another process has them, and in one of several processes that compute together: it trains alone, but
    Orbax would wait for the others. Damaged ones are removed at the beginning.
    """
    if jax.process_count() > 1:
        yield None
        return
    checkpoints_folder = folder.with_name(f".{folder.name}.checkpoints")
    try:
        lock = lock_folder(checkpoints_folder, "COJAX_CACHE")
    except RunDirectoryError:
        yield None
        return
    with lock:
        checkpointer = Checkpointer(checkpoints_folder, keep=1)
        try:
            checkpointer.find_newest()
        except CheckpointError:
            for step in checkpointer.steps():
                shutil.rmtree(checkpoints_folder / str(step))
        is_done = False
        try:
            yield checkpointer
            is_done = True
        finally:
            if is_done or not checkpointer.steps():
                shutil.rmtree(checkpoints_folder, ignore_errors=True)


def read_record(folder: Path) -> dict[str, Any]:
    """Reads how a cached model was made, and from what.

    The record has its `key`, the scores of all `checks`, the number of `demonstrations` played, how many of these were
    `dropped` because they are longer than a row, and how many different ones were `shown`: learned at least once.
    """
    return read_json(folder / "warm_start.json")


def describe_model(folder: Path) -> str:
    """One line about a cached model: its demonstrations, how many were dropped, and its last check."""
    record = read_record(folder)
    check = record["checks"][-1]
    dropped_note = f" ({record['dropped']} too long for a row and left out)" if record["dropped"] else ""
    return (
        f"{record['demonstrations']} demonstrations{dropped_note}, {check['step']} batches, loss {check['loss']:.3f}, "
        f"dev success {100 * check['success']:.1f} %"
    )


def find_cache() -> Path:
    """`$COJAX_CACHE`, by default ~/.cache/cojax."""
    return Path(os.environ.get("COJAX_CACHE") or "~/.cache/cojax").expanduser()


def hash_code() -> str:
    """A hash of the code that decides the result, for the cache's key. Comments and docstrings do not count."""
    code_texts = [strip_prose(inspect.getsource(module)) for module in (sys.modules[__name__], *_KEY_MODULES)]
    # Templates and tables that are in files beside that code.
    return content_hash([*code_texts, rendering.CHATML, rendering.TOOLS_SECTION, family.TABLES])


@functools.cache
def strip_prose(source_code: str) -> str:
    """The code of a module, in Python's own layout, without its comments and docstrings."""
    tree = ast.parse(source_code)
    for node in ast.walk(tree):
        match node:
            case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef() if ast.get_docstring(node):
                node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)
