"""ONE table of tools with names, parameters and rules. Rules are pure functions: they return changes, and make none."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cojax.types import Call
from ..tools.toolset import Refused
from .office import SINGULAR, WORDS, Change, Entity, State, apply

Rule = Callable[..., str | tuple[Change, ...]]  # of a tool: (state, words) → what a look-up tells, or the changes
Requirement = Callable[[State, str, str], object]  # (state, attribute, word); raises `Refused`
_WORD = re.compile(r"[a-z0-9]{1,24}")


@dataclasses.dataclass(frozen=True)
class Tool:
    """One tool. `slots` say what each parameter takes (`new_note`: a title not in use); a look-up `gives` a kind.

    The rule receives the state and one word per parameter. A look-up returns its one-word observation, any other
    tool the changes it makes; both raise `Refused`.
    """

    name: str
    description: str
    slots: Mapping[str, str]
    rule: Rule
    gives: str = ""

    @property
    def application(self) -> str:
        return self.name.split("_")[0]


def effect(state: State, call: Call, tools: Mapping[str, Tool]) -> tuple[str, tuple[Change, ...]]:
    """The observation and changes of a call of one of these tools; the state is not modified. Raises `Refused`."""
    tool = tools.get(call.name) if isinstance(call.name, str) else None
    if tool is None:
        raise Refused("no such tool")
    result = tool.rule(state, *words(call.arguments, tuple(tool.slots)))
    if isinstance(result, str):
        return result, ()
    if all(state[shelf].get(name) == entity for shelf, name, entity in result):
        raise Refused("unchanged")
    return "ok", result


def perform(state: State, call: Call, tools: Mapping[str, Tool]) -> str:
    """Makes the call's changes, and returns its observation. Raises `Refused`."""
    observation, changes = effect(state, call, tools)
    apply(state, changes)
    return observation


def words(arguments: Any, parameters: tuple[str, ...]) -> list[str]:
    """The arguments in the parameters' order; `Refused` unless these are all and each is one lower-case word."""
    if isinstance(arguments, Mapping) and set(arguments) == set(parameters):
        values = [arguments[name] for name in parameters]
        if all(isinstance(value, str) and _WORD.fullmatch(value) for value in values):
            return values
    raise Refused(expects(parameters))


def expects(parameters: tuple[str, ...]) -> str:
    return f"expects {' '.join(parameters)}"


def is_fit(state: State, attribute: str, word: str) -> None:
    """Raises `Refused` for a folder that there is not, an address that no contact has, and a day that is none."""
    if attribute in ("folder", "copies"):
        found(state, "folders", word)
    elif attribute == "day":
        is_word(state, attribute, word)
    elif attribute in ("shared", "guests", "forwarded") and not _is_known(state, word):
        raise Refused("no such address")


def is_word(state: State, attribute: str, word: str) -> None:
    """Raises `Refused` for a word that is none of the attribute's kind."""
    if word not in WORDS[attribute]:
        raise Refused(f"no such {attribute}")


def read(shelf: str, attribute: str) -> Rule:
    """Tells an attribute."""
    return lambda state, name: str(found(state, shelf, name)[attribute])


def add(shelf: str, *attributes: str, require: Requirement = is_fit, **bare: Any) -> Rule:
    """Adds an entity with these attributes; those in `bare` are what they are in every new one."""

    def rule(state: State, name: str, *words: str) -> tuple[Change, ...]:
        _free(state, shelf, name)
        return ((shelf, name, {**_valued(state, attributes, words, require), **bare}),)

    return rule


def put(shelf: str, *attributes: str, require: Requirement = is_fit) -> Rule:
    """Replaces these attributes."""

    def rule(state: State, name: str, *words: str) -> tuple[Change, ...]:
        return ((shelf, name, {**found(state, shelf, name), **_valued(state, attributes, words, require)}),)

    return rule


def extend(shelf: str, attribute: str, require: Requirement = is_fit) -> Rule:
    """Adds a word to an attribute that is a list."""

    def rule(state: State, name: str, word: str) -> tuple[Change, ...]:
        entity = found(state, shelf, name)
        require(state, attribute, word)
        return ((shelf, name, {**entity, attribute: sorted({*entity[attribute], word})}),)

    return rule


def turn_on(shelf: str, switch: str) -> Rule:
    return lambda state, name: ((shelf, name, {**found(state, shelf, name), switch: True}),)


def rename(shelf: str) -> Rule:
    def rule(state: State, name: str, new: str) -> tuple[Change, ...]:
        entity = found(state, shelf, name)
        _free(state, shelf, new)
        return ((shelf, name, None), (shelf, new, entity))

    return rule


