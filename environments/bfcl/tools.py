"""Reads tools.txt: how the user asks for a call, and which calls would work now.

A wording writes values out, text in quotes, so that different calls have different wordings. Trials on copies show
which calls work.
"""

import ast
import itertools
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cojax.types import Call, Triplet
from .calls import Apis

_TABLE = Path(__file__).with_name("tools.txt").read_text(encoding="utf-8").replace("\n        ", " ")
# From tools.txt: list → its values; tool → the request for a call of it; tool → parameter → the values to try.
LISTS: Mapping[str, str] = dict(re.findall(r"^(\w+) = (.+)$", _TABLE, re.MULTILINE))
WORDINGS: Mapping[str, str] = dict(re.findall(r"^(\w+): (.+)$", _TABLE, re.MULTILINE))
PARAMETERS: Mapping[str, Mapping[str, str]] = {
    tool: dict(re.findall(r"^    (\w+): (.+)$", lines, re.MULTILINE))
    for tool, lines in re.findall(r"^(\w+): .+\n((?:    .+\n)*)", _TABLE, re.MULTILINE)
}

_JOINER = ", then "
_SLOT = re.compile(r"{(\w+)(?::([^|}]*)\|([^}]*))?}")
_OPTION = re.compile(r"\[(\w+)=([^:]*):((?:[^\]{]|{[^}]*})*)\]")


def phrase(steps: Sequence[Triplet]) -> list[str] | None:
    """The user's turns that the steps fulfil; an action without calls ends a turn.

    None if a step failed, a turn is empty, the last turn does not end, or a call cannot be worded.
    """
    turns: list[str] = []
    clauses: list[str] = []
    for step in steps:
        if not step.observation.ok:
            return None
        for call in step.action.calls:
            clause = word(call)
            if clause is None:
                return None
            clauses.append(clause)
        if not step.action.calls:
            if not clauses:
                return None
            text = _JOINER.join(clauses)
            turns.append(f"{text[0].upper()}{text[1:]}.")
            clauses = []
    return turns if turns and not clauses else None


def word(call: Call) -> str | None:
    """The user's request for this call; None if an argument has no slot, or a slot no argument."""
    arguments, mentions = call.arguments, set[str]()

    def option(match: re.Match[str]) -> str:
        """The words of an option; "" if it is missing or has its default value."""
        name, default, words = match.groups()
        mentions.add(name)
        if name not in arguments or arguments[name] == json.loads(default):
            return ""
        if arguments[name] is not True and not _SLOT.search(words):
            raise ValueError(f"{name} can only be said to be true")
        return words

    def slot(match: re.Match[str]) -> str:
        name, yes, no = match.groups()
        mentions.add(name)
        if (yes or no) and not isinstance(arguments[name], bool):
            raise ValueError(f"{name} is neither true nor false")
        return _value(arguments[name], yes, no)

    try:
        text = _SLOT.sub(slot, _OPTION.sub(option, WORDINGS[call.name]))
    except (KeyError, ValueError):
        return None
    return text if set(arguments) <= mentions else None


def _value(value: Any, yes: str | None, no: str | None) -> str:
    if yes or no:
        return str(yes if value else no)
    if isinstance(value, str):
        # Text with quotes, line breaks and the like is written as in JSON.
        return json.dumps(value, ensure_ascii=False) if re.search(r"['\\\x00-\x1f]", value) else f"'{value}'"
    if isinstance(value, list):
        return ", ".join(_value(item, None, None) for item in value) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key} to {_value(item, None, None)}" for key, item in value.items()) or "nothing"
    return json.dumps(value)


# A value of a parameter: leave the parameter out.
OMIT = object()


class Scene:
    """The values at hand: the contents of the instances, and the results of this episode by key."""

    def __init__(self, instances: Mapping[str, Any], results: Sequence[Any]):
        self.instances = instances
        self.results: dict[str, list[Any]] = {}
        for result in results:
            for key, value in _leaves(result, ""):
                self.results.setdefault(key, []).append(value)

    def of(self, name: str, attribute: str) -> Any:
        """A public attribute; () if the episode does not have the class."""
        instance = self.instances.get(name)
        return () if instance is None else vars(instance)[attribute]

    def items(self, name: str, attribute: str) -> list[Any]:
        """The keys of a dict, the elements of a list, or a single value in a list; empty for None."""
        value = self.of(name, attribute)
        if isinstance(value, (Mapping, list, tuple, set)):
            return list(value)
        return [] if value is None else [value]

    def field(self, name: str, attribute: str, key: str) -> list[Any]:
        """The entry `key` of every record in a list or among a dict's values."""
        records = self.of(name, attribute)
        records = records.values() if isinstance(records, Mapping) else records
        return [record[key] for record in records if isinstance(record, Mapping) and key in record]

    def listing(self, kind: str) -> list[str]:
        """Names of the files or directories in the current directory."""
        system = self.instances.get("GorillaFileSystem")
        return [] if system is None else _names_in(system._current_dir, kind)


Source = Callable[[Scene], Iterable[Any]]


