"""The changes that calls made in the databases of a world, as JSON; runs inside the judge alone.

Equal actions give equal JSON. So it leaves out everything in which two worlds may differ after the same actions:

- the id of an added row, and ids that refer to it: the row's content stands in their place
- times (`…_at`, of which only whether there is one is kept, for example for a denied request), unless a user chooses
  them (`scheduled_send_at`); `…_expiry` and `last_logged_in`
- codes drawn at random (invitations, confirmations, verifications) and contents of made-up binary files
- the order of rows

A row whose other columns stayed the same did not change. The benchmark ignores the instruction's own row and the cards
of the people behind it, and so does this.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from cojax.types import canonical
from .report import finite

_VOLATILE = re.compile(
    r"^(id|record_hash|last_logged_in|.*_expiry|(verification|password_reset|invitation|invite|confirmation)_code)$"
)
_WHEN = re.compile(r"^(?!scheduled_send).*_at$")
# The package draws these in place of contents that it does not keep.
_MADE_UP = re.compile(r"binary:\w{10}\.\.\.")
# New rows that refer to one another are followed to this depth.
_DEPTH = 4
# The answer that `complete_task` stores where none was given.
_NO_ANSWER = '"<<NOT_GIVEN>>"'


def changes(stock: Any) -> dict[str, Any]:
    """Table → rows added, removed and changed since the world was opened, and the answer and status of its task.

    `stock` is an open AppWorld; it is not changed.
    """
    from appworld.collections.models import ModelCollectionPair

    stock.models.clear_ids_record_hashes()
    start = stock.task.model_collection
    pair = ModelCollectionPair(start.from_db_home_path, start, stock.models.to_db_home_path, stock.models)
    try:
        tables = {name: pair.changed_records(name) for name in sorted(pair.changed_model_names())}
        describer = _Describer(pair, tables)
        described = {name: entry for name in tables if (entry := describer.table(name))}
        task = pair.end.supervisor.Task.all()[0]
    finally:
        # Reading the start pointed every model at it.
        stock.models.reset_db_home_path()
    answer = None if task.answer == _NO_ANSWER else json.loads(task.answer, parse_constant=str, parse_float=finite)
    return {"tables": described, "answer": answer, "status": task.status}


class _Describer:
    """Describes rows without what may differ."""

    def __init__(self, pair: Any, tables: Mapping[str, tuple[list[Any], list[Any], list[Any]]]) -> None:
        self.pair, self.tables = pair, tables
        self.added = {(name, row.id): row for name, (added, _, _) in tables.items() for row in added}

    def table(self, name: str) -> dict[str, list[Any]]:
        """Rows added, changed (by id, with their new values) and removed (by id); empty where there are none."""
        app, _, kind = name.partition(".")
        added, updated, removed = self.tables[name]
        before = {row.id: row for row in self.pair.start[app][kind].by_ids([row.id for row in updated])}
        changed = []
        for row in updated:
            old, new = self._columns(app, before[row.id]), self._columns(app, row)
            if differing := {column: new[column] for column in new if new[column] != old[column]}:
                changed.append({"id": row.id, **differing})
        entry = {
            "added": [self._columns(app, row) for row in added],
            "changed": changed,
            "removed": [{"id": row.id} for row in removed],
        }
        return {part: sorted(rows, key=canonical) for part, rows in entry.items() if rows}

    def _columns(self, app: str, row: Any, depth: int = 0) -> dict[str, Any]:
        values = json.loads(json.dumps(row.dict(), default=str))
        return {
            column: self._value(app, row, column, value, depth)
            for column, value in sorted(values.items())
            if not _VOLATILE.match(column)
        }

    def _value(self, app: str, row: Any, column: str, value: Any, depth: int) -> Any:
        if _WHEN.match(column):
            return value is not None
        if isinstance(value, str) and _MADE_UP.fullmatch(value):
            return "binary"
        if isinstance(value, dict):
            return {name: self._value(app, row, name, inner, depth) for name, inner in value.items()}
        if column.endswith("_ids") and isinstance(value, list):
            return [self._reference(app, row, column.removesuffix("_ids"), one, depth) for one in value]
        if column.endswith("_id"):
            return self._reference(app, row, column.removesuffix("_id"), value, depth)
        return value

    def _reference(self, app: str, row: Any, named: str, value: Any, depth: int) -> Any:
        """The id of an original row; the content of an added row."""
        from appworld.common.utils import modelize

        mapping = type(row).field_mapping()
        name = mapping.get(f"{named}_id", mapping.get(f"{named}_ids", named))
        kind = modelize(name.removesuffix("_ids").removesuffix("_id"))
        new = self.added.get((f"{app}.{kind}", value))
        if new is None or depth >= _DEPTH:
            return "new" if new is not None else value
        return {"new": self._columns(app, new, depth + 1)}
