"""Whether query and solution belong together, as far as the environment and the words of both can tell.

The environment's own wording of the steps settles it. For a query in other words, what the calls are given has to be
named in it, or shown by an earlier action, documented with the tool, or computed of such. What people may have said in
words that nothing here knows is left open, and the evidence says so.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cojax.explorer.answers import parsed
from cojax.types import Action, Call, Observation, Triplet, normalise
from cojax.validation.mention import Said, codified, computed, fold, number_of, specific, words

# Values told in a line of evidence, and characters of each.
_TOLD, _SHORT = 4, 60

# Words for doing something by which people mean much the same.
_ALIKE = (
    ("add", "create", "write", "schedule", "new", "post", "put", "set", "update", "edit", "change", "append"),
    ("delete", "remove", "cancel", "erase", "clear", "close"),
    ("find", "read", "show", "search", "list", "view", "look", "check", "day"),
    ("move", "rename", "copy", "send", "share", "forward", "postpone"),
)

Documents = Mapping[str, Mapping[str, Any]]  # tool → its documentation


@dataclasses.dataclass(frozen=True)
class Accord:
    """What speaks against a query, and what is left open about it; `worded` where the environment says the same."""

    against: str = ""
    worded: bool = False
    named: int = 0
    open: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        if self.worded:
            return "query and solution agree: the environment words these steps so"
        if not self.open:
            return f"query and solution agree: {self.named} arguments are named, shown or documented"
        return (
            f"query and solution have words in common, and {self.named} arguments are named, shown or documented; it "
            f"cannot be told of {', '.join(self.open[:_TOLD])}"
        )


def accord(
    query: str,
    world: str,
    steps: Sequence[Triplet],
    opening: str,
    worded: str | None,
    documents: Documents,
    ending: str,
) -> Accord:
    """How the query stands to the steps of a replay, which `worded` says in the environment's words, if it has any.

    `world` is the environment's name, `opening` what the episode shows before the first action.
    """
    if worded is not None and normalise(worded) == normalise(query):
        return Accord(worded=True)
    if worded is not None and _counted(worded) == _counted(query):
        return Accord("the query says the words of these steps in another order")
    said = Said(query)
    calls = [(place, call) for place, step in enumerate(steps, 1) for call in step.action.calls if call.name != ending]
    if against := _unrelated(said, steps, calls, worded, world, documents):
        return Accord(against)
    seen = [opening.replace(query, " "), *(shown(step, query) for step in steps)]
    named, open_ = 0, list[str]()
    for place, call in calls:
        known = _Known(said, Said("\n".join(seen[:place])), json.dumps(documents.get(call.name, {}), default=str))
        for name, value in _arguments(call):
            if known.tells(value):
                named += 1
            elif codified(value):
                open_.append(f"{value!r:.{_SHORT}}")
            else:
                return Accord(
                    f"the query does not name {value!r:.{_SHORT}}, {name!r:.{_SHORT}} of action {place}, and no "
                    "earlier action shows it"
                )
    if any(step.action.text.strip() and not step.action.calls for step in steps):
        open_.append("code")
    return Accord(named=named, open=tuple(open_))


def shown(step: Triplet, query: str) -> str:
    """What a step showed, the user's own turns aside."""
    texts = (message.content for message in step.observation.messages)
    return "\n".join(text for text in texts if not (text.strip() and text.strip() in query))


@dataclasses.dataclass(frozen=True)
class _Known:
    """Whence the value of an argument may come."""

    query: Said
    seen: Said
    documented: str

    def tells(self, value: Any) -> bool:
        if self.query.names(value):
            return True
        if not isinstance(value, str):
            return value in self.seen.numbers or self._documents(json.dumps(value)) or computed(value, self._numbers)
        folded = fold(value)
        return (
            self.seen.holds(folded)
            or self._documents(value)
            or all(word in self._words or number_of(word) in self._numbers for word in words(value))
        )

    @functools.cached_property
    def _words(self) -> frozenset[str]:
        return self.query.words | self.seen.words

    @functools.cached_property
    def _numbers(self) -> frozenset[float]:
        return self.query.numbers | self.seen.numbers

    def _documents(self, value: str) -> bool:
        return bool(value) and bool(re.search(rf"(?<![\w.]){re.escape(value)}(?![\w.]*\w)", self.documented, re.I))


