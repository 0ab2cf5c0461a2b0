"""Thousands of episodes through workers, and what they leave behind.

    python -m experiments.soak [--environment=bfcl] [--episodes=10000] [--concurrency=64] [--warm=2000]
    python -m experiments.soak --environment=appworld --episodes=2000 --concurrency=16 --warm=100

Plays reference solutions, every tenth of them cut short, and in every thousandth episode a call that never ends, where
the environment knows one. Prints throughput, memory of a child, and processes, descriptors, temporary files and memory
before and after; exits with 1 if anything is left behind or memory grew by more than a tenth.
"""

from __future__ import annotations

import gc
import importlib
import os
import queue
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import app, flags

import environments
from cojax.environment import Environment, play
from cojax.replay import follow
from cojax.types import Action, Task
from environments.appworld.audit import ENDLESS
from environments.appworld.environment import AppWorld
from environments.check import trials
from environments.worker import IsolatedEnvironment

_ENVIRONMENT = flags.DEFINE_string("environment", "bfcl", "An environment that runs in workers.")
_EPISODES = flags.DEFINE_integer("episodes", 10_000, "Episodes to play.", lower_bound=1)
_CONCURRENCY = flags.DEFINE_integer("concurrency", 64, "Episodes at once.", lower_bound=1)
# One episode in so many never ends by itself; one in so many is closed half-way.
_ENDLESS, _CUT = 1_000, 10
# Before the first count, so that caches and the allocator's arenas for so many threads are full.
_WARM = flags.DEFINE_integer("warm", 2_000, "Episodes played before the first count.", lower_bound=1)
# How an environment is made to run in workers, with tasks that bring solutions.
_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "desk": {"isolated": True},
    "appworld": {"data": "tiny", "solutions": True},
}


def processes(ancestor: int) -> list[int]:
    """The process and all its descendants."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue
            parents[int(entry)] = int(stat.rpartition(")")[2].split()[1])
    family = [ancestor]
    for member in family:
        family += [pid for pid, parent in parents.items() if parent == member]
    return family


def memory(pid: int, field: str) -> float:
    """Megabytes of a process: `Rss`, or `Private_Dirty`, what it shares with no other."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 1_024


def workers(environment: Environment) -> tuple[IsolatedEnvironment, ...]:
    """The workers behind an environment, none where it has none."""
    if isinstance(environment, AppWorld):
        return environment.play, environment.judge
    return (environment,) if isinstance(environment, IsolatedEnvironment) else ()


def count(supervisors: Sequence[int]) -> dict[str, float]:
    """What may be left behind, now."""
    gc.collect()
    families = [processes(supervisor) for supervisor in supervisors]
    family = [process for members in families for process in members]
    standing = [process for members in families for process in members[:2]]  # supervisor and fork server
    return {
        "processes": len(family),
        "descriptors here": len(os.listdir("/proc/self/fd")),
        "descriptors of the worker": sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in standing),
        "temporary files": len(os.listdir(tempfile.gettempdir())),
        "threads here": threading.active_count(),
        "MB here": memory(os.getpid(), "Rss"),
        "MB of the worker": sum(memory(pid, "Rss") for pid in standing),
    }


def episodes(tasks: Sequence[Task], endless: Sequence[tuple[Task, Action]], number: int) -> tuple[Task, list[Action]]:
    """What the episode of that number plays."""
    if endless and number % _ENDLESS == _ENDLESS - 1:
        task, action = endless[number // _ENDLESS % len(endless)]
        return task, [action]
    task = tasks[number % len(tasks)]
    half = len(task.solution) // 2
    return task, list(task.solution[:half] if number % _CUT == _CUT - 1 and half else task.solution)


def run(
    environment: Environment, tasks: Sequence[Task], endless: Sequence[tuple[Task, Action]], total: int, at_once: int
) -> tuple[Counter[str], int]:
    """Plays them all; outcomes, and actions taken."""
    numbers: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(total):
        numbers.put(number)
    outcomes: Counter[str] = Counter()
    actions = 0
    lock = threading.Lock()

    def work() -> None:
        nonlocal actions
        while True:
            try:
                task, plan = episodes(tasks, endless, numbers.get_nowait())
            except queue.Empty:
                return
            trajectory = play(environment, task, follow(plan), max_turns=len(plan))
            solved = trajectory.outcome == "finished" and trajectory.reward == 1.0
            with lock:
                outcomes["solved" if solved else trajectory.outcome] += 1
                actions += len(trajectory.turns)

    threads = [threading.Thread(target=work) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes, actions


def memory_of_a_child(environment: Environment, tasks: Sequence[Task], at_once: int) -> float:
    """Private megabytes of an episode in the middle of its work, the mean of `at_once`, over all workers."""
    open_ = []
    for number in range(at_once):
        episode = environment.start(tasks[number % len(tasks)])
        episode.reset()
        for action in tasks[number % len(tasks)].solution[:2]:
            episode.step(action)
        open_.append(episode)
    family = [pid for worker in workers(environment) for pid in processes(worker.supervisor)[2:]]
    private = [memory(pid, "Private_Dirty") for pid in family]
    for episode in open_:
        episode.close()
    # A child is two processes where it has a namespace of its own: the one that waits, and the one that works.
    return sum(private) / at_once


def main(argv: Sequence[str]) -> None:
    name = _ENVIRONMENT.value
    environment = environments.load(name, **_SETTINGS.get(name, {}))
    supervisors = [worker.supervisor for worker in workers(environment)]
    if not supervisors:
        raise app.UsageError(f"environment {name!r} does not run in workers")
    module = vars(importlib.import_module(f"environments.{name}"))
    tasks = environment.tasks(module.get("SPLITS", ("dev",))[0], 200)
    if isinstance(environment, AppWorld):
        endless = [(tasks[0], ENDLESS)]
    else:
        own = module.get("TRIALS", {})
        endless = [(task, action) for task, trial, action in trials(environment, own, tasks) if trial in own]
    run(environment, tasks, (), _WARM.value, _CONCURRENCY.value)
    child = memory_of_a_child(environment, tasks, _CONCURRENCY.value)
    time.sleep(2)
    before = count(supervisors)
    began = time.perf_counter()
    outcomes, actions = run(environment, tasks, endless, _EPISODES.value, _CONCURRENCY.value)
    seconds = time.perf_counter() - began
    time.sleep(2)
    after = count(supervisors)
    print(f"{name}: {_EPISODES.value:,} episodes, {_CONCURRENCY.value} at once, {seconds:.1f} s; {dict(outcomes)}")
    print(f"actions a second {actions / seconds:,.0f}, episodes a second {_EPISODES.value / seconds:,.1f}")
    print(f"private memory of a child {child:.1f} MB")
    left = False
    for key, value in before.items():
        grown = after[key] > value * (1.1 if key.startswith("MB") else 1.0)
        left |= grown
        print(f"{key:<28} {value:10.1f} → {after[key]:10.1f}{'   GREW' if grown else ''}")
    for worker in workers(environment):
        worker.close()
    sys.exit(1 if left else 0)


if __name__ == "__main__":
    app.run(main)
