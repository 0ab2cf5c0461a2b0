"""Generates suites by seed: applications with invented names, made from one table of forms.

An application holds records under names of one kind of word. A record has one or two attributes (a text, a day, an
address), a mark and links. A tool's name is drawn from synonyms, so the application and the tool's effect do not
determine it. Some tools are distractors: they work, but no skill needs them.
"""

import dataclasses
import functools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from . import office
from .office import WORDS, Rule, State, Tool, read_words
from .skills import Skill, Suite

# Kinds of words that name records, one for each application of a suite; kinds of attributes.
RECORD_KINDS = ("file", "note", "event", "person", "folder")
ATTRIBUTES = ("text", "day", "address")
# The number of records of an application in a new office.
_RECORD_COUNT = 3
_REFUSAL_REASONS = ("no such record", "record exists", "no such tool", "unchanged", "already finished", "no call")
_VERBS_BY_FORM = read_words("verbs.txt")
_SYLLABLES = tuple(f"{consonant}{vowel}" for consonant in "bdfgklmnprstvz" for vowel in "aeiou")


@dataclasses.dataclass(frozen=True)
class Application:
    """An application: its name, the kind of its records' names, their attributes, and the names of its tools.

    `tool_of_form` maps a form (`add`, `set_day` …) to the name of the tool.
    """

    app_name: str
    record_kind: str
    attributes: tuple[str, ...]
    tool_of_form: Mapping[str, str]


def make_suites(suite_count: int, app_count: int, seed: int) -> tuple[Suite, ...]:
    """`suite_count` suites of `app_count` applications each. Equal arguments give equal suites."""
    rng = random.Random(f"suites/{seed}")
    new_names = _invent_names(rng)
    return tuple(_make_suite([_draw_application(next(new_names), RECORD_KINDS[i], rng) for i in range(app_count)], rng)
                 for _ in range(suite_count))  # fmt: skip


def _invent_names(rng: random.Random) -> Iterator[str]:
    used_names = {word for kind_words in WORDS.values() for word in kind_words}
    while True:
        new_name = "".join(rng.choices(_SYLLABLES, k=rng.choice((2, 3))))
        if new_name not in used_names:
            used_names.add(new_name)
            yield new_name


def _draw_application(app_name: str, record_kind: str, rng: random.Random) -> Application:
    attributes = tuple(rng.sample(ATTRIBUTES, rng.choice((1, 2))))
    forms = ["add", "drop", "rename", "mark", "link", "lock", "seek"] + ["fill"] * (len(attributes) > 1)
    tool_by_form = {form: f"{app_name}_{rng.choice(_VERBS_BY_FORM[form])}" for form in forms}
    for form_prefix in ("set", "get"):
        verb = rng.choice(_VERBS_BY_FORM[form_prefix])
        tool_by_form |= {f"{form_prefix}_{attribute}": f"{app_name}_{verb}_{attribute}" for attribute in attributes}
    return Application(app_name, record_kind, attributes, tool_by_form)


def _make_suite(applications: Sequence[Application], rng: random.Random) -> Suite:
    tools = {tool.name: tool for app in applications for tool in _make_tools(app)}
    skills = [skill for app in applications for skill in _make_skills(app, applications, tools, rng)]
    rng.shuffle(skills)
    return Suite(
        kind_of_noun={app.app_name: app.record_kind for app in applications},
        shelves={app.app_name: frozenset({*app.attributes, "marked", "locked", "links"}) for app in applications},
        shelf_of={app.app_name: app.app_name for app in applications},
        choices={"text": 3, "day": 3, "address": 3},
        tools=tools,
        skills=tuple(skills),
        new_office=functools.partial(_new_office, tuple(applications)),
        refusal_reasons=(*_REFUSAL_REASONS, *(f"no such {attribute}" for attribute in ATTRIBUTES)),
    )


def _new_office(applications: Sequence[Application], rng: random.Random) -> State:
    """Draws a new office of the suite: three records of each application, with random values."""
    unused_words = {kind: iter(rng.sample(WORDS[kind], len(WORDS[kind]))) for kind in ("text", "address")}

    def draw_value(attribute: str) -> str:
        return rng.choice(WORDS["day"]) if attribute == "day" else next(unused_words[attribute])

    return {
        app.app_name: {
            record_name: {**{attribute: draw_value(attribute) for attribute in app.attributes}, **_NEW_RECORD_VALUES}
            for record_name in rng.sample(WORDS[app.record_kind], _RECORD_COUNT)
        }
        for app in applications
    }


_NEW_RECORD_VALUES: Mapping[str, Any] = {"marked": False, "locked": False, "links": []}


