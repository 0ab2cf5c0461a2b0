"""Tables of a large database that worlds share: a record is copied when it is first read by its key."""

import copy
from collections.abc import Mapping
from typing import Any


class Table(dict[str, Any]):
    """A table over the records of `original`, which stay as they are: a record read by its key is a copy.

    `values` and `items` hand out the shared records, which must not be changed. The wheel only reads them.
    """

    def __init__(self, original: Mapping[str, Any]) -> None:
        super().__init__(original)
        self.original = original
        self.own: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        if key not in self.own:
            super().__setitem__(key, copy.deepcopy(super().__getitem__(key)))
            self.own.add(key)
        return super().__getitem__(key)

    def __setitem__(self, key: str, record: Any) -> None:
        self.own.add(key)
        super().__setitem__(key, record)

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        self.own.discard(key)

    def get(self, key: str, default: Any = None) -> Any:
        # By key, so that the record is copied.
        try:
            return self[key]
        except KeyError:
            return default

    def fork(self) -> "Table":
        """An independent table that is equal to this one."""
        made = Table(self.original)
        for key in self.original.keys() - self.keys():
            del made[key]
        for key in self.own:
            if (record := self[key]) != self.original.get(key):
                made[key] = copy.deepcopy(record)
        return made

    def changes(self) -> dict[str, Any]:
        """Key → the record, None where it was deleted, of every record that differs from the original's."""
        written = {key: self[key] for key in sorted(self.own) if self[key] != self.original.get(key)}
        return {**written, **dict.fromkeys(sorted(self.original.keys() - self.keys()))}
