"""Where the values of a tool's parameters come from: names say it, or else trials of the tool do.

A value is *known* if the world treats it otherwise than a new word: a book that is lent, not refused; a bed that is
planted, not added. The place in the state whose values are known is the parameter's. A parameter without such a place
has the one of its namesake in another tool, or that where its value goes.
"""

import contextlib
import dataclasses
import functools
import itertools
import math
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cojax.environment import Environment, EnvironmentFailure, Episode, ask
from cojax.types import Action, Call, Task, canonical
from .arguments import (
    WORDS,
    Scalar,
    Source,
    ValueIndex,
    draw_calls,
    find_places,
    has_names_as_keys,
    has_own_values,
    index_values,
    join,
    normalise_name,
    read_place,
    read_table,
    resolve_reference,
    types_of,
)
from .toolset import Tool

# Calls by which one that changes the state is looked for: with values of fitting names, then with any values.
_MAX_NAMED_DRAWS, _MAX_OTHER_DRAWS = 24, 120
# The most places that are tried for a parameter, and values of each.
_MAX_PLACES, _MAX_VALUES = 40, 3
# What a schema that means nothing leads to.
_MEANINGLESS = (TypeError, ValueError, OverflowError, AttributeError)
_NEW_NUMBERS = (987_651, 987_653)
# How a source was found, the best first.
_KNOWN, _CREATES, _NAMED, _NAMESAKE, _GOES_THERE, _NOWHERE = range(6)

Sources = Mapping[str, Mapping[str, Source]]  # tool → parameter → source


@dataclasses.dataclass(frozen=True)
class Effect:
    """What a call did: whether it was refused, the places that it changed, what was said, and the state thereafter."""

    is_refused: bool
    changes: frozenset[str]
    reply: str
    state: Any = None


class Trials:
    """Makes calls in one state of the world: in one episode while they change nothing, and then in a new one."""

    def __init__(self, start: Callable[[], Episode], setup: Mapping[str, Any], note_call: Callable[[], None]) -> None:
        self._start, self._note_call, self._stack = start, note_call, contextlib.ExitStack()
        self._episode: Episode | None = None
        self.state = _read_world(self._open())
        self.index = index_values(self.state, setup)
        self.state_places = index_values(self.state).values.keys()

    def make(self, call: Call) -> Effect:
        """Raises EnvironmentFailure if no episode opens."""
        self._note_call()
        episode = self._episode or self._open()
        try:
            observation = ask(episode.step, Action(calls=(call,)))
            state = _read_world(episode)
        except Exception as error:  # whatever a tool of the user's does
            self.close()
            return Effect(True, frozenset(), f"{type(error).__name__}: {error}")
        changes = frozenset(_list_changes(self.state, state))
        if changes or observation.done:
            self.close()
        return Effect(not observation.ok, changes, observation.text, state)

    def close(self) -> None:
        self._episode = None
        self._stack.close()

    def _open(self) -> Episode:
        episode = self._stack.enter_context(contextlib.closing(self._start()))
        ask(episode.reset)
        self._episode = episode
        return episode


def _read_world(episode: Episode) -> Any:
    state = ask(episode.state)
    return state.get("world", state)


def find_sources(
    environment: Environment,
    tools: Sequence[Tool],
    tasks: Sequence[Task],
    note_call: Callable[[], None] = lambda: None,
    end_s: float = math.inf,
) -> Sources:
    """The sources of all parameters whose schema does not say which values make sense, by trials in the setups of these
    tasks, each of which `note_call` notes. A tool that never works has none, nor one that was not tried when
    time.monotonic() was past `end_s`."""
    found: dict[tuple[str, str], tuple[int, Source]] = {}
    for task in tasks:
        start = functools.partial(environment.start, task)
        with (
            contextlib.suppress(EnvironmentFailure),
            contextlib.closing(Trials(start, task.setup, note_call)) as trials,
        ):
            for tool in tools:
                if time.monotonic() > end_s:
                    break
                with contextlib.suppress(*_MEANINGLESS):
                    for parameter, ranked in _examine_tool(tool, trials):
                        best = found.get((tool.name, parameter), ranked)
                        found[tool.name, parameter] = min(best, ranked, key=_rank_of)
    namesakes: dict[str, tuple[int, Source]] = {}
    for (_, parameter), ranked in found.items():
        if ranked[0] in (_KNOWN, _NAMED):
            namesakes[parameter] = min(namesakes.get(parameter, ranked), ranked, key=_rank_of)
    sources: dict[str, dict[str, Source]] = {}
    for (tool_name, parameter), (rank, source) in found.items():
        if rank > _NAMESAKE and parameter in namesakes:
            namesake = namesakes[parameter][1]
            source = dataclasses.replace(namesake, is_unchecked=bool(namesake.places))
        sources.setdefault(tool_name, {})[parameter] = source
    return sources


