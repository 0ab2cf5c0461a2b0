"""Suite `scale`: what a step costs on the host beside as many earlier episodes and tasks, and what reading them costs.

A run directory is filled by the code by which runs write theirs: EPISODES episodes in steps of 128, and as many tasks,
`on_setup` of them on each setup on average. The policy is an array of ten numbers, as nothing of the host depends on
its size.
"""

import itertools
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from benchmarks import machine
from benchmarks.folders import temporary_folder
from benchmarks.results import Row, Spread
from cojax.pool import TaskPool
from cojax.quality import describe_pool, hashed_ngrams
from cojax.report.page import write_report
from cojax.signals import SIGNALS, Detector, Memory, apply, detect, init
from cojax.similarity import NearDuplicates
from cojax.storage.run_directory import RunDirectory
from cojax.types import Action, Call, Group, Observation, Signal, Task, Trajectory, Turn
from cojax.validation import Exclusions

_T = TypeVar("_T")
_BATCH, _GROUP = 16, 8
# Tasks that an evolution adds, and drafts that it examines.
_ADDED, _DRAFTS = 32, 64
_EVALUATION = 500
# Bytes of a run directory for each episode and its task, with room to spare.
_BYTES = 4_000
_VERBS = ("move", "copy", "share", "rename", "archive", "print")
_THINGS = ("report", "budget", "plan", "letter", "photo", "invoice", "chart", "memo")


def scale(*, episodes: Sequence[int] = (10_000, 100_000, 1_000_000), on_setup: int = 50, repeats: int = 5) -> list[Row]:
    """A row for each number of episodes, and a last one with the exponents of growth, log seconds by log episodes."""
    rows = [_row(count, on_setup, repeats) for count in sorted(set(episodes))]
    if len(rows) > 1:
        first, last = rows[0], rows[-1]
        decades = math.log10(last["episodes"] / first["episodes"])
        names = [name for name, figure in first.items() if isinstance(figure, Spread)]
        rows.append(
            {"episodes": "exponent"}
            | {name: math.log10(last[name].median / first[name].median) / decades for name in names}
        )
    return rows


