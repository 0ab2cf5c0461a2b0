"""The protocol of explorers: reflect on a trajectory, explore from its task's setup, abstract what worked into drafts.

They do the work of the model in Stages 2 and 3 (CoEvolve §3.2–3.3).
"""

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
    """One expedition's independent runs from the setup of `task`: what was asked of them, and what they did."""

    task: Task
    context: ExplorationContext | None  # None: unguided
    seed: tuple
    triplets: tuple[Triplet, ...] = ()
    failures: tuple[str, ...] = ()  # one line for each run that the environment or the model broke


class Explorer(Protocol):
    """Reflects, explores and abstracts. The same seed gives the same result."""

    @property
    def name(self) -> str:
        """The explorer's name in the lineage of its tasks."""

    @property
    def ending(self) -> str:
        """The tool that ends an episode; "" where an action without calls ends the episode or the user's turn."""

    @property
    def width(self) -> int:
        """How many expeditions run at the same time."""

    def reflect(self, trajectory: Trajectory, kind: Origin, signal: Signal | None) -> ExplorationContext:
        """What to look for near the trajectory, for tasks of origin `kind`; `signal` is None where there is none."""

    def explore(
        self,
        environment: Environment,
        task: Task,
        context: ExplorationContext | None,
        seed: tuple,
        weights: Mapping[str, float] | None,
    ) -> Exploration:
        """Acts in the environment from the task's setup: guided by the context, or unguided where it is None.

        `weights` are an unguided explorer's preferences among the tools; None means that it prefers none.
        """

    def abstract(self, exploration: Exploration, environment: Environment, limit: int) -> Iterable[TaskDraft]:
        """At most `limit` different drafts, made of actions that succeeded in the exploration; may be lazy."""


@runtime_checkable
class Metered(Explorer, Protocol):
    """An explorer whose work costs something. Each evolution has a budget."""

    def begin(self, evolution: tuple) -> None:
        """Starts an evolution with a whole budget."""

    def split(self, seeds: Sequence[tuple]) -> AbstractContextManager[list[Explorer]]:
        """One explorer for each expedition, given by its seed, to run at the same time.

        They share equally what is left of the budget; what they do not spend comes back at the end of the block.
        """

    def remaining_budget(self) -> Budget:
        """What is left of the evolution's budget; calls on the explorer's behalf, like a judge's, are paid from it."""

    def figures(self) -> dict[str, Any]:
        """What this evolution has cost so far."""
