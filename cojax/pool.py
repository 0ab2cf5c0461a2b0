"""The task set D_t: append-only, sampled by seed, every task with its lineage.

A curriculum derives the weight with which a step draws a task from the task's last scores. In the paper all tasks are
equally likely.
"""

import dataclasses
import heapq
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

from cojax.registry.annotations import Range
from cojax.types import Group, Signal, Task, from_json, to_json

# (mean reward of each of a task's last visits, at most RECENT_VISITS, each in [0, 1], oldest first) → a weight
# above 0. The settings of a curriculum are its keyword-only parameters.
Curriculum = Callable[[Sequence[float]], float]
RECENT_VISITS = 10


@dataclasses.dataclass(frozen=True)
class TaskPool:
    """A persistent set of tasks in the order of their arrival.

    A pool and the pools made from it by `add` share one list and one index; each sees its own first entries. So `add`
    costs O(tasks added) and `sample` O(tasks drawn), however large the pool is. Call `add` from one thread only.
    """

    _tasks: list[Task] = dataclasses.field(default_factory=list, repr=False, compare=False)
    _position_by_id: dict[str, int] = dataclasses.field(default_factory=dict, repr=False, compare=False)
    _length: int = 0
    _fresh_count: int = 0

    @classmethod
    def of(cls, tasks: Iterable[Task], fresh_count: int | None = None) -> "TaskPool":
        """A pool of these tasks, of which the last `fresh_count` are the newest addition; None means all of them."""
        pool = cls().add(tasks)
        if fresh_count is None:
            return pool
        if not 0 <= fresh_count <= len(pool):
            raise ValueError(f"fresh is {fresh_count}; expected 0 to {len(pool)}, the number of tasks")
        return dataclasses.replace(pool, _fresh_count=fresh_count)

    def add(self, tasks: Iterable[Task]) -> "TaskPool":
        """A pool with these tasks appended, except those whose id it already has. This pool does not change."""
        tasks_in_order, position_by_id = self._tasks, self._position_by_id
        if len(tasks_in_order) > self._length:
            # Another pool was made from this one, and the entries after ours belong to it.
            tasks_in_order = tasks_in_order[: self._length]
            position_by_id = {task.id: position for position, task in enumerate(tasks_in_order)}
        for task in tasks:
            if task.id not in position_by_id:
                position_by_id[task.id] = len(tasks_in_order)
                tasks_in_order.append(task)
        new_count = len(tasks_in_order) - self._length
        return TaskPool(tasks_in_order, position_by_id, len(tasks_in_order), new_count or self._fresh_count)

    @property
    def fresh(self) -> tuple[Task, ...]:
        """The tasks of the newest addition, additions of no task not counted."""
        return tuple(self._tasks[self._length - self._fresh_count : self._length])

    def sample(
        self, count: int, seed: tuple, fresh_fraction: float = 0.0, weigh: Callable[[str], float] | None = None
    ) -> tuple[Task, ...]:
        """Draws `count` different tasks by the seed; a smaller pool is returned whole, in random order.

        The share `fresh_fraction` (0 in the paper) comes from the newest addition, or all of that if it is too small.
        The others come from the whole pool, with equal chances or, given `weigh`, in proportion to their weights.
        `weigh` maps a task's id to a finite number above 0 and costs O(tasks in the pool). Raises ValueError on an
        empty pool.
        """
        if not self._length:
            raise ValueError(
                f"the pool is empty; expected tasks to sample {count} from. "
                "Raise initial_tasks, or see in drafts.jsonl why every draft was refused."
            )
        if not 0.0 <= fresh_fraction <= 1.0:
            raise ValueError(f"fresh_fraction is {fresh_fraction}; expected a share from 0 to 1")
        rng = random.Random(repr(("sample", seed)))
        count = min(count, self._length)
        newest_positions = range(self._length - self._fresh_count, self._length)
        positions = rng.sample(newest_positions, min(round(count * fresh_fraction), len(newest_positions)))
        fresh_positions = set(positions)
        draw = rng.sample(range(self._length), count) if weigh is None else self._draw_weighted(count, rng, weigh)
        other_positions = [position for position in draw if position not in fresh_positions]
        positions += other_positions[: count - len(positions)]
        rng.shuffle(positions)
        return tuple(self._tasks[position] for position in positions)

    def _draw_weighted(self, count: int, rng: random.Random, weigh: Callable[[str], float]) -> list[int]:
        """Draws positions without replacement, each in proportion to its weight among those left.

        Each task has an exponential waiting time whose rate is its weight; the shortest times win (Efraimidis and
        Spirakis 2006).
        """
        timed_positions = ((rng.expovariate(1.0) / weigh(task.id), index) for index, task in enumerate(self))
        return [index for _, index in heapq.nsmallest(count, timed_positions)]

    def since(self, position: int) -> Iterator[Task]:
        """The tasks from this position on, in the order of their arrival; costs O(tasks returned)."""
        return (self._tasks[index] for index in range(position, self._length))

    def get(self, id: str) -> Task:
        """The task of that id. Raises KeyError."""
        if id not in self:
            raise KeyError(f"task {id!r} is not among the {self._length} tasks of the pool")
        return self._tasks[self._position_by_id[id]]

    def __contains__(self, id: object) -> bool:
        return isinstance(id, str) and self._position_by_id.get(id, self._length) < self._length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Task]:
        return self.since(0)


