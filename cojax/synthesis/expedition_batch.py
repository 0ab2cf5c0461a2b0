"""A batch of expeditions: made at once, each on a thread of its own, and their drafts examined.

An expedition looks at nothing that the others of its batch find: seed and replies alone decide what it brings back.
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

# The verdict on a draft, and the task where it was accepted: of the draft, of which ids are taken, and on behalf of
# which explorer.
Validate = Callable[[TaskDraft, Callable[[str], bool], Explorer], tuple[Verdict, Task | None]]

# Seconds between two looks at whether to stop.
_POLL = 0.05
# Seconds for what is told to stop.
_GRACE = 1.0


@dataclasses.dataclass(frozen=True)
class ExpeditionResult:
    """An expedition that was made: its number in the evolution, what it found, its drafts with their verdicts, and what
    ended it early."""

    number: int
    expedition: Expedition
    exploration: Exploration
    examined: tuple[tuple[TaskDraft, Verdict, Task | None], ...] = ()
    errors: tuple[EnvironmentFailure | EngineError, ...] = ()


@dataclasses.dataclass(frozen=True)
class ExpeditionBatch:
    """What expeditions that go at once have in common. None of it changes while they are under way.

    `taken` tells whether a task of that id was found before, `kin` whether one that is worded alike; each expedition
    looks for `wanted` tasks.
    """

    environment: Environment
    validate: Validate
    taken: Callable[[str], bool]
    near_duplicates: NearDuplicates
    wanted: int

    def results(
        self, explorer: Explorer, expeditions: Sequence[tuple[int, Expedition]], seed: tuple, stop: Callable[[], bool]
    ) -> list[ExpeditionResult]:
        """The numbered expeditions, made at once and in their order; one more draft or two are worded than wanted, as
        not every one is accepted.

        Raises Interrupted soon after `stop` turns true; what is under way then ends at its next action or model call,
        and is not waited for longer than a moment.
        """
        places = [(*seed, number) for number, _ in expeditions]
        with contextlib.ExitStack() as under_way:
            team = under_way.enter_context(_team(explorer, places))
            results: list[Future[ExpeditionResult]] = []
            under_way.enter_context(_closing(explorer, results))
            for member, (number, expedition), place in zip(team, expeditions, places, strict=True):
                work = functools.partial(self._made, member, number, expedition, place, stop)
                results.append(under_way.enter_context(in_background(f"expedition {number}", work)))
            return _results(results, stop)

    def _made(
        self,
        explorer: Explorer,
        number: int,
        expedition: Expedition,
        seed: tuple,
        stop: Callable[[], bool],
        unwanted: Callable[[], bool],
    ) -> ExpeditionResult:
        """Reflects, explores, abstracts and examines, until it has found what is wanted of it."""

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
        examined = tuple(self._examined(_until(drafts, errors), explorer, over))
        return ExpeditionResult(number, expedition, exploration, examined, tuple(errors))

    def _examined(
        self, drafts: Iterable[TaskDraft], explorer: Explorer, over: Callable[[], bool]
    ) -> Iterator[tuple[TaskDraft, Verdict, Task | None]]:
        """The drafts with their verdicts. What is worded like another task is not run."""
        own: dict[str, Task] = {}
        near_duplicates = self.near_duplicates.beside()

        def taken(id: str) -> bool:
            return id in own or self.taken(id)

        for draft in drafts:
            if over():
                raise Interrupted
            verdict, task = _alike(draft, taken, near_duplicates), None
            if verdict is None:
                verdict, task = self.validate(draft, taken, explorer)
            if task is not None:
                own[task.id] = task
                near_duplicates.add(task)
            yield draft, verdict, task
            if len(own) == self.wanted:
                return


def _alike(draft: TaskDraft, taken: Callable[[str], bool], near_duplicates: NearDuplicates) -> Verdict | None:
    # What is no query, whatever the settings, is refused by validation at once, and may be too long to be compared.
    if draft.objections or flaw(draft.query, MOST_CHARACTERS) or oversize(draft.solution):
        return None
    task = Task(draft.environment, draft.query, draft.setup, draft.solution)
    reason = "" if taken(task.id) else near_duplicates.why(task)
    return Verdict("discarded", (reason,)) if reason else None


def _team(explorer: Explorer, places: Sequence[tuple]) -> contextlib.AbstractContextManager[Sequence[Explorer]]:
    """One explorer for each place."""
    if isinstance(explorer, Metered):
        return explorer.split(places)
    return contextlib.nullcontext([explorer] * len(places))


@contextlib.contextmanager
def _closing(explorer: Explorer, results: Sequence[Future[ExpeditionResult]]) -> Iterator[None]:
    """Where the block is left early, nothing more is paid for what is still under way; it has a moment to end."""
    try:
        yield
    except BaseException:
        if isinstance(explorer, Metered):
            explorer.remaining_budget().close()
        wait(results, _GRACE)
        raise


def _results(results: Sequence[Future[ExpeditionResult]], stop: Callable[[], bool]) -> list[ExpeditionResult]:
    """All of them, in order; the first exception among them is raised at once, and Interrupted when `stop` is true."""
    while True:
        done, pending = wait(results, _POLL, FIRST_EXCEPTION)
        for result in done:
            if error := result.exception():
                raise error
        if stop():
            raise Interrupted
        if not pending:
            return [result.result() for result in results]


def _until(drafts: Iterable[TaskDraft], errors: list[EnvironmentFailure | EngineError]) -> Iterator[TaskDraft]:
    """The drafts up to where the environment or the model breaks, which is noted."""
    try:
        yield from drafts
    except (EnvironmentFailure, EngineError) as error:
        errors.append(error)
