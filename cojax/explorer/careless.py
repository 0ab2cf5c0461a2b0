"""An explorer that confuses names at a known rate: the study measures with it what validation by execution refuses."""

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
    """The explorer `careful`, except that with probability `mistakes` a draft has one name confused with another.

    A name in the query is replaced, in query and solution, by one that the exploration used as another argument. So the
    draft describes actions that were never carried out, and most of them fail; two drafts may become equal. Query and
    solution still agree, because validation by execution could not detect a disagreement. Raises ValueError for
    `mistakes` outside [0, 1].
    """

    careful: ScriptedExplorer
    mistakes: float
    name: str = "careless"

    def __post_init__(self) -> None:
        if not 0.0 <= self.mistakes <= 1.0:
            raise ValueError(f"mistakes is {self.mistakes}; expected a probability in [0, 1]")

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
        seen = [used for triplet in exploration.triplets for used in _arguments(triplet.action)]
        for draft in self.careful.abstract(exploration, environment, limit):
            yield confuse_name(draft, seen, rng) if rng.random() < self.mistakes else draft


def confuse_name(draft: TaskDraft, seen: Sequence[tuple[str, Any]], rng: random.Random) -> TaskDraft:
    """Replaces one name of the draft's query by a value of `seen`, which holds (parameter, value) pairs.

    The value is one that was seen with none of the parameters of the right name; without such a value the draft is
    returned unchanged. A name is a whole argument that is text: parts of longer texts, lists and mappings stay.
    """
    used = [pair for action in draft.solution for pair in _arguments(action)]
    names = {value for _, value in used if isinstance(value, str)} - {""}
    in_query = sorted(value for value in names if _whole_word(value).search(draft.query))
    if not in_query:
        return draft
    right = rng.choice(in_query)
    parameters = {parameter for parameter, value in used if value == right}
    elsewhere = {value for parameter, value in seen if parameter not in parameters and isinstance(value, str)}
    if not (others := sorted(elsewhere - names - {""})):
        return draft
    wrong = rng.choice(others)
    return dataclasses.replace(
        draft,
        query=_whole_word(right).sub(lambda _: wrong, draft.query),
        solution=tuple(_replace_name(action, right, wrong) for action in draft.solution),
    )


def _arguments(action: Action) -> list[tuple[str, Any]]:
    return [pair for call in action.calls for pair in call.arguments.items()]


def _replace_name(action: Action, right: str, wrong: str) -> Action:
    calls = tuple(
        Call(call.name, {key: wrong if value == right else value for key, value in call.arguments.items()})
        for call in action.calls
    )
    # Where actions are code, the text holds the calls as well.
    return dataclasses.replace(action, text=_whole_word(right).sub(lambda _: wrong, action.text), calls=calls)


def _whole_word(value: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(value)}(?!\w)")
