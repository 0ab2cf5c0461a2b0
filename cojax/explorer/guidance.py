"""Reflection without an LLM (CoEvolve §3.2)."""

from __future__ import annotations

from collections.abc import Mapping

from cojax.signals import SIGNALS, Guidance, guidance
from cojax.signals.tools import tools_called
from cojax.types import ExplorationContext, Origin, Signal, Trajectory, Turn, signature

# Of a failing trajectory's errors, so many are told.
_ERRORS_TOLD = 3
# What contexts ask for, by their kind, where no others are given.
GUIDANCE: Mapping[str, Guidance] = guidance({name: make() for name, make in SIGNALS.items()})


def context_of(
    trajectory: Trajectory, kind: Origin, signal: Signal | None, ending: str, told: Mapping[str, Guidance] = GUIDANCE
) -> ExplorationContext:
    """The context of one trajectory: what was done, what went wrong, and where to look now.

    The focus is the signal's, or every tool called where there is none; `ending` is never in it. `told` is
    what contexts ask for, by their kind. Raises ValueError for a kind without guidance.
    """
    if kind not in told:
        raise ValueError(f"no guidance for contexts of kind {kind!r}; expected one of {', '.join(told)}")
    named = signal.focus if signal else ()
    # A policy that called nothing yet leaves the solution's own tools to look at.
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
        objectives=told[kind].worded(tools),
        do_not_repeat=tuple(dict.fromkeys(signature(turn.action) for turn in failed)),
    )


def _summary(trajectory: Trajectory) -> str:
    names = ", ".join(tools_called(trajectory)) or "no call"
    return (
        f"{trajectory.task.query!r}: {len(trajectory.turns)} turns ({names}), "
        f"{trajectory.outcome}, reward {trajectory.reward:.2f}"
    )


def _failure_cause(trajectory: Trajectory, failed: list[Turn]) -> str:
    """The failed checks, the first errors and an unfinished ending; empty for a success without errors."""
    causes = []
    if missed := [check.name for check in trajectory.checks if not check.passed]:
        causes.append(f"checks failed: {', '.join(missed)}")
    causes += [f"{signature(turn.action)}: {turn.observation.text}" for turn in failed[:_ERRORS_TOLD]]
    if trajectory.outcome != "finished":
        causes.append(f"ended as {trajectory.outcome} {trajectory.error}".rstrip())
    return "; ".join(causes)
