"""Reflection without a language model: the exploration context of a trajectory (CoEvolve §3.2)."""

from collections.abc import Mapping

from cojax.signals import SIGNALS, Guidance, guidance
from cojax.signals.tools import tools_called
from cojax.types import ExplorationContext, Origin, Signal, Trajectory, Turn, signature

# Errors of the trajectory that a context's failure cause names, at most.
_ERRORS_NAMED = 3
# The built-in guidance for contexts, by their kind.
GUIDANCE: Mapping[str, Guidance] = guidance({name: make() for name, make in SIGNALS.items()})


def context_of(
    trajectory: Trajectory, kind: Origin, signal: Signal | None, ending: str, guides: Mapping[str, Guidance] = GUIDANCE
) -> ExplorationContext:
    """The context of one trajectory: what was done, what went wrong, and where to explore.

    The focus is the signal's. Without one it is every tool called, and if nothing was called, the tools of the task's
    solution. `ending` is never in it. `guides` is the guidance for contexts of each kind. Raises ValueError for a kind
    without guidance.
    """
    if kind not in guides:
        raise ValueError(
            f"no guidance for contexts of kind {kind!r}; expected one of {', '.join(guides)}; "
            "an expedition with a plan (cojax.synthesis.reflect_on) needs none of its own"
        )
    named = signal.focus if signal else ()
    solution = (call.name for action in trajectory.task.solution for call in action.calls)
    pattern = tuple(dict.fromkeys(tool for tool in named or tools_called(trajectory) or solution if tool != ending))
    failed = [turn for turn in trajectory.turns if not turn.observation.ok]
    tools = ", ".join(pattern) or "the tools of the task"
    return ExplorationContext(
        task=trajectory.task,
        kind=kind,
        episode=trajectory.episode,
        summary=_summary(trajectory),
        failure_cause=_failure_cause(trajectory, failed),
        instability_pattern=signal.evidence if signal else "",
        focus_patterns=pattern,
        objectives=guides[kind].worded(tools),
        do_not_repeat=tuple(dict.fromkeys(signature(turn.action) for turn in failed)),
    )


def _summary(trajectory: Trajectory) -> str:
    names = ", ".join(tools_called(trajectory)) or "no call"
    return (
        f"{trajectory.task.query!r}: {len(trajectory.turns)} turns ({names}), "
        f"{trajectory.outcome}, reward {trajectory.reward:.2f}"
    )


def _failure_cause(trajectory: Trajectory, failed: list[Turn]) -> str:
    """The failed checks, the first errors, and the outcome unless it is finished; "" for a success without errors."""
    causes = []
    if missed := [check.name for check in trajectory.checks if not check.passed]:
        causes.append(f"checks failed: {', '.join(missed)}")
    causes += [f"{signature(turn.action)}: {turn.observation.text}" for turn in failed[:_ERRORS_NAMED]]
    if trajectory.outcome != "finished":
        causes.append(f"ended as {trajectory.outcome} {trajectory.error}".rstrip())
    return "; ".join(causes)
