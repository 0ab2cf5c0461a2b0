"""Expeditions: trips of an explorer to the setup of a task, which run in parallel; and their records on disk.

An expedition sees nothing that others find at the same time. So its results depend only on its seed and the model's
replies.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from typing import Any, TypeVar

from cojax.environment import EngineError, Environment, EnvironmentFailure
from cojax.explorer import Explorer, Metered
from cojax.host.background import Interrupted, in_background
from cojax.types import ExplorationContext, Lineage, Origin, Task, TaskDraft, Triplet, Verdict, to_json

_T = TypeVar("_T")
# Seconds between two checks of whether to stop.
_POLL_S = 0.05
# Seconds that expeditions get to end by themselves after a stop.
_GRACE_S = 1.0

# A draft with its verdict, and with the task if the draft was accepted.
Finding = tuple[TaskDraft, Verdict, Task | None]


@dataclasses.dataclass(frozen=True)
class Expedition:
    """One trip of an explorer to the task's setup, guided by a context, or unguided with weights over tools.

    `signal` is the evidence of the signal behind it, "" if there is none. `reflect` makes the context when the
    expedition starts, not earlier: a model may take long, and several expeditions can reflect in parallel.

    `run` adds the results: the `triplets` of all runs, one line of `failures` for each run that failed, the `findings`
    of examining its drafts, and the `errors` that ended it early.
    """

    task: Task
    origin: Origin
    context: ExplorationContext | None = None
    signal: str = ""
    weights: Mapping[str, float] | None = None
    reflect: Callable[[Explorer], ExplorationContext] | None = None
    triplets: tuple[Triplet, ...] = ()
    failures: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    errors: tuple[EnvironmentFailure | EngineError, ...] = ()

    def prepare(self, explorer: Explorer) -> "Expedition":
        """The expedition with its context; `reflect`, if given, makes it now."""
        if self.reflect is None:
            return self
        return dataclasses.replace(self, context=self.reflect(explorer), reflect=None)

    def run(
        self,
        explorer: Explorer,
        environment: Environment,
        seed: tuple,
        max_drafts: int,
        examine: Callable[[Iterable[TaskDraft]], Iterator[Finding]],
    ) -> "Expedition":
        """Reflects, explores, abstracts and examines at most `max_drafts` drafts; returns a copy with the results."""
        trip = self
        try:
            trip = self.prepare(explorer)
            exploration = explorer.explore(environment, trip.task, trip.context, seed, trip.weights)
        except (EnvironmentFailure, EngineError) as error:
            return dataclasses.replace(trip, errors=(error,))
        errors: list[EnvironmentFailure | EngineError] = []
        drafts = explorer.abstract(exploration, environment, max_drafts)
        findings = tuple(examine(take_until(drafts, errors, (EnvironmentFailure, EngineError))))
        return dataclasses.replace(
            trip, triplets=exploration.triplets, failures=exploration.failures, findings=findings, errors=tuple(errors)
        )

    def lineage(self, draft: TaskDraft, verdict: Verdict, explorer: str, step: int) -> Lineage:
        """The lineage of the task that a draft became. An unguided expedition gives it no parent and no episode."""
        return Lineage(
            parent=self.task.id if self.context else "",
            signal=self.signal,
            episode=self.context.episode if self.context else "",
            explorer=explorer,
            runs=draft.runs,
            verdict=verdict.status,
            evidence=verdict.evidence,
            step=step,
        )

    def draft_record(
        self, draft: TaskDraft, verdict: Verdict, task: Task | None, step: int, number: int, belief: float | None
    ) -> dict[str, Any]:
        """One line of drafts.jsonl.

        `number` is the expedition's number within the evolution, and `task` the task that the draft became, None if it
        was refused. `predicted` holds the predictions of the draft's success before any training on it, in [0, 1]:
        `belief` is that of the beliefs, None if the evolution reads none. The admission adds that of a probe.
        """
        return {
            "step": step,
            "expedition": number,
            "origin": self.origin,
            "parent": self.task.id if self.context else "",
            "episode": self.context.episode if self.context else "",
            "signal": self.signal,
            "draft": to_json(draft),
            "verdict": to_json(verdict),
            "task": task.id if task else "",
            "predicted": {"beliefs": belief, "probe": None},
        }

    def record(self, step: int, expedition_number: int) -> dict[str, Any]:
        """One line of expeditions.jsonl.

        It holds the context, the number of actions of each run and how many of them worked, why runs failed, and what
        ended the expedition early.
        """
        context = self.context
        runs: dict[int, list[bool]] = {}
        for triplet in self.triplets:
            runs.setdefault(triplet.run, []).append(triplet.observation.ok)
        context_json = {key: value for key, value in to_json(context).items() if key != "task"} if context else None
        return {
            "step": step,
            "expedition": expedition_number,
            "origin": self.origin,
            "task": self.task.id,
            "signal": self.signal,
            "context": context_json,
            "runs": [{"run": run, "actions": len(successes), "ok": sum(successes)} for run, successes in runs.items()],
            "failures": list(self.failures),
            "error": "; ".join(map(str, self.errors)),
        }


def run_in_parallel(
    run: Callable[[Explorer, Expedition, tuple, Callable[[], bool]], Expedition],
    explorer: Explorer,
    expeditions: Sequence[tuple[int, Expedition]],
    seed: tuple,
    stop: Callable[[], bool],
) -> list[Expedition]:
    """Runs the numbered expeditions, each on its own thread. Returns them in their order, with their results.

    `run` receives an explorer with its share of the budget, the expedition, its seed, and a function that says whether
    the result is no longer wanted. Raises Interrupted soon after `stop` turns true: the expeditions end at their next
    action or model call, and this function waits at most a second for them.
    """
    seeds = [(*seed, expedition_number) for expedition_number, _ in expeditions]
    shares = explorer.split(seeds) if isinstance(explorer, Metered) else contextlib.nullcontext([explorer] * len(seeds))
    with contextlib.ExitStack() as stack:
        explorers = stack.enter_context(shares)
        futures: list[Future[Expedition]] = []
        stack.enter_context(_close_budget_on_error(explorer, futures))
        for own_explorer, (expedition_number, expedition), run_seed in zip(explorers, expeditions, seeds, strict=True):
            run_expedition = functools.partial(run, own_explorer, expedition, run_seed)
            futures.append(stack.enter_context(in_background(f"expedition {expedition_number}", run_expedition)))
        return _wait_for(futures, stop)


@contextlib.contextmanager
def _close_budget_on_error(explorer: Explorer, futures: Sequence[Future[Expedition]]) -> Iterator[None]:
    """If the block raises, closes the budget, so that running expeditions spend no more, and waits for them briefly."""
    try:
        yield
    except BaseException:
        if isinstance(explorer, Metered):
            explorer.remaining_budget().close()
        wait(futures, _GRACE_S)
        raise


def _wait_for(futures: Sequence[Future[Expedition]], stop: Callable[[], bool]) -> list[Expedition]:
    """All results, in order. Raises the first exception among them immediately, and Interrupted once `stop` is true."""
    while True:
        done_futures, pending_futures = wait(futures, _POLL_S, FIRST_EXCEPTION)
        for future in done_futures:
            if error := future.exception():
                raise error
        if stop():
            raise Interrupted
        if not pending_futures:
            return [future.result() for future in futures]


def take_until(items: Iterable[_T], errors: list[Any], error_types: tuple[type[Exception], ...]) -> Iterator[_T]:
    """Yields the items until their source raises one of these exceptions, which goes into `errors`."""
    try:
        yield from items
    except error_types as error:
        errors.append(error)
