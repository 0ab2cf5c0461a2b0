"""Stages 2 and 3 as one pipeline: expeditions find drafts, validation examines them, and the tasks are gathered.

If an evolution may find more tasks than the pool takes, an admission chooses which of them enter it.
"""

import dataclasses
import functools
import heapq
import itertools
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

from cojax.environment import EngineError, Environment, EnvironmentFailure
from cojax.environment.wrapping import interruptible
from cojax.explorer import Explorer, Metered
from cojax.registry.annotations import Range
from cojax.synthesis.evolutions import sample_setups
from cojax.synthesis.expeditions import Expedition, Finding, Interrupted, run_in_parallel, take_until
from cojax.types import Group, Task, TaskDraft, Verdict

if TYPE_CHECKING:
    from cojax.similarity import NearDuplicates

# (draft, whether an id is taken, the explorer whose budget pays for model calls) → verdict, and the task if accepted.
Validate = Callable[[TaskDraft, Callable[[str], bool], Explorer], tuple[Verdict, Task | None]]
# A draft → the success that is predicted for it, in [0, 1]; None if nothing predicts it.
Predict = Callable[[TaskDraft], float | None]

_COUNT_NAMES = (
    "expeditions", "runs_failed", "triplets", "drafts", "accepted", "retained", "discarded", "quarantined", "failures",
    "explorer_failures",
)  # fmt: skip


# Words of a reason why drafts are refused → the setting that lets more of them pass.
_ADVICE_BY_REASON = (
    ("near duplicate", "a higher validation.pool_similarity (0 compares no wording), "),
    ("worded alike", "a higher validation.evaluation_similarity (0 compares no wording), "),
    ("evaluation task", "evaluation tasks on other setups, "),
    ("wrote no draft", "actions that work and can be worded (affordances, phrase; see environments.check), "),
)


@dataclasses.dataclass(frozen=True)
class Synthesis:
    """The result of an evolution.

    `drafts` has one record of drafts.jsonl for each draft that was validated, and `expeditions` one record of
    expeditions.jsonl for each expedition. `figures` are the explorer's costs, as it reports them. `probe_cost` is what
    an admission cost, empty if nothing was tried. `idle_reason` says why an evolution made no expedition, "" if it made
    one.

    `counts` holds expeditions, runs_failed, triplets, drafts, accepted, retained, discarded, quarantined (among the
    discarded), failures (expeditions or validations ended by a failure of the environment), explorer_failures
    (expeditions ended by a failure of the explorer's model).
    """

    tasks: tuple[Task, ...] = ()
    drafts: tuple[dict[str, Any], ...] = ()
    counts: Mapping[str, int] = dataclasses.field(default_factory=lambda: dict.fromkeys(_COUNT_NAMES, 0))
    expeditions: tuple[dict[str, Any], ...] = ()
    figures: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    probe_cost: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    idle_reason: str = ""

    @property
    def quarantined_drafts(self) -> list[dict[str, Any]]:
        """The records of the drafts that a person should look at."""
        return [record for record in self.drafts if record["verdict"]["quarantine"]]

    def reasons(self, count: int = 3) -> list[str]:
        """The commonest reasons why drafts were refused or expeditions failed, as "reason (4×)".

        Reasons that differ only in numbers count as one; the first of them is shown.
        """
        refusal_texts = [record["verdict"]["evidence"][-1] for record in self.drafts if not record["task"]]
        failures = [record["error"] for record in self.expeditions if record["error"]]
        # If all runs of an expedition failed, the reason of the first one counts.
        run_errors = (record["failures"][0] for record in self.expeditions if record["failures"] and not record["runs"])
        failures += [failure.partition(": ")[2] if failure.startswith("run ") else failure for failure in run_errors]
        by_wording: dict[str, list[str]] = {}
        for reason in (*refusal_texts, *failures):
            by_wording.setdefault(re.sub(r"\d+", "#", reason), []).append(reason)
        return [f"{reasons[0]} ({len(reasons)}×)" for reasons in heapq.nlargest(count, by_wording.values(), key=len)]