class _Run:
    """A run with `count` episodes and tasks behind it, and what a step of it reads and writes."""

    def __init__(self, folder: Path, count: int, on_setup: int) -> None:
        self.directory = RunDirectory(folder, checkpoints_kept=2)
        self.rng = random.Random(count)
        self.detectors = _detectors()
        self.memory: Memory = init(self.detectors)
        self.directory.claim({"workdir": str(folder)}, {})
        self.directory.begin()
        self.tasks = _tasks(self.rng, max(1, count // on_setup))
        self.pool = TaskPool()
        for start in range(0, count, 10_000):
            self.add_tasks(min(10_000, count - start))
        self.step = 0
        while self.step * _BATCH * _GROUP < count:
            self.train()
        self.near_duplicates = NearDuplicates(0.9)
        self.near_duplicates.update(self.pool)
        self.held_out = tuple(itertools.islice(_tasks(random.Random(0), _EVALUATION), _EVALUATION))
        self.exclusions = Exclusions.of(self.held_out, similarity=0.7)
        self.embed = hashed_ngrams()

    def add_tasks(self, count: int) -> None:
        new_tasks = tuple(itertools.islice(self.tasks, count))
        self.directory.add_tasks(new_tasks)
        self.pool = self.pool.add(new_tasks)

    def train(self) -> None:
        """Samples tasks, detects signals in their episodes, and stores all of a step."""
        self.step += 1
        groups = [self.group(task) for task in self.pool.sample(_BATCH, (self.step,))]
        self.store(groups, self.signals(groups))

    def group(self, task: Task) -> Group:
        episodes = (self.trajectory(task, f"{self.step}-{task.id}-{sample}") for sample in range(_GROUP))
        return Group(task, tuple(episodes))

    def trajectory(self, task: Task, episode: str) -> Trajectory:
        names = self.rng.choices(_VERBS, weights=[1 / rank for rank in range(1, len(_VERBS) + 1)], k=5)
        turns = tuple(Turn(Action(calls=(Call(name, {"what": "x"}),)), Observation()) for name in names)
        return Trajectory(task, episode, turns=turns, reward=float(self.rng.random() < 0.5))

    def signals(self, groups: Sequence[Group]) -> tuple[dict[str, Any], list[Signal]]:
        changes, signals = detect(self.detectors, self.memory, groups)
        apply(self.memory, changes)
        return changes, signals

    def store(self, groups: Sequence[Group], detected: tuple[dict[str, Any], list[Signal]]) -> None:
        self.directory.memory.append([{"step": self.step, "changes": detected[0]}])
        self.directory.add_episodes(self.step, groups, detected[1])
        self.directory.metrics.append([{"step": self.step, "success": 0.5, "tasks": len(self.pool)}])

    def checkpoint(self) -> None:
        self.directory.save(self.step, {"parameters": np.arange(10.0)}, {"evolved": self.step, "fresh": _ADDED})

    def drafts(self) -> list[Task]:
        return list(itertools.islice(self.tasks, _DRAFTS))


def _row(count: int, on_setup: int, repeats: int) -> Row:
    """The seconds of each part of a step and of an evolution, and of reading the whole run; memory in GB."""
    with temporary_folder(count * _BYTES, "--episodes") as folder:
        row: dict[str, Any] = {"episodes": count} | _steps(_Run(folder, count, on_setup), repeats)
        began = time.perf_counter()
        directory = RunDirectory(folder, checkpoints_kept=2)
        directory.claim({"workdir": str(folder)}, {})
        state = directory.resume({"parameters": np.arange(10.0)}, init(_detectors()))
        row["resume_seconds"] = Spread((time.perf_counter() - began,))
        assert state is not None
        assert len(state.pool) >= count
        directory.close()
        del directory, state
        began = time.perf_counter()
        write_report(folder)
        row["report_seconds"] = Spread((time.perf_counter() - began,))
        row["folder_gb"] = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e9
        return row | machine.read_peak_memory()


def _steps(run: _Run, repeats: int) -> dict[str, Any]:
    """The seconds of each part of a step and of an evolution beside the run, and the memory that the run holds."""
    seconds = dict[str, list[float]]()

    def time_of(name: str, work: Callable[..., _T], *arguments: Any) -> _T:
        began = time.perf_counter()
        result = work(*arguments)
        seconds.setdefault(name, []).append(time.perf_counter() - began)
        return result

    for _ in range(repeats + 1):
        run.step += 1
        tasks = time_of("sample_seconds", run.pool.sample, _BATCH, (run.step,))
        groups = [run.group(task) for task in tasks]
        detection = time_of("signals_seconds", run.signals, groups)
        time_of("logs_seconds", run.store, groups, detection)
        drafts = run.drafts()
        time_of("near_duplicates_seconds", lambda examined: [run.near_duplicates.why(one) for one in examined], drafts)
        time_of("exclusions_seconds", lambda examined: [run.exclusions.why(one) for one in examined], drafts)
        time_of("recall_seconds", run.directory.recall, range(max(1, run.step - 4), run.step + 1))
        time_of("add_tasks_seconds", run.add_tasks, _ADDED)
        time_of("update_near_duplicates_seconds", run.near_duplicates.update, run.pool)
        time_of("quality_seconds", lambda: describe_pool(run.pool, run.held_out, run.embed, 5))
        time_of("checkpoint_seconds", run.checkpoint)
    run.directory.close()
    # The first repetition also sets up what the others reuse.
    return {name: Spread(tuple(all_[1:])) for name, all_ in seconds.items()} | machine.read_resident_memory()


def _detectors() -> dict[str, Detector]:
    return {kind: detector() for kind, detector in SIGNALS.items()}


def _tasks(rng: random.Random, setups: int) -> Iterator[Task]:
    """Different tasks without end, each on one of these setups."""
    while True:
        steps = [(rng.choice(_VERBS), f"{rng.choice(_THINGS)}{rng.randrange(1_000)}") for _ in range(3)]
        query = f"Please {', then '.join(f'{verb} the {thing}' for verb, thing in steps)}."
        calls = tuple(Action(calls=(Call(verb, {"what": thing}),)) for verb, thing in steps)
        yield Task("bench", query, {"room": rng.randrange(setups)}, calls)
