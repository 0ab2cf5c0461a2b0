"""Checks by wording that a query asks for what its solution does.

A query that equals the environment's own wording of the steps agrees. In any other query, every argument of a call must
be named in the query, shown by an earlier action, documented with the tool, or computed from such values. Arguments
that people may call by another name, such as codes, are not checked, and the evidence says so.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cojax.types import Action, Call, Triplet, normalise
from cojax.validation.code import names_and_literals
from cojax.validation.mention import Mentions, codified, computed, fold, number_of, specific, words
from cojax.validation.raw_calls import raw_call

# Most values in a line of evidence, and characters of each.
_LISTED, _SHORT = 4, 60

# Verbs that people use for one another.
_SYNONYMS = (
    ("add", "create", "write", "schedule", "new", "post", "put", "set", "update", "edit", "change", "append"),
    ("delete", "remove", "cancel", "erase", "clear", "close"),
    ("find", "read", "show", "search", "list", "view", "look", "check", "day"),
    ("move", "rename", "copy", "send", "share", "forward", "postpone"),
)
_VERBS = {verb for synonyms in _SYNONYMS for verb in synonyms}

Documents = Mapping[str, Mapping[str, Any]]  # tool → its documentation


@dataclasses.dataclass(frozen=True)
class QueryMatch:
    """How a query fits a solution.

    `against` is the reason to refuse it, if any. `worded` says that it is the environment's own wording of the steps.
    `named` counts the arguments that are accounted for, and `open` lists those that cannot be checked.
    """

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
            f"cannot be told of {', '.join(self.open[:_LISTED])}"
        )


def compare_query(
    query: str,
    world: str,
    steps: Sequence[Triplet],
    opening: str,
    worded: str | None,
    documents: Documents,
    ending: str,
) -> QueryMatch:
    """How the query fits the steps of a replay.

    `world` is the environment's name, `opening` the text that the episode shows before the first action, and `worded`
    the environment's wording of the steps, or None. `ending` is the tool that ends an episode.
    """
    if worded is not None and normalise(worded) == normalise(query):
        return QueryMatch(worded=True)
    if worded is not None and _word_counts(worded) == _word_counts(query):
        return QueryMatch("the query says the words of these steps in another order")
    if found := raw_call(query, [step.action for step in steps], documents):
        return QueryMatch(f"the query holds a call, {found!r:.{_SHORT}}; expected words")
    asked = Mentions(query)
    calls = [(place, call) for place, step in enumerate(steps, 1) for call in step.action.calls if call.name != ending]
    if against := _unrelated(asked, steps, calls, worded, world, documents):
        return QueryMatch(against)
    seen = [opening.replace(query, " "), *(shown_text(step, query) for step in steps)]
    named, open_ = 0, list[str]()
    for place, call in calls:
        sources = _Sources(
            asked, Mentions("\n".join(seen[:place])), json.dumps(documents.get(call.name, {}), default=str)
        )
        for name, value in _arguments(call):
            if sources.account_for(value):
                named += 1
            elif codified(value):
                open_.append(f"{value!r:.{_SHORT}}")
            else:
                return QueryMatch(
                    f"the query does not name {value!r:.{_SHORT}}, {name!r:.{_SHORT}} of action {place}, and no "
                    "earlier action shows it"
                )
    if any(step.action.text.strip() and not step.action.calls for step in steps):
        open_.append("code")
    return QueryMatch(named=named, open=tuple(open_))


def shown_text(step: Triplet, query: str) -> str:
    """The text that a step showed, without the user's own turns."""
    texts = (message.content for message in step.observation.messages)
    return "\n".join(text for text in texts if not (text.strip() and text.strip() in query))


@dataclasses.dataclass(frozen=True)
class _Sources:
    """Where the value of an argument may come from: the query, what earlier actions showed, the documentation."""

    query: Mentions
    seen: Mentions
    documented: str

    def account_for(self, value: Any) -> bool:
        """Whether the value is named in one of the sources or computed from numbers in them."""
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
    query: Mentions,
    steps: Sequence[Triplet],
    calls: Sequence[tuple[int, Call]],
    worded: str | None,
    world: str,
    documents: Documents,
) -> str:
    """Why the query seems to ask for something unrelated; "" if it does not."""
    asked = {word for word in query.words if not word[0].isdigit()}
    given = {word for _, call in calls for _, value in _arguments(call) for word in words(str(value))}
    done = {word for _, call in calls for word in words(documentation_words(documents, call.name))}
    done |= {word for step in steps for word in _code_words(step.action)} | set(words(f"{worded or ''} {world}"))
    about = Mentions(" ".join(done | given))
    if not any(about.names(word) for word in asked) and not (query.numbers & about.numbers):
        return "the query has no word in common with what the solution does"
    return _contradiction(asked, {call.name for _, call in calls}, done, documents)


def synonym(word: str) -> str:
    """The first of the word's synonyms, which stands for all of them."""
    return next((synonyms[0] for synonyms in _SYNONYMS if word in synonyms), word)


def _contradiction(asked: set[str], called: set[str], done: set[str], documents: Documents) -> str:
    """Why the query asks for another tool of an application than those called; "" if it does not."""
    split = {tool: name for tool in documents if (name := [*words(tool)])}
    # The first word of a name is an application where several tools share it, and it is no verb.
    prefixes = Counter(name[0] for name in split.values() if len(name) > 1)
    shared = {word for word, count in prefixes.items() if count > 1}
    if shared <= _VERBS:
        # A world without prefixes is one application, and the first word of a name says what a tool does.
        does, applications = {tool: {name[0]} for tool, name in split.items()}, dict.fromkeys(split, "")
    else:
        does = {tool: set(name[1:] if name[0] in shared else name) for tool, name in split.items()}
        applications = {tool: name[0] for tool, name in split.items() if name[0] in shared}
    ours = {word for tool in called for word in does.get(tool, ())}
    if not ours or {*map(synonym, ours)} & {*map(synonym, asked)}:
        return ""
    near = {applications[tool] for tool in called if tool in applications}
    for tool in split:
        if applications.get(tool) in near and (other := (does[tool] - done) & asked):
            return f"the query says {min(other)!r}, which is what {tool} does, and not what the solution does"
    return ""


def action_words(documents: Documents, action: Action) -> str:
    """The words about an action: its arguments, its tools' names and documentation, or its code."""
    given = (str(value) for call in action.calls for _, value in _arguments(call))
    tools = (documentation_words(documents, call.name) for call in action.calls)
    return " ".join((*given, *tools, *_code_words(action)))


def documentation_words(documents: Documents, tool: str) -> str:
    """The name of a tool, its description and those of its parameters."""
    document = documents.get(tool, {})
    parameters = document.get("parameters", {}).get("properties", {})
    described = (f"{name} {parameter.get('description', '')}" for name, parameter in parameters.items())
    return " ".join((tool, str(document.get("description", "")), *described))


def _arguments(call: Call) -> Iterator[tuple[str, Any]]:
    """(argument, value) for every value of a call that a query has to name, at any depth."""
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


def _code_words(action: Action) -> Iterator[str]:
    """The words of an action that is text; of code, its names and literals."""
    for text in () if action.calls else names_and_literals(action):
        yield from words(text)


def _word_counts(text: str) -> Counter[str]:
    return Counter(re.findall(r"\w+", normalise(text)))
