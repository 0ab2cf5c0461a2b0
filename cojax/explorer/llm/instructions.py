"""The instructions for a model that acts: on an expedition, or in an attempt that sees nothing but a task's query."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from cojax.environment import Environment
from cojax.explorer.llm.fitting import fit_texts, shorten
from cojax.explorer.llm.prompting import bullets, data, fill, parts
from cojax.explorer.scripted.windows import tool_documentation
from cojax.types import ExplorationContext, Message, Task

# Tools that an unguided explorer's prompt names as popular.
_POPULAR = 10
# Actions that would work, shown before the first action: some environments do not list what they contain.
_HINTS = 16
# How many of the refused actions the prompt names, and the characters of each.
_REMINDERS, _REMINDER = 20, 200
_LEFT_OUT = "(left out)"


@dataclasses.dataclass(frozen=True)
class Instructions:
    """The prompts of one actor, and its limits.

    `first_messages` makes the system and the user message from three texts: how actions are written, the episode's
    opening, and actions that would work. `after_action` is the template of the message that follows an action.

    The actor sees at most `window` untrusted characters, not counting the tools' documentation and the newest exchange.
    `untrusted` of these characters are in the texts that `first_messages` adds itself. The actor sees at most `hints`
    actions that would work. Actions in `avoided` are refused.
    """

    first_messages: Callable[[str, str, str], tuple[Message, Message]]
    after_action: str
    steps: int
    ending: str
    window: int
    avoided: tuple[str, ...] = ()
    hints: int = 0
    untrusted: int = 0


def exploration_instructions(
    environment: Environment,
    task: Task,
    context: ExplorationContext | None,
    weights: Mapping[str, float] | None,
    purpose: str,
    *,
    steps: int,
    ending: str,
    window: int,
) -> Instructions:
    """The instructions of an expedition: guided by the context, unguided if that is None; `purpose` is its aim."""
    words, untrusted = parts("explore"), 0
    if context is None:
        # Without weights no tool is popular: the explorer prefers none.
        popular = sorted(weights or {}, key=lambda tool: -(weights or {})[tool])[:_POPULAR]
        wanted = f"Users mostly want: {', '.join(popular)}." if popular else "Every function is of equal interest."
        about = fill(words["unguided"], popular=wanted)
    else:
        texts = _context_texts(environment, task, context, window // 3)
        untrusted = sum(map(len, texts.values()))
        about = fill(words["guided"], **{name: data(text) for name, text in texts.items()})

    def first_messages(acting: str, opening: str, hints: str) -> tuple[Message, Message]:
        rule = parts("data")["rule"]
        system = fill(words["system"], guidance=purpose, steps=str(steps), acting=acting, data_rule=rule)
        start = fill(words["opening"], opening=opening) if opening else words["silent"]
        works = f"\n{fill(words['hints'], actions=hints)}\n" if hints else ""
        return Message("system", system), Message("user", fill(words["user"], brief=about, opening=start, hints=works))

    avoided = context.do_not_repeat if context else ()
    return Instructions(first_messages, words["next"], steps, ending, window, avoided, _HINTS, untrusted)


def attempt_instructions(*, steps: int, ending: str, window: int) -> Instructions:
    """The instructions of validation's attempts, which see nothing but a task's query."""
    words = parts("solve")

    def first_messages(acting: str, opening: str, hints: str) -> tuple[Message, Message]:
        system = fill(words["system"], steps=str(steps), acting=acting)
        return Message("system", system), Message("user", fill(words["user"], opening=opening))

    return Instructions(first_messages, words["next"], steps, ending, window)


def _context_texts(environment: Environment, task: Task, context: ExplorationContext, room: int) -> dict[str, str]:
    """The texts of a context by their slots in the guided prompt, in at most `room` characters."""
    real = tool_documentation(environment)
    focus = [tool for tool in context.focus_patterns if tool in real] or list(context.focus_patterns)
    # If there is too little room, texts are left out in this order.
    texts = {
        "do_not_repeat": bullets(_reminders(context.do_not_repeat, focus)),
        "instability_pattern": context.instability_pattern or "nothing known",
        "summary": context.summary,
        "failure_cause": context.failure_cause or "nothing",
        "focus": ", ".join(focus) or "all of it",
        "objectives": bullets(context.objectives),
        "task": task.query,
    }
    shown = fit_texts(list(texts.values()), room - len(texts) * len(_LEFT_OUT))
    return {name: _LEFT_OUT if text is None else text for name, text in zip(texts, shown, strict=True)}


def _reminders(lines: Sequence[str], focus: Sequence[str]) -> list[str]:
    """The failed actions that a prompt names: those of tools in focus first, and the newest first."""
    newest = [shorten(" ".join(line.split()), _REMINDER) for line in reversed(lines)]
    newest.sort(key=lambda line: line.partition("(")[0] not in focus)
    more = len(newest) - _REMINDERS
    return [*newest[:_REMINDERS], *([f"(and {more} more)"] if more > 0 else [])]
