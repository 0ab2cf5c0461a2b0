"""The careless explorer: the scripted explorer, but it confuses one name with another in a share of its drafts.

The study uses it to measure what validation by execution refuses. It replaces a name of the query, in query and
solution, by one that the exploration used as another argument. So the draft describes actions that were never carried
out, and most of them fail; two drafts may become equal. Query and solution still agree, because validation by execution
could not detect a disagreement.
"""

import dataclasses
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

from ml_collections import ConfigDict

from cojax.environment import Environment
from cojax.explorer import Exploration
from cojax.explorer.llm.chat_model import Journal
from cojax.explorer.scripted.explorer import ScriptedExplorer
from cojax.run.explorers import scripted
from cojax.run.parts import Parts
from cojax.types import Action, Call, TaskDraft


def careless(config: ConfigDict, parts: Parts, journal: Journal) -> ScriptedExplorer:
    """The explorer's entry; the explorer makes mistakes with probability explorer.mistakes."""
    careful_explorer = scripted(config, parts, journal)
    return CarelessExplorer(**{**vars(careful_explorer), "mistakes": config.explorer.mistakes, "name": "careless"})


@dataclasses.dataclass(frozen=True)
class CarelessExplorer(ScriptedExplorer):
    """Confuses a name of a draft with probability `mistakes`. Raises ValueError for a probability outside [0, 1]."""

    mistakes: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.mistakes <= 1.0:
            raise ValueError(f"mistakes is {self.mistakes}; expected a probability in [0, 1]")

    def abstract(self, exploration: Exploration, environment: Environment, limit: int) -> Iterator[TaskDraft]:
        rng = random.Random(repr(("careless", exploration.seed)))
        arguments = [argument for triplet in exploration.triplets for argument in _list_arguments(triplet.action)]
        for draft in super().abstract(exploration, environment, limit):
            yield confuse_name(draft, arguments, rng) if rng.random() < self.mistakes else draft


def confuse_name(draft: TaskDraft, arguments: Sequence[tuple[str, Any]], rng: random.Random) -> TaskDraft:
    """Replaces one name of the draft's query by a value of `arguments`, which holds (parameter, value) pairs.

    The value is one that no parameter of the right name had; if there is none, the draft is returned unchanged. A name
    is a whole argument that is text: parts of longer texts, lists and mappings stay.
    """
    draft_arguments = [argument for action in draft.solution for argument in _list_arguments(action)]
    draft_names = {value for _, value in draft_arguments if isinstance(value, str)} - {""}
    names_in_query = sorted(value for value in draft_names if _whole_word(value).search(draft.query))
    if not names_in_query:
        return draft
    right_name = rng.choice(names_in_query)
    parameters = {parameter for parameter, value in draft_arguments if value == right_name}
    other_values = {value for parameter, value in arguments if parameter not in parameters and isinstance(value, str)}
    if not (candidates := sorted(other_values - draft_names - {""})):
        return draft
    wrong_name = rng.choice(candidates)
    return dataclasses.replace(
        draft,
        query=_whole_word(right_name).sub(lambda _: wrong_name, draft.query),
        solution=tuple(_replace_name(action, right_name, wrong_name) for action in draft.solution),
    )


def _list_arguments(action: Action) -> list[tuple[str, Any]]:
    return [argument for call in action.calls for argument in call.arguments.items()]


def _replace_name(action: Action, right_name: str, wrong_name: str) -> Action:
    calls = tuple(
        Call(call.name, {key: wrong_name if value == right_name else value for key, value in call.arguments.items()})
        for call in action.calls
    )
    # Where actions are code, the text holds the calls as well.
    return dataclasses.replace(action, text=_whole_word(right_name).sub(lambda _: wrong_name, action.text), calls=calls)


def _whole_word(value: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(value)}(?!\w)")
