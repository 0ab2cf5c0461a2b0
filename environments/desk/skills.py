"""ONE table of skills, skills.txt, which tasks, demonstrations and the grammar share; and suites with skills.

A row has the wording of the skill in a query and the calls that carry it out. `contacts_find(person) > found` binds the
observation to `found`. Every other name is a slot of the wording, and names its kind (`new_note` is an unused title,
`day2` a second day). The rows are in order of popularity, the most popular first.

Every office belongs to one suite, which its shelves determine. An episode offers only the tools of its suite. The
demo's desk is one suite; growth.py generates others.
"""

import dataclasses
import functools
import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cojax.types import Call
from . import office
from .office import FINISH, TOOLS, State, Tool

_CALL = re.compile(r"(\w+)\(([\w, ]*)\)(?: > (\w+))?")
_SLOT_PATTERN = re.compile(r"{(\w+)}")


@dataclasses.dataclass(frozen=True)
class Template:
    """A call with names in place of words. A look-up, which only reads, binds its observation to `bound_name`."""

    tool_name: str
    names: tuple[str, ...]
    parameters: tuple[str, ...]
    bound_name: str = ""

    def fill(self, words: Mapping[str, str]) -> Call:
        """Makes the call, with words in place of the names."""
        arguments = (words[word_name] for word_name in self.names)
        return Call(self.tool_name, dict(zip(self.parameters, arguments, strict=True)))


@dataclasses.dataclass(frozen=True)
class Skill:
    """One kind of work that a query can ask for.

    `script` holds the calls. A conditional skill goes on with `then_call` if the words of `equal_names` are equal,
    else with `else_call`. A mistaken policy uses `wrong_tool` instead of the right one. `tools` are the tools of the
    skill's suite.
    """

    wording: str
    script: str
    wrong_tool: str = ""
    equal_names: tuple[str, str] | None = None
    then_call: str = ""
    else_call: str = ""
    tools: Mapping[str, Tool] = dataclasses.field(default_factory=lambda: TOOLS, repr=False, compare=False)

    @functools.cached_property
    def slots(self) -> tuple[str, ...]:
        return tuple(_SLOT_PATTERN.findall(self.wording))

    @functools.cached_property
    def branches(self) -> tuple[tuple[Template, ...], ...]:
        """The call sequences that carry the skill out: one, or (then, otherwise)."""
        scripts = (
            (f"{self.script}; {self.then_call}", f"{self.script}; {self.else_call}")
            if self.equal_names
            else (self.script,)
        )
        return tuple(
            tuple(self.template(tool, tuple(names.split(", ")), binds) for tool, names, binds in _CALL.findall(script))
            for script in scripts
        )

    def template(self, tool: str, word_names: tuple[str, ...], binds: str = "") -> Template:
        """The call of this tool with these names."""
        return Template(tool, word_names, ("answer",) if tool == FINISH else tuple(self.tools[tool].slots), binds)

    @property
    def is_answer(self) -> bool:
        """Whether the skill ends the episode with an answer."""
        return self.branches[0][-1].tool_name == FINISH

    def word_query(self, words: Mapping[str, str]) -> str:
        return self.wording.format_map(words)


def carry_out(skill: Skill, words: Mapping[str, str], act: Callable[[Call], str]) -> None:
    """Carries out the skill; `act` makes a call and returns its observation."""
    if skill.equal_names is None:
        follow(skill.branches[0], words, act)
        return
    bindings = follow(skill.branches[0][:-1], words, act)
    then_template, otherwise_template = (branch[-1] for branch in skill.branches)
    left_name, right_name = skill.equal_names
    act((then_template if bindings[left_name] == bindings[right_name] else otherwise_template).fill(bindings))


def follow(templates: Sequence[Template], words: Mapping[str, str], act: Callable[[Call], str]) -> dict[str, str]:
    """Makes the calls in order; returns the words, with those that look-ups bound."""
    bindings = dict(words)
    for template in templates:
        observation = act(template.fill(bindings))
        if template.bound_name:
            bindings[template.bound_name] = observation
    return bindings


def _read_skill(table_row: str) -> Skill:
    wording, script, wrong_tool, *condition = (" ".join(cell.split()) for cell in table_row.split("|"))
    if not condition:
        return Skill(wording, script, wrong_tool)
    condition_names, then_call, else_call = condition
    left_name, right_name = condition_names.split()
    return Skill(wording, script, wrong_tool, (left_name, right_name), then_call, else_call)


_TABLE_TEXT = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").replace("\n        ", " ")
SKILLS = tuple(map(_read_skill, re.findall(r"^[^#\n].+", _TABLE_TEXT, re.MULTILINE)))


@dataclasses.dataclass(frozen=True, eq=False)
class Suite:
    """One kind of office. Its skills are in order of popularity, the most popular first.

    A slot without number and prefix is a noun: `new_note` and `note2` are notes. `kind_of_noun` maps nouns to the kind
    of their words, where that is not the noun itself; `shelf_of` maps them to the shelf that holds their words.
    `shelves` maps a shelf to the attributes of its entities. `choices` says how many random words of a
    kind without a shelf an episode offers. `refusal_reasons` are all for which a call may be refused.
    """

    kind_of_noun: Mapping[str, str]
    shelves: Mapping[str, frozenset[str]]
    shelf_of: Mapping[str, str]
    choices: Mapping[str, int]
    tools: Mapping[str, Tool]
    skills: tuple[Skill, ...]
    new_office: Callable[[random.Random], State]
    refusal_reasons: tuple[str, ...]

    def words_of(self, slot: str) -> Sequence[str]:
        """All words that a slot may take."""
        noun = _noun_of(slot)
        return office.WORDS[self.kind_of_noun.get(noun, noun)]

    def find_shelf(self, slot: str) -> str | None:
        """The shelf that holds the slot's words; None for texts, days and addresses, which are on none."""
        return self.shelf_of.get(_noun_of(slot))


def _noun_of(slot: str) -> str:
    return slot.rstrip("0123456789").removeprefix("new_")


DESK = Suite(
    kind_of_noun={"sender": "person"},
    shelves=office.SHELVES,
    shelf_of=office.SHELF_OF_NOUN,
    choices={"text": 3, "day": 3},
    tools=TOOLS,
    skills=SKILLS,
    new_office=office.new_office,
    refusal_reasons=office.REFUSAL_REASONS,
)


def find_suite(setup: Mapping[str, Any], suites: Sequence[Suite]) -> Suite:
    """The suite with an office's shelves, or the first suite, which refuses the office, if none has them."""
    return next((suite for suite in suites if set(suite.shelves) == set(setup)), suites[0])
