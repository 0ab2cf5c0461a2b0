"""How an episode ends: the tool that ends it, what an actor says as an answer, and whether it is the expected one."""

import dataclasses
import itertools
import json
from collections.abc import Collection, Mapping
from typing import Any

from cojax.types import Action, Call, Task, canonical
from .toolset import Refused, Tool

# Where a tool of the world has the first name, the second is taken, and then that with a number.
_NAME, _OTHER = "finish", "finish_episode"
_SAID = "End the episode, with the answer if one was asked for."
_TAKES = {"type": "object", "properties": {"answer": {"type": "string"}}, "additionalProperties": False}


def free_name(taken: Collection[str]) -> str:
    """The name of the tool that ends an episode in a world whose tools have the names `taken`."""
    names = itertools.chain((_NAME, _OTHER), (f"{_OTHER}_{number}" for number in itertools.count(2)))
    return next(name for name in names if name not in taken)


def ending_tool(tools: Mapping[str, Tool], name: str | None) -> Tool:
    """The tool of that name, which is added where the world has none; None stands for a name that is free."""
    named = free_name(tools) if name is None else name
    return tools.get(named) or Tool(named, _SAID, _TAKES, lambda world, arguments: _ended(arguments))


def ended(task: Task, ending: str) -> Task:
    """The task, whose solution ends with a call of the tool `ending`, if it has a solution."""
    if not task.solution or ending in [call.name for call in task.solution[-1].calls]:
        return task
    return dataclasses.replace(task, solution=(*task.solution, Action(calls=(Call(ending),))))


def _ended(arguments: Mapping[str, Any]) -> str:
    if strange := [name for name in arguments if name != "answer"]:
        raise Refused(f"unknown argument {strange[0]!r:.100}; expected answer, or nothing")
    return "ok"


def spoken_answer(action: Action) -> str | None:
    """The answer in an action without calls: its text without a thought, None where there is none."""
    return action.text.rpartition("</think>")[2].strip() or None


def same_answer(given: str | None, expected: str) -> bool:
    """Whether an answer is the expected one: as JSON, or as text without differences of case and white space."""
    if given is None:
        return False
    ours, theirs = read(given), read(expected)
    if isinstance(ours, str) and isinstance(theirs, str):
        return " ".join(ours.casefold().split()) == " ".join(theirs.casefold().split())
    return canonical(ours) == canonical(theirs)


def read(text: str) -> Any:
    """The JSON that a text is, else the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