def make_task_record(task: Task) -> dict[str, Any]:
    """The task as one record of tasks.jsonl: its id, then its fields."""
    return {"id": task.id, **to_json(task)}


def read_task_record(record: Mapping[str, Any], line_number: int | None = None) -> Task:
    """The task of a record of tasks.jsonl. Raises ValueError if the id does not match the content."""
    place = "tasks.jsonl" if line_number is None else f"tasks.jsonl line {line_number}"
    try:
        task = from_json(Task, {field_name: value for field_name, value in record.items() if field_name != "id"})
    except (TypeError, KeyError) as error:
        raise ValueError(f"{place}: not a task: {error}. Restore the file, or begin a new run.") from error
    if record.get("id") != task.id:
        raise ValueError(
            f"{place}: id {record.get('id')!r}, but its content hashes to {task.id!r}: the line was edited or damaged. "
            "Restore the file, or begin a new run."
        )
    return task


def uniform(scores: Sequence[float]) -> float:
    """Weights all tasks equally."""
    return 1.0


def learnability(scores: Sequence[float], *, prior: Annotated[float, Range(0.0, low_open=True)] = 1.0) -> float:
    """p(1 − p), p = (a + Σ s) / (2a + n): tasks solved half of the time weigh most.

    It is the variance of success, without which a group has no advantages (sampling for learnability, arXiv
    2408.15099). `prior` is a of Beta(a, a), uniform at a = 1: a task never seen has the largest weight, 1/4, and a task
    always solved or always failed is still drawn.
    """
    success_rate = (prior + sum(scores)) / (2.0 * prior + len(scores))
    return success_rate * (1.0 - success_rate)


def unmastered(
    scores: Sequence[float],
    *,
    visits: Annotated[int, Range(1, RECENT_VISITS)] = 3,
    weight: Annotated[float, "a share", Range(0.0, 1.0, low_open=True)] = 0.1,
) -> float:
    """`weight` for a task that was solved in every episode of its last `visits` visits, 1 for any other task."""
    return weight if len(scores) >= visits and min(scores[-visits:]) >= 1.0 else 1.0


CURRICULA: dict[str, Curriculum] = {"uniform": uniform, "learnability": learnability, "unmastered": unmastered}


def weigh_task(curriculum: Curriculum, scores: Sequence[float]) -> float:
    """The weight of a task with these scores. Raises ValueError for a weight that is not finite and above 0."""
    weight = float(curriculum(scores))
    if not 0.0 < weight < math.inf:
        raise ValueError(
            f"the curriculum gives a task with the scores {list(scores)} the weight {weight}; expected above 0, finite"
        )
    return weight


class RecentScores:
    """A statistic: the mean reward of each task's last ten visits.

    Its window is separate from that of `signals.Forgetting`: either may be used without the other, and memory.jsonl
    stores each under its own name.
    """

    window = RECENT_VISITS

    def init(self) -> dict[str, Any]:
        return {}

    def update(self, memory: Mapping[str, Any], groups: Sequence[Group]) -> tuple[dict[str, Any], list[Signal]]:
        changes: dict[str, Any] = {}
        for group in groups:
            if group.valid:
                task_id = group.task.id
                changes[task_id] = [*changes.get(task_id, memory.get(task_id, [])), group.score][-self.window :]
        return changes, []