def _make_tools(app: Application) -> Iterator[Tool]:
    """Yields the application's tools; `Tool.slots` maps a parameter to the slot that it takes."""
    shelf, attributes = app.app_name, app.attributes
    record_slot = {"record": shelf}
    attribute_slots = {attribute: attribute for attribute in attributes}

    def make_tool(form: str, slots: Mapping[str, str], rule: Rule, description: str, gives: str = "") -> Tool:
        return Tool(app.tool_of_form[form], description, slots, rule, gives)

    add_rule = office.add(shelf, *attributes, require=office.require_word, **_NEW_RECORD_VALUES)
    yield make_tool("add", {"record": f"new_{shelf}", **attribute_slots}, add_rule, "Add a record.")
    for attribute in attributes:
        put_rule = office.put(shelf, attribute, require=office.require_word)
        yield make_tool(f"set_{attribute}", {**record_slot, attribute: attribute}, put_rule, f"Set the {attribute}.")
        read_rule = office.read(shelf, attribute)
        yield make_tool(f"get_{attribute}", record_slot, read_rule, f"Tell the {attribute} of a record.", attribute)
    if len(attributes) > 1:
        put_rule = office.put(shelf, *attributes, require=office.require_word)
        yield make_tool("fill", {**record_slot, **attribute_slots}, put_rule, "Set all of a record.")
    yield make_tool("drop", record_slot, office.remove(shelf), "Remove a record.")
    yield make_tool(
        "rename", {**record_slot, "name": f"new_{shelf}"}, office.rename(shelf), "Give a record another name."
    )
    yield make_tool("mark", record_slot, office.turn_on(shelf, "marked"), "Mark a record.")
    link_rule = office.extend(shelf, "links", require=lambda state, _, other: office.entity_of(state, shelf, other))
    yield make_tool("link", {**record_slot, "other": shelf}, link_rule, "Link a record to another.")
    yield make_tool("lock", record_slot, office.turn_on(shelf, "locked"), "Lock a record.")
    yield make_tool("seek", record_slot, office.read(shelf, attributes[-1]), "Look at a record.", attributes[-1])


def _make_skills(
    app: Application, applications: Sequence[Application], tools: Mapping[str, Tool], rng: random.Random
) -> Iterator[Skill]:
    """Yields the skills that a query can ask of the application: one for most tools, and some that need look-ups."""
    tool_by_form, a, arguments = app.tool_of_form, app.app_name, ", ".join(app.attributes)
    attribute_slots = " and ".join(f"{{{attribute}}}" for attribute in app.attributes)

    def make_skill(wording: str, script: str, **branches: Any) -> Skill:
        tool_name = script.split("; ")[-1].partition("(")[0]
        if tool_name == "finish":
            tool_name = script.partition("(")[0]
        return Skill(wording, script, _pick_wrong_tool(tool_name, app, tools, rng), tools=tools, **branches)

    yield make_skill(f"add {{new_{a}}} to {a} with {attribute_slots}", f"{tool_by_form['add']}(new_{a}, {arguments})")
    if len(app.attributes) > 1:
        yield make_skill(f"fill {{{a}}} in {a} with {attribute_slots}", f"{tool_by_form['fill']}({a}, {arguments})")
    yield make_skill(f"remove {{{a}}} from {a}", f"{tool_by_form['drop']}({a})")
    yield make_skill(f"call {{{a}}} {{new_{a}}} in {a}", f"{tool_by_form['rename']}({a}, new_{a})")
    yield make_skill(f"mark {{{a}}} in {a}", f"{tool_by_form['mark']}({a})")
    yield make_skill(f"link {{{a}}} to {{{a}2}} in {a}", f"{tool_by_form['link']}({a}, {a}2)")
    for attribute in app.attributes:
        get, put = tool_by_form[f"get_{attribute}"], tool_by_form[f"set_{attribute}"]
        yield make_skill(f"set {attribute} of {{{a}}} in {a} to {{{attribute}}}", f"{put}({a}, {attribute})")
        yield make_skill(f"tell the {attribute} of {{{a}}} in {a}", f"{get}({a}) > found; finish(found)")
        yield make_skill(f"give {{{a}}} the {attribute} of {{{a}2}} in {a}", f"{get}({a}2) > found; {put}({a}, found)")
        for b, read_tool in _find_source(attribute, applications, app):
            wording = f"give {{{a}}} in {a} the {attribute} of {{{b}}} in {b}"
            yield make_skill(wording, f"{read_tool}({b}) > found; {put}({a}, found)")
    first_attribute = app.attributes[0]
    yield make_skill(
        f"if the {first_attribute} of {{{a}}} in {a} is {{{first_attribute}}} remove it otherwise mark it",
        f"{tool_by_form[f'get_{first_attribute}']}({a}) > found",
        equal_names=("found", first_attribute),
        then_call=f"{tool_by_form['drop']}({a})",
        else_call=f"{tool_by_form['mark']}({a})",
    )
    if len(app.attributes) > 1:
        matches = [next(_find_source(attribute, applications, app), None) for attribute in app.attributes]
        sources = [source for source in matches if source]
        if len(sources) == 2 and sources[0][0] != sources[1][0]:
            (b, get_b), (c, get_c) = sources
            one, attribute_c = app.attributes
            yield make_skill(
                f"add {{new_{a}}} to {a} with the {one} of {{{b}}} in {b} and the {attribute_c} of {{{c}}} in {c}",
                f"{get_b}({b}) > found; {get_c}({c}) > seen; {tool_by_form['add']}(new_{a}, found, seen)",
            )


def _find_source(attribute: str, applications: Sequence[Application], app: Application) -> Iterator[tuple[str, str]]:
    """Yields the next application of the suite, in a circle, with this attribute, and its tool that tells it."""
    position = applications.index(app)
    for other_app in (*applications[position + 1 :], *applications[:position]):
        if attribute in other_app.attributes:
            yield other_app.app_name, other_app.tool_of_form[f"get_{attribute}"]
            return


def _pick_wrong_tool(tool_name: str, app: Application, tools: Mapping[str, Tool], rng: random.Random) -> str:
    """Draws a tool with as many parameters that tells something else, preferably of the same application."""
    right = tools[tool_name]
    candidates = [
        other
        for other in tools.values()
        if len(other.slots) == len(right.slots) and other != right and not (other.gives and other.gives == right.gives)
    ]
    neighbours = [other for other in candidates if other.application == app.app_name]
    return rng.choice(neighbours or candidates).name
