"""A run's tasks as numbers: position in a plane, similarity to the evaluation tasks, length, least popular tool."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cojax import worlds
from cojax.environment import Charted, Environment
from cojax.quality import HashedNgrams, greatest_similarity
from cojax.types import Task

# How many tasks of the development split span the plane, which is then the same for every run.
SPANNING = 300
_DIGITS = 4
Columns = dict[str, list[Any]]
COLUMNS = ("step", "origin", "turns", "tool", "x", "y", "similarity")


def environment_of(config: Mapping[str, Any]) -> Environment:
    """The environment of a run's configuration, with its settings, in this process."""
    given = {
        name: value for name, value in config["environment"].items() if name not in ("name", "isolated", "cluster")
    }
    return worlds.load(config["environment"]["name"], **given)


def least_popular(environment: Environment, ending: str) -> Callable[[Task], str]:
    """A function from a task to the least popular tool of its solution, without the tool `ending`, which ends episodes.

    It returns an empty text where there is no such tool, or where the environment does not know popularities.
    """
    known = environment.popularity() if isinstance(environment, Charted) else {}
    popularity = {name: value for name, value in known.items() if name != ending}

    def tool(task: Task) -> str:
        names = [call.name for action in task.solution for call in action.calls if call.name in popularity]
        return min(names, key=lambda name: (popularity[name], name), default="")

    return tool


def describe_tasks(
    tasks: Sequence[Task], targets: Sequence[Task], tool: Callable[[Task], str], spanning: Sequence[Task]
) -> Columns:
    """The columns COLUMNS of at least one task.

    They are `step` and `origin` of the task, `turns` of its solution, its `tool`, `x` and `y` in the plane, and
    `similarity`, the greatest cosine to one of `targets`, the evaluated tasks. `spanning` are the tasks that span the
    plane.
    """
    embed = HashedNgrams()
    embeddings = embed([task.query for task in tasks])
    centre, axes = _plane(tuple(task.query for task in spanning))
    points = (embeddings - centre) @ axes.T
    similarity = greatest_similarity(embeddings, embed([task.query for task in targets]))
    return {
        "step": [task.lineage.step if task.lineage else 0 for task in tasks],
        "origin": [task.origin for task in tasks],
        "turns": [len(task.solution) for task in tasks],
        "tool": [tool(task) for task in tasks],
        "x": [round(float(x), _DIGITS) for x in points[:, 0]],
        "y": [round(float(y), _DIGITS) for y in points[:, 1]],
        "similarity": [round(float(cosine), _DIGITS) for cosine in similarity],
    }


@functools.cache
def _plane(queries: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The centre float64[D] and the two principal axes float64[2, D] of these queries.

    With the development tasks' queries, all runs are drawn in the same plane. The largest entry of an axis is positive.
    """
    embeddings = HashedNgrams()(list(queries)).astype(np.float64)
    centre = embeddings.mean(axis=0)
    centred = embeddings - centre
    # Computed from inner products of tasks: there are far fewer tasks than dimensions.
    spread, vectors = np.linalg.eigh(centred @ centred.T)
    axes = (vectors[:, -2:].T @ centred)[::-1] / np.sqrt(spread[-2:][::-1])[:, None]
    return centre, axes * np.sign(axes[np.arange(2), np.abs(axes).argmax(axis=1)])[:, None]