def _unrelated(
    said: Said,
    steps: Sequence[Triplet],
    calls: Sequence[tuple[int, Call]],
    worded: str | None,
    world: str,
    documents: Documents,
) -> str:
    """Why the query asks for something else altogether; empty where it does not seem to."""
    asked = {word for word in said.words if not word[0].isdigit()}
    given = {word for _, call in calls for _, value in _arguments(call) for word in words(str(value))}
    done = {word for _, call in calls for word in words(f"{call.name} {_told(documents.get(call.name, {}))}")}
    done |= {word for step in steps for word in _of_code(step)} | set(words(f"{worded or ''} {world}"))
    about = Said(" ".join(done | given))
    if not any(about.names(word) for word in asked) and not (said.numbers & about.numbers):
        return "the query has no word in common with what the solution does"
    return _contradiction(asked, {call.name for _, call in calls}, done, documents)


def _kind(word: str) -> str:
    """The first of the words that are said for one another."""
    return next((alike[0] for alike in _ALIKE if word in alike), word)


def _contradiction(asked: set[str], called: set[str], done: set[str], documents: Documents) -> str:
    """A tool beside those called whose name the query says, where it says none of theirs; empty where there is none."""
    split = {tool: [*words(tool)] for tool in documents}
    rooms = Counter(name[0] for name in split.values() if len(name) > 1)
    # What a tool does, by its name: the application that others share says nothing of it.
    does = {tool: set(name[1:] if rooms[name[0]] > 1 else name) for tool, name in split.items() if name}
    ours = {word for tool in called for word in does.get(tool, ())}
    homes = {split[tool][0] for tool in called if split.get(tool) and rooms[split[tool][0]] > 1}
    kinds = {_kind(word) for word in ours}
    if not ours or kinds & {_kind(word) for word in asked}:
        return ""
    for tool, name in split.items():
        if name and name[0] in homes and (other := (does[tool] - done) & asked):
            return f"the query says {min(other)!r}, which is what {tool} does, and not what the solution does"
    return ""


def described(documents: Documents, action: Action) -> str:
    """The words about an action: what it is given, and its tools' names and documentation, or its code."""
    given = (str(value) for call in action.calls for _, value in _arguments(call))
    told = (f"{call.name} {_told(documents.get(call.name, {}))}" for call in action.calls)
    return " ".join((*given, *told, *_of_code(Triplet(action, Observation(), 0))))


def _told(document: Mapping[str, Any]) -> str:
    """What a tool's documentation says of it and of its parameters."""
    parameters = document.get("parameters", {}).get("properties", {})
    told = (f"{name} {parameter.get('description', '')}" for name, parameter in parameters.items())
    return " ".join((str(document.get("description", "")), *told))


def _arguments(call: Call) -> Iterator[tuple[str, Any]]:
    """The values of a call that a query has to name, however deep they stand, with the arguments they stand in."""
    for name, value in call.arguments.items():
        waiting = [value]
        while waiting:
            inner = waiting.pop()
            if isinstance(inner, Mapping):
                waiting += reversed(list(inner.values()))
            elif isinstance(inner, list | tuple):
                waiting += reversed(inner)
            elif specific(inner):
                yield name, inner


def _of_code(step: Triplet) -> Iterator[str]:
    """The words of an action that is text: names and literals where it is code."""
    if step.action.calls:
        return
    try:
        tree = parsed(step)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        tree = ast.Module([], [])
    if not tree.body:
        yield from words(step.action.text)
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                yield from words(name)
            case ast.Constant(value=str() | int() | float() as value):
                yield from words(str(value))


def _counted(text: str) -> Counter[str]:
    return Counter(re.findall(r"\w+", normalise(text)))
