"""Whether a solution needs each of its calls: what it has only to look must be of use to what comes after.

A call, or an action that is text, is left out and the others are played again. It is needed if then another action
fails, if the episode ends otherwise by more than what it showed itself, or if the query asks for what it shows. It is
used if a value that it was the first to show stands in a later action or in the answer.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cojax.environment.replay import Replay
from cojax.explorer.answers import parsed
from cojax.explorer.guidance import signature
from cojax.types import Action, Observation, Triplet, content_hash, normalise
from cojax.validation.consistency import shown
from cojax.validation.mention import COMMON, Said, fold, number_of, words

# Words by which a query makes what it asks for depend on what is found.
_CONDITION = re.compile(
    r"\b(?:if|unless|otherwise|whether|in case|depending|provided|as long as|only when|when(?:ever)?|else|should)\b"
)
# What says nothing of its own.
_EMPTY = COMMON | {"true", "false", "none", "null", "ok"}
_WORD = re.compile(r"\w+(?:[.@:/-]\w+)*")


@dataclasses.dataclass(frozen=True)
class Part:
    """A call of an action, or a whole action where `call` is None: what can be left out of a solution."""

    action: int
    call: int | None = None

    def of(self, actions: Sequence[Action]) -> Action:
        whole = actions[self.action]
        return whole if self.call is None else Action(calls=(whole.calls[self.call],))

    def without(self, actions: Sequence[Action]) -> tuple[Action, ...]:
        if self.call is None:
            return (*actions[: self.action], *actions[self.action + 1 :])
        whole = actions[self.action]
        # The text may spell the calls out.
        rest = Action(calls=(*whole.calls[: self.call], *whole.calls[self.call + 1 :]))
        return (*actions[: self.action], rest, *actions[self.action + 1 :])

    def named(self, actions: Sequence[Action]) -> str:
        within = "" if self.call is None else f"call {self.call + 1} of "
        return f"{within}action {self.action + 1}, {signature(self.of(actions))[:200]}"


def parts(actions: Sequence[Action], ending: str) -> Iterator[Part]:
    """What can be left out of the actions before the last one, and of the last one where it has several calls; a call
    that ends the episode stays."""
    for place, action in enumerate(actions):
        if len(action.calls) > 1:
            yield from (Part(place, number) for number, call in enumerate(action.calls) if call.name != ending)
        elif place < len(actions) - 1:
            yield Part(place)


def changing(parts: Sequence[Part], actions: Sequence[Action], run: Replay, split: Replay | None) -> set[Part]:
    """The parts that changed the state. `split` is the replay of all calls one by one, where some stand together: if
    that ends elsewhere, calls that stand together count as changing."""
    single = {part for part in parts if part.call is None and part.action in run.effective}
    together = [part for part in parts if part.call is not None]
    if split is None or not split.complete or split.states[-1] != run.states[-1]:
        return single | set(together)
    starts = [0]
    for action in actions:
        starts.append(starts[-1] + max(1, len(action.calls)))
    places = {part: starts[part.action] + (part.call or 0) for part in together}
    return single | {part for part, place in places.items() if split.states[place] != split.states[place + 1]}


def apart(actions: Sequence[Action]) -> tuple[Action, ...]:
    """The actions with every call in one of its own."""
    return tuple(
        one
        for action in actions
        for one in ([Action(calls=(call,)) for call in action.calls] if len(action.calls) > 1 else [action])
    )


def triplets(run: Replay) -> tuple[Triplet, ...]:
    """The steps of a replay."""
    return tuple(Triplet(turn.action, turn.observation, 0) for turn in run.trajectory.turns)


def opening(run: Replay) -> str:
    """What the episode shows before the first action."""
    return "\n".join(message.content for message in run.trajectory.opening)


def only_shows(part: Part, run: Replay, less: Replay) -> bool:
    """Whether all that the part left in the end is what it showed: nothing, or its output where the environment keeps
    outputs, or hashes of them, to compare them."""
    if not run.states or not less.states:
        return False
    whole, rest = _leaves(run.states[-1]), _leaves(less.states[-1])
    outputs = Counter(message.content for message in _messages(part, triplets(run)))
    outputs += Counter({f"hash:{content_hash(text)}": count for text, count in outputs.items()})
    added = Counter(leaf for _, leaf in (whole - rest).elements())
    return not rest - whole and not added - outputs


def first_shown(part: Part, steps: Sequence[Triplet], query: str, opened: str) -> str:
    """A value that the part was the first to show and a later action holds; empty where there is none."""
    seen = "\n".join(message.content for message in _messages(part, steps))
    own = part.of([step.action for step in steps])
    before = [query, opened, _written(own)]
    before += [f"{_written(step.action)}\n{shown(step, query)}" for step in steps[: part.action]]
    if part.call is not None:
        before += [message.content for message in steps[part.action].observation.messages[: part.call]]
    later = [_written(step.action) for step in steps[part.action + 1 :]]
    if part.call is not None:
        later.append(_written(Action(calls=steps[part.action].action.calls[part.call + 1 :])))
    known, new = _values("\n".join(before)), _values(seen)
    used = (new - known) & _values("\n".join(later))
    return max(used, key=lambda value: (len(value), value), default="")


def asked_by(
    part: Part, steps: Sequence[Triplet], query: str, worded: bool, phrase: Callable[[Sequence[Triplet]], str | None]
) -> bool | None:
    """Whether the query asks for what the part does, by the environment's wording; None where that has no word of it.

    `worded` is whether the query is the environment's wording of all steps.
    """
    rest = phrase(_steps_without(part, steps))
    if rest is not None and normalise(rest) == normalise(query):
        return False
    return True if worded else None


def condition(part: Part, steps: Sequence[Triplet], query: str) -> bool:
    """Whether the query makes what follows depend on what the part shows, as far as words tell: it speaks of a
    condition, and names what is looked up and what is found."""
    said = Said(query)
    if not _CONDITION.search(fold(query)):
        return False
    own = part.of([step.action for step in steps])
    found = (message.content for message in _messages(part, steps))
    return any(said.names(text) for text in found if text.strip()) and any(
        said.names(str(value)) for call in own.calls for value in call.arguments.values()
    )


def may_be_asked(
    part: Part,
    steps: Sequence[Triplet],
    query: str,
    described: Callable[[Action], str],
    phrase: Callable[[Sequence[Triplet]], str | None],
) -> bool:
    """Whether the query has a word about the part that is about no other: its values, its name, its documentation, or
    what the environment says of it."""
    others = [step.action for step in _steps_without(part, steps)]
    own = part.of([step.action for step in steps])
    worded = {*words(phrase(steps) or "")} - {*words(phrase(_steps_without(part, steps)) or "")}
    about = (Said(described(own)).words | worded) - {word for other in others for word in words(described(other))}
    # A call made twice has no words of its own.
    if not about:
        return any(signature(other) == signature(own) for other in others)
    said = Said(query)
    return any(word in said.words for word in about)


def after_the_end(actions: Sequence[Action], played: int, ending: str) -> str:
    """Where a solution goes on although the episode is over, as a line of evidence; empty where it does not.

    In code that is a call of the top level after the one that ends, on the same object.
    """
    if played < len(actions):
        return f"calls after the end: action {played} ends the episode, and {len(actions) - played} more follow"
    for place, action in enumerate(actions, 1):
        if ending and ending in [call.name for call in action.calls[:-1]]:
            return f"calls after the end: action {place} goes on after {ending}"
        if ending and not action.calls and (line := _goes_on(action, ending.rpartition(".")[2])):
            return f"calls after the end: the code of action {place} goes on after {ending} with {line}"
    return ""


def _goes_on(action: Action, ending: str) -> str:
    over = ""
    for statement in _tree(action).body:
        for node in ast.walk(statement) if over else ():
            if isinstance(node, ast.Call) and (_root(node.func) == over or _attribute(node.func) == ending):
                return ast.unparse(node)[:100]
        if isinstance(statement, ast.Expr | ast.Assign) and isinstance(statement.value, ast.Call):
            over = over or (_root(statement.value.func) if _attribute(statement.value.func) == ending else "")
    return ""


def _attribute(func: ast.expr) -> str:
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


def _root(func: ast.expr) -> str:
    """The name that a chain of attributes begins with."""
    while isinstance(func, ast.Attribute):
        func = func.value
    return func.id if isinstance(func, ast.Name) else ""


def _messages(part: Part, steps: Sequence[Triplet]) -> list[Any]:
    """What answered the part: all messages of its action, where these do not stand one by one for its calls."""
    step = steps[part.action]
    if part.call is None or len(step.observation.messages) != len(step.action.calls):
        return list(step.observation.messages)
    return [step.observation.messages[part.call]]


def _steps_without(part: Part, steps: Sequence[Triplet]) -> tuple[Triplet, ...]:
    if part.call is None:
        return (*steps[: part.action], *steps[part.action + 1 :])
    step, number = steps[part.action], part.call
    messages = step.observation.messages
    if len(messages) == len(step.action.calls):
        messages = (*messages[:number], *messages[number + 1 :])
    (action,) = Part(0, number).without([step.action])
    rest = Triplet(action, dataclasses.replace(step.observation, messages=messages), step.run)
    return (*steps[: part.action], rest, *steps[part.action + 1 :])


def _leaves(state: Any) -> Counter[tuple[str, str]]:
    """The values of a state with the names they stand under; lists have no order here."""
    found: Counter[tuple[str, str]] = Counter()
    waiting: list[tuple[str, Any]] = [("", state)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += [(f"{path}/{name}", inner) for name, inner in value.items()]
            value = "{}"  # an empty one is there as well
        elif isinstance(value, list | tuple):
            waiting += [(f"{path}/*", inner) for inner in value]
            value = "[]"
        found[path, str(value)] += 1
    return found


def _written(action: Action) -> str:
    """The values that an action holds, one a line: those of its calls, or the names and literals of its code."""
    found: list[str] = []
    waiting: list[Any] = [call.arguments for call in action.calls]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += value.values()
        elif isinstance(value, list | tuple):
            waiting += value
        else:
            found.append(str(value))
    if not action.calls:
        found += _of_code(action)
    return "\n".join(found)


def _of_code(action: Action) -> Iterator[str]:
    tree = _tree(action)
    if not tree.body:
        yield action.text
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.Constant(value=str() | int() | float() as value):
                yield str(value)


def _tree(action: Action) -> ast.Module:
    """An action's code; empty where it is none."""
    try:
        return parsed(Triplet(action, Observation(), 0))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def _values(text: str) -> set[str]:
    """The values of a text: its words, also in parts, and its numbers; common words and truth values are none."""
    found: set[str] = set()
    for word in _WORD.findall(fold(text)):
        found.add(word)
        found.update(re.findall(r"\w+", word))
    plain = {value for value in found if (len(value) > 1 or value.isdecimal()) and value not in _EMPTY}
    return {f"{number_of(value):.15g}" if value[0].isdecimal() else value for value in plain} - {"nan"}
