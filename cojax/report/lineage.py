"""The history of a task: why it exists, and how often the policy has solved it since."""

import dataclasses
from collections.abc import Collection, Iterable
from pathlib import Path

from cojax.report.run import Json, Run, find_expedition, find_join_step, read_run
from cojax.types import INFRASTRUCTURE, content_hash, normalise


@dataclasses.dataclass(frozen=True)
class TaskVisit:
    """One visit of a task: its step, the number of valid episodes, those with full reward, and their mean reward."""

    step: int
    episodes: int
    successes: int
    reward: float

    @property
    def success(self) -> float:
        return self.successes / self.episodes


@dataclasses.dataclass(frozen=True)
class TaskHistory:
    """The lineage of one task and its visits.

    step               the step at which it joined the pool
    parents            the chain from its parent to an initial task: id, origin and query of each, the last two empty
                       if the pool does not hold it
    signal             the kind of signal that led to it; `signal_evidence` is the signal's line of evidence
    source_episode     the episode that raised the signal
    runs, expedition   the explorer's runs that it comes from; step and number of their expedition
    verdict_evidence   the lines of evidence of its validation
    difficulty         the share of attempts on the query alone that failed, None if none were made
    visits             those whose episodes are stored; `parent_visits` are those of its parent
    """

    id: str
    query: str
    origin: str
    solution: tuple[str, ...]
    step: int
    parents: tuple[tuple[str, str, str], ...]
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


# Task id → step → the rewards of the episodes of that visit.
Rewards = dict[str, dict[int, list[float]]]


def add_visit(rewards: Rewards, task_id: str, step: int, episode: Json) -> None:
    """Adds an episode, given as JSON, unless it was lost to the infrastructure or played by a second agent."""
    if episode["outcome"] not in INFRASTRUCTURE and "agent" not in episode:
        rewards.setdefault(task_id, {}).setdefault(step, []).append(episode["reward"])


def list_visits(rewards: Rewards, task_id: str) -> tuple[TaskVisit, ...]:
    """The visits of a task by step."""
    return tuple(
        TaskVisit(step, len(values), sum(reward >= 1.0 for reward in values), sum(values) / len(values))
        for step, values in sorted(rewards.get(task_id, {}).items())
    )


def read_histories(run: Run, rewards: Rewards | None = None, ids: Iterable[str] | None = None) -> list[TaskHistory]:
    """The histories of all tasks, or of those with these `ids`, in the order of the pool.

    It reads every stored episode, unless it gets the rewards. Raises KeyError for an id that the pool lacks.
    """
    rewards = _read_rewards(run, run.tasks.keys()) if rewards is None else rewards
    signal_kinds, draft_by_task = run.kinds, {draft["task"]: draft for draft in run.drafts if draft.get("task")}
    task_histories = []
    for task_id in run.tasks if ids is None else ids:
        task, draft = run.tasks[task_id], draft_by_task.get(task_id)
        task_lineage = task.get("lineage") or {}
        history = TaskHistory(
            id=task_id,
            query=task["query"],
            origin=task["origin"],
            solution=tuple(format_action(action) for action in task.get("solution", ())),
            step=find_join_step(task),
            parents=_trace_parents(run, task_lineage.get("parent", "")),
            signal=task["origin"] if task["origin"] in signal_kinds else "",
            signal_evidence=task_lineage.get("signal", ""),
            source_episode=task_lineage.get("episode", ""),
            explorer=task_lineage.get("explorer", ""),
            runs=tuple(task_lineage.get("runs", ())),
            expedition=find_expedition(draft) if draft else None,
            verdict=task_lineage.get("verdict", ""),
            verdict_evidence=tuple(task_lineage.get("evidence", ())),
            difficulty=draft["verdict"].get("difficulty") if draft else None,
            visits=list_visits(rewards, task_id),
            parent_visits=list_visits(rewards, task_lineage.get("parent", "")),
        )
        task_histories.append(history)
    return task_histories


def _trace_parents(run: Run, parent_id: str) -> tuple[tuple[str, str, str], ...]:
    chain: dict[str, tuple[str, str, str]] = {}
    while parent_id and parent_id not in chain:
        task = run.tasks.get(parent_id, {})
        chain[parent_id] = parent_id, task.get("origin", ""), task.get("query", "")
        parent_id = (task.get("lineage") or {}).get("parent", "")
    return tuple(chain.values())


def read_lineage(folder: str | Path, task_id: str) -> TaskHistory:
    """The history of a task of a run; `task_id` may be a prefix of the id.

    Raises FileNotFoundError for a folder that is not a run, and KeyError unless exactly one id matches.
    """
    run = read_run(folder)
    matches = [full_id for full_id in run.tasks if full_id.startswith(task_id)]
    if len(matches) != 1:
        problem = (
            f"fits {len(matches)} tasks: {', '.join(matches[:5])}" if matches else f"not among {len(run.tasks)} tasks"
        )
        raise KeyError(f"task {task_id!r} {problem}; give an id, or a longer prefix, from {run.folder / 'tasks.jsonl'}")
    task = run.tasks[matches[0]]
    task_ids = {task["id"], (task.get("lineage") or {}).get("parent", "")}
    return read_histories(run, _read_rewards(run, task_ids), [task["id"]])[0]


def _read_rewards(run: Run, task_ids: Collection[str]) -> Rewards:
    """The rewards of these tasks' stored episodes."""
    rewards: Rewards = {}
    for step in run.episodes.list_steps():
        for episode in run.episodes.read(step):
            if (task_id := find_task_id(episode)) in task_ids:
                add_visit(rewards, task_id, step, episode)
    return rewards


def find_task_id(episode: Json) -> str:
    """`Task.id` of the task inside an episode's JSON."""
    return hash_task(episode["task"])


def hash_task(task: Json) -> str:
    """`Task.id` of a task's JSON, or of a draft's."""
    return content_hash([task["environment"], normalise(task["query"]), task["setup"]])


def format_action(action: Json) -> str:
    """An action's JSON as one readable line: its calls as name(argument=value), or its text."""
    call_texts = (
        f"{call['name']}({', '.join(f'{name}={argument!r}' for name, argument in call['arguments'].items())})"
        for call in action.get("calls", ())
    )
    return "; ".join(call_texts) or action.get("text", "")
