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
_TASKS_PER_STEP, _GROUP_SIZE = 16, 8
# Tasks that an evolution adds, and drafts that it examines.
_ADDED_TASKS, _EXAMINED_DRAFTS = 32, 64
_EVALUATION_TASKS = 500
# Bytes of a run directory for each episode and its task, with room to spare.
_BYTES_PER_EPISODE = 4_000
_VERBS = ("move", "copy", "share", "rename", "archive", "print")
_THINGS = ("report", "budget", "plan", "letter", "photo", "invoice", "chart", "memo")


def scale(*, episodes: Sequence[int] = (10_000, 100_000, 1_000_000), on_setup: int = 50, repeats: int = 5) -> list[Row]:
    """A row for each number of episodes, and a last one with the exponents of growth, log seconds by log episodes."""
    rows = [_make_row(episode_count, on_setup, repeats) for episode_count in sorted(set(episodes))]
    if len(rows) > 1:
        first, last = rows[0], rows[-1]
        decades = math.log10(last["episodes"] / first["episodes"])
        figure_names = [figure_name for figure_name, figure in first.items() if isinstance(figure, Spread)]
        rows.append(
            {"episodes": "exponent"}
            | {
                figure_name: math.log10(last[figure_name].median / first[figure_name].median) / decades
                for figure_name in figure_names
            }
        )
    return rows


