"""Counts the costs and failures of a chat model in one evolution, from any thread."""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Iterator

from cojax.explorer.llm.chat_model import ChatFailure, FailureKind


class Counters:
    """Amounts by name, and failures by kind."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._amounts: collections.Counter[str] = collections.Counter()
        self._failures: collections.Counter[str] = collections.Counter()

    def reset(self) -> None:
        with self._guard:
            self._amounts.clear()
            self._failures.clear()

    def count(self, **amounts: int) -> None:
        with self._guard:
            self._amounts.update(amounts)

    def failed(self, kind: FailureKind) -> None:
        with self._guard:
            self._failures[kind] += 1

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        """Counts a ChatFailure that the block raises; it is still raised."""
        try:
            yield
        except ChatFailure as failure:
            self.failed(failure.kind)
            raise

    def amounts(self, *names: str) -> dict[str, int]:
        """The amounts of these names; 0 for a name that was never counted."""
        with self._guard:
            return {name: self._amounts[name] for name in names}

    def failures(self) -> dict[str, int]:
        with self._guard:
            return dict(self._failures)