def _leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """The (key, value) of the short values in a result; values in a list have the list's key."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(inner, str(name))
    elif isinstance(value, (list, tuple)):
        for inner in value[:20]:
            yield from _leaves(inner, key)
    elif (isinstance(value, str) and 0 < len(value) <= 80) or type(value) in (int, float):
        yield key, value


def _names_in(directory: Any, kind: str) -> list[str]:
    return [name for name, item in directory.contents.items() if type(item).__name__ == kind]


def names_below(scene: Scene) -> list[str]:
    """The names of all files, in all folders."""
    system = scene.instances.get("GorillaFileSystem")
    names: list[str] = []
    stack = [] if system is None else [system.root]
    # Calls can put a folder inside itself.
    for _ in range(200):
        if not stack:
            break
        directory = stack.pop()
        names += _names_in(directory, "File")
        stack += [directory.contents[name] for name in _names_in(directory, "Directory")]
    return names


def words_here(scene: Scene) -> list[str]:
    """The words in the files of the current directory."""
    system = scene.instances.get("GorillaFileSystem")
    contents = [] if system is None else [system._current_dir.contents[name].content for name in scene.listing("File")]
    return [word.strip(".,:;()") for text in contents for word in text[:500].split()[:40] if len(word) > 4]


def receivers(scene: Scene) -> list[str]:
    users = scene.of("MessageAPI", "user_map")
    return list(users.values()) if isinstance(users, Mapping) else []


def _long_words(texts: Iterable[Any]) -> list[str]:
    return [word.strip(".,!?") for text in texts for word in str(text).split() if len(word) > 4]


def stocks(scene: Scene) -> list[list[str]]:
    symbols = list(scene.of("TradingBot", "stocks"))
    return [symbols[start : start + size] for size in (2, 3, 4) for start in range(0, max(0, len(symbols) - size), 2)]


def told_numbers(scene: Scene) -> list[float]:
    return [value for values in scene.results.values() for value in values if type(value) in (int, float)][-8:]


def told_lists(scene: Scene) -> list[list[float]]:
    numbers = told_numbers(scene)
    return [numbers[-3:], numbers[-2:]] if len(numbers) >= 3 else []


_FUNCTIONS: Mapping[str, Source] = {
    "files": lambda scene: scene.listing("File"),
    "folders": lambda scene: scene.listing("Directory"),
    "message_words": lambda scene: _long_words(
        text for mail in scene.of("MessageAPI", "inbox") for text in mail.values()
    ),
    "tweet_words": lambda scene: _long_words(scene.field("TwitterAPI", "tweets", "content")),
    **{source.__name__: source for source in (names_below, words_here, receivers, stocks, told_numbers, told_lists)},
}


def _list_source(text: str) -> Source:
    """The source of the values of a list in tools.txt."""
    sources = [_source(node) for node in ast.parse(f"({text},)", mode="eval").body.elts]  # type: ignore[attr-defined]
    return lambda scene: itertools.chain.from_iterable(source(scene) for source in sources)


def _source(node: ast.expr) -> Source:
    match node:
        case ast.Name(id="OMIT"):
            return lambda scene: (OMIT,)
        case ast.Name(id=name):
            return _FUNCTIONS[name] if name in _FUNCTIONS else _list_source(LISTS[name])
        case ast.Attribute(value=ast.Name(id="told"), attr=key):
            return lambda scene: scene.results.get(key, ())
        case ast.Attribute(value=ast.Name(id=api), attr=attribute):
            return lambda scene: scene.items(api, attribute)
        case ast.Attribute(value=ast.Attribute(value=ast.Name(id=api), attr=attribute), attr=key):
            return lambda scene: scene.field(api, attribute, key)
    value = ast.literal_eval(node)
    return lambda scene: (value,)


# Tool → parameter → the source of values to try.
SOURCES: Mapping[str, Mapping[str, Source]] = {
    tool: {name: _list_source(text) for name, text in parameters.items()} for tool, parameters in PARAMETERS.items()
}

# The most calls offered in total, offered for one tool, and tried for one tool.
_MOST_OFFERS = 150
_OF_TOOL = 6
_TRIES = 10


def offers(apis: Apis, scene: Scene, tools: Sequence[str], salt: str) -> list[Call]:
    """At most 150 different calls of these tools that work now, drawn by `salt`: one of each tool, then a second, …"""
    trial = apis.trial()
    calls_by_tool = []
    for tool in tools:
        calls = _combinations(tool, scene, random.Random(repr((tool, salt))))
        working_calls = (call for call in itertools.islice(calls, _TRIES) if trial(call).ok)
        calls_by_tool.append(list(itertools.islice(working_calls, _OF_TOOL)))
    layers = itertools.zip_longest(*calls_by_tool)
    return [call for layer in layers for call in layer if call is not None][:_MOST_OFFERS]


def _combinations(tool: str, scene: Scene, rng: random.Random) -> Iterator[Call]:
    """Different calls of the tool in random order. No call has two equal arguments."""
    options = {name: list(source(scene)) for name, source in SOURCES[tool].items()}
    if not all(options.values()):
        return
    keys: set[str] = set()
    for _ in range(3 * _TRIES):
        choice = {name: rng.choice(values) for name, values in options.items()}
        arguments = {name: value for name, value in choice.items() if value is not OMIT}
        texts = [json.dumps(value) for value in arguments.values()]
        key = json.dumps(arguments)
        if key not in keys and len(set(texts)) == len(texts):
            keys.add(key)
            yield Call(tool, arguments)
