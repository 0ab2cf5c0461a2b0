"""Explorers: the model of Stages 2 and 3. They reflect on a trajectory, go back there, and abstract what they did."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from cojax.environment import Environment
from cojax.types import ExplorationContext, Origin, Signal, Task, TaskDraft, Trajectory, Triplet

if TYPE_CHECKING:
    from cojax.explorer.llm.chat_model import Budget


@dataclasses.dataclass(frozen=True)
class Exploration:
    """What several independent runs brought home, and why some brought nothing."""

    triplets: tuple[Triplet, ...] = ()
    failures: tuple[str, ...] = ()  # one line for each run that the environment broke


class Explorer(Protocol):
    """Reflect, explore, abstract. The same seed gives the same result."""

    @property
    def name(self) -> str:
        """Which explorer it was, as a task's lineage tells."""

    @property
    def ending(self) -> str:
        """The tool that ends an episode, "" where an action without calls ends it or the user's turn."""

    @property
    def width(self) -> int:
        """Expeditions that go at once."""

    def reflect(self, trajectory: Trajectory, kind: Origin, signal: Signal | None) -> ExplorationContext:
        """What the trajectory teaches, for tasks of origin `kind`; `signal` is None where none pointed at it."""

    def explore(
        self,
        environment: Environment,
        task: Task,
        context: ExplorationContext | None,
        seed: tuple,
        weights: Mapping[str, float] | None,
    ) -> Exploration:
        """Interacts with the environment from the task's setup: guided by the context, or unguided where it is None.

        `weights` says how much an unguided explorer is drawn to each tool; None draws it to all alike.
        """

    def abstract(
        self,
        triplets: Sequence[Triplet],
        environment: Environment,
        task: Task,
        context: ExplorationContext | None,
        seed: tuple,
        limit: int,
    ) -> Iterable[TaskDraft]:
        """At most `limit` different drafts, each of actions that really succeeded; they may be made one by one."""


@runtime_checkable
class Metered(Explorer, Protocol):
    """An explorer whose work costs something: it has a budget for each evolution."""

    def begin(self, evolution: tuple) -> None:
        """A new evolution: its budget is whole."""

    def team(self, places: Sequence[tuple]) -> AbstractContextManager[list[Explorer]]:
        """One explorer for each expedition of these seeds, to go at once; they share what is left of the budget."""

    def remaining_budget(self) -> Budget:
        """What is left to it, for whatever is asked of a model on its behalf."""

    def figures(self) -> dict[str, Any]:
        """What this evolution has cost so far."""
