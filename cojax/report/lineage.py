"""Why does this task exist, and did it help? One query over a run directory."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from pathlib import Path

from cojax.report.run import Json, Run, birth, expedition_of, read_run
from cojax.types import INFRASTRUCTURE, content_hash, normalise


@dataclasses.dataclass(frozen=True)
class TaskVisit:
    """One visit of a task: the step, the valid episodes, how many of them reached full reward, their mean reward."""

    step: int
    episodes: int
    successes: int
    reward: float

    @property
    def success(self) -> float:
        return self.successes / self.episodes


@dataclasses.dataclass(frozen=True)
class Ancestor:
    """A task of the parent chain; `query` is empty where the pool no longer knows it."""

    id: str
    origin: str
    query: str


@dataclasses.dataclass(frozen=True)
class Story:
    """The lineage of one task. `parents` from its parent to the task it all began with.

    `signal` is the kind that led here and `signal_evidence` its line; `source_episode` the episode it is about;
    `expedition` is step and number of the expedition that found it; `verdict_evidence` is what validation found,
    `difficulty` the share of attempts on the query alone that failed, where any were made; `visits` what the policy
    made of the task, as far as episodes are stored; `parent_visits` the same of its parent.
    """

    id: str
    query: str
    origin: str
    solution: tuple[str, ...]
    step: int
    parents: tuple[Ancestor, ...]
    signal: str
    signal_evidence: str
    source_episode: str
    explorer: str
    runs: tuple[int, ...]
    expedition: tuple[int, int] | None
    verdict: str
    verdict_evidence: tuple[str, ...]
    difficulty: float | None
    visits: tuple[TaskVisit, ...]
    parent_visits: tuple[TaskVisit, ...]


class VisitIndex:
    """Visits of tasks, counted episode by episode."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0, 0, 0.0]))

    def add(self, task: str, step: int, episode: Json) -> None:
        """Counts an episode's JSON, unless it says nothing about the policy."""
        if episode["outcome"] in INFRASTRUCTURE:
            return
        count = self._counts[task][step]
        count[0] += 1
        count[1] += episode["reward"] >= 1.0
        count[2] += episode["reward"]

    def of(self, task: str) -> tuple[TaskVisit, ...]:
        steps = self._counts.get(task, {})
        return tuple(
            TaskVisit(step, int(episodes), int(successes), reward / episodes)
            for step, (episodes, successes, reward) in sorted(steps.items())
        )


class Lineages:
    """The lineage query over a run whose episodes have been counted into `visits`."""

    def __init__(self, run: Run, visits: VisitIndex):
        self._tasks, self._kinds = run.tasks, run.kinds
        self._drafts = {draft["task"]: draft for draft in run.drafts if draft.get("task")}
        self._visits = visits

    def story(self, task_id: str) -> Story:
        """The story of a task of the pool; KeyError when it is not in the pool."""
        task = self._tasks[task_id]
        lineage = task.get("lineage") or {}
        draft = self._drafts.get(task_id)
        return Story(
            id=task_id,
            query=task["query"],
            origin=task["origin"],
            solution=tuple(action_text(action) for action in task.get("solution", ())),
            step=birth(task),
            parents=self._parents(lineage.get("parent", "")),
            signal=task["origin"] if task["origin"] in self._kinds else "",
            signal_evidence=lineage.get("signal", ""),
            source_episode=lineage.get("episode", ""),
            explorer=lineage.get("explorer", ""),
            runs=tuple(lineage.get("runs", ())),
            expedition=expedition_of(draft) if draft else None,
            verdict=lineage.get("verdict", ""),
            verdict_evidence=tuple(lineage.get("evidence", ())),
            difficulty=draft["verdict"].get("difficulty") if draft else None,
            visits=self._visits.of(task_id),
            parent_visits=self._visits.of(lineage.get("parent", "")),
        )

    def _parents(self, parent: str) -> tuple[Ancestor, ...]:
        chain: list[Ancestor] = []
        seen: set[str] = set()
        while parent and parent not in seen:
            seen.add(parent)
            task = self._tasks.get(parent, {})
            chain.append(Ancestor(parent, task.get("origin", ""), task.get("query", "")))
            parent = (task.get("lineage") or {}).get("parent", "")
        return tuple(chain)


def lineage(folder: str | Path, task_id: str) -> Story:
    """The lineage of a task of a run; `task_id` may be a prefix.

    Raises FileNotFoundError for a folder that is no run, KeyError for an id that fits no task or several.
    """
    run = read_run(folder)
    matches = [known for known in run.tasks if known.startswith(task_id)]
    if len(matches) != 1:
        found = (
            f"fits {len(matches)} tasks: {', '.join(matches[:5])}" if matches else f"not among {len(run.tasks)} tasks"
        )
        raise KeyError(f"task {task_id!r} {found}; give an id, or a longer prefix, from {run.folder / 'tasks.jsonl'}")
    task = run.tasks[matches[0]]
    wanted = {task["id"], (task.get("lineage") or {}).get("parent", "")}
    visits = VisitIndex()
    for step in run.episodes.steps():
        for episode in run.episodes.read(step):
            if (visited := task_id_of(episode)) in wanted:
                visits.add(visited, step, episode)
    return Lineages(run, visits).story(task["id"])


def task_id_of(episode: Json) -> str:
    """`Task.id` of the task inside an episode's JSON."""
    return id_of(episode["task"])


def id_of(task: Json) -> str:
    """`Task.id` of a task's JSON, or of a draft's."""
    return content_hash([task["environment"], normalise(task["query"]), task["setup"]])


def action_text(action: Json) -> str:
    """An action's JSON as one readable line: its calls as name(argument=value), else its text."""
    calls = (
        f"{call['name']}({', '.join(f'{name}={value!r}' for name, value in call['arguments'].items())})"
        for call in action.get("calls", ())
    )
    return "; ".join(calls) or action.get("text", "")
