"""What an environment of another process answers, read as records: for workers, and for nodes of a cluster."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cojax.environment import EnvironmentFailure, Traits
from cojax.types import Action, Task, Triplet, to_json
from .records import read

# Demonstrations fetched with one call.
_PAGE = 256


class Served:
    """The calls that concern the whole environment; `_call` makes them, and is the subclass's own.

    `described` is what `child.describe` says of the environment.
    """

    def __init__(self, described: Mapping[str, Any]) -> None:
        self.name: str = described["name"]
        self.layers: Mapping[str, bool] = described["layers"]
        self.traits: Traits = read(Traits, described["traits"])

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return self._tools

    @functools.cached_property
    def _tools(self) -> tuple[Mapping[str, Any], ...]:
        return read(tuple[Mapping[str, Any], ...], self._call("tools"))

    def tasks(self, split: str, count: int, seed: int = 0) -> tuple[Task, ...]:
        """As the environment's own. Raises ValueError where it does."""
        try:
            found = self._call("tasks", split, count, seed)
        except EnvironmentFailure as failure:
            _, named, reason = str(failure).partition("ValueError: ")
            raise ValueError(reason) if named else failure from None
        return read(tuple[Task, ...], found)

    def phrase(self, steps: Sequence[Triplet]) -> str | None:
        return self._call("phrase", to_json(steps))

    def _call(self, op: str, *arguments: Any) -> Any:
        raise NotImplementedError


class ServedCharted(Served):
    """An environment with the protocol `Charted`, as the scripted explorer needs it."""

    def popularity(self) -> Mapping[str, float]:
        return self._popularity

    @functools.cached_property
    def _popularity(self) -> Mapping[str, float]:
        return self._call("popularity")

    def neighbours(self, tool: str) -> tuple[str, ...]:
        return self._neighbours(tool)

    @functools.cached_property
    def _neighbours(self) -> Any:
        return functools.cache(lambda tool: tuple(self._call("neighbours", tool)))


class ServedDemonstrated(Served):
    """An environment with the protocol `Demonstrated`, from which a policy can be trained from scratch."""

    def lexicon(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        names, texts = self._call("lexicon")
        return tuple(names), tuple(texts)

    def demonstrations(
        self, count: int, seed: int, noise: tuple[float, float]
    ) -> Iterator[tuple[Task, tuple[Action, ...]]]:
        for start in itertools.count(0, _PAGE):
            page = self._call("demonstrations", count, seed, noise, start, _PAGE)
            for task, actions in page:
                yield read(Task, task), read(tuple[Action, ...], actions)
            if len(page) < _PAGE:
                return
