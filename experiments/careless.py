"""An explorer that mistakes names at a rate that is known: what validation by execution is measured against."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cojax.environment import Environment
from cojax.explorer import Exploration
from cojax.explorer.scripted.explorer import ScriptedExplorer
from cojax.types import Action, Call, ExplorationContext, Origin, Signal, Task, TaskDraft, Trajectory


@dataclasses.dataclass(frozen=True)
class CarelessExplorer:
    """`careful`, but with chance `mistakes` a draft takes one name for another, where it has one to take it for.

    A name that the query tells gives way, in the query and the solution, to one that the exploration used in another
    place. So, unlike an explorer's should be, these drafts are of actions that nobody carried out, and most cannot be;
    two may be the same. Query and solution agree still: where they did not, no execution could tell. Raises
    ValueError for `mistakes` outside [0, 1].
    """

    careful: ScriptedExplorer
    mistakes: float
    name: str = "careless"

    def __post_init__(self) -> None:
        if not 0.0 <= self.mistakes <= 1.0:
            raise ValueError(f"mistakes is {self.mistakes}; expected a chance in [0, 1]")

    @property
    def ending(self) -> str:
        return self.careful.ending

    @property
    def width(self) -> int:
        return self.careful.width

    def reflect(self, trajectory: Trajectory, kind: Origin, signal: Signal | None = None) -> ExplorationContext:
        return self.careful.reflect(trajectory, kind, signal)

    def explore(
        self,
        environment: Environment,
        task: Task,
        context: ExplorationContext | None,
        seed: tuple,
        weights: Mapping[str, float] | None = None,
    ) -> Exploration:
        return self.careful.explore(environment, task, context, seed, weights)

    def abstract(self, exploration: Exploration, environment: Environment, limit: int) -> Iterator[TaskDraft]:
        rng = random.Random(repr(("careless", exploration.seed)))
        seen = [used for triplet in exploration.triplets for used in _used(triplet.action)]
        for draft in self.careful.abstract(exploration, environment, limit):
            yield mistaken(draft, seen, rng) if rng.random() < self.mistakes else draft


def mistaken(draft: TaskDraft, seen: Sequence[tuple[str, Any]], rng: random.Random) -> TaskDraft:
    """The draft with one of the names that its query tells taken for another of those `seen`, as (parameter, value),
    under no parameter that the right one stands under; as it is, where there is none to take it for.

    A name is a whole argument that is text: what stands within a longer one, a list or a mapping stays.
    """
    used = [pair for action in draft.solution for pair in _used(action)]
    there = {value for _, value in used if isinstance(value, str)} - {""}
    told = sorted(value for value in there if _whole(value).search(draft.query))
    if not told:
        return draft
    right = rng.choice(told)
    parameters = {parameter for parameter, value in used if value == right}
    elsewhere = {value for parameter, value in seen if parameter not in parameters and isinstance(value, str)}
    if not (others := sorted(elsewhere - there - {""})):
        return draft
    wrong = rng.choice(others)
    return dataclasses.replace(
        draft,
        query=_whole(right).sub(lambda _: wrong, draft.query),
        solution=tuple(_renamed(action, right, wrong) for action in draft.solution),
    )


def _used(action: Action) -> list[tuple[str, Any]]:
    return [pair for call in action.calls for pair in call.arguments.items()]


def _renamed(action: Action, right: str, wrong: str) -> Action:
    calls = tuple(
        Call(call.name, {key: wrong if value == right else value for key, value in call.arguments.items()})
        for call in action.calls
    )
    # Where actions are code, the calls stand in the text as well.
    return dataclasses.replace(action, text=_whole(right).sub(lambda _: wrong, action.text), calls=calls)


def _whole(value: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(value)}(?!\w)")
