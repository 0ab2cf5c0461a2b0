"""The initial tasks of a run, and the part of them that is held out where the environment has no evaluation tasks."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from ml_collections import ConfigDict

from cojax.pool import task_from_record, task_record
from cojax.report.console import CONSOLE
from cojax.run import assemble
from cojax.run.parts import Parts
from cojax.storage.checksums import has_valid_checksum, with_checksum
from cojax.storage.files import read_json, write_json
from cojax.synthesis import Synthesis
from cojax.types import Task, content_hash, normalise, setup_hash

FILE = "held_out.json"
# The share of D_0 that is held out, and the fewest and the most tasks that an evaluation is made of.
_SHARE, _FEWEST, _MOST = 0.2, 20, 200


def initial_tasks(config: ConfigDict, made: Parts) -> tuple[Synthesis, tuple[Task, ...]]:
    """D_0 to train on, which may take minutes to find, and the part of it that is held out.

    Tasks are held out where the environment has no evaluation tasks, and with them the drafts behind them.
    """
    whole = assemble.initial(config, made)
    if made.evaluation:
        return whole, ()
    training, held = divided(whole.tasks)
    names = {task.id for task in whole.tasks} - {task.id for task in training}
    drafts = tuple(record for record in whole.drafts if record["task"] not in names)
    return dataclasses.replace(whole, tasks=training, drafts=drafts), held


def evaluated(made: Parts, path: Path, begun: bool, found: Callable[[], tuple[Synthesis, tuple[Task, ...]]]) -> Parts:
    """The parts of a run whose environment has no evaluation tasks, with the held-out ones in their place.

    They are stored at `path`, from which a run that has `begun` reads them. `found` is `initial_tasks`.
    """
    if begun:
        held = stored(path)
    else:
        training, held = found()
        write_json(path, with_checksum({"tasks": [task_record(task) for task in held]}))
        CONSOLE.print(_said(len(training.tasks), len(held)))
    return dataclasses.replace(made, evaluation=held, from_initial=True)


def divided(tasks: Sequence[Task]) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
    """(tasks to train on, tasks to evaluate on), which share neither a setup nor a wording.

    A fifth is held out, at most 200 tasks, by whole setups in the order of a hash. Tasks on these setups whose wording
    is also that of a task to train on are in neither part. None is held out where that leaves fewer than a fifth, or
    than 20, or where it takes two fifths from training.
    """
    wanted = min(_MOST, round(_SHARE * len(tasks)))
    by_setup: dict[str, list[Task]] = {}
    for task in tasks if wanted >= _FEWEST else ():
        by_setup.setdefault(setup_hash(task), []).append(task)
    worded = {task.id: normalise(task.query) for task in tasks}
    closed: dict[str, Task] = {}
    for setup in sorted(by_setup, key=lambda setup: content_hash(["held out", setup])):
        if len(closed) + len(by_setup[setup]) > 2 * wanted:
            continue
        closed |= {task.id: task for task in by_setup[setup]}
        training = tuple(task for task in tasks if task.id not in closed)
        known = {worded[task.id] for task in training}
        held = tuple(task for task in closed.values() if worded[task.id] not in known)
        if len(held) >= wanted:
            return training, held[:_MOST]
    return tuple(tasks), ()


def of_run(checkpoint: str) -> tuple[Task, ...]:
    """The tasks that the run held out which a checkpoint, or its folder, belongs to; none where it held out none."""
    folders = (Path(checkpoint), *Path(checkpoint).absolute().parents[:2])
    found = next((folder / FILE for folder in folders if (folder / FILE).exists()), None)
    return stored(found) if found else ()


def stored(path: Path) -> tuple[Task, ...]:
    """The tasks in held_out.json. Raises ValueError for a file that is not what the run wrote."""
    try:
        record = read_json(path)
        has_valid_checksum(record)
        return tuple(task_from_record(one) for one in record["tasks"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} cannot be read ({error}). Restore it from a copy, or start in a new workdir."
        ) from error


def _said(training: int, held: int) -> str:
    if held:
        return f"evaluation: on {held} tasks held out of D_0, as the environment has none; {training} are trained on"
    return (
        f"evaluation: none, as the environment has no tasks for it, and of {training} initial tasks no {_FEWEST} on "
        "setups of their own can be held out; initial_tasks=100 on 20 setups or more is enough"
    )