def synthesize(
    expeditions: Iterable[Expedition],
    environment: Environment,
    explorer: Explorer,
    validate: Validate,
    in_pool: Callable[[str], bool],
    *,
    budget: int,
    per_context: int,
    seed: tuple,
    step: int,
    near_duplicates: "NearDuplicates | None" = None,
    predict: Predict = lambda draft: None,
    stop: Callable[[], bool] = lambda: False,
) -> Synthesis:
    """Runs the expeditions until `budget` tasks are found, at most `per_context` by each expedition.

    `in_pool` says whether the pool holds a task with a given id, and `near_duplicates` whether it holds a similarly
    worded one. `predict` predicts a draft's success, for its record. Expeditions run in batches of `explorer.width`. In
    a batch they run in parallel, each with an equal share of a metered explorer's budget. They see the tasks found by
    earlier batches. After a batch, tasks are taken in the order of the expeditions. Tasks that an earlier expedition
    also found, and tasks beyond `budget`, are dropped. If an environment or a model fails, its expedition or draft is
    lost and counted, and the evolution goes on. The same seed gives the same tasks, provided that a model gives the
    same replies.

    Raises Interrupted soon after `stop` turns true.
    """
    # A fork: an interrupted evolution must not change the pool's own index of wordings.
    forked_duplicates = near_duplicates and near_duplicates.fork()
    search = _Search(explorer.name, environment, validate, in_pool, forked_duplicates, predict, stop, budget, step)
    if isinstance(explorer, Metered):
        explorer.begin(seed)
    failures: list[EnvironmentFailure] = []
    numbered_expeditions = enumerate(take_until(expeditions, failures, (EnvironmentFailure,)))
    while batch := list(itertools.islice(numbered_expeditions, max(0, min(explorer.width, search.tasks_left)))):
        run = functools.partial(search.run, min(per_context, search.tasks_left))
        for (number, _), expedition in zip(batch, run_in_parallel(run, explorer, batch, seed, stop), strict=True):
            search.add_expedition(number, expedition)
    search.counts["failures"] += len(failures)
    figures = explorer.figures() if isinstance(explorer, Metered) else {}
    return Synthesis(
        tuple(search.tasks.values()), tuple(search.drafts), dict(search.counts), tuple(search.expeditions), figures
    )


def initial_tasks(
    environment: Environment,
    explorer: Explorer,
    validate: Validate,
    count: int,
    *,
    seed: tuple,
    weights: Mapping[str, float] | None,
    attempts: int = 10,
    per_context: int = 1,
    near_duplicates: "NearDuplicates | None" = None,
    examined: Callable[[], object] = lambda: None,
    stop: Callable[[], bool] = lambda: False,
) -> Synthesis:
    """Finds D_0: `count` tasks by unguided exploration, at most `per_context` in each of `attempts * count` trips.

    `examined` is called after each draft that was examined. If there are fewer setups than expeditions, setups are used
    again. If fewer tasks are found, raises ValueError, which names the commonest reasons and what may help. Raises
    Interrupted soon after `stop` turns true.
    """

    def validate_draft(draft: TaskDraft, has_id: Callable[[str], bool], payer: Explorer) -> tuple[Verdict, Task | None]:
        result = validate(draft, has_id, payer)
        examined()
        return result

    setups = itertools.islice(_draw_setups(environment, count, seed), attempts * count)
    synthesis = synthesize(
        (Expedition(setup, "unguided", weights=weights) for setup in setups),
        environment,
        explorer,
        validate_draft,
        lambda id: False,
        budget=count,
        per_context=per_context,
        seed=seed,
        step=0,
        near_duplicates=near_duplicates,
        stop=stop,
    )
    if len(synthesis.tasks) < count:
        raise ValueError(_explain_too_few(count, synthesis))
    return synthesis


