"""Quality of a task set: its diversity, its distance to the evaluation tasks, and the length of its solutions.

These are CoEvolve's task-set metrics. They are numbers only: no text, and so no query of an evaluation task, gets out.
"""

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from cojax.quality.embedding import Embed, EmbeddingError, EndpointEmbedding, HashedNgrams
from cojax.quality.measures import (
    across,
    energy_distance,
    greatest_similarity,
    histogram,
    neighbour_similarity,
    relative_energy,
    within,
)
from cojax.storage.files import Log
from cojax.types import Task

__all__ = [
    "EMBEDDINGS", "Embed", "EmbeddingError", "HashedNgrams", "describe_pool", "energy_distance", "greatest_similarity",
    "histogram", "neighbour_similarity",
]  # fmt: skip

MOST = 2_000  # tasks of a set that are compared; of a larger set, a sample
_DIGITS = 6  # decimals of the figures


def describe_pool(
    pool: Iterable[Task], targets: Sequence[Task], embed: Embed | None, k: int, most: int = MOST
) -> dict[str, Any]:
    """The quality of a pool, as metrics.jsonl stores it. The keys are stable:

    tasks          number of tasks compared: all of the pool, or a sample of `most`
    sr_at_k        mean cosine of each query to its k nearest in the pool; lower is more diverse
    ed_rel         energy distance to the target queries, of their mean pairwise distance; lower is closer
    max_similarity cosine of each query to its nearest target: `mean`, `max`, and `histogram`, counts in 20 bins, 0 to 1
    turns          mean actions of a solution
    initial, synthesized    the same of the initial tasks, and of those that evolution added

    Figures that are undefined are left out: those of fewer than two tasks, or without targets. Where `embed` is None,
    all that need embeddings are left out. A sample holds the tasks with the smallest ids. As ids are hashes of the
    content, it is as good as random, and mostly stays the same as the pool grows. Raises EmbeddingError.
    """
    tasks = list(pool)
    parts = {
        "": tasks,
        "initial": [task for task in tasks if not _step(task)],
        "synthesized": [task for task in tasks if _step(task)],
    }
    samples = {name: _sample(members, most) for name, members in parts.items()}
    found = {
        name: {"tasks": len(sample), **_turns(parts[name])} for name, sample in samples.items() if sample or not name
    }
    if embed is not None and tasks:
        for name, figures in _embedding_figures(samples, _sample(targets, most), embed, k).items():
            found[name] |= figures
    return {**found.pop(""), **found}


def _embedding_figures(
    samples: dict[str, list[Task]], targets: Sequence[Task], embed: Embed, k: int
) -> dict[str, dict[str, Any]]:
    """The figures that need embeddings, of each sample that is not empty. Each task is embedded and compared once."""
    every = list({task.id: task for sample in samples.values() for task in sample}.values())
    embeddings = embed([task.query for task in (*every, *targets)])
    if embeddings.shape[:1] != (len(every) + len(targets),):
        raise EmbeddingError(f"{len(every) + len(targets)} texts gave embeddings of shape {embeddings.shape}")
    generated, target = embeddings[: len(every)], embeddings[len(every) :]
    row = {task.id: place for place, task in enumerate(every)}
    nearest, far = across(generated, target)
    spread = within(target, 1)[1]
    found: dict[str, dict[str, Any]] = {}
    for name, sample in samples.items():
        if sample:
            rows = np.array([row[task.id] for task in sample])
            near, own = within(generated[rows], k)
            both = {"sr_at_k": near, "ed_rel": relative_energy(far[rows], own, spread)}
            figures: dict[str, Any] = {key: round(value, _DIGITS) for key, value in both.items() if value is not None}
            if len(target):
                cosines = nearest[rows]
                mean, most = round(float(cosines.mean()), _DIGITS), round(float(np.max(cosines)), _DIGITS)
                figures["max_similarity"] = {"mean": mean, "max": most, "histogram": histogram(cosines)}
            found[name] = figures
    return found


def _turns(tasks: Sequence[Task]) -> dict[str, float]:
    lengths = [len(task.solution) for task in tasks if task.solution]
    return {"turns": round(sum(lengths) / len(lengths), _DIGITS)} if lengths else {}


def _sample(tasks: Sequence[Task], most: int) -> list[Task]:
    """At most `most` of the tasks, in their order: those with the smallest ids."""
    if len(tasks) <= most:
        return list(tasks)
    kept = set(heapq.nsmallest(most, (task.id for task in tasks)))
    return [task for task in tasks if task.id in kept]


def _step(task: Task) -> int:
    return task.lineage.step if task.lineage else 0


# (base URL, model, cache) → an embedding. Raises ValueError for settings that cannot work.
EMBEDDINGS: dict[str, Callable[[str, str, Log | None], Embed]] = {
    "local": lambda base_url, model, kept: HashedNgrams(),
    "endpoint": lambda base_url, model, kept: EndpointEmbedding(base_url, model, kept),
}
