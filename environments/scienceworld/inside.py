"""The environment, as it runs in a worker inside the wheel's own virtual environment."""

from pathlib import Path
from typing import Any

from cojax.types import Action, Check, Evaluation, Task
from ..tools import ToolEnvironment, commands
from . import prompts
from .commands import phrase
from .data import OfficialTask, Solved, load
from .engine import FULL
from .record import goals
from .solving import SIMPLIFICATIONS
from .world import World, offers

NAME = "scienceworld"
# A world is a JVM, with 200 MB of memory.
_CONCURRENCY = 16


def make(jvm: str, place: str, instructions: str = "full") -> ToolEnvironment:
    """The environment of the tasks in the folder `place`.

    Reads everything from disk now. Starts no JVM, with which a process cannot be forked.
    """
    official = load(Path(place))
    splits = {split: _tasks(official, split) for split in ("train", "dev", "test")}
    known = {task.id for tasks in splits.values() for task in tasks}
    return ToolEnvironment(
        NAME,
        tools=commands.tools("open cupboard"),
        open=lambda setup: World(jvm, setup),
        setups=[_setup(task.name, number) for task in official for number in task.variations["train"]],
        splits={**splits, "eval": splits["test"], "held_out": splits["test"]},
        judge=lambda task, world, answer, finished: _judge(world) if task.id in known else None,
        affordances=offers,
        lookups=(),
        phrase=phrase,
        instructions=prompts.instructions(instructions),
        ending=commands.ENDING,
        traits=commands.traits(_CONCURRENCY),
    )


def _tasks(official: list[OfficialTask], split: str) -> list[Task]:
    """The solved tasks of a split: the first variation of each task, then the second, and so on."""
    longest = max(len(task.solved[split]) for task in official)
    return [
        _task(task.name, task.solved[split][number])
        for number in range(longest)
        for task in official
        if number < len(task.solved[split])
    ]


def _task(name: str, solved: Solved) -> Task:
    solution = tuple(Action(calls=(commands.call(command),)) for command in solved.solution)
    return Task(NAME, solved.description, _setup(name, solved.variation), solution)


def _setup(name: str, variation: int) -> dict[str, Any]:
    return {"task": name, "variation": variation, "simplifications": SIMPLIFICATIONS}


def _judge(world: World) -> Evaluation:
    """The official verdict: full reward for the full score, and the score as the partial reward."""
    score = world.simulator.score
    checks = tuple(Check(name, reached) for name, reached in goals(world.simulator.progress))
    return Evaluation(float(score == FULL), checks, max(0, score) / FULL)