@dataclasses.dataclass
class _Search:
    """An evolution under way: what its expeditions share, and what they have found so far.

    It changes only between batches, while no expedition runs.
    """

    explorer: str
    environment: Environment
    validate: Validate
    in_pool: Callable[[str], bool]
    wordings: "NearDuplicates | None"
    predict: Predict
    stop: Callable[[], bool]
    budget: int
    step: int
    tasks: dict[str, Task] = dataclasses.field(default_factory=dict)
    drafts: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    expeditions: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    counts: Counter[str] = dataclasses.field(default_factory=lambda: Counter(dict.fromkeys(_COUNT_NAMES, 0)))

    @property
    def tasks_left(self) -> int:
        """The number of tasks still to be found."""
        return self.budget - len(self.tasks)

    def run(
        self, max_tasks: int, explorer: Explorer, expedition: Expedition, seed: tuple, is_unwanted: Callable[[], bool]
    ) -> Expedition:
        """Runs one expedition until `max_tasks` tasks are found.

        It may propose two drafts more than that, because not every draft is accepted.
        """

        def is_over() -> bool:
            return is_unwanted() or self.stop()

        interruptible_environment = interruptible(self.environment, is_over)
        examine = functools.partial(self._examine, explorer=explorer, max_tasks=max_tasks, is_over=is_over)
        return expedition.run(explorer, interruptible_environment, seed, max_tasks + 2, examine)

    def _examine(
        self, drafts: Iterable[TaskDraft], *, explorer: Explorer, max_tasks: int, is_over: Callable[[], bool]
    ) -> Iterator[Finding]:
        """Yields the drafts with their verdicts. A draft worded like another task is refused before it is run."""
        own_tasks: dict[str, Task] = {}
        own_duplicates = self.wordings and self.wordings.fork()

        def is_taken(id: str) -> bool:
            return id in own_tasks or id in self.tasks or self.in_pool(id)

        for draft in drafts:
            if is_over():
                raise Interrupted
            if duplicate_reason := own_duplicates.find_draft_duplicate(draft, is_taken) if own_duplicates else "":
                yield draft, Verdict("discarded", (duplicate_reason,)), None
                continue
            verdict, task = self.validate(draft, is_taken, explorer)
            if task is not None:
                own_tasks[task.id] = task
                if own_duplicates:
                    own_duplicates.add(task)
            yield draft, verdict, task
            if len(own_tasks) == max_tasks:
                return

    def add_expedition(self, number: int, expedition: Expedition) -> None:
        """Adds the tasks of an expedition, unless earlier ones make them superfluous, and all its records."""
        counts = self.counts
        counts["expeditions"] += 1
        counts["runs_failed"] += len(expedition.failures)
        counts["triplets"] += len(expedition.triplets)
        for draft, verdict, task in expedition.findings:
            if task is not None and (refusal := self._explain_superfluous(task)):
                verdict = dataclasses.replace(verdict, status="discarded", evidence=(*verdict.evidence, refusal))
                task = None
            counts["drafts"] += 1
            counts[verdict.status] += 1
            counts["quarantined"] += bool(verdict.quarantine)
            counts["failures"] += any(line.startswith("environment failed") for line in verdict.evidence)
            if task is not None:
                lineage = expedition.lineage(draft, verdict, self.explorer, self.step)
                task = dataclasses.replace(task, origin=expedition.origin, lineage=lineage)
                self.tasks[task.id] = task
                if self.wordings:
                    self.wordings.add(task)
            belief = self.predict(draft)
            self.drafts.append(expedition.draft_record(draft, verdict, task, self.step, number, belief))
        counts["failures"] += sum(isinstance(error, EnvironmentFailure) for error in expedition.errors)
        counts["explorer_failures"] += sum(isinstance(error, EngineError) for error in expedition.errors)
        self.expeditions.append(expedition.record(self.step, number))

    def _explain_superfluous(self, task: Task) -> str:
        """Why earlier expeditions of the same batch make this task superfluous; "" if they do not."""
        if task.id in self.tasks:
            return f"duplicate of task {task.id}"
        if self.tasks_left <= 0:
            return f"superfluous: the {self.budget} tasks wanted were already found"
        return self.wordings.find_duplicate(task) if self.wordings else ""


