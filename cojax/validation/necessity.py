"""Checks that a solution needs each of its parts, above all the look-ups, which change nothing.

A part is a call, or an action that is text. It is left out, and the others are played again. It is needed if another
action then fails, if the end differs by more than the part's own output, or if the query asks for what it shows. It is
used if a later action or the answer holds a value that it was the first to show.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cojax.environment.replay import Replay
from cojax.types import Action, Triplet, content_hash, normalise, signature
from cojax.validation.code import names_and_literals, syntax_tree
from cojax.validation.consistency import shown_text
from cojax.validation.mention import COMMON, Mentions, fold, number_of, words

# Words that make a request depend on what is found.
_CONDITION = re.compile(
    r"\b(?:if|unless|otherwise|whether|in case|depending|provided|as long as|only when|when(?:ever)?|else|should)\b"
)
# Words that carry no information.
_EMPTY = COMMON | {"true", "false", "none", "null", "ok"}
_WORD = re.compile(r"\w+(?:[.@:/-]\w+)*")


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a solution that can be left out: a call of an action, or the whole action where `call` is None."""

    action: int
    call: int | None = None

    def of(self, actions: Sequence[Action]) -> Action:
        """The part as an action of its own."""
        whole = actions[self.action]
        return whole if self.call is None else Action(calls=(whole.calls[self.call],))

    def without(self, actions: Sequence[Action]) -> tuple[Action, ...]:
        """The actions without the part."""
        if self.call is None:
            return (*actions[: self.action], *actions[self.action + 1 :])
        whole = actions[self.action]
        # The text may spell the calls out.
        rest = Action(calls=(*whole.calls[: self.call], *whole.calls[self.call + 1 :]))
        return (*actions[: self.action], rest, *actions[self.action + 1 :])

    def name(self, actions: Sequence[Action]) -> str:
        """The part in words, for a line of evidence."""
        within = "" if self.call is None else f"call {self.call + 1} of "
        return f"{within}action {self.action + 1}, {signature(self.of(actions))[:200]}"


def parts(actions: Sequence[Action], ending: str) -> Iterator[Part]:
    """The parts that can be left out. The call that ends the episode stays, and so does the last action as a whole."""
    for place, action in enumerate(actions):
        if len(action.calls) > 1:
            yield from (Part(place, number) for number, call in enumerate(action.calls) if call.name != ending)
        elif place < len(actions) - 1:
            yield Part(place)


def changing(parts: Sequence[Part], actions: Sequence[Action], run: Replay, split: Replay | None) -> set[Part]:
    """The parts that changed the state.

    `split` replays the calls one by one where an action has several. If that fails or ends in another state, all calls
    of such actions count as changing it.
    """
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
    """Whether the final states with and without the part differ at most by its output.

    Some environments keep outputs, or hashes of them, in their state, to compare them. `less` is the replay without the
    part.
    """
    if not run.states or not less.states:
        return False
    whole, rest = _leaves(run.states[-1]), _leaves(less.states[-1])
    outputs = Counter(message.content for message in _messages(part, triplets(run)))
    outputs += Counter({f"hash:{content_hash(text)}": count for text, count in outputs.items()})
    added = Counter(leaf for _, leaf in (whole - rest).elements())
    return not rest - whole and not added - outputs


def first_shown(part: Part, steps: Sequence[Triplet], query: str, opened: str) -> str:
    """The longest value that the part was the first to show and a later action holds; empty where there is none."""
    seen = "\n".join(message.content for message in _messages(part, steps))
    own = part.of([step.action for step in steps])
    before = [query, opened, _written(own)]
    before += [f"{_written(step.action)}\n{shown_text(step, query)}" for step in steps[: part.action]]
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
    """Whether the query asks for the part, by the environment's own wording; None where that does not decide.

    `worded` says whether the query is the environment's wording of all steps. If it is the wording of the steps without
    the part, it does not ask for the part.
    """
    rest = phrase(_steps_without(part, steps))
    if rest is not None and normalise(rest) == normalise(query):
        return False
    return True if worded else None


def condition(part: Part, steps: Sequence[Triplet], query: str) -> bool:
    """Whether the query seems to make what follows depend on what the part shows.

    It must contain a word of condition, an argument of the part and something that the part shows.
    """
    mentions = Mentions(query)
    if not _CONDITION.search(fold(query)):
        return False
    own = part.of([step.action for step in steps])
    found = (message.content for message in _messages(part, steps))
    return any(mentions.names(text) for text in found if text.strip()) and any(
        mentions.names(str(value)) for call in own.calls for value in call.arguments.values()
    )


def may_be_asked(
    part: Part,
    steps: Sequence[Triplet],
    query: str,
    described: Callable[[Action], str],
    phrase: Callable[[Sequence[Triplet]], str | None],
) -> bool:
    """Whether the query has a word about this part alone: of its values, its name, its documentation or its wording.

    `described` gives the words about an action, `phrase` the environment's wording of steps.
    """
    others = [step.action for step in _steps_without(part, steps)]
    own = part.of([step.action for step in steps])
    worded = {*words(phrase(steps) or "")} - {*words(phrase(_steps_without(part, steps)) or "")}
    about = (Mentions(described(own)).words | worded) - {word for other in others for word in words(described(other))}
    # A call that is made twice has no words of its own.
    if not about:
        return any(signature(other) == signature(own) for other in others)
    return bool(about & Mentions(query).words)


def after_the_end(actions: Sequence[Action], played: int, ending: str) -> str:
    """How a solution goes on after the episode is over, as a line of evidence; empty where it does not.

    In code, a later call at the top level counts if it is on the same object, or ends the episode again.
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
    """The first call of an action's code after the one that ends the episode; empty where there is none."""
    over = ""
    for statement in syntax_tree(action).body:
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
    """The messages that answer the part; all of its action where there is not one message for each call."""
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
    """The values of a state with their paths; the order of lists does not count."""
    found: Counter[tuple[str, str]] = Counter()
    waiting: list[tuple[str, Any]] = [("", state)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += [(f"{path}/{name}", inner) for name, inner in value.items()]
            value = "{}"  # so that an empty one counts too
        elif isinstance(value, list | tuple):
            waiting += [(f"{path}/*", inner) for inner in value]
            value = "[]"
        found[path, str(value)] += 1
    return found


def _written(action: Action) -> str:
    """The values of an action, one per line: the arguments of its calls, or the names and literals of its code."""
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
        found += names_and_literals(action)
    return "\n".join(found)


def _values(text: str) -> set[str]:
    """The values of a text: its words, also their parts, and its numbers, without common words and truth values."""
    found: set[str] = set()
    for word in _WORD.findall(fold(text)):
        found.add(word)
        found.update(re.findall(r"\w+", word))
    plain = {value for value in found if (len(value) > 1 or value.isdecimal()) and value not in _EMPTY}
    return {f"{number_of(value):.15g}" if value[0].isdecimal() else value for value in plain} - {"nan"}
