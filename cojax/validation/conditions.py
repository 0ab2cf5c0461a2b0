"""Finds a condition of the query, in English words, that does not hold in the world although the solution acts on it.

Decided are conditions on how many entries a collection of the state has ("there are more than five mails"), on what
there is ("there is a file called plum"), and on the value of an entry ("lunch is on monday", "the report says plum",
"tea is done"). Whatever else a condition says is left open.
"""

import dataclasses
import functools
import operator
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from cojax.types import Action, Triplet
from cojax.validation.consistency import names_and_literals, synonym
from cojax.validation.mention import NUMBERS, Mentions, fold, sentences, stem, words

# Most values of a state that are looked at, and their depth; most conditions of a query.
_VALUES, _DEEPEST, _CONDITIONS = 20_000, 8, 8
_IF = re.compile(
    r"\b(if|unless|in case|provided(?: that)?|as long as|assuming(?: that)?|when(?:ever)?|^should) (?!not\b|so\b)"
)
_ELSE = re.compile(r"\b(?:otherwise|else|if not)\b")
_END = re.compile(r"[,;:]|\bthen\b|\bplease\b")
_NUMBERS = {"no": 0, **NUMBERS}
# How a count is bounded → the comparison with the number.
_BOUNDS = {
    **dict.fromkeys(("more than", "over", "above"), operator.gt),
    **dict.fromkeys(("at least", "or more"), operator.ge),
    **dict.fromkeys(("no more than", "at most", "or fewer", "or less"), operator.le),
    **dict.fromkeys(("fewer than", "less than", "under", "below"), operator.lt),
}
_SOME = re.compile(r"\bthere(?: is| are|'s) (?:(?:any|some|an?) )?(?P<noun>\w+)$")
_NUMBER_OF = re.compile(r"\bthe number of (\w+) is (?:equal to )?(.*)")
_COUNT = re.compile(
    rf"\b(?:(?P<how>{'|'.join(_BOUNDS)}|exactly) )?(?P<number>\d{{1,9}}|{'|'.join(_NUMBERS)})"
    r"(?: (?P<tail>or more|or fewer|or less))?(?P<filter> \w+)?? (?P<noun>\w+)\b"
    r"(?P<more> (?:from|in|on|of|with|that|by|to)\b)?"
)
_EXISTS = re.compile(
    r"\b(?:there(?: is| are|'s) )?(?P<no>not? )?(?:\w+ ){0,3}?(?:called|named|titled) ['\"]?(?P<value>[\w@.-]*\w)"
    r"|\b(?P<name>\w[\w@.-]{0,80})['\"]?(?P<not> (?:does not|doesn't))? exists?\b"
)
_IS = re.compile(
    r"\b(?:(?P<says>says?|reads?|contains?|holds?|equals?)|is|are|was|be|lies|sits|falls|happens|takes place)"
    r"(?P<no>n't| not)?"
    r"(?: (?:still|already|currently|in|on|at|to|set|due|for|marked|scheduled|as|both|an?|the|folder|file|word|text)\b"
    r")*"
    r" ['\"]?(?P<value>[\w@.-]*\w)"
)
_OR = re.compile(r"\bor\b(?! (?:more|fewer|less)\b)")
_NOT = re.compile(r"\bnot\b|n't\b")
_PRONOUN = re.compile(r"(?:it|this|that|they|he|she)?")
# What may be said of any value.
_VAGUE = "long short empty unknown early late old new good bad right wrong missing free full ready not too very about"
_DAYS = "monday tuesday wednesday thursday friday saturday sunday"


