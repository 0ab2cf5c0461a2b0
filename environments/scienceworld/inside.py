"""The environment, as it runs in a worker inside the wheel's own virtual environment."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cojax.types import Action, Check, Evaluation, Task
from ..tools import ToolEnvironment, commands
from .data import load
from .engine import FULL
from .record import goals
from .solving import SIMPLIFICATIONS
from .world import World, offers, phrase, system_message

NAME = "scienceworld"
# A world is a JVM, with 200 MB of memory.
_CONCURRENCY = 16


def make(jvm: str, place: str, instructions: str = "full") -> ToolEnvironment:
    """The environment of the tasks in the folder `place`.

    Reads everything from disk now. Starts no JVM, with which a process cannot be forked.
    """
    official = load(Path(place))
    splits = {split: _tasks(official, split) for split in ("train", "dev", "test")}
    return commands.environment(
        NAME,
        "open cupboard",
        _CONCURRENCY,
        {**splits, "eval": splits["test"], "held_out": splits["test"]},
        _judge,
        open=lambda setup: World(jvm, setup),
        setups=[_setup(told["task"], number) for told in official for number in told["variations"]["train"]],
        affordances=offers,
        phrase=phrase,
        instructions=system_message(instructions),
    )


def _tasks(official: list[dict[str, Any]], split: str) -> list[Task]:
    """The solved tasks of a split: the first variation of each task, then the second, and so on."""
    by_name = [[_task(told["task"], solved) for solved in told["solved"][split]] for told in official]
    return [task for layer in itertools.zip_longest(*by_name) for task in layer if task is not None]


def _task(name: str, solved: Mapping[str, Any]) -> Task:
    solution = tuple(Action(calls=(commands.call(command),)) for command in solved["solution"])
    return Task(NAME, solved["description"], _setup(name, solved["variation"]), solution)


def _setup(name: str, variation: int) -> dict[str, Any]:
    return {"task": name, "variation": variation, "simplifications": SIMPLIFICATIONS}


def _judge(world: World) -> Evaluation:
    """The official verdict: full reward for the full score, and the score as the partial reward."""
    score = world.simulator.score
    checks = tuple(Check(name, reached) for name, reached in goals(world.simulator.progress))
    return Evaluation(float(score == FULL), checks, max(0, score) / FULL)
