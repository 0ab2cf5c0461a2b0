"""Stages 2 and 3 as one pipeline: expeditions → contexts → triplets → drafts → verdicts → tasks."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from cojax.environment import Environment, EnvironmentFailure
from cojax.explorer import Explorer, Metered
from cojax.synthesis.collector import Collector, Synthesis
from cojax.synthesis.expedition_batch import ExpeditionBatch, Validate
from cojax.synthesis.expeditions import EVOLUTIONS, EvolutionInputs, Expedition, fresh_places
from cojax.synthesis.interruption import Interrupted
from cojax.synthesis.selection import SELECTIONS, select
from cojax.validation.similarity import NearDuplicates

__all__ = [
    "EVOLUTIONS",
    "SELECTIONS",
    "EvolutionInputs",
    "Expedition",
    "Interrupted",
    "Synthesis",
    "Validate",
    "fresh_places",
    "initial_tasks",
    "select",
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
    """Goes on the expeditions in waves of `explorer.width` until `budget` tasks are found, at most `per_context` of
    each.

    `known` tells whether the pool holds a task of that id, `kin` whether it holds one that is worded alike. The
    expeditions of a batch go at once, each with its share of a metered explorer's budget, and know what was found
    before the batch; then what they found is taken up in their order, less what an earlier one found too and what the
    budget does not hold. An environment or a model that breaks costs its expedition or its draft and is counted; it
    never ends the evolution. The same seed, and the same replies where there is a model, give the same tasks.

    Raises Interrupted soon after `stop` turns true.
    """
    # An evolution that is not brought to its end leaves nothing in the kin of the pool.
    harvest = Collector(
        explorer.name, step, budget, NearDuplicates(0.0) if near_duplicates is None else near_duplicates.fork()
    )
    if isinstance(explorer, Metered):
        explorer.begin(seed)

    def taken(id: str) -> bool:
        return id in harvest.tasks or known(id)

    numbered = enumerate(_unbroken(expeditions, harvest.counts))
    while chosen := list(itertools.islice(numbered, max(0, min(explorer.width, harvest.left)))):
        batch = ExpeditionBatch(environment, validate, taken, harvest.near_duplicates, min(per_context, harvest.left))
        for result in batch.results(explorer, chosen, seed, stop):
            harvest.take(result)
    return harvest.gathered(explorer.figures() if isinstance(explorer, Metered) else {})


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
    """D_0: `count` tasks by unguided exploration, `per_context` a setup, from at most `attempts * count` setups.

    Raises ValueError where the environment yields fewer, naming the commonest reasons.
    """
    places = (place for round in range(attempts) for place in fresh_places(environment, split, count, (*seed, round)))
    result = synthesize(
        (Expedition(place, "unguided", weights=weights) for place in places),
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
        reasons = result.reasons() or ["no draft could be worded"]
        raise ValueError(
            f"{count} initial tasks wanted, {len(result.tasks)} found on {result.counts['expeditions']} setups; "
            f"commonest reasons: {'; '.join(reasons)}; the environment failed {result.counts['failures']}× and lost "
            f"{result.counts['runs_failed']} runs. Lower initial_tasks, or raise the explorer's runs or steps."
        )
    return result


def _unbroken(expeditions: Iterable[Expedition], counts: Counter[str]) -> Iterator[Expedition]:
    """The expeditions up to where the environment breaks, which is counted."""
    try:
        yield from expeditions
    except EnvironmentFailure:
        counts["failures"] += 1
