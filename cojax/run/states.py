"""Begins or resumes the state of a run, and keeps what the run needs beside its checkpoints.

That is tokenizer, shape and base model, the number of its engine's slots, and the evaluation tasks that are held out of
D_0 if the environment has none. The first three are written again if they are lost, and then verified.
"""

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict
from transformers import PreTrainedTokenizerBase

from cojax import signals
from cojax.environment import traits_of
from cojax.learner.learner import Learner
from cojax.learner.placement import copy_arrays
from cojax.learner.rehearsal import rehearse
from cojax.learner.update import TrainState, join_states, split_states
from cojax.loop import Loop, State
from cojax.loop.evolution import make_evolution_record
from cojax.loop.records import save
from cojax.policy.transformer import Params
from cojax.pool import TaskPool, make_task_record, read_task_record
from cojax.preference.rounds import number_version
from cojax.report.console import CONSOLE, describe_explorer
from cojax.report.run import describe_origin
from cojax.rollout.local import LocalEngine
from cojax.run import assemble, engines, methods, policies, trained
from cojax.run.changes import read_fork
from cojax.run.entries import reads_initial
from cojax.run.parts import Parts
from cojax.run.processes import ALONE, Together, read_params
from cojax.storage.checksums import add_checksum, has_valid_checksum
from cojax.storage.files import read_json, write_json
from cojax.storage.run_directory import RunDirectory
from cojax.storage.run_files import Checkpoint
from cojax.synthesis import Synthesis
from cojax.types import Task, content_hash, normalise, setup_hash

HELD_OUT = "held_out.json"
# The share of D_0 that is held out, and the limits on the number of tasks of an evaluation.
_HELD_OUT_SHARE, _MIN_TASKS, _MAX_EVALUATION_TASKS = 0.2, 20, 200


def begin(
    config: ConfigDict, loop: Loop, train_state: Any, directory: RunDirectory, find_d0: Callable[[], Synthesis]
) -> State:
    """Returns the state at step 0 after its checkpoint. D_0 is from `find_d0`; a second agent begins as the policy."""
    directory.begin()
    with loop.clock("sync"):
        # An explorer may sample the policy, and its engine lost its weights in the rehearsal.
        loop.engine.load(loop.learner.weights(train_state, 0))
    with loop.clock("feedback"):
        synthesis = find_d0()
        directory.add_evolution(synthesis)
        write_json(directory.folder / "initial.json", make_evolution_record(synthesis, 0)["evolution"])
        directory.files.note(name for name in ("initial.json", HELD_OUT) if (directory.folder / name).exists())
    second_state = None
    if methods.has_second_agent(config):
        with loop.learner.hosts.operation("copy", train_state) as finish:
            second_state = finish(copy_arrays(train_state))
        size_mib = sum(leaf.nbytes for leaf in jax.tree.leaves(second_state)) / 2**20
        CONSOLE.print(f"second agent: begins as the policy, {size_mib:,.0f} MiB of parameters and moments")
    state = State(0, train_state, TaskPool.of(synthesis.tasks), signals.init(loop.detectors), second=second_state)
    save(loop, state, directory)
    cost = f"; {describe_explorer(synthesis.figures)}" if synthesis.figures else ""
    reason = traits_of(loop.environment).incomparable
    source = f"of the environment's own, and nothing is synthesized: {reason}" if reason else "by unguided exploration"
    gaps = assemble.word_absent_tools(loop.environment, synthesis.tasks)
    CONSOLE.print(f"D_0: {len(synthesis.tasks)} tasks {source}{cost}{gaps and f'; {gaps}'}")
    return state


def prove_fit(config: ConfigDict, loop: Loop, train_state: TrainState, second: TrainState | None = None) -> TrainState:
    """Rehearses a step's largest batch beside the loaded engine, so that both are known to fit; returns the state.

    `second` is as in `hold_second_agent`.
    """
    with loop.clock("sync"):
        step = int(train_state.step)
        loop.engine.load(loop.learner.weights(train_state, number_version(step) if methods.rounds_of(config) else step))
        if not loop.staleness:
            loop.engine.rest()
    with loop.clock("update"), hold_second_agent(config, loop.learner, train_state, second):
        return rehearse(loop.learner, train_state, methods.list_group_sizes(config))


@contextlib.contextmanager
def hold_second_agent(
    config: ConfigDict, learner: Learner, train_state: TrainState, second_state: TrainState | None = None
) -> Iterator[None]:
    """Holds a second agent in memory within the block, if the configuration has one.

    It is `second_state`, which a resumed run has restored, or else a copy of the policy.
    """
    if second_state is None and methods.has_second_agent(config):
        with learner.hosts.operation("copy", train_state) as finish:
            second_state = finish(copy_arrays(train_state))
    yield


