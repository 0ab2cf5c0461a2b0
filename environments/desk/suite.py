"""A suite: the words, shelves, tools and skills of one kind of office. Today's desk is one; growth.py generates others.

Every office is of one suite, which its shelves tell. So an episode offers the tools of its own suite alone.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import office
from .office import State
from .skills import SKILLS, Skill
from .tools import TOOLS, Tool
from .words import WORDS, kind


@dataclasses.dataclass(frozen=True, eq=False)
class Suite:
    """One kind of office. Its skills are in order of popularity, the most popular first.

    `words` holds the words by kind, `kind` maps a slot to its kind, `shelves` maps a shelf to the attributes of its
    entities, and `shelf_of` a slot without number and prefix to the shelf that holds its words. `choices` says how many
    words of a kind without a shelf an explorer is offered freely. `reasons` are all that a tool may be refused for.
    """

    words: Mapping[str, Sequence[str]]
    kind: Callable[[str], str]
    shelves: Mapping[str, frozenset[str]]
    shelf_of: Mapping[str, str]
    choices: Mapping[str, int]
    tools: Mapping[str, Tool]
    skills: tuple[Skill, ...]
    new_office: Callable[[random.Random], State]
    reasons: tuple[str, ...]

    def vocabulary(self, slot: str) -> Sequence[str]:
        """All words that a slot may take."""
        return self.words[self.kind(slot)]

    def shelf(self, slot: str) -> str | None:
        """The shelf that holds the slot's words; None for texts, days and addresses, which are on none."""
        return self.shelf_of.get(slot.rstrip("0123456789").removeprefix("new_"))


DESK = Suite(
    words=WORDS,
    kind=kind,
    shelves=office.SHELVES,
    shelf_of=office.SHELF,
    choices={"text": 3, "day": 3},
    tools=TOOLS,
    skills=SKILLS,
    new_office=office.new_office,
    reasons=office.REASONS,
)


def suite_of(setup: Mapping[str, Any], suites: Sequence[Suite]) -> Suite:
    """The suite of an office, told by its shelves; the first one where none fits, which then refuses the office."""
    return next((suite for suite in suites if set(suite.shelves) == set(setup)), suites[0])
