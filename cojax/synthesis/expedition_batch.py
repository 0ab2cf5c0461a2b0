"""Runs a batch of expeditions at the same time, each on its own thread, and validates their drafts.

An expedition sees nothing that the others of its batch find. So its result depends on its seed and the model's replies
only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait

from cojax.environment import EngineError, Environment, EnvironmentFailure
from cojax.explorer import Exploration, Explorer, Metered
from cojax.host.background import in_background
from cojax.synthesis.expeditions import Expedition
from cojax.synthesis.interruption import Interrupted, interruptible
from cojax.types import Task, TaskDraft, Verdict
from cojax.validation.query import MOST_CHARACTERS, flaw, oversize
from cojax.validation.similarity import NearDuplicates

# (draft, whether an id is taken, the explorer whose budget pays for model calls) → verdict, and the task if accepted.
Validate = Callable[[TaskDraft, Callable[[str], bool], Explorer], tuple[Verdict, Task | None]]

# Seconds between two checks of whether to stop.
_POLL = 0.05
# Seconds that expeditions get to end by themselves after a stop.
_GRACE = 1.0


@dataclasses.dataclass(frozen=True)
class ExpeditionResult:
    """One expedition: its number in the evolution, its exploration, its validated drafts, and what ended it early.

    `examined` holds each draft with its verdict, and with the task if the draft was accepted.
    """

    number: int
    expedition: Expedition
    exploration: Exploration
    examined: tuple[tuple[TaskDraft, Verdict, Task | None], ...] = ()
    errors: tuple[EnvironmentFailure | EngineError, ...] = ()


@dataclasses.dataclass(frozen=True)
class ExpeditionBatch:
    """What the expeditions of a batch have in common. None of it changes while they run.

    `taken` says whether a task with a given id was found before, and `near_duplicates` whether one with similar wording
    was. Each expedition looks for `wanted` tasks.
    """

    environment: Environment
    validate: Validate
    taken: Callable[[str], bool]
    near_duplicates: NearDuplicates
    wanted: int

    def results(
        self, explorer: Explorer, expeditions: Sequence[tuple[int, Expedition]], seed: tuple, stop: Callable[[], bool]
    ) -> list[ExpeditionResult]:
        """Runs the numbered expeditions in parallel. Returns their results in the order of the expeditions.

        Each is asked for up to two drafts more than wanted, as not every draft is accepted. Raises Interrupted soon
        after `stop` turns true: the expeditions end at their next action or model call, and are waited for at most a
        second.
        """
        seeds = [(*seed, number) for number, _ in expeditions]
        with contextlib.ExitStack() as stack:
            explorers = stack.enter_context(_explorers(explorer, seeds))
            results: list[Future[ExpeditionResult]] = []
            stack.enter_context(_close_budget_on_error(explorer, results))
            for own, (number, expedition), own_seed in zip(explorers, expeditions, seeds, strict=True):
                work = functools.partial(self._run, own, number, expedition, own_seed, stop)
                results.append(stack.enter_context(in_background(f"expedition {number}", work)))
            return _wait_for(results, stop)

    def _run(
        self,
        explorer: Explorer,
        number: int,
        expedition: Expedition,
        seed: tuple,
        stop: Callable[[], bool],
        unwanted: Callable[[], bool],
    ) -> ExpeditionResult:
        """Runs one expedition: reflects, explores, abstracts and validates until `wanted` tasks are found."""

        def over() -> bool:
            return unwanted() or stop()

        world = interruptible(self.environment, over)
        try:
            expedition = expedition.prepared(explorer)
            exploration = explorer.explore(world, expedition.task, expedition.context, seed, expedition.weights)
        except (EnvironmentFailure, EngineError) as error:
            nothing = Exploration(expedition.task, expedition.context, seed)
            return ExpeditionResult(number, expedition, nothing, errors=(error,))
        errors: list[EnvironmentFailure | EngineError] = []
        drafts = explorer.abstract(exploration, world, self.wanted + 2)
        examined = tuple(self._examine(_until_failure(drafts, errors), explorer, over))
        return ExpeditionResult(number, expedition, exploration, examined, tuple(errors))

    def _examine(
        self, drafts: Iterable[TaskDraft], explorer: Explorer, over: Callable[[], bool]
    ) -> Iterator[tuple[TaskDraft, Verdict, Task | None]]:
        """Yields the drafts with their verdicts. A draft worded like another task is refused before it is run."""
        own: dict[str, Task] = {}
        near_duplicates = self.near_duplicates.fork()

        def taken(id: str) -> bool:
            return id in own or self.taken(id)

        for draft in drafts:
            if over():
                raise Interrupted
            verdict, task = _near_duplicate(draft, taken, near_duplicates), None
            if verdict is None:
                verdict, task = self.validate(draft, taken, explorer)
            if task is not None:
                own[task.id] = task
                near_duplicates.add(task)
            yield draft, verdict, task
            if len(own) == self.wanted:
                return


def _near_duplicate(draft: TaskDraft, taken: Callable[[str], bool], near_duplicates: NearDuplicates) -> Verdict | None:
    """The verdict on a draft that is worded like a task found before; None for any other draft."""
    # Validation refuses malformed drafts later. They may be too long to compare.
    if draft.objections or flaw(draft.query, MOST_CHARACTERS) or oversize(draft.solution):
        return None
    task = Task(draft.environment, draft.query, draft.setup, draft.solution)
    reason = "" if taken(task.id) else near_duplicates.why(task)
    return Verdict("discarded", (reason,)) if reason else None


def _explorers(explorer: Explorer, seeds: Sequence[tuple]) -> contextlib.AbstractContextManager[Sequence[Explorer]]:
    """One explorer for each expedition, given by its seed."""
    if isinstance(explorer, Metered):
        return explorer.split(seeds)
    return contextlib.nullcontext([explorer] * len(seeds))


@contextlib.contextmanager
def _close_budget_on_error(explorer: Explorer, results: Sequence[Future[ExpeditionResult]]) -> Iterator[None]:
    """If the block raises, closes the budget, so that running expeditions spend no more, and waits _GRACE for them."""
    try:
        yield
    except BaseException:
        if isinstance(explorer, Metered):
            explorer.remaining_budget().close()
        wait(results, _GRACE)
        raise


def _wait_for(results: Sequence[Future[ExpeditionResult]], stop: Callable[[], bool]) -> list[ExpeditionResult]:
    """All results, in order. Raises the first exception among them immediately, and Interrupted once `stop` is true."""
    while True:
        done, pending = wait(results, _POLL, FIRST_EXCEPTION)
        for result in done:
            if error := result.exception():
                raise error
        if stop():
            raise Interrupted
        if not pending:
            return [result.result() for result in results]


def _until_failure(drafts: Iterable[TaskDraft], errors: list[EnvironmentFailure | EngineError]) -> Iterator[TaskDraft]:
    """Yields the drafts until the environment or the model fails; the exception goes into `errors`."""
    try:
        yield from drafts
    except (EnvironmentFailure, EngineError) as error:
        errors.append(error)
