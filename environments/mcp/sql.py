"""Statements worth trying on the databases of a folder, for servers whose tools take SQL as text."""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cojax.types import canonical
from .world import ServerWorld

# Rows of a table that statements are made for.
_MAX_ROWS_PER_TABLE = 3
_WORDS = ("amber", "basil", "cedar", "daisy", "ember", "fable", "grove", "hazel")


_Calls = Iterator[tuple[str, Mapping[str, Any]]]


def offers(world: ServerWorld) -> _Calls:
    """Calls of mcp-server-sqlite's tools: a row that is added, changed, removed or read, a table, a note."""
    state = world.state()
    rng = random.Random(canonical(state))
    new_word = rng.choice(_WORDS)
    file_entries = state.get("files", {}).values()
    tables = [(table_name, table) for file in file_entries for table_name, table in file.get("tables", {}).items()]
    yield "list_tables", {}
    for table_name, table in tables:
        yield "describe_table", {"table_name": table_name}
        yield "write_query", {"query": _write_insert(table_name, table["columns"], table["rows"], new_word)}
        for row in rng.sample(table["rows"], min(_MAX_ROWS_PER_TABLE, len(table["rows"]))):
            yield from _propose_for_row(table_name, table["columns"], row, rng.choice(_WORDS))
    yield "append_insight", {"insight": f"{new_word} sells"}
    if new_word not in dict(tables):
        yield "create_table", {"query": f"CREATE TABLE {new_word} (id INTEGER PRIMARY KEY, name TEXT)"}


def _propose_for_row(table_name: str, columns: Sequence[str], row: Sequence[Any], word: str) -> _Calls:
    """Statements about one row, which its first column identifies."""
    key_column, *other_columns = zip(columns, row, strict=True)
    where = f"WHERE {key_column[0]} = {_write_literal(key_column[1])}"
    for column, value in other_columns:
        yield "read_query", {"query": f"SELECT {column} FROM {table_name} {where}"}
        if isinstance(value, (str, int)):
            new_value = value + 1 if isinstance(value, int) else word
            yield "write_query", {"query": f"UPDATE {table_name} SET {column} = {_write_literal(new_value)} {where}"}
    yield "write_query", {"query": f"DELETE FROM {table_name} {where}"}


def _write_insert(table_name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], word: str) -> str:
    """A statement that adds a row like the last one, with the next number and another word."""
    last_row = rows[-1] if rows else [0, *itertools.repeat("", len(columns) - 1)]
    new_row = [value + 1 if isinstance(value, int) else word for value in last_row]
    return f"INSERT INTO {table_name} ({', '.join(columns)}) VALUES ({', '.join(map(_write_literal, new_row))})"


def _write_literal(value: Any) -> str:
    if value is None:
        return "NULL"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)
