"""The protocol of explorers: reflect on a trajectory, explore from its task's setup, abstract what worked into drafts.

Explorers do the work of the model in Stages 2 and 3 (CoEvolve §3.2–3.3).
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from cojax.environment import Environment
from cojax.signals import SIGNALS, Guidance, guidance
from cojax.signals.tools import tools_called
from cojax.types import ExplorationContext, Origin, Signal, Task, TaskDraft, Trajectory, Triplet, Turn, signature

if TYPE_CHECKING:
    from cojax.explorer.llm.chat_model import Budget

# The most errors of a trajectory that a context's failure cause names.
_MAX_NAMED_ERRORS = 3
# The built-in guidance for contexts, by their kind.
GUIDANCE: Mapping[str, Guidance] = guidance({name: make() for name, make in SIGNALS.items()})


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
        """The tool that ends an episode; "" if an action without calls ends the episode or the user's turn."""

    @property
    def width(self) -> int:
        """The number of expeditions that run in parallel."""

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
        """Acts in the environment from the task's setup, guided by the context, or unguided if that is None.

        `weights` are an unguided explorer's preferences among the tools; None means no preference.
        """

    def abstract(self, exploration: Exploration, environment: Environment, limit: int) -> Iterable[TaskDraft]:
        """At most `limit` different drafts, made of actions that succeeded in the exploration; possibly an iterator."""


@runtime_checkable
class Metered(Explorer, Protocol):
    """An explorer whose work costs something. Each evolution has a budget."""

    def begin(self, evolution: tuple) -> None:
        """Starts an evolution with a full budget."""

    def split(self, seeds: Sequence[tuple]) -> AbstractContextManager[list[Explorer]]:
        """Makes one explorer for each expedition, named by its seed, to run in parallel.

        Each gets an equal share of the remaining budget. What they do not spend is returned at the end of the block.
        """

    def remaining_budget(self) -> "Budget":
        """What is left of the evolution's budget. It also pays other calls for a draft, like a judge's."""

    def figures(self) -> dict[str, Any]:
        """What this evolution has cost so far."""


def document_tools(environment: Environment) -> dict[str, Mapping[str, Any]]:
    """The documentation of the environment's tools, by name."""
    return {entry["function"]["name"]: entry["function"] for entry in environment.tools()}


def make_context(
    trajectory: Trajectory, kind: Origin, signal: Signal | None, ending: str, guides: Mapping[str, Guidance] = GUIDANCE
) -> ExplorationContext:
    """The context of one trajectory: what was done, what went wrong, and where to explore.

    The focus is the signal's. Without a signal it is every tool called, or, if nothing was called, the tools of the
    task's solution. It never contains `ending`. `guides` is the guidance for contexts of each kind. Raises
    ValueError for a kind without guidance.
    """
    if kind not in guides:
        raise ValueError(
            f"no guidance for contexts of kind {kind!r}; expected one of {', '.join(guides)}; "
            "an expedition with a plan (cojax.synthesis.reflect_on) needs none of its own"
        )
    weak_tools = signal.focus if signal else ()
    fallback = (call.name for action in trajectory.task.solution for call in action.calls)
    focus = tuple(dict.fromkeys(tool for tool in weak_tools or tools_called(trajectory) or fallback if tool != ending))
    failed_turns = [turn for turn in trajectory.turns if not turn.observation.ok]
    focus_text = ", ".join(focus) or "the tools of the task"
    calls_text = ", ".join(tools_called(trajectory)) or "no call"
    return ExplorationContext(
        task=trajectory.task,
        kind=kind,
        episode=trajectory.episode,
        summary=(
            f"{trajectory.task.query!r}: {len(trajectory.turns)} turns ({calls_text}), "
            f"{trajectory.outcome}, reward {trajectory.reward:.2f}"
        ),
        failure_cause=_describe_failure(trajectory, failed_turns),
        instability_pattern=signal.evidence if signal else "",
        focus_patterns=focus,
        objectives=guides[kind].objectives_with(focus_text),
        do_not_repeat=tuple(dict.fromkeys(signature(turn.action) for turn in failed_turns)),
    )


def _describe_failure(trajectory: Trajectory, failed_turns: list[Turn]) -> str:
    """The failed checks, the first errors, and the outcome unless it is finished; "" for a success without errors."""
    causes = []
    if failed_checks := [check.name for check in trajectory.checks if not check.passed]:
        causes.append(f"checks failed: {', '.join(failed_checks)}")
    causes += [f"{signature(turn.action)}: {turn.observation.text}" for turn in failed_turns[:_MAX_NAMED_ERRORS]]
    if trajectory.outcome != "finished":
        causes.append(f"ended as {trajectory.outcome} {trajectory.error}".rstrip())
    return "; ".join(causes)
