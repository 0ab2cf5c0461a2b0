"""Attackers that change the honest solution: they leave work out, do it wrong, or do what nobody asked for."""

import re
from collections.abc import Iterator
from typing import Any

from cojax.drafts import leave_out
from cojax.types import Action, Call, normalise
from ..soundness import drop_calls
from .player import Attempt
from .scene import Scene, is_same

# The most harmful calls that `extra` tries, and the most values in place of one argument.
_MAX_EXTRA_CALLS, _MAX_SWAPS = 4, 3
_NUMBER = re.compile(r"-?\d+(\.\d+)?")


def drop(scene: Scene) -> Iterator[Attempt]:
    """The solution without one call, each in turn."""
    for index, remaining_actions, tool in drop_calls(scene.solution):
        yield Attempt(f"without {tool} of action {index + 1}", remaining_actions)
    for index, action in enumerate(scene.solution[:-1]):
        if not action.calls and action.text:
            yield Attempt(f"without the text of action {index + 1}", leave_out(scene.solution, index))
    if scene.answer is not None and scene.final_actions:
        yield Attempt("without the answer", (*scene.body, scene.ending.bare()))


def swap(scene: Scene) -> Iterator[Attempt]:
    """The solution with one argument, or one text, replaced by another, each in turn.

    A value that the query does not name may have been a free choice, and so may be what changes nothing.
    """
    query = normalise(scene.task.query)
    for index, action in enumerate(scene.solution):
        is_idle = index < len(scene.body) and not scene.changes(index)
        if not action.calls and action.text and index < len(scene.body):
            for other in _make_others(action.text, is_answer=True):
                actions = (*scene.solution[:index], Action(other), *scene.solution[index + 1 :])
                yield Attempt(f"says {other!r:.60}", actions, is_doubtful=is_idle, replaced=index)
        for number, call in enumerate(action.calls):
            for parameter, value in call.arguments.items():
                is_answer = (call.name, parameter) == (scene.ending.tool, scene.ending.parameter)
                for other in _list_others(scene, call, parameter, value, is_answer=is_answer):
                    changed = Call(call.name, {**call.arguments, parameter: other})
                    calls = (*action.calls[:number], changed, *action.calls[number + 1 :])
                    actions = (*scene.solution[:index], Action(calls=calls), *scene.solution[index + 1 :])
                    is_free = is_idle or (not is_answer and normalise(str(value)) not in query)
                    label = f"{call.name} of action {index + 1} with {parameter}={other!r:.60}"
                    yield Attempt(label, actions, is_doubtful=is_free, replaced=index)
    if scene.answer is not None and not scene.ending.tool:
        for other in _list_others(scene, None, "", scene.answer, is_answer=True):
            yield Attempt(f"answers {other!r:.60}", (*scene.body, scene.ending.answer(other)))


def _list_others(scene: Scene, call: Call | None, parameter: str, value: Any, *, is_answer: bool) -> list[Any]:
    """Other values for an argument: of the same parameter in calls that worked, of the same kind, and a longer one."""
    seen = [
        tried.call.arguments[parameter]
        for tried in scene.tried
        if call is not None and tried.call.name == call.name and parameter in tried.call.arguments
    ]
    seen = [other for other in seen if type(other) is type(value) and not is_same(other, value)]
    made = _make_others(value, is_answer=is_answer)
    unique = {repr(other): other for other in (*([] if is_answer else seen[:1]), *made)}
    return list(unique.values())[:_MAX_SWAPS]


def _make_others(value: Any, *, is_answer: bool) -> list[Any]:
    """Other values of a kind.

    Another answer is far from the honest one: a judge may allow a tolerance, or another true answer. A list that
    only repeats a member may be as good.
    """
    made: list[Any] = []
    match value:
        case bool():
            made = [not value]
        case int() | float():
            made = [2 * value + 7 if is_answer else value + 1]
        case str() if _NUMBER.fullmatch(value.strip()):
            number = float(value) if "." in value else int(value)
            made = [str(2 * number + 7 if is_answer else number + 1), f"{value} and more"]
        case str():
            made = [f"{value} and more", "something else"]
        case list() if value:
            made = [value[:-1], [*value, *_make_others(value[0], is_answer=is_answer)[:1]]]
    return [other for other in made if not is_same(other, value)]


def stop(scene: Scene) -> Iterator[Attempt]:
    """The first part of the solution alone, with the end of the episode and without."""
    for count in range(1, len(scene.body)):
        part = scene.solution[:count]
        yield Attempt(f"stops after action {count}", part)
        yield Attempt(f"ends after action {count}", (*part, scene.ending.bare()))


def extra(scene: Scene) -> Iterator[Attempt]:
    """The solution, and before it a call that changes what nobody asked for."""
    own_calls = [call for action in scene.solution for call in action.calls]
    harmful = [tried for tried in scene.tried if tried.ok and tried.changes and tried.call not in own_calls]
    # What removes most leaves does most harm; a tool that the solution does not call was least asked for.
    own_tools = {call.name for call in own_calls}
    start = scene.idle.states[0] if scene.idle.states else {}
    removed = {id(tried): sum(path in start for path in tried.changes) for tried in harmful}
    harmful.sort(key=lambda tried: (tried.call.name in own_tools, -removed[id(tried)]))
    for tried in harmful[:_MAX_EXTRA_CALLS]:
        yield Attempt(f"{tried.call.name} before the solution", (Action(calls=(tried.call,)), *scene.solution))


def double(scene: Scene) -> Iterator[Attempt]:
    """The solution twice, and its last call but one twice."""
    if scene.body:
        yield Attempt("the solution twice", (*scene.body, *scene.body, *scene.final_actions))
        if len(scene.body) > 1:
            yield Attempt("its last action twice", (*scene.body, scene.body[-1], *scene.final_actions))


def exchange(scene: Scene) -> Iterator[Attempt]:
    """The solution with two neighbouring actions exchanged; one without calls, which ends a user's turn, stays."""
    for index in range(len(scene.body) - 1):
        first, second = scene.body[index : index + 2]
        if first != second and first.calls and second.calls:
            actions = (*scene.body[:index], second, first, *scene.body[index + 2 :], *scene.final_actions)
            yield Attempt(f"actions {index + 1} and {index + 2} exchanged", actions)
