"""The office: its words, its state, and the tools of tools.txt, which change the state.

State: shelf → name → entity, a plain JSON dict:

    files     name   → folder, text, copies [folder]
    folders   name   → shared [address]
    notes     title  → text
    contacts  person → address
    calendar  event  → day, guests [address]
    mail      sender → text, flagged, forwarded [address]
    sent      address → texts [text]

Entities are replaced, never mutated, so seven dict copies copy a state. Lists are sorted, so equal offices are equal
values. The rules of tools are pure functions: they return changes, and make none.
"""

import dataclasses
import random
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cojax.types import Call
from ..tools.toolset import Refused, to_document


def read_words(file_name: str) -> Mapping[str, tuple[str, ...]]:
    """Reads the words of a file in this folder, by kind."""
    text = Path(__file__).with_name(file_name).read_text(encoding="utf-8")
    return {word_kind: tuple(words.split()) for word_kind, words in re.findall(r"^(\w+): (.+)$", text, re.MULTILINE)}


# The kinds share no word, so a word determines its kind.
WORDS = read_words("words.txt")

_SHELVES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
SHELVES: Mapping[str, frozenset[str]] = {shelf: frozenset(entry["attributes"]) for shelf, entry in _SHELVES.items()}
SINGULAR_OF_SHELF = {shelf: entry["entity"] for shelf, entry in _SHELVES.items() if "entity" in entry}
# The shelf that holds a slot's words; texts, days and addresses are on none.
SHELF_OF_NOUN = {entry["noun"]: shelf for shelf, entry in _SHELVES.items() if "noun" in entry}

Entity = Mapping[str, Any]
State = dict[str, dict[str, Entity]]
Change = tuple[str, str, Entity | None]  # shelf, name, the new entity (None removes the old one)

REFUSAL_REASONS = (
    *(f"no such {word}" for word in (*SINGULAR_OF_SHELF.values(), "address", "day", "tool")),
    *(f"{word} exists" for word in SINGULAR_OF_SHELF.values()),
    "unchanged",
    "already finished",
    "no call",
)


def copy_office(office: Mapping[str, Mapping[str, Entity]], shelves: Mapping[str, frozenset[str]] = SHELVES) -> State:
    """Copies a state. Raises ValueError if a shelf or an attribute is missing or unknown."""
    if set(office) != set(shelves):
        raise ValueError(f"an office has the shelves {list(shelves)}; found {sorted(office)}")
    for shelf, attributes in shelves.items():
        for name, entity in office[shelf].items():
            if entity.keys() != attributes:
                raise ValueError(f"{shelf}/{name} has the attributes {sorted(entity)}; expected {sorted(attributes)}")
    return {shelf: dict(office[shelf]) for shelf in shelves}


def new_office(rng: random.Random) -> State:
    """A small office: 3 folders, 4 files, 3 notes, 4 contacts, 3 events, mail from 3 of the contacts."""

    def draw(word_kind: str, count: int) -> list[str]:
        return rng.sample(WORDS[word_kind], count)

    folders, people, texts = draw("folder", 3), draw("person", 4), iter(draw("text", 10))
    return {
        "files": {file: {"folder": rng.choice(folders), "text": next(texts), "copies": []} for file in draw("file", 4)},
        "folders": {folder: {"shared": []} for folder in folders},
        "notes": {note: {"text": next(texts)} for note in draw("note", 3)},
        "contacts": {person: {"address": address} for person, address in zip(people, draw("address", 4), strict=True)},
        "calendar": {event: {"day": rng.choice(WORDS["day"]), "guests": []} for event in draw("event", 3)},
        "mail": {person: {"text": next(texts), "flagged": False, "forwarded": []} for person in rng.sample(people, 3)},
        "sent": {},
    }


def facts_of(office: Mapping[str, Mapping[str, Entity]]) -> dict[str, Any]:
    """The office as path → value, one fact for each attribute of each entity."""
    return {
        f"{shelf}/{entity_name}/{attribute}": value
        for shelf, entities in office.items()
        for entity_name, entity in entities.items()
        for attribute, value in entity.items()
    }


