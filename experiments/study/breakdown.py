"""Held-out success by kind of task: where arms of a table differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import environments
from cojax.environment import Charted, Environment
from cojax.types import Task, content_hash
from experiments.study.record import Record

# Solutions of so many actions, or more, are one kind.
_LONG = 6


def breakdowns(arms: Mapping[str, Sequence[Record]]) -> dict[str, list[dict[str, Any]]]:
    """What tells kinds apart → a row each: its `kind`, how many `tasks` are of it, and the share of them solved
    `zero_shot` and by each of the `arms` (arm → its records), means over seeds.

    Empty where today's environment has other held-out tasks than the records, or a run lost one to the machinery.
    """
    used = [record for records in arms.values() for record in records]
    environment, tasks = _held_out(used[0])
    known = {(record["held_out"]["digest"], record["held_out"]["tasks"]) for record in used}
    if known != {(content_hash([task.id for task in tasks]), len(tasks))}:
        return {}
    ending = used[0]["config"]["explorer"]["ending"]
    kinds = {
        "actions": _actions,
        **({"tool": _rarest(environment, ending)} if isinstance(environment, Charted) else {}),
    }
    return {name: _rows([of(task) for task in tasks], arms) for name, of in kinds.items()}


def _rows(kinds: Sequence[tuple[Any, str]], arms: Mapping[str, Sequence[Record]]) -> list[dict[str, Any]]:
    """`kinds` are of each task, (place in the order, name), the tasks in the order of their ids."""
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


def _held_out(record: Record) -> tuple[Environment, list[Task]]:
    """The environment, and the tasks that the run was evaluated on, by id."""
    section = record["config"]["evaluation"]
    environment = environments.load(record["config"]["environment"]["name"])
    found = environment.tasks(section["split"], section["tasks"], section["seed"])
    return environment, sorted(found, key=lambda task: task.id)


def _actions(task: Task) -> tuple[int, str]:
    count = len(task.solution)
    return (count, str(count)) if count < _LONG else (_LONG, f"{_LONG} and more")


def _rarest(environment: Charted, ending: str) -> Callable[[Task], tuple[float, str]]:
    """The least popular tool of a task's solution but the `ending`; the most popular of these come first."""
    popularity = {name: value for name, value in environment.popularity().items() if name != ending}

    def kind(task: Task) -> tuple[float, str]:
        names = [call.name for action in task.solution for call in action.calls if call.name in popularity]
        rarest = min(names, key=lambda name: (popularity[name], name), default="")
        return (-popularity.get(rarest, 1.0), rarest)

    return kind
