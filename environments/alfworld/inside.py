"""The environment, as it runs in a worker inside the wheels' own virtual environment."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cojax.types import Action, Check, Evaluation, Task
from ..tools import ToolEnvironment, commands
from .data import SPLITS, games, listed
from .world import LIMIT, UNASKED, World, offers, prepare, system_message

NAME = "alfworld"
# A world is a process with 150 MB of memory of its own.
_CONCURRENCY = 16


def make(root: str, instructions: str = "full") -> ToolEnvironment:
    """The environment of the games in `root`. Imports the engine, which every child then has."""
    prepare()
    folder, known = games(Path(root)), listed(Path(root))
    splits = {split: [_task(one) for one in known if one["split"] == split] for split in SPLITS}
    return commands.environment(
        NAME,
        "open fridge 1",
        _CONCURRENCY,
        {**splits, "dev": splits["valid_seen"], "eval": splits["valid_unseen"], "held_out": splits["valid_unseen"]},
        _judge,
        open=lambda setup: World(folder, setup),
        setups=[{"game": one["game"]} for one in known if one["split"] == "train"],
        affordances=offers,
        phrase=lambda steps: commands.phrase(steps, UNASKED),
        instructions=system_message(instructions),
    )


def _task(one: Mapping[str, Any]) -> Task:
    """The official task; without a solution where its walkthrough is longer than an episode."""
    commanded = one["walkthrough"] if len(one["walkthrough"]) <= LIMIT else ()
    solution = tuple(Action(calls=(commands.call(command),)) for command in commanded)
    return Task(NAME, f"Your task is to: {one['task']}.", {"game": one["game"]}, solution)


def _judge(world: World) -> Evaluation:
    """The official verdict: whether the game is won."""
    return Evaluation(float(world.won), (Check("won", world.won),))
