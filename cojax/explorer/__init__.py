"""The protocol of explorers: reflect on a trajectory, explore from its task's setup, abstract what worked into drafts.

They do the work of the model in Stages 2 and 3 (CoEvolve §3.2–3.3).
"""

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
    """One expedition: independent runs from the setup of `task`, the context that guided them, and what they did."""

    task: Task
    context: ExplorationContext | None  # None: unguided
    seed: tuple
    triplets: tuple[Triplet, ...] = ()
    failures: tuple[str, ...] = ()  # one line for each run that a failure of the environment or the model ended


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
        """How many expeditions run in parallel."""

    def reflect(self, trajectory: Trajectory, kind: Origin, signal: Signal | None) -> ExplorationContext:
        """What to explore around the trajectory; `kind` names the guidance, and `signal` is None if there is none."""

    def explore(
        self,
        environment: Environment,
        task: Task,
        context: ExplorationContext | None,
        seed: tuple,
        weights: Mapping[str, float] | None,
    ) -> Exploration:
        """Acts in the environment from the task's setup: guided by the context, or unguided if that is None.

        `weights` are an unguided explorer's preferences among the tools; None means no preference.
        """

    def abstract(self, exploration: Exploration, environment: Environment, limit: int) -> Iterable[TaskDraft]:
        """At most `limit` different drafts, made of actions that succeeded in the exploration; may be an iterator."""


@runtime_checkable
class Metered(Explorer, Protocol):
    """An explorer whose work costs something. Each evolution has a budget."""

    def begin(self, evolution: tuple) -> None:
        """Starts an evolution with a full budget."""

    def split(self, seeds: Sequence[tuple]) -> AbstractContextManager[list[Explorer]]:
        """One explorer for each expedition, given by its seed, to run in parallel.

        Each gets an equal share of the remaining budget. What they do not spend is returned at the end of the block.
        """

    def remaining_budget(self) -> "Budget":
        """What is left of the evolution's budget. Other calls for a draft, like a judge's, are paid from it too."""

    def figures(self) -> dict[str, Any]:
        """What this evolution has cost so far."""
