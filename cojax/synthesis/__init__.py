"""Stages 2 and 3 as one pipeline: expeditions → contexts → triplets → drafts → verdicts → tasks.

selection.py         selects the signals that an evolution follows
evolutions.py        the ways to guide an evolution, by name
expeditions.py       chooses the task and the guidance of each expedition
credits.py           the evolution `credited`: signals weighted by what they led to
beliefs.py           beliefs about the policy's success with tools and pairs of tools
posteriors.py        the evolution `posteriors`: plans tools of uncertain success
frontier.py          the evolution `frontier`: joins tasks that are mastered
expedition_batch.py  runs a batch of expeditions in parallel and validates their drafts
collector.py         gathers the new tasks, in the order of the expeditions
admission.py         chooses the tasks that enter the pool, if more are found than it takes
records.py           makes the lines of drafts.jsonl and expeditions.jsonl, and a task's lineage
idle.py              says why an evolution made no expedition
interruption.py      stops an evolution early
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from cojax.environment import Environment, EnvironmentFailure
from cojax.explorer import Explorer, Metered
from cojax.synthesis.admission import ADMISSIONS, Admission, admit
from cojax.synthesis.collector import Collector, Predict, Synthesis
from cojax.synthesis.evolutions import EVOLUTIONS, MEMORIES, expeditions_of, reads
from cojax.synthesis.expedition_batch import ExpeditionBatch, Validate
from cojax.synthesis.expeditions import EvolutionInputs, Expedition, reflect_on, sample_setups
from cojax.synthesis.interruption import Interrupted
from cojax.synthesis.selection import SELECTIONS
from cojax.types import Task, TaskDraft, Verdict
from cojax.validation.similarity import NearDuplicates

__all__ = [
    "ADMISSIONS",
    "EVOLUTIONS",
    "MEMORIES",
    "SELECTIONS",
    "Admission",
    "EvolutionInputs",
    "Expedition",
    "Interrupted",
    "Synthesis",
    "Validate",
    "admit",
    "expeditions_of",
    "initial_tasks",
    "reads",
    "reflect_on",
    "sample_setups",
    "synthesize",
]  # fmt: skip

# Words of a reason why drafts are refused → the setting that lets more of them pass.
_ADVICE = (
    ("near duplicate", "a higher validation.pool_similarity (0 compares no wording), "),
    ("worded alike", "a higher validation.evaluation_similarity (0 compares no wording), "),
    ("evaluation task", "evaluation tasks on other setups, "),
    ("wrote no draft", "actions that work and can be worded (affordances, phrase; see environments.check), "),
)


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
    predict: Predict = lambda draft: None,
    stop: Callable[[], bool] = lambda: False,
) -> Synthesis:
    """Runs the expeditions in batches of `explorer.width` until `budget` tasks are found, at most `per_context` by each
    expedition.

    `known` says whether the pool holds a task with a given id, and `near_duplicates` whether it holds one with similar
    wording. `predict` gives the success predicted of a draft, for its record. The expeditions of a batch run in
    parallel, each with an equal share of a metered explorer's budget. They see the tasks found by earlier batches.
    After a batch, tasks are taken in the order of the expeditions. Tasks that an earlier expedition also found, and
    tasks beyond `budget`, are dropped. If an environment or a model fails, its expedition or draft is lost and counted,
    and the evolution goes on. The same seed gives the same tasks, provided that a model gives the same replies.

    Raises Interrupted soon after `stop` turns true.
    """
    # A fork: an interrupted evolution must not change the pool's own index of wordings.
    wordings = NearDuplicates(0.0) if near_duplicates is None else near_duplicates.fork()
    collector = Collector(explorer.name, step, budget, wordings, predict)
    if isinstance(explorer, Metered):
        explorer.begin(seed)

    def taken(id: str) -> bool:
        return id in collector.tasks or known(id)

    numbered = enumerate(_until_failure(expeditions, collector.counts))
    while chosen := list(itertools.islice(numbered, max(0, min(explorer.width, collector.left)))):
        batch = ExpeditionBatch(environment, validate, taken, wordings, min(per_context, collector.left))
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
    examined: Callable[[], object] = lambda: None,
) -> Synthesis:
    """D_0: `count` tasks by unguided exploration, at most `per_context` by each of `attempts * count` expeditions.

    `examined` is called after each draft that was examined. If there are fewer setups than expeditions, setups are used
    again. Raises ValueError, which names the commonest reasons and what may help, if fewer tasks are found.
    """

    def validated(draft: TaskDraft, known: Callable[[str], bool], by: Explorer) -> tuple[Verdict, Task | None]:
        found = validate(draft, known, by)
        examined()
        return found

    setups = _setups(environment, split, count, seed, attempts * count)
    result = synthesize(
        (Expedition(setup, "unguided", weights=weights) for setup in setups),
        environment,
        explorer,
        validated,
        lambda id: False,
        budget=count,
        per_context=per_context,
        seed=seed,
        step=0,
        near_duplicates=near_duplicates,
    )
    if len(result.tasks) < count:
        raise ValueError(_too_few(count, result))
    return result


def _setups(environment: Environment, split: str, count: int, seed: tuple, most: int) -> Iterator[Task]:
    """Yields up to `most` setups, drawn `count` at a time, or as many as the split has; none if it has none."""
    for round in itertools.count():
        found = sample_setups(environment, split, count, (*seed, round))
        yield from found[:most]
        most -= len(found)
        if most <= 0 or not found:
            return


def _too_few(count: int, result: Synthesis) -> str:
    """Why D_0 has fewer than `count` tasks, and what may help."""
    found, counts = len(result.tasks), result.counts
    reasons = result.reasons() or ["the explorer wrote no draft" if counts["expeditions"] else "there are no setups"]
    advice = next((advice for words, advice in _ADVICE if words in reasons[0]), "")
    fewer = f"lower initial_tasks to {found}, " if found else ""
    return (
        f"{count} initial tasks wanted, {found} found by {counts['expeditions']} expeditions; commonest reasons: "
        f"{'; '.join(reasons)}; the environment failed {counts['failures']}× and lost {counts['runs_failed']} runs. "
        f"What can help: {advice}{fewer}more setups or tools, or more runs and steps of the explorer (explorer.runs, "
        "explorer.steps)."
    )


def _until_failure(expeditions: Iterable[Expedition], counts: Counter[str]) -> Iterator[Expedition]:
    """The expeditions until the environment fails to give the next one; the failure is counted."""
    try:
        yield from expeditions
    except EnvironmentFailure:
        counts["failures"] += 1
