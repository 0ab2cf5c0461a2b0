"""What became of every stored episode, by step and group, in few bytes; with the advantage of each sample."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cojax.learner.advantages import ADVANTAGES
from cojax.report.lineage import VisitIndex, task_id_of
from cojax.report.run import Json, Run
from cojax.types import INFRASTRUCTURE, Action, Observation, Task, Trajectory, Turn

INDEX = 2_500_000  # bytes of all groups in one page
QUERY = 300  # characters of a query
DIGITS = 3  # of an advantage

Advantages = Callable[[Sequence[Json]], list[Any]]  # a group's episodes → a number each, one for each turn, or None
_NO_TASK = Task("", "", {})


def advantages_of(run: Run) -> Advantages | None:
    """The advantage that the run learned by, as its config.json names it.

    None where it is the user's own, whose code a report does not run, and where a run learns from preferences.
    """
    learner = run.config.get("config", {}).get("learner") or {}
    entry = run.config.get("code", {}).get("learner.advantage") or {}
    name = str(entry.get("name") or learner.get("advantage"))
    if name not in ADVANTAGES or any("preference" in row for row in run.metrics):
        return None
    settings = entry.get("settings") or learner.get("advantage_settings") or {}
    return lambda episodes: _advantages(ADVANTAGES[name], settings, episodes)


def _advantages(advantage: Callable[..., Any], settings: Mapping[str, Any], episodes: Sequence[Json]) -> list[Any]:
    """One entry for each episode; None for those that are masked, lost, or alone."""
    valid = [place for place, episode in enumerate(episodes) if episode["outcome"] not in INFRASTRUCTURE]
    found: list[Any] = [None] * len(episodes)
    if len(valid) < 2:
        return found
    try:
        values = advantage([_trajectory(episodes[place]) for place in valid], **settings)
    except (TypeError, ValueError):  # settings of another version
        return found
    masked = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else np.zeros(len(valid), bool)
    for place, value, hidden in zip(valid, values, masked, strict=True):
        found[place] = None if np.any(hidden) else _rounded(value)
    return found


def _rounded(value: Any) -> Any:
    array = np.asarray(value, np.float64)
    if array.ndim == 0:
        return round(float(array), DIGITS) + 0.0
    return [round(float(np.mean(part)), DIGITS) + 0.0 for part in array]


def _trajectory(episode: Json) -> Trajectory:
    """As much of an episode as an advantage reads: the rewards of its turns and their tokens, no texts."""
    turns = (
        Turn(Action(), Observation(ok=turn["observation"]["ok"]), action_tokens=tuple(turn["action_tokens"]))
        for turn in episode["turns"]
    )
    return Trajectory(
        _NO_TASK, episode["episode"], turns=tuple(turns), reward=episode["reward"], outcome=episode["outcome"]
    )


class EpisodeIndex:
    """The groups of the steps that were added, and the visits of their tasks.

    A row of `steps` is a group in columns, by sample; a column that holds nothing but its default is left out:

    t  the number of its task in `tasks`     r  rewards                    k  numbers of turns
    n  names, default 0, 1, 2, …; a name is what follows "STEP-TASK-" in the episode's id, or the whole id
    o  outcomes, default "finished"          s  kinds of signal, default none
    v  advantages, default 0                 a  the agent of the whole group, default the policy
    """

    def __init__(self) -> None:
        self.visits = VisitIndex()
        self.steps: dict[int, list[Json]] = {}
        self.tasks: list[list[str]] = []  # id, query, origin
        self._numbers: dict[str, int] = {}

    def add(self, step: int, episodes: Sequence[Json], advantages: Advantages | None) -> list[str]:
        """Adds the episodes of a step and returns the id of each one's task."""
        ids: dict[str, str] = {}
        groups: dict[tuple[str, str], list[Json]] = {}
        tasks = []
        for episode in episodes:
            # A group shares all of its name but the sample; its task is hashed once.
            stem = episode["episode"].rpartition("-")[0] or episode["episode"]
            task = ids[stem] if stem in ids else ids.setdefault(stem, task_id_of(episode))
            tasks.append(task)
            self.visits.add(task, step, episode)
            groups.setdefault((task, episode.get("agent", "")), []).append(episode)
        self.steps[step] = [
            self._row(step, task, agent, group, None if agent else advantages)
            for (task, agent), group in groups.items()
        ]
        return tasks

    def _row(self, step: int, task: str, agent: str, group: Sequence[Json], advantages: Advantages | None) -> Json:
        start = f"{step}-{task}-"
        names: list[Any] = []
        for episode in group:
            name = episode["episode"].removeprefix(start)
            names.append(int(name) if name.isdecimal() and str(int(name)) == name else episode["episode"])
        row = {
            "t": self._number(task, group[0]),
            "r": [round(episode["reward"], 4) for episode in group],
            "k": [len(episode["turns"]) for episode in group],
        }
        values = advantages(group) if advantages else [0] * len(group)
        columns = {
            "n": (names, list(range(len(group)))),
            "o": ([episode["outcome"] for episode in group], ["finished"] * len(group)),
            "s": ([episode.get("signals", []) for episode in group], [[]] * len(group)),
            "v": (values, [0] * len(group)),
        }
        row |= {name: column for name, (column, default) in columns.items() if column != default}
        return row | ({"a": agent} if agent else {})

    def _number(self, task: str, episode: Json) -> int:
        if task not in self._numbers:
            self._numbers[task] = len(self.tasks)
            query = episode["task"]["query"]
            shown = query if len(query) <= QUERY else f"{query[:QUERY]} …"
            self.tasks.append([task, shown, episode["task"]["origin"]])
        return self._numbers[task]

    @property
    def total(self) -> int:
        return sum(len(row["r"]) for rows in self.steps.values() for row in rows)

    def index(self) -> Json:
        """The tasks, and the groups by step. Steps are left out evenly where they would take more than INDEX bytes."""
        steps = sorted(self.steps.items())
        size = sum(len(json.dumps(rows)) for _, rows in steps)
        share = min(1.0, INDEX / max(1, size))
        kept = [item for place, item in enumerate(steps) if int((place + 1) * share) > int(place * share)]
        numbers = {row["t"] for _, rows in kept for row in rows}
        tasks = [task if place in numbers else [task[0], "", task[2]] for place, task in enumerate(self.tasks)]
        return {"tasks": tasks, "steps": [[step, rows] for step, rows in kept]}
