"""Stages 2 and 3 as one pipeline: expeditions → contexts → triplets → drafts → verdicts → tasks.

selection.py         which signals an evolution follows
expeditions.py       where an evolution's expeditions go
expedition_batch.py  runs a batch of expeditions at the same time and validates their drafts
collector.py         gathers the new tasks, in the order of the expeditions
records.py           the lines of drafts.jsonl and expeditions.jsonl, and a task's lineage
interruption.py      stops an evolution before its end
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from cojax.environment import Environment, EnvironmentFailure
from cojax.explorer import Explorer, Metered
from cojax.synthesis.collector import Collector, Synthesis
from cojax.synthesis.expedition_batch import ExpeditionBatch, Validate
from cojax.synthesis.expeditions import EVOLUTIONS, EvolutionInputs, Expedition, sample_setups
from cojax.synthesis.interruption import Interrupted
from cojax.synthesis.selection import SELECTIONS
from cojax.validation.similarity import NearDuplicates

__all__ = [
    "EVOLUTIONS",
    "SELECTIONS",
    "EvolutionInputs",
    "Expedition",
    "Interrupted",
    "Synthesis",
    "Validate",
    "initial_tasks",
    "sample_setups",
    "synthesize",
]  # fmt: skip


def synthesize(
    expeditions: Iterable[Expedition],
    environment: Environment,
    explorer: Explorer,
    validate: Validate,
    known: Callable[[str], bool],
    *,
    budget: int,
    per_context: int,
    seed: tuple,
    step: int,
    near_duplicates: NearDuplicates | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Synthesis:
    """Runs the expeditions in batches of `explorer.width` until `budget` tasks are found, at most `per_context` of each
    expedition.

    `known` tells whether the pool holds a task of an id, and `near_duplicates` whether it holds one with a similar
    wording. The expeditions of a batch run at the same time, each with its share of a metered explorer's budget. They
    know the tasks found before the batch. Their tasks are then taken in the order of the expeditions, without those
    that an earlier expedition found too and those beyond the budget. Where an environment or a model breaks, its
    expedition or draft is lost and counted; the evolution goes on. The same seed, and with a model the same replies,
    give the same tasks.

    Raises Interrupted soon after `stop` turns true.
    """
    # The pool's near duplicates learn nothing of an evolution that may be interrupted: the collector has a fork.
    similar = NearDuplicates(0.0) if near_duplicates is None else near_duplicates.fork()
    collector = Collector(explorer.name, step, budget, similar)
    if isinstance(explorer, Metered):
        explorer.begin(seed)

    def taken(id: str) -> bool:
        return id in collector.tasks or known(id)

    numbered = enumerate(_until_failure(expeditions, collector.counts))
    while chosen := list(itertools.islice(numbered, max(0, min(explorer.width, collector.left)))):
        batch = ExpeditionBatch(environment, validate, taken, similar, min(per_context, collector.left))
        for result in batch.results(explorer, chosen, seed, stop):
            collector.take(result)
    return collector.synthesis(explorer.figures() if isinstance(explorer, Metered) else {})


def initial_tasks(
    environment: Environment,
    explorer: Explorer,
    validate: Validate,
    count: int,
    *,
    seed: tuple,
    weights: Mapping[str, float] | None,
    split: str = "seed",
    attempts: int = 10,
    per_context: int = 1,
    near_duplicates: NearDuplicates | None = None,
) -> Synthesis:
    """D_0: `count` tasks by unguided exploration, at most `per_context` on each of at most `attempts * count` setups.

    Raises ValueError where fewer are found, naming the commonest reasons.
    """
    setups = (setup for round in range(attempts) for setup in sample_setups(environment, split, count, (*seed, round)))
    result = synthesize(
        (Expedition(setup, "unguided", weights=weights) for setup in setups),
        environment,
        explorer,
        validate,
        lambda id: False,
        budget=count,
        per_context=per_context,
        seed=seed,
        step=0,
        near_duplicates=near_duplicates,
    )
    if len(result.tasks) < count:
        reasons = result.reasons() or ["the explorer wrote no draft"]
        raise ValueError(
            f"{count} initial tasks wanted, {len(result.tasks)} found on {result.counts['expeditions']} setups; "
            f"commonest reasons: {'; '.join(reasons)}; the environment failed {result.counts['failures']}× and lost "
            f"{result.counts['runs_failed']} runs. Lower initial_tasks, or raise the explorer's runs or steps."
        )
    return result


def _until_failure(expeditions: Iterable[Expedition], counts: Counter[str]) -> Iterator[Expedition]:
    """The expeditions until the environment fails to give the next one; the failure is counted."""
    try:
        yield from expeditions
    except EnvironmentFailure:
        counts["failures"] += 1