def resume(config: ConfigDict, loop: Loop, train_state: TrainState, directory: RunDirectory) -> State | None:
    """Restores the state of the newest checkpoint; None if there is none. `train_state` gives its shapes."""
    state_shapes = join_states(train_state, train_state if methods.has_second_agent(config) else None)
    with loop.clock("checkpoint"):
        checkpoint = directory.resume(state_shapes, signals.init(loop.detectors))
    if checkpoint is None:
        return None
    checkpoint = read_fork(directory.folder).reduce(checkpoint)
    loop.clock.restore(checkpoint.host["clock"])
    CONSOLE.print(f"resumed at step {checkpoint.step}")
    learner_state, second_state = split_states(checkpoint.arrays)
    return State(
        checkpoint.step,
        learner_state,
        checkpoint.pool,
        checkpoint.memory,
        checkpoint.pending,
        checkpoint.host["evolved"],
        checkpoint.waiting,
        checkpoint.host.get("record"),
        second_state,
    )


def build_parts(
    config: ConfigDict, directory: RunDirectory, checkpoint: Checkpoint | None, together: Together = ALONE
) -> Parts:
    """Calls `assemble.build_parts`; a run resumed from `checkpoint` keeps the slots of its local engine.

    Raises ValueError as `engines.keep_slots` does.
    """
    engine_path = directory.folder / "engine.json"
    for file_name in (engine_path.name, HELD_OUT) if checkpoint is None else ():
        (directory.folder / file_name).unlink(missing_ok=True)

    def count_slots(parts: Parts) -> int | None:
        return parts.engine.slots if isinstance(parts.engine, LocalEngine) else None

    build = functools.partial(assemble.build_parts, together=together)
    return engines.keep_slots(config, engine_path, checkpoint is not None, build, count_slots)


def keep_tokenizer(tokenizer: PreTrainedTokenizerBase, directory: RunDirectory, checkpoint: Checkpoint | None) -> None:
    """Saves the tokenizer of a run. A run resumed from `checkpoint` saves it only if it is lost.

    Raises ValueError if the run began with another tokenizer, StorageError if a rewritten file differs.
    """
    tokenizer_folder = directory.folder / "tokenizer"
    is_lost = checkpoint is None or directory.files.lacks(tokenizer_folder.name)
    policies.keep_tokenizer(tokenizer, tokenizer_folder, has_begun=checkpoint is not None, is_lost=is_lost)
    if checkpoint is not None:
        directory.files.check_remade(tokenizer_folder.name)


def initial_policy(
    config: ConfigDict, parts: Parts, find_d0: Callable[[], Synthesis], run: RunDirectory, checkpoint: Checkpoint | None
) -> tuple[Params, Mapping[str, Any]]:
    """Returns the policy before the first step.

    A run resumed from `checkpoint` with a warm start needs no cache: base/ holds the policy, or the run needs only its
    shapes, because its checkpoints hold what was learned. `find_d0` finds D_0.
    """
    folder = run.folder
    if checkpoint is not None and config.warm_start.steps and (folder / "model.json").exists():
        origin = trained.read_origin(folder)
        params = trained.kept_base(folder, parts.model, parts.mesh, parts.together)
        if params is None and not reads_initial(config) and run.files.has_zero_shot:
            params = read_params(parts.together, config.model.path, parts.model, config.seed, parts.mesh)
        if params is not None:
            CONSOLE.print(f"policy: {describe_origin(origin)}")
            return params, origin
    return assemble.initial_policy(config, parts, find_d0)


def keep_model(
    parts: Parts,
    params: Params,
    origin: Mapping[str, Any],
    config: ConfigDict,
    directory: RunDirectory,
    checkpoint: Checkpoint | None,
) -> None:
    """Writes model.json and base/ of a run that begins with this policy, on the conditions of `keep_tokenizer`."""
    model_files = ("model.json", "base")
    has_begun = checkpoint is not None and not any(map(directory.files.lacks, model_files))
    plain = json.loads(json.dumps(config.to_dict()))
    trained.keep(directory.folder, parts.model, params, plain, has_begun, origin, reads_initial(config), parts.together)
    if checkpoint is not None:
        for model_file in model_files:
            directory.files.check_remade(model_file)


