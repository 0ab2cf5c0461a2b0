"""Episodes of the hostile environment in a worker, and the processes behind them."""

import contextlib
import os
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from patience import patience

from cojax.environment import play
from cojax.environment.replay import follow
from cojax.types import Action, Call, Task
from environments.worker import Bounds, IsolatedEnvironment

_T = TypeVar("_T")
ROOT = Path(__file__).parents[1]
BOUNDS = Bounds(deadline=1.5, output=2**20)


PROGRAM = """
import os, signal, subprocess, sys, threading, time
sys.path.insert(0, {tests!r})
from environments.worker import isolate
from worker_trials import attempt, descendants, do, task
"""


def do(deed: str, argument: str = "") -> Action:
    return Action(calls=(Call(deed, {"argument": argument}),))


def task(**setup: object) -> Task:
    return Task("hostile", str(setup.pop("query", "")), setup)


def attempt(world: IsolatedEnvironment, deed: str, argument: str = ""):
    """What the deed told, and the verdict on an episode right after it."""
    trajectory = play(world, task(), follow([do(deed, argument)]), max_turns=1)
    next_trajectory = play(world, task(), follow([do("say", "still here")]), max_turns=1)
    assert (next_trajectory.turns[0].observation.text, next_trajectory.reward) == ("still here", 0.25)
    return trajectory


def at_once(*calls: Callable[[], _T]) -> list[_T]:
    """What these calls return: they mostly wait, and do so at the same time."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(lambda call: call(), calls))


def processes() -> dict[int, int]:
    """Every process and its parent, but for orphans that have ended and wait for process 1 to take note."""
    parent_by_pid = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                state, parent = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[:2]
                if (state, parent) != ("Z", "1"):
                    parent_by_pid[int(entry)] = int(parent)
    return parent_by_pid


def descendants(ancestor: int) -> set[int]:
    parent_by_pid, pids = processes(), {ancestor}
    while new_pids := {pid for pid, parent in parent_by_pid.items() if parent in pids} - pids:
        pids |= new_pids
    return pids - {ancestor}


def gone(pids: set[int], timeout_s: float = 10.0) -> bool:
    """Whether all of them end in time."""
    deadline = time.monotonic() + patience(timeout_s)
    while pids & processes().keys():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@contextlib.contextmanager
def stopped(*pids: int) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in reversed(pids):
            with contextlib.suppress(ProcessLookupError):  # one that was given up meanwhile
                os.kill(pid, signal.SIGCONT)


def stop_all(world: IsolatedEnvironment, seconds: float) -> None:
    """Stops the supervisor and all below it, now and for so many seconds; returns at once."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(stopped(world.supervisor, *descendants(world.supervisor)))
        threading.Timer(seconds, stack.pop_all().close).start()


def program(code: str, root: Path = ROOT) -> list[str]:
    """A trainer of its own, of the checkout there."""
    prologue = PROGRAM.format(tests=str(root / "tests"))
    return [sys.executable, "-c", prologue + textwrap.dedent(code)]
