"""AppWorld on the tiny data, in its workers."""

from collections.abc import Callable, Iterator

import pytest

import environments
from cojax.environment import play
from cojax.environment.replay import follow
from cojax.types import Action, Task, Trajectory
from environments.appworld import data as roots
from environments.appworld.environment import AppWorld
from environments.worker.venv import interpreter

# Seconds that a call may take; the package itself stops code after three quarters of that.
DEADLINE = 8.0


@pytest.fixture(scope="session")
def appworld() -> Iterator[AppWorld]:
    roots.provide("tiny", interpreter("appworld", roots.RECIPE), print)
    environment = environments.load("appworld", data="tiny", deadline=DEADLINE, solutions=True)
    assert isinstance(environment, AppWorld)
    yield environment
    environment.close()


@pytest.fixture(scope="session")
def task(appworld: AppWorld) -> Task:
    """One that has a solution and asks for a change."""
    return appworld.tasks("train", 1)[0]


@pytest.fixture(scope="session")
def run(appworld: AppWorld, task: Task) -> Callable[..., Trajectory]:
    """The trajectory of blocks of code."""

    def run(*blocks: str, task: Task = task) -> Trajectory:
        actions = [Action(f"Next step:\n```python\n{block}\n```") for block in blocks]
        return play(appworld, task, follow(actions), max_turns=len(actions))

    return run