def false_condition(
    query: str, steps: Sequence[Triplet], changing: Collection[int], states: Sequence[Mapping[str, Any]]
) -> str:
    """The first condition that holds in no state up to the last change, although the solution acts on it; "" if none.

    `changing` are the positions of the steps that change the world, and `states` those before and after every step.
    Where the query says what is to be done otherwise, the solution must take the right one of the two branches.
    """
    said = sentences(query)
    # A query of a person has one or two.
    conditions = [(place, found) for place, one in enumerate(said) if (found := _IF.search(one))][:_CONDITIONS]
    if not changing or not conditions:
        return ""
    worlds = [_World(state) for place, state in enumerate(states) if place == 0 or place - 1 in changing][:-1]
    for place, found in conditions:
        before, rest = said[place][: found.start()], said[place][found.end() :]
        end = _END.search(rest) or _ELSE.search(rest)
        condition = rest[: end.start()] if end else rest
        truths = {_truth(condition, before, one) for one in worlds}
        if len(truths) != 1 or None in truths:
            continue
        others = [*said[:place], *said[place + 1 :]]
        if place + 1 < len(said) and _ELSE.match(said[place + 1]):
            rest = f"{rest} {others.pop(place)}"
        branch = _ELSE.search(rest)
        then, other = (rest[: branch.start()], rest[branch.end() :]) if branch else (rest, "")
        actions = [steps[step].action for step in changing]
        if _acts_wrongly(f"{before} {then}", other, " ".join(others), actions, truths != {found[1] == "unless"}):
            return condition.strip()
    return ""


def _acts_wrongly(then: str, other: str, elsewhere: str, actions: Sequence[Action], holds: bool) -> bool:
    """Whether the actions do what the query asks for in the other case: by verbs and values that one branch alone has,
    or, where the query has one branch, by those that it has and does not have elsewhere."""
    done = [one for action in actions for one in _said(action)]
    if not other:
        wanted = {*map(synonym, words(then))}
        return not holds and any(one & wanted and not one <= {*map(synonym, words(elsewhere))} for one in done)
    right, wrong = ({*map(synonym, words(text))} for text in ((then, other) if holds else (other, then)))
    all_done = {word for one in done for word in one}
    return bool(all_done & (wrong - right)) and not all_done & (right - wrong)


def _said(action: Action) -> Iterator[set[str]]:
    """The words of each call of an action, or of its code, with one for all synonyms."""
    for call in action.calls:
        yield {*map(synonym, words(f"{call.name} {[*call.arguments.values()]}"))}
    if not action.calls:
        yield {synonym(word) for text in names_and_literals(action) for word in words(text)}


def _truth(said: str, before: str, world: "_World") -> bool | None:
    """Whether the condition holds in the world; None where it cannot be told."""
    parts = _NUMBER_OF.sub(r"there are \2 \1", said.replace("exceeds", "is more than")).split(" and ")
    truths = [_truth_of_one(part, before, world) for part in parts]
    return None if _OR.search(said) else False if False in truths else None if None in truths else True


def _truth_of_one(said: str, before: str, world: "_World") -> bool | None:
    """Whether one of several conditions that "and" joins holds."""
    count = _COUNT.search(said)
    sizes = (world.sizes(count["noun"]) or world.amounts(said[: count.start()], count["noun"])) if count else []
    if (exists := _EXISTS.search(said)) and (exists["value"] or not sizes):
        return ((exists["value"] or exists["name"]) in world.names) != bool(exists["no"] or exists["not"])
    if some := _SOME.search(said):
        return any(held) if (held := world.sizes(some["noun"])) else None
    if count and sizes:
        return None if _NOT.search(said) else _counted(count, sizes)
    if value := _IS.search(said):
        subject = said[: value.start()].strip()
        return world.has(before if _PRONOUN.fullmatch(subject) else subject, value)
    return None


def _counted(said: re.Match[str], sizes: Sequence[float]) -> bool | None:
    """Whether collections of these sizes fit what is said of their number; None where it is said of some entries."""
    number = int(said["number"]) if said["number"].isdigit() else _NUMBERS[said["number"]]
    fits = _BOUNDS.get(said["how"] or said["tail"], operator.eq)
    some = bool(said["filter"] or said["more"]) or len(sizes) > 1
    if fits in (operator.gt, operator.ge):
        return (None if some else True) if fits(sum(sizes), number) else False
    return None if some else fits(sizes[0], number)


