"""A run's tasks as numbers: where they lie, how like the evaluation tasks they are worded, how long they are."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

import environments
from cojax.quality import HashedNgrams, greatest_similarity
from cojax.types import Task

# Tasks that span the plane: of the development split, the same for every run.
_SPANNING = 300
_DIGITS = 4
Columns = dict[str, list[Any]]


def described(tasks: Sequence[Task], targets: Sequence[Task]) -> Columns:
    """One column each: `step` and `origin` of the task, `turns` of its solution, `x` and `y` in the plane, and
    `similarity`, the greatest cosine to one of the `targets`, the tasks that are evaluated. At least one task."""
    embed = HashedNgrams()
    embeddings = embed([task.query for task in tasks])
    centre, axes = _plane(tasks[0].environment)
    places = (embeddings - centre) @ axes.T
    similarity = greatest_similarity(embeddings, embed([task.query for task in targets]))
    return {
        "step": [task.lineage.step if task.lineage else 0 for task in tasks],
        "origin": [task.origin for task in tasks],
        "turns": [len(task.solution) for task in tasks],
        "x": [round(float(x), _DIGITS) for x in places[:, 0]],
        "y": [round(float(y), _DIGITS) for y in places[:, 1]],
        "similarity": [round(float(cosine), _DIGITS) for cosine in similarity],
    }


@functools.cache
def _plane(environment: str) -> tuple[np.ndarray, np.ndarray]:
    """Centre float64[D] and the two principal axes float64[2, D] of the development tasks' queries, so that all runs
    are drawn in one plane. An axis points to where its largest entry is positive."""
    tasks = environments.load(environment).tasks("dev", _SPANNING)
    embeddings = HashedNgrams()([task.query for task in tasks]).astype(np.float64)
    centre = embeddings.mean(axis=0)
    apart = embeddings - centre
    # By the tasks' inner products: there are far fewer tasks than dimensions.
    spread, vectors = np.linalg.eigh(apart @ apart.T)
    axes = (vectors[:, -2:].T @ apart)[::-1] / np.sqrt(spread[-2:][::-1])[:, None]
    return centre, axes * np.sign(axes[np.arange(2), np.abs(axes).argmax(axis=1)])[:, None]