def apply_changes(state: State, changes: Sequence[Change]) -> None:
    """Makes the changes, in order."""
    for shelf, entity_name, entity in changes:
        if entity is None:
            del state[shelf][entity_name]
        else:
            state[shelf][entity_name] = entity


Rule = Callable[..., str | tuple[Change, ...]]  # of a tool: (state, words) → a look-up's observation, or changes
Requirement = Callable[[State, str, str], object]  # (state, attribute, word); raises `Refused`
_WORD_PATTERN = re.compile(r"[a-z0-9]{1,24}")


@dataclasses.dataclass(frozen=True)
class Tool:
    """One tool. `slots` say what each parameter takes (`new_note`: an unused title); a look-up `gives` a kind of
    word.

    The rule receives the state and one word per parameter. A look-up's rule returns its one-word observation, any other
    rule the changes. Both raise `Refused`.
    """

    name: str
    description: str
    slots: Mapping[str, str]
    rule: Rule
    gives: str = ""

    @property
    def application(self) -> str:
        return self.name.split("_")[0]


def find_effect(state: State, call: Call, tools: Mapping[str, Tool]) -> tuple[str, tuple[Change, ...]]:
    """Finds the observation and changes of a call of one of these tools; changes nothing. Raises `Refused`."""
    tool = tools.get(call.name) if isinstance(call.name, str) else None
    if tool is None:
        raise Refused("no such tool")
    outcome = tool.rule(state, *read_arguments(call.arguments, tuple(tool.slots)))
    if isinstance(outcome, str):
        return outcome, ()
    if all(state[shelf].get(entity_name) == entity for shelf, entity_name, entity in outcome):
        raise Refused("unchanged")
    return "ok", outcome


def perform(state: State, call: Call, tools: Mapping[str, Tool]) -> str:
    """Makes the call's changes and returns its observation. Raises `Refused`."""
    observation, changes = find_effect(state, call, tools)
    apply_changes(state, changes)
    return observation


def read_arguments(arguments: Any, parameters: tuple[str, ...]) -> list[str]:
    """The arguments in the parameters' order. Raises `Refused` unless each parameter has one lower-case word."""
    if isinstance(arguments, Mapping) and set(arguments) == set(parameters):
        values = [arguments[parameter] for parameter in parameters]
        if all(isinstance(value, str) and _WORD_PATTERN.fullmatch(value) for value in values):
            return values
    raise Refused(expects(parameters))


def expects(parameters: tuple[str, ...]) -> str:
    return f"expects {' '.join(parameters)}"


def require_fit(state: State, attribute: str, word: str) -> None:
    """Raises `Refused` for a missing folder, an address that no contact has, or a word that is not a day."""
    if attribute in ("folder", "copies"):
        entity_of(state, "folders", word)
    elif attribute == "day":
        require_word(state, attribute, word)
    elif attribute in ("shared", "guests", "forwarded"):
        addresses = [contact["address"] for contact in state["contacts"].values()]
        if word not in addresses:
            raise Refused("no such address")


def require_word(state: State, attribute: str, word: str) -> None:
    """Raises `Refused` for a word that is not of the attribute's kind."""
    if word not in WORDS[attribute]:
        raise Refused(f"no such {attribute}")


def read(shelf: str, attribute: str) -> Rule:
    """The rule that tells an attribute."""
    return lambda state, entity_name: str(entity_of(state, shelf, entity_name)[attribute])


def add(shelf: str, *attributes: str, require: Requirement = require_fit, **fixed_values: Any) -> Rule:
    """The rule that adds an entity with these attributes, and with those of `fixed_values`, which every new entity
    has."""

    def rule(state: State, entity_name: str, *words: str) -> tuple[Change, ...]:
        _require_unused(state, shelf, entity_name)
        return ((shelf, entity_name, {**_check_words(state, attributes, words, require), **fixed_values}),)

    return rule


def put(shelf: str, *attributes: str, require: Requirement = require_fit) -> Rule:
    """The rule that replaces these attributes."""

    def rule(state: State, name: str, *words: str) -> tuple[Change, ...]:
        return ((shelf, name, {**entity_of(state, shelf, name), **_check_words(state, attributes, words, require)}),)

    return rule


