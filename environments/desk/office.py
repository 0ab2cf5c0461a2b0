"""The office: its words and its state.

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

import random
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def read_words(file: str) -> Mapping[str, tuple[str, ...]]:
    """The words of a file of this folder, by their kind."""
    text = Path(__file__).with_name(file).read_text(encoding="utf-8")
    return {kind: tuple(words.split()) for kind, words in re.findall(r"^(\w+): (.+)$", text, re.MULTILINE)}


# The kinds share no word, so a word alone determines its kind.
WORDS = read_words("words.txt")

_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
SHELVES: Mapping[str, frozenset[str]] = {shelf: frozenset(row["attributes"]) for shelf, row in _TABLE.items()}
SINGULAR = {shelf: row["entity"] for shelf, row in _TABLE.items() if "entity" in row}
# The shelf that holds a slot's words; texts, days and addresses are on none.
SHELF = {row["noun"]: shelf for shelf, row in _TABLE.items() if "noun" in row}

Entity = Mapping[str, Any]
State = dict[str, dict[str, Entity]]
Change = tuple[str, str, Entity | None]  # shelf, name, what stands there afterwards (None: nothing)

REASONS = (
    *(f"no such {word}" for word in (*SINGULAR.values(), "address", "day", "tool")),
    *(f"{word} exists" for word in SINGULAR.values()),
    "unchanged",
    "already finished",
    "no call",
)


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


def apply(state: State, changes: Sequence[Change]) -> None:
    """Makes the changes, in order."""
    for shelf, name, entity in changes:
        if entity is None:
            del state[shelf][name]
        else:
            state[shelf][name] = entity
