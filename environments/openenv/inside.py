"""The source of episodes, as it runs in a worker inside the package's own virtual environment."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cojax.types import Task
from ..tools.in_worker import actions_of, function_of
from ..worker.served import Episodes

NAME = "openenv"


def make(
    made_by: str,
    path: Sequence[str],
    arguments: Mapping[str, Any],
    action: str,
    resets: Sequence[Mapping[str, Any]] | str,
    evaluation: Sequence[Mapping[str, Any]] | str,
    query: str,
    reward: str,
    full: float,
    state: str,
    ignore: Sequence[str],
    solution: str,
) -> Episodes:
    """Episodes and official tasks; wording and verdicts by replay are made outside of the worker."""
    sys.path += path
    from .session import Made, SessionEpisode

    made = Made(function_of(made_by, path), arguments, function_of(action, path))
    made.examine()
    solve, read = function_of(solution, path), function_of(state, path)
    train, held_out = (_tasks(query, made.resets(given), solve) for given in (resets, evaluation))
    if not train:
        raise ValueError(f"resets is {resets!r}, a split that has no task")
    if shared := {task.id for task in train} & {task.id for task in held_out}:
        raise ValueError(f"{len(shared)} of the resets are also in evaluation; expected others")
    return Episodes(
        NAME,
        lambda task: SessionEpisode(made, task.setup, reward, full, read, ignore),
        {"train": train, "dev": held_out, "eval": held_out},
    )


def _tasks(query: str, resets: Sequence[Mapping[str, Any]], solution: Callable[..., Any] | None) -> tuple[Task, ...]:
    """The official task of each reset; its solution is not ended yet."""
    made = {}
    for reset in resets:
        actions = actions_of(solution(dict(reset))) if solution else ()
        task = Task(NAME, query, dict(reset), actions)
        made[task.id] = task
    return tuple(made.values())