class _GrownRun:
    """A run with `count` episodes and tasks behind it, and what a step of it reads and writes."""

    def __init__(self, folder: Path, episode_count: int, on_setup: int) -> None:
        self.directory = RunDirectory(folder, checkpoints_kept=2)
        self.rng = random.Random(episode_count)
        self.detectors = _make_detectors()
        self.memory: Memory = init(self.detectors)
        self.directory.claim({"workdir": str(folder)}, {})
        self.directory.begin()
        self.tasks = _draw_tasks(self.rng, max(1, episode_count // on_setup))
        self.pool = TaskPool()
        for start in range(0, episode_count, 10_000):
            self.add_tasks(min(10_000, episode_count - start))
        self.step = 0
        while self.step * _TASKS_PER_STEP * _GROUP_SIZE < episode_count:
            self.train()
        self.near_duplicates = NearDuplicates(0.9)
        self.near_duplicates.update(self.pool)
        self.held_out = tuple(itertools.islice(_draw_tasks(random.Random(0), _EVALUATION_TASKS), _EVALUATION_TASKS))
        self.exclusions = Exclusions.of(self.held_out, similarity=0.7)
        self.embed = hashed_ngrams()

    def add_tasks(self, task_count: int) -> None:
        new_tasks = tuple(itertools.islice(self.tasks, task_count))
        self.directory.add_tasks(new_tasks)
        self.pool = self.pool.add(new_tasks)

    def train(self) -> None:
        """Samples tasks, detects signals in their episodes, and stores all of a step."""
        self.step += 1
        groups = [self.make_group(task) for task in self.pool.sample(_TASKS_PER_STEP, (self.step,))]
        self.store_step(groups, self.detect_signals(groups))

    def make_group(self, task: Task) -> Group:
        episodes = (
            self.make_trajectory(task, f"{self.step}-{task.id}-{sample_index}") for sample_index in range(_GROUP_SIZE)
        )
        return Group(task, tuple(episodes))

    def make_trajectory(self, task: Task, episode_id: str) -> Trajectory:
        verbs = self.rng.choices(_VERBS, weights=[1 / rank for rank in range(1, len(_VERBS) + 1)], k=5)
        turns = tuple(Turn(Action(calls=(Call(verb, {"what": "x"}),)), Observation()) for verb in verbs)
        return Trajectory(task, episode_id, turns=turns, reward=float(self.rng.random() < 0.5))

    def detect_signals(self, groups: Sequence[Group]) -> tuple[dict[str, Any], list[Signal]]:
        changes, signals = detect(self.detectors, self.memory, groups)
        apply(self.memory, changes)
        return changes, signals

    def store_step(self, groups: Sequence[Group], detected: tuple[dict[str, Any], list[Signal]]) -> None:
        self.directory.memory.append([{"step": self.step, "changes": detected[0]}])
        self.directory.add_episodes(self.step, groups, detected[1])
        self.directory.metrics.append([{"step": self.step, "success": 0.5, "tasks": len(self.pool)}])

    def save_checkpoint(self) -> None:
        self.directory.save(self.step, {"parameters": np.arange(10.0)}, {"evolved": self.step, "fresh": _ADDED_TASKS})

    def draw_drafts(self) -> list[Task]:
        return list(itertools.islice(self.tasks, _EXAMINED_DRAFTS))


def _make_row(episode_count: int, tasks_per_setup: int, repeats: int) -> Row:
    """The seconds of each part of a step and of an evolution, and of reading the whole run; memory in GB."""
    with temporary_folder(episode_count * _BYTES_PER_EPISODE, "--episodes") as folder:
        row: dict[str, Any] = {"episodes": episode_count} | _time_steps(
            _GrownRun(folder, episode_count, tasks_per_setup), repeats
        )
        started_at = time.perf_counter()
        directory = RunDirectory(folder, checkpoints_kept=2)
        directory.claim({"workdir": str(folder)}, {})
        state = directory.resume({"parameters": np.arange(10.0)}, init(_make_detectors()))
        row["resume_seconds"] = Spread((time.perf_counter() - started_at,))
        assert state is not None
        assert len(state.pool) >= episode_count
        directory.close()
        del directory, state
        started_at = time.perf_counter()
        write_report(folder)
        row["report_seconds"] = Spread((time.perf_counter() - started_at,))
        row["folder_gb"] = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e9
        return row | machine.read_peak_memory()


def _time_steps(run: _GrownRun, repeat_count: int) -> dict[str, Any]:
    """The seconds of each part of a step and of an evolution beside the run, and the memory that the run holds."""
    seconds = dict[str, list[float]]()

    def time_call(figure_name: str, work: Callable[..., _T], *arguments: Any) -> _T:
        started_at = time.perf_counter()
        result = work(*arguments)
        seconds.setdefault(figure_name, []).append(time.perf_counter() - started_at)
        return result

    for _ in range(repeat_count + 1):
        run.step += 1
        tasks = time_call("sample_seconds", run.pool.sample, _TASKS_PER_STEP, (run.step,))
        groups = [run.make_group(task) for task in tasks]
        detection = time_call("signals_seconds", run.detect_signals, groups)
        time_call("logs_seconds", run.store_step, groups, detection)
        drafts = run.draw_drafts()
        time_call(
            "near_duplicates_seconds",
            lambda examined: [run.near_duplicates.find_duplicate(draft) for draft in examined],
            drafts,
        )
        time_call(
            "exclusions_seconds", lambda examined: [run.exclusions.find_rule(draft) for draft in examined], drafts
        )
        time_call("recall_seconds", run.directory.read_episodes, range(max(1, run.step - 4), run.step + 1))
        time_call("add_tasks_seconds", run.add_tasks, _ADDED_TASKS)
        time_call("update_near_duplicates_seconds", run.near_duplicates.update, run.pool)
        time_call("quality_seconds", lambda: describe_pool(run.pool, run.held_out, run.embed, 5))
        time_call("checkpoint_seconds", run.save_checkpoint)
    run.directory.close()
    # The first repetition also sets up what the others reuse.
    return {
        name: Spread(tuple(figure_seconds[1:])) for name, figure_seconds in seconds.items()
    } | machine.read_resident_memory()


def _make_detectors() -> dict[str, Detector]:
    return {kind: detector() for kind, detector in SIGNALS.items()}


def _draw_tasks(rng: random.Random, setup_count: int) -> Iterator[Task]:
    """Different tasks without end, each on one of these setups."""
    while True:
        steps = [(rng.choice(_VERBS), f"{rng.choice(_THINGS)}{rng.randrange(1_000)}") for _ in range(3)]
        query = f"Please {', then '.join(f'{verb} the {thing}' for verb, thing in steps)}."
        calls = tuple(Action(calls=(Call(verb, {"what": thing}),)) for verb, thing in steps)
        yield Task("bench", query, {"room": rng.randrange(setup_count)}, calls)