def remove(shelf: str) -> Rule:
    def rule(state: State, name: str) -> tuple[Change, ...]:
        found(state, shelf, name)
        return ((shelf, name, None),)

    return rule


def mail_send(state: State, address: str, text: str) -> tuple[Change, ...]:
    if not _is_known(state, address):
        raise Refused("no such address")
    texts = state["sent"].get(address, {"texts": []})["texts"]
    return (("sent", address, {"texts": sorted([*texts, text])}),)


def _is_known(state: State, address: str) -> bool:
    return any(contact["address"] == address for contact in state["contacts"].values())


def found(state: State, shelf: str, name: str) -> Entity:
    """The entity of that name; `Refused` where there is none."""
    if (entity := state[shelf].get(name)) is None:
        raise Refused(f"no such {SINGULAR.get(shelf, 'record')}")
    return entity


def _free(state: State, shelf: str, name: str) -> None:
    if name in state[shelf]:
        raise Refused(f"{SINGULAR.get(shelf, 'record')} exists")


def _valued(state: State, attributes: Sequence[str], words: Sequence[str], require: Requirement) -> dict[str, str]:
    valued = dict(zip(attributes, words, strict=True))
    for attribute, word in valued.items():
        require(state, attribute, word)
    return valued


def _slots(written: str) -> dict[str, str]:
    """Parameter → slot. A parameter is written `name` or `name:slot`."""
    parts = (part.partition(":") for part in written.split())
    return {name: slot or name for name, _, slot in parts}


# Name, parameters, rule, description; a look-up's last column is the kind of word that it returns.
_TABLE: tuple[tuple[Any, ...], ...] = (
    ("files_find", "file", read("files", "folder"), "Tell the folder a file is in.", "folder"),
    ("files_read", "file", read("files", "text"), "Tell the text of a file.", "text"),
    ("files_write", "file text", put("files", "text"), "Replace the text of a file."),
    ("files_move", "file folder", put("files", "folder"), "Move a file to a folder."),
    ("files_copy", "file folder", extend("files", "copies"), "Put a copy of a file in a folder."),
    ("files_rename", "file name:new_file", rename("files"), "Give a file another name."),
    ("files_delete", "file", remove("files"), "Delete a file."),
    ("folders_create", "folder:new_folder", add("folders", shared=[]), "Make an empty folder."),
    ("folders_share", "folder address", extend("folders", "shared"), "Share a folder with a contact's address."),
    ("notes_read", "note", read("notes", "text"), "Tell the text of a note.", "text"),
    ("notes_add", "note:new_note text", add("notes", "text"), "Add a new note."),
    ("notes_write", "note text", put("notes", "text"), "Replace the text of a note."),
    ("notes_delete", "note", remove("notes"), "Delete a note."),
    ("contacts_find", "person", read("contacts", "address"), "Tell a contact's address.", "address"),
    ("contacts_add", "person:new_person address:new_address", add("contacts", "address"), "Add a contact."),
    ("contacts_delete", "person", remove("contacts"), "Delete a contact."),
    ("calendar_day", "event", read("calendar", "day"), "Tell the day of an event.", "day"),
    ("calendar_add", "event:new_event day", add("calendar", "day", guests=[]), "Schedule a new event on a day."),
    ("calendar_move", "event day", put("calendar", "day"), "Move an event to another day."),
    ("calendar_cancel", "event", remove("calendar"), "Cancel an event."),
    ("calendar_invite", "event address", extend("calendar", "guests"), "Invite a contact's address to an event."),
    ("mail_send", "address text", mail_send, "Send a text to a contact's address."),
    ("mail_read", "person:sender", read("mail", "text"), "Tell the text of a person's mail.", "text"),
    ("mail_flag", "person:sender", turn_on("mail", "flagged"), "Flag the mail from a person."),
    ("mail_forward", "person:sender address", extend("mail", "forwarded"), "Forward a person's mail to an address."),
    ("mail_delete", "person:sender", remove("mail"), "Delete the mail from a person."),
)
TOOLS: Mapping[str, Tool] = {
    name: Tool(name, description, _slots(parameters), rule, *gives)
    for name, parameters, rule, description, *gives in _TABLE
}

FINISH = "finish"


def documentation(tools: Iterable[Tool] = TOOLS.values()) -> tuple[Mapping[str, Any], ...]:
    """The tools in OpenAI function format, `finish` last."""
    documented = [
        _function(tool.name, tool.description, tuple(tool.slots), required=tuple(tool.slots)) for tool in tools
    ]
    return (*documented, _function(FINISH, "End the work, with the answer if one was asked for.", ("answer",), ()))


def _function(name: str, description: str, parameters: tuple[str, ...], required: tuple[str, ...]) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {parameter: {"type": "string"} for parameter in parameters},
        "required": list(required),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}