def read_sources(record: Mapping[str, Any]) -> Sources:
    """The sources that a record of `to_json` holds."""
    return {
        tool: {
            name: Source(tuple(s["places"]), tuple(s["numbers"]), s["creates"], s["is_unchecked"])
            for name, s in by_name.items()
        }
        for tool, by_name in record.items()
    }


def _rank_of(ranked: tuple[int, Source]) -> int:
    return ranked[0]


def _examine_tool(tool: Tool, trials: Trials) -> Iterator[tuple[str, tuple[int, Source]]]:
    """(parameter, (rank, source)) of each parameter of a tool whose schema does not say which values make sense."""
    open_parameters = [
        name for name, schema in tool.parameters["properties"].items() if not has_own_values(schema, tool.parameters)
    ]
    if open_parameters and (call := _find_working_call(tool, trials)) is not None:
        for parameter in open_parameters:
            variations = _Parameter(tool, parameter, call, trials)
            rank, source = variations.find_source()
            is_name = variations.is_text or (
                rank in (_KNOWN, _NAMED) and all(map(trials.index.is_distinct, source.places))
            )
            is_unchecked = bool(source.places) and is_name and variations.takes_new_values
            yield parameter, (rank, dataclasses.replace(source, is_unchecked=is_unchecked))


def _find_working_call(tool: Tool, trials: Trials) -> Call | None:
    """A call that changes the state, or else one that works; None if all are refused."""
    rng = random.Random(repr(("sources", tool.name)))
    fallback: Call | None = None
    for call in itertools.chain(
        draw_calls(tool, trials.index, _MAX_NAMED_DRAWS, rng), _draw_widely(tool, trials.index, rng)
    ):
        effect = trials.make(call)
        if not effect.is_refused and effect.changes:
            return call
        if not effect.is_refused and fallback is None:
            fallback = call
    return fallback


def _draw_widely(tool: Tool, index: ValueIndex, rng: random.Random) -> Iterator[Call]:
    """Calls with values of any places, where they are of the right type."""
    sources = {
        parameter: Source(tuple(index.values), (0, 1, 2), creates=True) for parameter in tool.parameters["properties"]
    }
    # Not all values of a place, so that each has its turn.
    few = ValueIndex(
        {place: values[:_MAX_VALUES] for place, values in index.values.items()}, index.repeated, index.texts
    )
    return draw_calls(tool, few, _MAX_OTHER_DRAWS, rng, sources=sources)