def _draw_setups(environment: Environment, count: int, seed: tuple) -> Iterator[Task]:
    """Yields setups without end, drawn `count` at a time; none if the environment has none."""
    rounds = itertools.count()
    while setups := sample_setups(environment, "seed", count, (*seed, next(rounds))):
        yield from setups


def _explain_too_few(count: int, synthesis: Synthesis) -> str:
    """Why D_0 has fewer than `count` tasks, and what may help."""
    task_count, counts = len(synthesis.tasks), synthesis.counts
    reasons = synthesis.reasons() or ["the explorer wrote no draft" if counts["expeditions"] else "there are no setups"]
    advice = next((advice for reason_words, advice in _ADVICE_BY_REASON if reason_words in reasons[0]), "")
    fewer_advice = f"lower initial_tasks to {task_count}, " if task_count else ""
    return (
        f"{count} initial tasks wanted, {task_count} found by {counts['expeditions']} expeditions; commonest reasons: "
        f"{'; '.join(reasons)}; the environment failed {counts['failures']}× and lost {counts['runs_failed']} runs. "
        f"What can help: {advice}{fewer_advice}more setups or tools, or more runs and steps of the explorer "
        "(explorer.runs, explorer.steps)."
    )


# The worth of a candidate that was solved in s of n episodes, by what a probe prefers. Each divides integers only once,
# so that equal worths are equal to the bit.
_WORTH_BY_PREFERENCE: dict[str, Callable[[int, int], float]] = {
    "learnable": lambda s, n: s * (n - s) / (n * n) if n else 0.0,
    "hardest": lambda s, n: (n - s) / n if s else 0.0,
}


class Admission(Protocol):
    """Tries candidates with the present policy, without an update, and chooses among them."""

    @property
    def candidates(self) -> int:
        """The number of candidates that an evolution looks for, per task that it may add."""

    @property
    def attempts(self) -> int:
        """The number of episodes that the policy plays of each candidate."""

    def choose(self, groups: Sequence[Group], budget: int, seed: tuple) -> Sequence[Task]:
        """At most `budget` of the tasks of these groups; they enter the pool in the order of the groups."""


@dataclasses.dataclass(frozen=True)
class Probe:
    """Keeps the candidates that are worth most, judged by p, the share of their `attempts` episodes that succeed.

    `prefer` defines worth. `learnable`: p(1 − p) favours tasks solved half of the time (sampling for learnability,
    2408.15099). `hardest`: 1 − p for p above 0 favours the least solved of those that were solved at all; a task that
    is never solved is worth nothing. A candidate without a valid episode counts as p = 0. The share `unselected` of the
    tasks kept is instead drawn from all candidates with equal chances, as is half of a batch in that paper. Ties are
    broken at random.
    """

    candidates: Annotated[int, Range(1, 1000)] = 10
    attempts: Annotated[int, Range(2, 10_000)] = 8
    unselected: Annotated[float, Range(0.0, 1.0)] = 0.5
    prefer: Literal["learnable", "hardest"] = "learnable"

    def choose(self, groups: Sequence[Group], budget: int, seed: tuple) -> Sequence[Task]:
        rng = random.Random(repr(("admission", seed)))
        random_order = rng.sample(range(len(groups)), len(groups))
        random_indices = random_order[: min(round(self.unselected * budget), budget)]
        worths = [_WORTH_BY_PREFERENCE[self.prefer](group.solved, len(group.valid)) for group in groups]
        # The sort is stable: equals stay in random order.
        best_indices = sorted(random_order[len(random_indices) :], key=lambda index: -worths[index])
        chosen_indices = {*random_indices, *best_indices[: budget - len(random_indices)]}
        return [group.task for index, group in enumerate(groups) if index in chosen_indices]


