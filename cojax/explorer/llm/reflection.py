"""Reflection by a model: the prompt about one trajectory, and the exploration context made from the reply."""

import dataclasses
from collections.abc import Sequence

from pydantic import BaseModel

from cojax.explorer.llm.prompting import data, fill, fit_pairs, parts, prompt, shorten
from cojax.types import ExplorationContext, Message, Signal, Trajectory, signature

# The most characters of a line that is taken from a reflection, and the most lines of one of its lists.
_LINE, _LINES = 600, 8
# Characters of the headings of an action and its result, and of the note that says how many are left out.
_HEADINGS, _NOTE = 48, 60


# Its schema is sent to the model: the class's name and docstring are part of every request's journal key.
class Reflection(BaseModel):
    """What a model says of a trajectory."""

    summary: str
    failure_cause: str = ""
    instability_pattern: str = ""
    focus_patterns: list[str] = []
    objectives: list[str] = []
    do_not_repeat: list[str] = []


def reflection_prompt(trajectory: Trajectory, reason: str, signal: Signal | None, window: int) -> Sequence[Message]:
    """The messages that ask for a `Reflection`; at most `window` characters of them are untrusted.

    `reason` is why the trajectory was chosen, in our own words; the signal adds what was measured.
    """
    words, sixth = parts("reflect"), window // 6
    evidence = shorten(signal.evidence, sixth) if signal else ""
    checks = "; ".join(f"{check.name}: {'passed' if check.passed else 'failed'}" for check in trajectory.checks)
    verdict = f"{trajectory.outcome}, reward {trajectory.reward:.2f} {trajectory.error}".rstrip()
    verdict = shorten(f"{verdict}\n{checks}".strip(), sixth)
    query = shorten(trajectory.task.query, sixth)
    return prompt(
        "reflect",
        data_rule=parts("data")["rule"],
        reason=reason,
        evidence=f"\n{fill(words['evidence'], evidence=data(evidence))}\n" if evidence else "",
        task=data(query),
        verdict=data(verdict),
        record=data(_record(trajectory, window - len(evidence) - len(verdict) - len(query))),
    )


def add_reflection(context: ExplorationContext, reflection: Reflection) -> ExplorationContext:
    """The context with the model's reflection. An empty list or instability pattern does not replace the context's own.

    `do_not_repeat` is extended, never replaced.
    """
    return dataclasses.replace(
        context,
        summary=_line(reflection.summary),
        failure_cause=_line(reflection.failure_cause),
        instability_pattern=_line(reflection.instability_pattern) or context.instability_pattern,
        focus_patterns=_lines(reflection.focus_patterns) or context.focus_patterns,
        objectives=_lines(reflection.objectives) or context.objectives,
        do_not_repeat=tuple(dict.fromkeys((*context.do_not_repeat, *_lines(reflection.do_not_repeat)))),
    )


def _record(trajectory: Trajectory, room: int) -> str:
    """The trajectory's actions and results in at most `room` characters; the newest if there is too little room."""
    turns = [(signature(turn.action) or "(nothing)", turn.observation.text) for turn in trajectory.turns]
    shown = fit_pairs(turns, room - _NOTE, _HEADINGS)
    first = len(turns) - len(shown)
    blocks = [f"[the first {first} actions are left out]"] if first else []
    for index, (action, result) in enumerate(shown, start=first):
        how = "worked" if trajectory.turns[index].observation.ok else "failed"
        blocks.append(f"Action {index + 1}: {action}\nResult ({how}): {result}")
    return "\n\n".join(blocks)


def _line(text: str) -> str:
    return shorten(" ".join(text.split()), _LINE)


def _lines(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(line for text in texts[:_LINES] if (line := _line(text))))
