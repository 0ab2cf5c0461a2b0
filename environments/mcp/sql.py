"""Statements worth trying on the databases of a folder, for servers whose tools take SQL as text."""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cojax.types import canonical
from .world import ServerWorld

# Rows of a table that statements are made for.
_ROWS = 3
_WORDS = ("amber", "basil", "cedar", "daisy", "ember", "fable", "grove", "hazel")


_Calls = Iterator[tuple[str, Mapping[str, Any]]]


def offers(world: ServerWorld) -> _Calls:
    """Calls of mcp-server-sqlite's tools: a row that is added, changed, removed or read, a table, a note."""
    state = world.state()
    rng = random.Random(canonical(state))
    word = rng.choice(_WORDS)
    files = state.get("files", {}).values()
    tables = [(name, table) for file in files for name, table in file.get("tables", {}).items()]
    yield "list_tables", {}
    for name, table in tables:
        yield "describe_table", {"table_name": name}
        yield "write_query", {"query": _insert(name, table["columns"], table["rows"], word)}
        for row in rng.sample(table["rows"], min(_ROWS, len(table["rows"]))):
            yield from _of_row(name, table["columns"], row, rng.choice(_WORDS))
    yield "append_insight", {"insight": f"{word} sells"}
    if word not in dict(tables):
        yield "create_table", {"query": f"CREATE TABLE {word} (id INTEGER PRIMARY KEY, name TEXT)"}


def _of_row(name: str, columns: Sequence[str], row: Sequence[Any], word: str) -> _Calls:
    """Statements about one row, which its first column identifies."""
    key, *others = zip(columns, row, strict=True)
    where = f"WHERE {key[0]} = {_literal(key[1])}"
    for column, value in others:
        yield "read_query", {"query": f"SELECT {column} FROM {name} {where}"}
        if isinstance(value, (str, int)):
            new_value = value + 1 if isinstance(value, int) else word
            yield "write_query", {"query": f"UPDATE {name} SET {column} = {_literal(new_value)} {where}"}
    yield "write_query", {"query": f"DELETE FROM {name} {where}"}


def _insert(name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], word: str) -> str:
    """A statement that adds a row like the last one, with the next number and another word."""
    last = rows[-1] if rows else [0, *itertools.repeat("", len(columns) - 1)]
    new = [value + 1 if isinstance(value, int) else word for value in last]
    return f"INSERT INTO {name} ({', '.join(columns)}) VALUES ({', '.join(map(_literal, new))})"


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)