@dataclasses.dataclass(frozen=True)
class _World:
    """A state, read as entries with names."""

    state: Mapping[str, Any]

    @functools.cached_property
    def _entries(self) -> list[tuple[tuple[str, ...], Any]]:
        """(path, value) of all that is in the state. An entry of a list goes by the texts that it holds."""
        found: list[tuple[tuple[str, ...], Any]] = []
        waiting: list[tuple[tuple[str, ...], Any]] = [((), self.state)]
        while waiting and len(found) < _VALUES:
            path, value = waiting.pop()
            found.append((path, value))
            if isinstance(value, Mapping) and len(path) < _DEEPEST:
                waiting += [((*path, fold(str(name))), inner) for name, inner in value.items()]
            elif isinstance(value, list | tuple) and len(path) < _DEEPEST:
                for place, inner in enumerate(value):
                    texts = inner.values() if isinstance(inner, Mapping) else ()
                    names = {fold(text) for text in texts if isinstance(text, str)} or {str(place)}
                    waiting += [((*path, name), inner) for name in names]
        return found

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """The names of entries that hold others, and all texts."""
        inner = {path[-1] for path, value in self._entries if path and isinstance(value, Mapping)}
        return frozenset(inner | {fold(value) for _, value in self._entries if isinstance(value, str)})

    def sizes(self, noun: str) -> list[int]:
        """How many entries each collection of this name has."""
        return [len(value) for name, value in self._collections if stem(name) == stem(noun)]

    @functools.cached_property
    def _collections(self) -> list[tuple[str, Any]]:
        """The last words of their names, and what has entries."""
        named = [(path[-1], value) for path, value in self._entries if path]
        return [(name.rpartition("_")[2], value) for name, value in named if isinstance(value, Mapping | list | tuple)]

    def amounts(self, subject: str, noun: str) -> list[float]:
        """The numbers of this name in the entries that the subject names."""
        inner = ((name, leaf) for name, leaf in self._of(subject) if stem(name) == stem(noun))
        return [leaf for _, leaf in inner if isinstance(leaf, int | float) and not isinstance(leaf, bool)]

    def _of(self, subject: str) -> list[tuple[str, Any]]:
        """(name, value) of all values in the entries that the subject names; of one within another, in the inner."""
        mentioned = Mentions(subject)
        named = [(path, entry) for path, entry in self._entries if path and mentioned.holds(path[-1])]
        named = [one for one in named if isinstance(one[1], Mapping)] or named
        outer = {path[:length] for path, _ in named for length in range(len(path))}
        below = {path for path, _ in named if path not in outer}
        return [
            (path[-1], leaf)
            for path, leaf in self._entries
            if not isinstance(leaf, Mapping | list | tuple)
            and any(path[:size] in below for size in range(len(path) + 1))
        ]

    def has(self, subject: str, said: re.Match[str]) -> bool | None:
        """Whether an entry that the subject names has the value; None where none is named, or no such value known."""
        mentioned, value, inner = Mentions(subject), said["value"], self._of(subject)
        if not inner:
            return None
        flags = [leaf for name, leaf in inner if name == value and isinstance(leaf, bool)]
        kinds = [names for name, names in self._collections if stem(name) == stem(value)]
        # "The day of lunch is …" tells which of its values is meant.
        meant = [(name, leaf) for name, leaf in inner if mentioned.holds(name)]
        told = said["says"] or (meant and value not in _VAGUE.split()) or any(map(str.isdigit, value))
        if not (flags or kinds or told or value in self.names or value in _DAYS.split()):
            return None
        found = any(flags) if flags else any(Mentions(str(leaf)).holds(value) for _, leaf in meant or inner)
        found = found or any(mentioned.holds(fold(str(name))) for names in kinds for name in names)
        return found != bool(said["no"])
