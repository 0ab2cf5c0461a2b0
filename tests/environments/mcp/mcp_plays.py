"""Servers of these tests over HTTP, and plays of them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from cojax.environment import Actor, play
from cojax.environment.replay import follow
from cojax.host.processes import list_descendants
from cojax.types import Action, Call, Task, Trajectory
from environments.mcp import RECIPE
from environments.mcp.world import NAME, Opener
from environments.tools import ToolEnvironment
from environments.worker.venv import interpreter

FOLDER = Path(__file__).parent
FINISH = Action(calls=(Call("finish"),))


def command(script: str) -> str:
    """The command that starts a server of this folder, or of `examples`."""
    return f"{interpreter(NAME, RECIPE)} {FOLDER / script}"


@contextlib.contextmanager
def over_http(script: str, *arguments: str, folder: Path | None = None, **variables: str) -> Iterator[str]:
    """The address of a server of this folder, which runs until the end."""
    process = subprocess.Popen(
        [interpreter(NAME, RECIPE), FOLDER / script, "http", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True, cwd=folder,
        env={**os.environ, **variables},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
    finally:
        # Also what the server leaves behind.
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def call(tool: str, **arguments: str) -> Action:
    return Action(calls=(Call(tool, arguments),))


def played(environment: ToolEnvironment, solution: tuple[Action, ...], *actions: Action, setup: int = 0) -> Trajectory:
    """The actions in an episode of the task that the solution does, in one of the first two setups."""
    begun = environment.tasks("seed", 2)[setup].setup
    return play(environment, Task(NAME, "", begun, solution), follow(actions), max_turns=len(actions))


@dataclasses.dataclass(frozen=True)
class Following:
    """Actors that take these actions."""

    actions: tuple[Action, ...]

    def __call__(self, session: str, seed: tuple[int, ...]) -> Actor:
        return follow(self.actions)

    def release(self, session: str) -> None:
        pass


def processes(environment: ToolEnvironment) -> set[int]:
    """The processes behind an environment."""
    opener = environment._open_world
    assert isinstance(opener, Opener)
    return list_descendants(opener.worker.supervisor)