def admit_everything() -> None:
    """Admits every task that is found; none is tried."""
    return None


ADMISSIONS: dict[str, Callable[..., Admission | None]] = {"all": admit_everything, "probe": Probe}


def admit(synthesis: Synthesis, groups: Sequence[Group], selection: Sequence[Task]) -> Synthesis:
    """The synthesis with only the tasks of `selection`; `groups` holds the episodes of all its tasks.

    Each draft's record and each task's lineage say how often the task was solved. A draft whose task is not selected
    counts as discarded. `probe_cost` holds the cost, in total and by origin, and the share of live groups.
    """
    group_by_task = {group.task.id: group for group in groups}
    ids = {task.id for task in selection}
    refusal_count = len(synthesis.tasks) - len(ids)
    counts = {
        **synthesis.counts,
        "accepted": synthesis.counts["accepted"] - refusal_count,
        "discarded": synthesis.counts["discarded"] + refusal_count,
    }
    drafts = tuple(
        _update_draft_record(record, group_by_task[record["task"]], record["task"] in ids) if record["task"] else record
        for record in synthesis.drafts
    )
    tasks = tuple(_add_evidence(task, group_by_task[task.id]) for task in synthesis.tasks if task.id in ids)
    return dataclasses.replace(synthesis, tasks=tasks, drafts=drafts, counts=counts, probe_cost=_sum_cost(groups, ids))


def _evidence(group: Group) -> str:
    return f"probed: {group.solved} of {len(group.valid)} episodes of the present policy solved it"


def _update_draft_record(record: Mapping[str, Any], group: Group, is_admitted: bool) -> dict[str, Any]:
    verdict = record["verdict"]
    lines = [*verdict["evidence"], _evidence(group), *([] if is_admitted else [f"not admitted: {_why_refused(group)}"])]
    verdict = {**verdict, "evidence": lines, "status": verdict["status"] if is_admitted else "discarded"}
    success_rate = group.solved / len(group.valid) if group.valid else None
    if success_rate is not None:
        verdict["difficulty"] = 1.0 - success_rate
    predictions = {**record["predicted"], "probe": success_rate}
    return {**record, "verdict": verdict, "task": record["task"] if is_admitted else "", "predicted": predictions}


def _why_refused(group: Group) -> str:
    if not group.valid:
        return "no episode was valid"
    return "others are worth more" if group.solved or group.live else "no episode solved it"


def _add_evidence(task: Task, group: Group) -> Task:
    assert task.lineage is not None, "a synthesized task has a lineage"
    lineage = dataclasses.replace(task.lineage, evidence=(*task.lineage.evidence, _evidence(group)))
    return dataclasses.replace(task, lineage=lineage)


def _sum_cost(groups: Sequence[Group], admitted_ids: set[str]) -> dict[str, Any]:
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    admitted_groups = [group for group in groups if group.task.id in admitted_ids]
    counts_by_origin = {
        origin: _count_episodes([group for group in groups if group.task.origin == origin])
        for origin in sorted({group.task.origin for group in groups})
    }
    return {
        **_count_episodes(groups),
        "tokens": sum(len(turn.action_tokens) for trajectory in trajectories for turn in trajectory.turns),
        "live": sum(group.live for group in groups) / max(1, len(groups)),
        "live_kept": sum(group.live for group in admitted_groups) / max(1, len(admitted_groups)),
        "origins": counts_by_origin,
    }


def _count_episodes(groups: Sequence[Group]) -> dict[str, int]:
    """Counts the candidates, their episodes, and the environment steps of these episodes."""
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    return {
        "candidates": len(groups),
        "episodes": len(trajectories),
        "turns": sum(len(trajectory.turns) for trajectory in trajectories),
    }
