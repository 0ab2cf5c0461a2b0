"""The plain wording: calls → a query that names tools and arguments, and says which values are to be looked up."""

import functools
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from cojax.types import Call, Triplet

JOINER = ", then "
# The most characters of a value that is looked up and used, or told; and of the words for a place that is looked up.
_MAX_VALUE_CHARS, _MAX_WORDED_CHARS = 200, 4_000


def phrase(steps: Sequence[Triplet], end_name: str, lookups: Collection[str]) -> str | None:
    """The query that these calls answer; None if they cannot be worded.

    A call that changes the world is worded with its arguments. An argument that a look-up was the first to show is
    worded by that look-up. There is no query if a call was refused, if a look-up is not used, or if the answer is not
    what the last look-up showed.
    """
    exchanges = pair_calls(steps)
    clauses: list[str] = []
    source_indices: set[int] = set()
    word_call = _worder(exchanges, lookups, source_indices)
    for call_index, (call, _) in enumerate(exchanges):
        if call.name == end_name:
            if call_index < len(exchanges) - 1:
                return None
            if answer := next(iter(call.arguments.values()), None):
                previous = call_index - 1
                if previous < 0 or exchanges[previous][0].name not in lookups or exchanges[previous][1] != answer:
                    return None
                if len(str(answer)) > _MAX_VALUE_CHARS:
                    return None
                source_indices.add(previous)
                clauses.append(f"tell what {word_call(previous)} says")
        elif call.name not in lookups:
            clauses.append(word_call(call_index))
    lookup_indices = {call_index for call_index, (call, _) in enumerate(exchanges) if call.name in lookups}
    return JOINER.join(clauses) if clauses and lookup_indices <= source_indices else None


def to_words(identifier: str) -> str:
    """The name of a tool or a parameter as words."""
    return " ".join(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", identifier).replace("_", " ").replace("-", " ").split())


def _worder(exchanges: Sequence[tuple[Call, str]], lookups: Collection[str], sources: set[int]) -> Callable[[int], str]:
    """Index of a call → the call in words. Adds to `sources` the indices of the look-ups that arguments come
    from."""

    @functools.cache
    def word_call(call_index: int) -> str:
        call, _ = exchanges[call_index]
        phrases = [f"{to_words(name)} {word_value(value, call_index)}" for name, value in call.arguments.items()]
        verb = to_words(call.name)
        return f"{verb} with {' and '.join(phrases)}" if phrases else verb

    def word_value(value: Any, call_index: int) -> str:
        """An argument in words: the place where the latest earlier look-up shows it, or the value itself.

        It must be the only place in the observation, and its words must be few: where each look-up takes two values of
        another one, words double. A value that an earlier call already took is known, and is worded as itself.
        """
        if isinstance(value, (str, int, float)) and not isinstance(value, bool):
            for lookup_index in reversed(range(call_index)):
                call, observation = exchanges[lookup_index]
                if value in call.arguments.values():
                    break
                place_words = _word_place(value, observation) if call.name in lookups else None
                if place_words is not None and len(words := word_call(lookup_index)) <= _MAX_WORDED_CHARS:
                    sources.add(lookup_index)
                    return f"{place_words} {words} shows"
        return json.dumps(value, ensure_ascii=False, sort_keys=True)

    return word_call


def _word_place(value: str | int | float, observation: str) -> str | None:
    """Where an observation shows a value, in words; None if it shows it nowhere or in several places."""
    if len(observation) > 50 * _MAX_VALUE_CHARS:
        return None
    if observation == str(value):
        return "what"
    try:
        paths = _find_paths(json.loads(observation), value)
    except (ValueError, RecursionError):
        return None
    return f"the {' '.join(map(to_words, paths[0]))} that" if len(paths) == 1 and paths[0] else None


def _find_paths(json_value: Any, value: Any) -> list[tuple[str, ...]]:
    """The paths of keys to a value in some JSON."""
    if isinstance(json_value, Mapping):
        return [(str(key), *path) for key, member in json_value.items() for path in _find_paths(member, value)]
    if isinstance(json_value, list):
        # Elements have no names of their own: a list of several shows a value in no place that words can name.
        paths = [path for member in json_value for path in _find_paths(member, value)]
        return paths if len(json_value) == 1 else [(), *paths] if paths else []
    return [()] if json_value == value and type(json_value) is type(value) else []


def pair_calls(steps: Sequence[Triplet]) -> list[tuple[Call, str]]:
    """The calls with their observations; an empty list if one was refused, or an action has no call."""
    exchanges: list[tuple[Call, str]] = []
    for step in steps:
        calls, messages = step.action.calls, step.observation.messages
        if not step.observation.ok or not calls or len(calls) != len(messages):
            return []
        exchanges += zip(calls, (message.content for message in messages), strict=True)
    return exchanges