class _Parameter:
    """A parameter of a tool, varied in a call that works."""

    def __init__(self, tool: Tool, name: str, call: Call, trials: Trials) -> None:
        self.tool, self.name, self.call, self.trials = tool, name, call, trials
        self.schema = _strip_alternatives(tool.parameters["properties"][name], tool.parameters)
        self.is_list = types_of(self.schema) == ["array"]
        if self.is_list:
            self.schema = _strip_alternatives(self.schema.get("items", {}), tool.parameters)
        self.types = [name for name in types_of(self.schema) if name in ("string", "integer", "number")]
        self.is_text = "string" in self.types
        taken = {str(text).casefold() for text in trials.index.texts}
        new_words = [word for word in WORDS if word not in taken][:2] if self.is_text else _NEW_NUMBERS
        self.new_values: Sequence[Scalar] = new_words
        self.new_effects = [self._try(value) for value in new_words] if self.types else []

    @property
    def takes_new_values(self) -> bool:
        """Whether the world changes by a new value, instead of refusing it."""
        return bool(self.new_effects) and not self.new_effects[0].is_refused and bool(self.new_effects[0].changes)

    def find_source(self) -> tuple[int, Source]:
        """How the source was found, and the source."""
        if not self.types:
            return _NOWHERE, Source()
        index = self.trials.index
        named = [
            place for kind in self.types for place in find_places(self.name, kind, self.schema, index, self.tool.name)
        ]
        landings = self._find_landings()
        if any(self._overwrites(place) for place in landings):
            return _CREATES, Source(creates=True)
        if shares := self._share_known():
            source = self._choose(shares, named)
            grown = {change[1:] for change in self.new_effects[0].changes if change[0] == "+"}
            if not grown & set(source.places):
                return _KNOWN, source
            # The world adds what it does not know. The names there may be those of things that are kept elsewhere.
            owners = tuple(dict.fromkeys(named)) or tuple(filter(None, map(self._find_container, source.places)))
            return _NAMED, Source(owners or source.places)
        if (creating := [place for place in landings if self._creates(place)]) and (
            not named or set(creating) & set(named)
        ):
            return _CREATES, Source(creates=True)
        if named:
            return _NAMED, Source(tuple(dict.fromkeys(self._find_owner(place) for place in named)))
        for place in landings:
            if container := self._find_container(place):
                return _GOES_THERE, Source((container,))
        if seen := tuple(place for place in landings if self._read(place)):
            return _GOES_THERE, Source(seen[:1])
        return _NOWHERE, Source()

    def _share_known(self) -> dict[str, float]:
        """Place → share of its values that are known, of those places where some are; "" stands for small numbers."""
        if self._identify(0) != self._identify(1):
            return {}  # each word leads to something else: nothing can be said
        shares: dict[str, float] = {}
        for place in [place for place in self.trials.index.values if self._read(place)][:_MAX_PLACES]:
            values = self._read(place)
            tried = list(dict.fromkeys((values[0], values[len(values) // 2], values[-1])))[:_MAX_VALUES]
            if share := sum(map(self._is_known, tried)) / len(tried):
                shares[place] = share
        if numbers := self._list_known_numbers():
            shares[""] = len(numbers) / _MAX_VALUES
        return shares

    def _list_known_numbers(self) -> tuple[int, ...]:
        """Which of the numbers 1, 2 and 3 the world knows, or 0 if none of them."""
        if not set(self.types) & {"integer", "number"}:
            return ()
        return tuple(filter(self._is_known, (1, 2, 3))) or tuple(filter(self._is_known, (0,)))

    def _choose(self, shares: Mapping[str, float], named: Sequence[str]) -> Source:
        """The place whose values are known most often; of several, that of the right name, and then the largest."""
        best = max(shares.values())
        if shares.get("", 0) == best and not any(shares.get(place) == best for place in named):
            return Source(numbers=self._list_known_numbers())
        places = sorted(
            (place for place, share in shares.items() if share == best and place),  # those of the state come first
            key=lambda place: (place not in named, -len(self._read(place))),
        )
        chosen = [places[0]]
        for place in places[1:]:
            is_named = place in named or places[0] not in named
            if is_named and not any(set(self._read(place)) & set(self._read(other)) for other in chosen):
                chosen.append(place)
        return Source(tuple(chosen))

    def _find_landings(self) -> list[str]:
        """The places where a new value is seen after the call."""
        effect, value = self.new_effects[0], self.new_values[0]
        return [place for place, values in index_values(effect.state).values.items() if value in values]

    def _creates(self, place: str) -> bool:
        """Whether a new word becomes the name of something new there: the names that are there are refused, or no two
        things have the same, and the place is none of references to other things."""
        effect, rows = self.new_effects[0], place.rpartition("/")[0] if not place.endswith("/*") else place[:-2]
        is_grown = any(change.startswith("+") and place.startswith(change[1:-2]) for change in effect.changes)
        existing = self._read(place)
        if not is_grown or not existing or not self.is_text or not rows or place.endswith("*="):
            return False
        if all(self._try(value).is_refused for value in existing[:_MAX_VALUES]):
            return True
        is_key = place.endswith("/*") and isinstance(_read_place_value(self.trials.state, place), Mapping)
        return (
            not is_key
            and len(existing) > 1
            and self.trials.index.is_distinct(place)
            and not self._find_container(place)
        )

    def _overwrites(self, place: str) -> bool:
        """Whether the call makes whole records in a collection: a new name gets the same as one that is there."""
        before = _read_place_value(self.trials.state, place)
        if not place.endswith("/*") or not isinstance(before, Mapping) or not before:
            return False
        made = _read_place_value(self.new_effects[0].state, place).get(self.new_values[0])
        names = [name for name in list(before)[:_MAX_VALUES] if name in self._read(place)]
        if not (isinstance(made, Mapping) and made and names and f"+{place}" in self.new_effects[0].changes):
            return False
        ends = [self._try(name) for name in names]
        return all(
            isinstance(members := _read_place_value(end.state, place), Mapping)
            and name in members  # the call may have removed it
            and not end.is_refused
            and _same_but(members[name], name, made, self.new_values[0])
            for name, end in zip(names, ends, strict=True)
        )

    def _find_container(self, place: str) -> str:
        """The largest collection of names that holds all values of a place: the place refers to its things."""
        values, index = set(self._read(place)), self.trials.index
        names = [other for other in self.trials.state_places if other != place and "*" in other]
        names = [other for other in names if index.is_distinct(other) and values and values <= set(self._read(other))]
        return max(names, key=lambda other: (len(self._read(other)), other.endswith("/*")), default="")

    def _find_owner(self, place: str) -> str:
        """The collection to whose names a field refers, if they are more; the place itself if there is none."""
        container = "" if place.endswith("/*") else self._find_container(place)
        return container if container and len(self._read(container)) > len(self._read(place)) else place

    def _read(self, place: str) -> list[Scalar]:
        return [value for kind in self.types for value in read_place(place, kind, self.schema, self.trials.index)]

    def _try(self, value: Scalar) -> Effect:
        argument = [value] if self.is_list else value
        return self.trials.make(Call(self.tool.name, {**self.call.arguments, self.name: argument}))

    def _identify(self, number: int) -> Any:
        return _describe(self.new_effects[number], self.new_values[number])

    def _is_known(self, value: Scalar) -> bool:
        """Whether the world treats the value otherwise than a new one."""
        effect, new_effect = self._try(value), self.new_effects[0]
        if effect.is_refused or new_effect.is_refused:
            return not effect.is_refused
        if effect.changes < new_effect.changes:
            return False  # some of it is so already
        return _describe(effect, value) != self._identify(0)


def _read_place_value(state: Any, place: str) -> Any:
    """What holds the members of a collection that no other collection holds; None for any other place."""
    for segment in place.split("/")[:-1]:
        keys = [key for key in state if normalise_name(str(key)) == segment] if isinstance(state, Mapping) else []
        state = state[keys[0]] if keys else None
    return state


def _same_but(record: Any, name: Scalar, other: Any, other_name: Scalar) -> bool:
    """Whether two records are the same but for their names."""
    first, second = (canonical({"": one}).replace(str(own), "…") for one, own in ((record, name), (other, other_name)))
    return first == second


def _describe(effect: Effect, value: Scalar) -> Any:
    """What a call did, whatever the value is: the changes or, if there are none, the reply without the value."""
    if effect.is_refused or effect.changes:
        return effect.is_refused, effect.changes
    return re.sub(rf"(?<!\w){re.escape(str(value))}(?!\w)", "…", effect.reply, flags=re.IGNORECASE)


def _strip_alternatives(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema that a reference stands for; of several that are allowed, the first that is more than null."""
    schema = resolve_reference(schema, root)
    for keyword in ("anyOf", "oneOf"):
        for alternative in schema.get(keyword, ()):
            if types_of(resolved := resolve_reference(alternative, root)) != ["null"]:
                return resolved
    return schema


def _list_changes(before: Any, after: Any, place: str = "") -> Iterator[str]:
    """The places that differ; with "+" or "-" before a collection that has got more or fewer members."""
    before, after = read_table(before), read_table(after)
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        is_collection = bool(place) and (has_names_as_keys(before, place) or has_names_as_keys(after, place))
        for key in before.keys() | after.keys():
            inner = join(place, "*" if is_collection else str(key))
            if key in before and key in after:
                yield from _list_changes(before[key], after[key], inner)
            else:
                yield f"{'+' if key in after else '-'}{join(place, '*')}"
    elif isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after):
            yield f"{'+' if len(after) > len(before) else '-'}{join(place, '*')}"
        else:
            for old, new in zip(before, after, strict=True):
                yield from _list_changes(old, new, join(place, "*"))
    elif canonical({"": before}) != canonical({"": after}):
        yield place