def extend(shelf: str, attribute: str, require: Requirement = require_fit) -> Rule:
    """The rule that adds a word to an attribute that is a list."""

    def rule(state: State, entity_name: str, word: str) -> tuple[Change, ...]:
        entity = entity_of(state, shelf, entity_name)
        require(state, attribute, word)
        return ((shelf, entity_name, {**entity, attribute: sorted({*entity[attribute], word})}),)

    return rule


def turn_on(shelf: str, attribute: str) -> Rule:
    return lambda state, entity_name: ((shelf, entity_name, {**entity_of(state, shelf, entity_name), attribute: True}),)


def rename(shelf: str) -> Rule:
    def rule(state: State, old_name: str, new_name: str) -> tuple[Change, ...]:
        entity = entity_of(state, shelf, old_name)
        _require_unused(state, shelf, new_name)
        return ((shelf, old_name, None), (shelf, new_name, entity))

    return rule


def remove(shelf: str) -> Rule:
    def rule(state: State, entity_name: str) -> tuple[Change, ...]:
        entity_of(state, shelf, entity_name)
        return ((shelf, entity_name, None),)

    return rule


def mail_send() -> Rule:
    def rule(state: State, address: str, text: str) -> tuple[Change, ...]:
        require_fit(state, "forwarded", address)
        texts = state["sent"].get(address, {"texts": []})["texts"]
        return (("sent", address, {"texts": sorted([*texts, text])}),)

    return rule


def entity_of(state: State, shelf: str, entity_name: str) -> Entity:
    """Finds the entity of that name. Raises `Refused` if there is none."""
    if (entity := state[shelf].get(entity_name)) is None:
        raise Refused(f"no such {SINGULAR_OF_SHELF.get(shelf, 'record')}")
    return entity


def _require_unused(state: State, shelf: str, entity_name: str) -> None:
    if entity_name in state[shelf]:
        raise Refused(f"{SINGULAR_OF_SHELF.get(shelf, 'record')} exists")


def _check_words(state: State, attributes: Sequence[str], words: Sequence[str], require: Requirement) -> dict[str, str]:
    values = dict(zip(attributes, words, strict=True))
    for attribute, word in values.items():
        require(state, attribute, word)
    return values


_RULE_MAKERS: Mapping[str, Callable[..., Rule]] = {
    maker.__name__: maker for maker in (read, add, put, extend, turn_on, rename, remove, mail_send)
}


def _to_tool(table_row: str) -> Tool:
    """Reads the tool of a row of tools.txt."""
    tool_name, parameters, rule_text, description, *output_kinds = (cell.strip() for cell in table_row.split("|"))
    slots = {parameter: slot or parameter for parameter, _, slot in (arg.partition(":") for arg in parameters.split())}
    maker_name, *options = rule_text.split()
    fixed_values: dict[str, Any] = {option.removesuffix("=[]"): [] for option in options if option.endswith("=[]")}
    rule = _RULE_MAKERS[maker_name](*(option for option in options if not option.endswith("=[]")), **fixed_values)
    return Tool(tool_name, description, slots, rule, *output_kinds)


_TABLE = Path(__file__).with_name("tools.txt").read_text(encoding="utf-8")
TOOLS: Mapping[str, Tool] = {tool.name: tool for tool in map(_to_tool, re.findall(r"^[^#\n].+", _TABLE, re.MULTILINE))}

FINISH = "finish"


def document_tools(tools: Iterable[Tool] = TOOLS.values()) -> tuple[Mapping[str, Any], ...]:
    """The tools in OpenAI function format, `finish` last."""
    functions = [_document_tool(tool.name, tool.description, tool.slots, required=tool.slots) for tool in tools]
    return (*functions, _document_tool(FINISH, "End the work, with the answer if one was asked for.", ("answer",), ()))


def _document_tool(name: str, description: str, parameters: Iterable[str], required: Iterable[str]) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {parameter: {"type": "string"} for parameter in parameters},
        "required": list(required),
        "additionalProperties": False,
    }
    return to_document(name, description, schema)
