"""The office's rules: its state and the effect of each tool, as pure functions that return changes.

State: shelf → name → entity, a plain JSON dict:

    files     name   → folder, text, copies [folder]
    folders   name   → shared [address]
    notes     title  → text
    contacts  person → address
    calendar  event  → day, guests [address]
    mail      sender → text, flagged, forwarded [address]
    sent      address → texts [text]

Entities are replaced, never mutated, so a state is copied in seven dict copies. Lists are sorted: equal offices are
equal values.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from .words import WORDS

SHELVES: Mapping[str, frozenset[str]] = {
    "files": frozenset({"folder", "text", "copies"}),
    "folders": frozenset({"shared"}),
    "notes": frozenset({"text"}),
    "contacts": frozenset({"address"}),
    "calendar": frozenset({"day", "guests"}),
    "mail": frozenset({"text", "flagged", "forwarded"}),
    "sent": frozenset({"texts"}),
}

Entity = Mapping[str, Any]
State = dict[str, dict[str, Entity]]
Change = tuple[str, str, Entity | None]  # shelf, name, what stands there afterwards (None: nothing)

SINGULAR = {
    "files": "file",
    "folders": "folder",
    "notes": "note",
    "contacts": "contact",
    "calendar": "event",
    "mail": "mail",
}
REASONS = (
    *(f"no such {word}" for word in (*SINGULAR.values(), "address", "day", "tool")),
    *(f"{word} exists" for word in SINGULAR.values()),
    "unchanged",
    "already finished",
    "no call",
)
# The shelf that holds a slot's words; texts, days and addresses are on none.
SHELF = {
    "file": "files",
    "folder": "folders",
    "note": "notes",
    "person": "contacts",
    "sender": "mail",
    "event": "calendar",
}
DAYS = frozenset(WORDS["day"])


class Refused(Exception):
    """The call cannot be carried out; the text says why and nothing has changed."""


def copy(office: Mapping[str, Mapping[str, Entity]], shelves: Mapping[str, frozenset[str]] = SHELVES) -> State:
    """An independent state. Raises ValueError where a shelf or an attribute is missing or unknown."""
    if set(office) != set(shelves):
        raise ValueError(f"an office has the shelves {list(shelves)}; found {sorted(office)}")
    for shelf, attributes in shelves.items():
        for name, entity in office[shelf].items():
            if entity.keys() != attributes:
                raise ValueError(f"{shelf}/{name} has the attributes {sorted(entity)}; expected {sorted(attributes)}")
    return {shelf: dict(office[shelf]) for shelf in shelves}


def new_office(rng: random.Random) -> State:
    """A small office: 3 folders, 4 files, 3 notes, 4 contacts, 3 events, mail from 3 of the contacts."""

    def some(what: str, count: int) -> list[str]:
        return rng.sample(WORDS[what], count)

    folders, people, texts = some("folder", 3), some("person", 4), iter(some("text", 10))
    return {
        "files": {file: {"folder": rng.choice(folders), "text": next(texts), "copies": []} for file in some("file", 4)},
        "folders": {folder: {"shared": []} for folder in folders},
        "notes": {note: {"text": next(texts)} for note in some("note", 3)},
        "contacts": {person: {"address": address} for person, address in zip(people, some("address", 4), strict=True)},
        "calendar": {event: {"day": rng.choice(WORDS["day"]), "guests": []} for event in some("event", 3)},
        "mail": {person: {"text": next(texts), "flagged": False, "forwarded": []} for person in rng.sample(people, 3)},
        "sent": {},
    }


def facts(office: Mapping[str, Mapping[str, Entity]]) -> dict[str, Any]:
    """The office as path → value, one fact for each attribute of each entity."""
    return {
        f"{shelf}/{name}/{attribute}": value
        for shelf, entities in office.items()
        for name, entity in entities.items()
        for attribute, value in entity.items()
    }


def apply(state: State, changes: tuple[Change, ...]) -> None:
    """Makes the changes, in order."""
    for shelf, name, entity in changes:
        if entity is None:
            del state[shelf][name]
        else:
            state[shelf][name] = entity


def _on(state: State, shelf: str, name: str) -> Entity:
    if (entity := state[shelf].get(name)) is None:
        raise Refused(f"no such {SINGULAR[shelf]}")
    return entity


def _free(state: State, shelf: str, name: str) -> None:
    if name in state[shelf]:
        raise Refused(f"{SINGULAR[shelf]} exists")


def _check_known(state: State, address: str) -> None:
    if all(contact["address"] != address for contact in state["contacts"].values()):
        raise Refused("no such address")


def _day(day: str) -> None:
    if day not in DAYS:
        raise Refused("no such day")


def _with(entity: Entity, attribute: str, word: str) -> Entity:
    """The entity with the word in one of its lists; `Refused` if it is there already."""
    if word in entity[attribute]:
        raise Refused("unchanged")
    return {**entity, attribute: sorted([*entity[attribute], word])}


def files_move(state: State, file: str, folder: str) -> tuple[Change, ...]:
    entity = _on(state, "files", file)
    _on(state, "folders", folder)
    return (("files", file, {**entity, "folder": folder}),)


def files_copy(state: State, file: str, folder: str) -> tuple[Change, ...]:
    entity = _on(state, "files", file)
    _on(state, "folders", folder)
    return (("files", file, _with(entity, "copies", folder)),)


def files_rename(state: State, file: str, name: str) -> tuple[Change, ...]:
    entity = _on(state, "files", file)
    _free(state, "files", name)
    return (("files", file, None), ("files", name, entity))


def files_write(state: State, file: str, text: str) -> tuple[Change, ...]:
    return (("files", file, {**_on(state, "files", file), "text": text}),)


def folders_create(state: State, folder: str) -> tuple[Change, ...]:
    _free(state, "folders", folder)
    return (("folders", folder, {"shared": []}),)


def folders_share(state: State, folder: str, address: str) -> tuple[Change, ...]:
    entity = _on(state, "folders", folder)
    _check_known(state, address)
    return (("folders", folder, _with(entity, "shared", address)),)


def notes_add(state: State, note: str, text: str) -> tuple[Change, ...]:
    _free(state, "notes", note)
    return (("notes", note, {"text": text}),)


def notes_write(state: State, note: str, text: str) -> tuple[Change, ...]:
    _on(state, "notes", note)
    return (("notes", note, {"text": text}),)


def contacts_add(state: State, person: str, address: str) -> tuple[Change, ...]:
    _free(state, "contacts", person)
    return (("contacts", person, {"address": address}),)


def calendar_add(state: State, event: str, day: str) -> tuple[Change, ...]:
    _free(state, "calendar", event)
    _day(day)
    return (("calendar", event, {"day": day, "guests": []}),)


def calendar_move(state: State, event: str, day: str) -> tuple[Change, ...]:
    entity = _on(state, "calendar", event)
    _day(day)
    return (("calendar", event, {**entity, "day": day}),)


def calendar_invite(state: State, event: str, address: str) -> tuple[Change, ...]:
    entity = _on(state, "calendar", event)
    _check_known(state, address)
    return (("calendar", event, _with(entity, "guests", address)),)


def mail_send(state: State, address: str, text: str) -> tuple[Change, ...]:
    _check_known(state, address)
    texts = state["sent"].get(address, {"texts": []})["texts"]
    return (("sent", address, {"texts": sorted([*texts, text])}),)


def mail_flag(state: State, person: str) -> tuple[Change, ...]:
    return (("mail", person, {**_on(state, "mail", person), "flagged": True}),)


def mail_forward(state: State, person: str, address: str) -> tuple[Change, ...]:
    entity = _on(state, "mail", person)
    _check_known(state, address)
    return (("mail", person, _with(entity, "forwarded", address)),)


def read(shelf: str, attribute: str) -> Callable[[State, str], str]:
    return lambda state, name: str(_on(state, shelf, name)[attribute])


def remove(shelf: str) -> Callable[[State, str], tuple[Change, ...]]:
    def rule(state: State, name: str) -> tuple[Change, ...]:
        _on(state, shelf, name)
        return ((shelf, name, None),)

    return rule
