"""Held-out success and task sets by kind of task: shows in which kinds the arms of a table differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cojax.environment import Charted, Environment
from cojax.types import Task, content_hash
from .record import Record
from .tasks import environment_of, least_popular

# Solutions of this many actions or more are one kind.
_OPEN_ROW = 6
# With this many tools, tasks are also grouped by tenths of the tools, and the worst tenth is told.
MANY = 60
LONG = 4  # a long task has at least as many actions, finish counted
ENOUGH = 30  # long tasks of which a page tells


def breakdowns(arms: Mapping[str, Sequence[Record]]) -> dict[str, list[dict[str, Any]]]:
    """Criterion → one row for each kind of task: `kind`, number of `tasks`, and shares solved, as means over seeds.

    The shares are `zero_shot` and after training, by arm, in `arms`; the argument maps an arm to its records. Empty
    where the environment now has other held-out tasks than the records, or where a run has an invalid episode.
    """
    used = [record for records in arms.values() for record in records]
    environment, tasks = held_out_tasks(used[0])
    known = {(record["held_out"]["digest"], record["held_out"]["tasks"]) for record in used}
    if known != {(content_hash([task.id for task in tasks]), len(tasks))}:
        return {}
    kinds: dict[str, Callable[[Task], Any]] = {"actions": _actions}
    if isinstance(environment, Charted):
        popularity = environment.popularity()
        tool = least_popular(environment, used[0]["config"]["explorer"]["ending"])
        # The most popular ones first.
        kinds["tool"] = lambda task: (-popularity.get(tool(task), 1.0), tool(task))
        found = sorted({kinds["tool"](task) for task in tasks})
        if len(found) >= MANY:
            tenths = {kind: 1 + 10 * place // len(found) for place, kind in enumerate(found)}
            kinds["popularity"] = lambda task: (tenths[kinds["tool"](task)], f"tenth {tenths[kinds['tool'](task)]}")
    return {name: _rows([of(task) for task in tasks], arms) for name, of in kinds.items()}


def worst_tenth(records: Sequence[Record]) -> dict[int, float] | None:
    """Seed → mean success over the worst tenth of the tools after training; None with fewer than MANY tools.

    A task counts for the least popular tool of its solution. Which tenth is the worst is told from the same held-out
    tasks, for each run by itself: so the value is lower than what these tools would reach on other tasks.
    """
    return _tenth(records, lambda before, after, popularity: after)


def weakest_tenth(records: Sequence[Record]) -> dict[int, float] | None:
    """Like `worst_tenth`, over the tools of the lowest success before training; of equal ones, the least popular.

    So all arms of a seed are judged by the same tools, and no result after training decides which.
    """
    return _tenth(records, lambda before, after, popularity: (before, popularity))


def long_tasks(records: Sequence[Record]) -> dict[int, float] | None:
    """Seed → success after training over the held-out tasks of at least LONG actions, finish counted.

    None where there are fewer than ENOUGH of them.
    """
    _, tasks = held_out_tasks(records[0])
    long = [len(task.solution) >= LONG for task in tasks]
    if sum(long) < ENOUGH or any(record["held_out"]["tasks"] != len(tasks) for record in records):
        return None
    return {
        record["seed"]: sum(bit == "1" for bit, one in zip(record["held_out"]["final"], long, strict=True) if one)
        / sum(long)
        for record in records
    }


def _tenth(records: Sequence[Record], order: Callable[[float, float, float], Any]) -> dict[int, float] | None:
    """Seed → mean success after training of the tenth of the tools that comes first by `order`.

    Its arguments are a tool's success before and after training, and its popularity.
    """
    environment, tasks = held_out_tasks(records[0])
    if any(record["held_out"]["tasks"] != len(tasks) for record in records):
        return None
    tool = least_popular(environment, records[0]["config"]["explorer"]["ending"])
    names = [tool(task) for task in tasks]
    sizes = Counter(names)
    if len(sizes) < MANY:
        return None
    popularity = environment.popularity() if isinstance(environment, Charted) else {}

    def shares(record: Record, when: str) -> dict[str, float]:
        solved = Counter(name for name, bit in zip(names, record["held_out"][when], strict=True) if bit == "1")
        return {name: solved[name] / size for name, size in sizes.items()}

    found = {}
    for record in records:
        before, after = shares(record, "zero_shot"), shares(record, "final")
        ranked = sorted(sizes, key=lambda name: (order(before[name], after[name], popularity.get(name, 0.0)), name))
        first = ranked[: max(1, round(len(ranked) / 10))]
        found[record["seed"]] = sum(after[name] for name in first) / len(first)
    return found


def tasks_by_tool(arms: Mapping[str, Sequence[Record]]) -> dict[str, dict[str, float]]:
    """Least popular tool of a solution → arm → number of such tasks in the final set, mean over seeds.

    The most frequent tools over all arms come first. Empty where no tool's popularity is known.
    """
    counts = {
        arm: Counter(tool for record in records for tool in record["tasks"]["tool"] if tool)
        for arm, records in arms.items()
    }
    order = [tool for tool, _ in sum(counts.values(), Counter()).most_common()]
    return {tool: {arm: counts[arm][tool] / len(records) for arm, records in arms.items()} for tool in order}


def prior_mastery(records: Sequence[Record], rows: Sequence[Mapping[str, Any]]) -> float | None:
    """How well the policy could use the tools of added tasks before training.

    That is the mean over added tasks of the zero-shot success on held-out tasks with the same least popular tool, which
    `rows`, the breakdown by tool, has as a mean over the table's seeds. Tasks whose tool is not in `rows` are
    left out; None where all are.
    """
    known = {row["kind"]: row["zero_shot"] for row in rows}
    found = [
        known[tool]
        for record in records
        for tool, step in zip(record["tasks"]["tool"], record["tasks"]["step"], strict=True)
        if step and tool in known
    ]
    return sum(found) / len(found) if found else None


def _rows(kinds: Sequence[tuple[Any, str]], arms: Mapping[str, Sequence[Record]]) -> list[dict[str, Any]]:
    """One row for each kind. `kinds` holds (sort key, name) of each task, in the order of task ids."""
    sizes = Counter(kinds)

    def solved(records: Sequence[Record], when: str) -> Counter:
        counts: Counter = Counter()
        for record in records:
            counts.update(kind for kind, bit in zip(kinds, record["held_out"][when], strict=True) if bit == "1")
        return Counter({kind: count / len(records) for kind, count in counts.items()})

    start = solved(next(iter(arms.values())), "zero_shot")
    finals = {arm: solved(records, "final") for arm, records in arms.items()}
    return [
        {
            "kind": kind[1],
            "tasks": sizes[kind],
            "zero_shot": start[kind] / sizes[kind],
            "arms": {arm: found[kind] / sizes[kind] for arm, found in finals.items()},
        }
        for kind in sorted(sizes)
    ]


def held_out_tasks(record: Record) -> tuple[Environment, list[Task]]:
    """The environment, and the tasks that the run was evaluated on, by id: the order of `held_out` in its record."""
    section = record["config"]["evaluation"]
    environment = environment_of(record["config"])
    found = environment.tasks(section["split"], section["tasks"], section["seed"])
    return environment, sorted(found, key=lambda task: task.id)


def _actions(task: Task) -> tuple[int, str]:
    count = len(task.solution)
    return (count, str(count)) if count < _OPEN_ROW else (_OPEN_ROW, f"{_OPEN_ROW} and more")
