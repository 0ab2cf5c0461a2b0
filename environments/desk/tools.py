"""ONE table of tools with names, parameters and rules; and `perform`, which computes a call's effect."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cojax.types import Call
from . import office
from .office import Change, Refused, State

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
    rule: Callable[..., str | tuple[Change, ...]]
    gives: str = ""

    @property
    def application(self) -> str:
        return self.name.split("_")[0]


def perform(state: State, call: Call, tools: Mapping[str, Tool] | None = None) -> tuple[str, tuple[Change, ...]]:
    """The call's observation and changes; the state itself is not modified. Raises `Refused`.

    `tools` are those of the office's suite; None: TOOLS.
    """
    tool = (TOOLS if tools is None else tools).get(call.name) if isinstance(call.name, str) else None
    if tool is None:
        raise Refused("no such tool")
    result = tool.rule(state, *words(call.arguments, tuple(tool.slots)))
    if isinstance(result, str):
        return result, ()
    if all(state[shelf].get(name) == entity for shelf, name, entity in result):
        raise Refused("unchanged")
    return "ok", result


def words(arguments: Any, parameters: tuple[str, ...]) -> list[str]:
    """The arguments in the parameters' order; `Refused` unless these are all and each is one lower-case word."""
    if isinstance(arguments, Mapping) and set(arguments) == set(parameters):
        values = [arguments[name] for name in parameters]
        if all(isinstance(value, str) and _WORD.fullmatch(value) for value in values):
            return values
    raise Refused(expects(parameters))


def expects(parameters: tuple[str, ...]) -> str:
    return f"expects {' '.join(parameters)}"


def _tool(name: str, slots: str, rule: Callable[..., Any], description: str, gives: str = "") -> Tool:
    parameters = (part.partition(":") for part in slots.split())
    return Tool(name, description, {parameter: kind or parameter for parameter, _, kind in parameters}, rule, gives)


# Parameters are written `name` or `name:slot`; the last column is the kind of word that a look-up returns.
TOOLS: Mapping[str, Tool] = {
    tool.name: tool
    for tool in (
        _tool("files_find", "file", office.read("files", "folder"), "Tell the folder a file is in.", "folder"),
        _tool("files_read", "file", office.read("files", "text"), "Tell the text of a file.", "text"),
        _tool("files_write", "file text", office.files_write, "Replace the text of a file."),
        _tool("files_move", "file folder", office.files_move, "Move a file to a folder."),
        _tool("files_copy", "file folder", office.files_copy, "Put a copy of a file in a folder."),
        _tool("files_rename", "file name:new_file", office.files_rename, "Give a file another name."),
        _tool("files_delete", "file", office.remove("files"), "Delete a file."),
        _tool("folders_create", "folder:new_folder", office.folders_create, "Make an empty folder."),
        _tool("folders_share", "folder address", office.folders_share, "Share a folder with a contact's address."),
        _tool("notes_read", "note", office.read("notes", "text"), "Tell the text of a note.", "text"),
        _tool("notes_add", "note:new_note text", office.notes_add, "Add a new note."),
        _tool("notes_write", "note text", office.notes_write, "Replace the text of a note."),
        _tool("notes_delete", "note", office.remove("notes"), "Delete a note."),
        _tool("contacts_find", "person", office.read("contacts", "address"), "Tell a contact's address.", "address"),
        _tool("contacts_add", "person:new_person address:new_address", office.contacts_add, "Add a contact."),
        _tool("contacts_delete", "person", office.remove("contacts"), "Delete a contact."),
        _tool("calendar_day", "event", office.read("calendar", "day"), "Tell the day of an event.", "day"),
        _tool("calendar_add", "event:new_event day", office.calendar_add, "Schedule a new event on a day."),
        _tool("calendar_move", "event day", office.calendar_move, "Move an event to another day."),
        _tool("calendar_cancel", "event", office.remove("calendar"), "Cancel an event."),
        _tool("calendar_invite", "event address", office.calendar_invite, "Invite a contact's address to an event."),
        _tool("mail_send", "address text", office.mail_send, "Send a text to a contact's address."),
        _tool("mail_read", "person:sender", office.read("mail", "text"), "Tell the text of a person's mail.", "text"),
        _tool("mail_flag", "person:sender", office.mail_flag, "Flag the mail from a person."),
        _tool("mail_forward", "person:sender address", office.mail_forward, "Forward a person's mail to an address."),
        _tool("mail_delete", "person:sender", office.remove("mail"), "Delete the mail from a person."),
    )
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
