"""What a model is told before it acts: on an expedition, or when it attempts a task on its query alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from cojax.environment import Environment
from cojax.explorer.llm.fitting import fit_texts, shorten
from cojax.explorer.llm.prompting import bullets, data, fill, parts
from cojax.explorer.scripted.windows import tool_documentation
from cojax.types import ExplorationContext, Message, Task

# Tools named to an unguided explorer as the popular ones.
_POPULAR = 10
# Actions that would work, shown to an explorer before its first one: some environments do not list what they hold.
_HINTS = 16
# Of the actions known to fail, all of which are refused: how many the prompt names, and the characters of each.
_REMINDERS, _REMINDER = 20, 200
_LEFT_OUT = "(left out)"


@dataclasses.dataclass(frozen=True)
class Instructions:
    """The prompts of one actor, and its limits.

    `first_messages` makes the system and the user message of three texts: how actions are written, the episode's
    opening, and actions that would work. `after_action` is the template of the message that follows an action.

    The actor is shown at most `window` characters besides our own words, the tools' documentation and the newest
    exchange; the untrusted text that `first_messages` adds itself takes `untrusted` of them. It is shown at most
    `hints` actions that would work. Actions in `avoided` are refused.
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
    """The instructions of an expedition: guided by the context, unguided where it is None; `purpose` says its aim."""
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
    """The instructions of an attempt that sees a task's query alone, as validation makes it."""
    words = parts("solve")

    def first_messages(acting: str, opening: str, hints: str) -> tuple[Message, Message]:
        system = fill(words["system"], steps=str(steps), acting=acting)
        return Message("system", system), Message("user", fill(words["user"], opening=opening))

    return Instructions(first_messages, words["next"], steps, ending, window)


def _context_texts(environment: Environment, task: Task, context: ExplorationContext, room: int) -> dict[str, str]:
    """The texts of a context by their slots in the guided prompt, in at most `room` characters."""
    real = tool_documentation(environment)
    focus = [tool for tool in context.focus_patterns if tool in real] or list(context.focus_patterns)
    # In the order in which they are left out where there is too little room.
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
    """The failed actions that a prompt names: those of tools in focus first, of these the newest first."""
    newest = [shorten(" ".join(line.split()), _REMINDER) for line in reversed(lines)]
    newest.sort(key=lambda line: line.partition("(")[0] not in focus)
    more = len(newest) - _REMINDERS
    return [*newest[:_REMINDERS], *([f"(and {more} more)"] if more > 0 else [])]