def find_initial_tasks(
    config: ConfigDict, parts: Parts, stop: Callable[[], bool] = lambda: False
) -> tuple[Synthesis, tuple[Task, ...]]:
    """Finds D_0, which may take minutes; returns what to train on, and the tasks that are held out.

    Tasks are held out if the environment has no evaluation tasks, together with their drafts. Raises Interrupted soon
    after `stop` turns true.
    """
    synthesis = assemble.find_initial_tasks(config, parts, stop)
    if parts.evaluation:
        return synthesis, ()
    training_tasks, evaluation_tasks = hold_out(synthesis.tasks)
    held_out_ids = {task.id for task in synthesis.tasks} - {task.id for task in training_tasks}
    drafts = tuple(draft for draft in synthesis.drafts if draft["task"] not in held_out_ids)
    return dataclasses.replace(synthesis, tasks=training_tasks, drafts=drafts), evaluation_tasks


def add_held_out_tasks(
    parts: Parts, held_out_path: Path, has_begun: bool, find_tasks: Callable[[], tuple[Synthesis, tuple[Task, ...]]]
) -> Parts:
    """Makes held-out tasks the evaluation tasks of a run whose environment has none; returns its parts.

    They are stored at `held_out_path`, where a run that has begun reads them. `find_tasks` is `find_initial_tasks`.
    """
    if has_begun:
        evaluation_tasks = read_held_out(held_out_path)
    else:
        training_synthesis, evaluation_tasks = find_tasks()
        write_json(held_out_path, add_checksum({"tasks": [make_task_record(task) for task in evaluation_tasks]}))
        CONSOLE.print(_describe_evaluation(len(training_synthesis.tasks), len(evaluation_tasks)))
    return dataclasses.replace(parts, evaluation=evaluation_tasks, from_initial=True)


def hold_out(tasks: Sequence[Task]) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
    """Splits tasks into (those to train on, those to evaluate on), which share neither a setup nor a wording.

    A fifth is held out, at most 200 tasks, by whole setups in the order of a hash. A task on these setups that is
    worded like a task to train on is in neither part. None is held out if fewer than a fifth, or than 20, would remain,
    or if training would lose more than two fifths.
    """
    held_out_count = min(_MAX_EVALUATION_TASKS, round(_HELD_OUT_SHARE * len(tasks)))
    tasks_by_setup: dict[str, list[Task]] = {}
    for task in tasks if held_out_count >= _MIN_TASKS else ():
        tasks_by_setup.setdefault(setup_hash(task), []).append(task)
    wording_by_id = {task.id: normalise(task.query) for task in tasks}
    candidate_by_id: dict[str, Task] = {}
    for setup in sorted(tasks_by_setup, key=lambda setup: content_hash(["held out", setup])):
        if len(candidate_by_id) + len(tasks_by_setup[setup]) > 2 * held_out_count:
            continue
        candidate_by_id |= {task.id: task for task in tasks_by_setup[setup]}
        training_tasks = tuple(task for task in tasks if task.id not in candidate_by_id)
        training_wordings = {wording_by_id[task.id] for task in training_tasks}
        test_tasks = tuple(task for task in candidate_by_id.values() if wording_by_id[task.id] not in training_wordings)
        if len(test_tasks) >= held_out_count:
            return training_tasks, test_tasks[:_MAX_EVALUATION_TASKS]
    return tuple(tasks), ()


def read_held_out_of(checkpoint: str) -> tuple[Task, ...]:
    """Returns the tasks held out by the run that a checkpoint, or its folder, belongs to; none if it held out none."""
    folders = (Path(checkpoint), *Path(checkpoint).absolute().parents[:2])
    held_out_path = next((folder / HELD_OUT for folder in folders if (folder / HELD_OUT).exists()), None)
    return read_held_out(held_out_path) if held_out_path else ()


def read_held_out(path: Path) -> tuple[Task, ...]:
    """Reads the tasks in held_out.json. Raises ValueError for a file that is not what the run wrote."""
    try:
        record = read_json(path)
        has_valid_checksum(record)
        return tuple(read_task_record(task) for task in record["tasks"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} cannot be read ({error}). Restore it from a copy, or start in a new workdir."
        ) from error


def _describe_evaluation(training: int, test: int) -> str:
    if test:
        return f"evaluation: on {test} tasks held out of D_0, as the environment has none; {training} are trained on"
    return (
        f"evaluation: none, as the environment has no tasks for it, and of {training} initial tasks no {_MIN_TASKS} "
        "on setups of their own can be held out; initial_tasks=100 on 20 setups or more is enough"
    )
