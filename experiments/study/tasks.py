"""A run's tasks as numbers: where they lie, how like the evaluation tasks they are worded, how long they are."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

import environments
from cojax.types import Task
from cojax.validation.similarity import Nearest

# Tasks that span the plane: those of the development split, the same for every run.
_SPANNING = 500
_DIGITS = 4
Columns = dict[str, list[Any]]


@functools.cache
def plane(environment: str) -> Any:
    """TF-IDF of words, then the two principal axes of the development tasks: one plane for all runs."""
    from sklearn.decomposition import PCA
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    queries = [task.query for task in environments.load(environment).tasks("dev", _SPANNING)]
    dense = FunctionTransformer(_dense, accept_sparse=True)
    return make_pipeline(TfidfVectorizer(), dense, PCA(2, svd_solver="full")).fit(queries)


def _dense(matrix: Any) -> np.ndarray:
    return matrix.toarray()


@functools.cache
def _nearest(environment: str, split: str, count: int) -> Nearest:
    return Nearest(task.query for task in environments.load(environment).tasks(split, count))


def described(tasks: Sequence[Task], environment: str, split: str, count: int) -> Columns:
    """One column each: `step` and `origin` of the task, `turns` of its solution, `x` and `y` in the plane, and
    `similarity`, the greatest cosine to one of the `count` tasks of `split` that are evaluated."""
    if not tasks:
        return {name: [] for name in ("step", "origin", "turns", "x", "y", "similarity")}
    places = plane(environment).transform([task.query for task in tasks])
    nearest = _nearest(environment, split, count)
    return {
        "step": [task.lineage.step if task.lineage else 0 for task in tasks],
        "origin": [task.origin for task in tasks],
        "turns": [len(task.solution) for task in tasks],
        "x": [round(float(x), _DIGITS) for x in places[:, 0]],
        "y": [round(float(y), _DIGITS) for y in places[:, 1]],
        "similarity": [round(nearest.to(task.query)[0], _DIGITS) for task in tasks],
    }
