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

_TABLE_TEXT = Path(__file__).with_name("tools.txt").read_text(encoding="utf-8").replace("\n        ", " ")
# From tools.txt: list → its values; tool → the request for a call of it; tool → parameter → the values to try.
LISTS: Mapping[str, str] = dict(re.findall(r"^(\w+) = (.+)$", _TABLE_TEXT, re.MULTILINE))
WORDINGS: Mapping[str, str] = dict(re.findall(r"^(\w+): (.+)$", _TABLE_TEXT, re.MULTILINE))
PARAMETERS: Mapping[str, Mapping[str, str]] = {
    tool: dict(re.findall(r"^    (\w+): (.+)$", lines, re.MULTILINE))
    for tool, lines in re.findall(r"^(\w+): .+\n((?:    .+\n)*)", _TABLE_TEXT, re.MULTILINE)
}

_JOINER = ", then "
_SLOT_PATTERN = re.compile(r"{(\w+)(?::([^|}]*)\|([^}]*))?}")
_OPTION_PATTERN = re.compile(r"\[(\w+)=([^:]*):((?:[^\]{]|{[^}]*})*)\]")


def phrase(steps: Sequence[Triplet]) -> list[str] | None:
    """The user's turns that the steps fulfil; an action without calls ends a turn.

    None if a step failed, a turn is empty, the last turn does not end, or a call cannot be worded.
    """
    turn_texts: list[str] = []
    clauses: list[str] = []
    for step in steps:
        if not step.observation.ok:
            return None
        for call in step.action.calls:
            clause = word_call(call)
            if clause is None:
                return None
            clauses.append(clause)
        if not step.action.calls:
            if not clauses:
                return None
            turn_text = _JOINER.join(clauses)
            turn_texts.append(f"{turn_text[0].upper()}{turn_text[1:]}.")
            clauses = []
    return turn_texts if turn_texts and not clauses else None


def word_call(call: Call) -> str | None:
    """The user's request for this call; None if an argument has no slot, or a slot no argument."""
    arguments, mentioned_names = call.arguments, set[str]()

    def word_option(match: re.Match[str]) -> str:
        """The words of an option; "" if it is missing or has its default value."""
        argument_name, default_json, wording = match.groups()
        mentioned_names.add(argument_name)
        if argument_name not in arguments or arguments[argument_name] == json.loads(default_json):
            return ""
        if arguments[argument_name] is not True and not _SLOT_PATTERN.search(wording):
            raise ValueError(f"{argument_name} can only be said to be true")
        return wording

    def word_slot(match: re.Match[str]) -> str:
        argument_name, true_text, false_text = match.groups()
        mentioned_names.add(argument_name)
        if (true_text or false_text) and not isinstance(arguments[argument_name], bool):
            raise ValueError(f"{argument_name} is neither true nor false")
        return _word_value(arguments[argument_name], true_text, false_text)

    try:
        request_text = _SLOT_PATTERN.sub(word_slot, _OPTION_PATTERN.sub(word_option, WORDINGS[call.name]))
    except (KeyError, ValueError):
        return None
    return request_text if set(arguments) <= mentioned_names else None


def _word_value(value: Any, true_text: str | None, false_text: str | None) -> str:
    if true_text or false_text:
        return str(true_text if value else false_text)
    if isinstance(value, str):
        # Text with quotes, line breaks and the like is written as in JSON.
        return json.dumps(value, ensure_ascii=False) if re.search(r"['\\\x00-\x1f]", value) else f"'{value}'"
    if isinstance(value, list):
        return ", ".join(_word_value(item, None, None) for item in value) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key} to {_word_value(item, None, None)}" for key, item in value.items()) or "nothing"
    return json.dumps(value)


# A value of a parameter: leave the parameter out.
OMIT = object()


class ArgumentValues:
    """The values at hand: the contents of the instances, and the results of this episode by key."""

    def __init__(self, instances: Mapping[str, Any], results: Sequence[Any]):
        self.instances = instances
        self.results: dict[str, list[Any]] = {}
        for result in results:
            for result_key, value in _iterate_leaves(result, ""):
                self.results.setdefault(result_key, []).append(value)

    def read_attribute(self, class_name: str, attribute: str) -> Any:
        """A public attribute; () if the episode does not have the class."""
        instance = self.instances.get(class_name)
        return () if instance is None else vars(instance)[attribute]

    def list_items(self, class_name: str, attribute: str) -> list[Any]:
        """The keys of a dict, the elements of a list, or a single value in a list; empty for None."""
        value = self.read_attribute(class_name, attribute)
        if isinstance(value, (Mapping, list, tuple, set)):
            return list(value)
        return [] if value is None else [value]

    def list_field(self, class_name: str, attribute: str, record_key: str) -> list[Any]:
        """The entry `record_key` of every record in a list or among a dict's values."""
        records = self.read_attribute(class_name, attribute)
        records = records.values() if isinstance(records, Mapping) else records
        return [record[record_key] for record in records if isinstance(record, Mapping) and record_key in record]

    def list_names(self, item_kind: str) -> list[str]:
        """Names of the files or directories in the current directory."""
        file_system = self.instances.get("GorillaFileSystem")
        return [] if file_system is None else _list_names(file_system._current_dir, item_kind)


Source = Callable[[ArgumentValues], Iterable[Any]]


def _iterate_leaves(value: Any, result_key: str) -> Iterator[tuple[str, Any]]:
    """The (key, value) of the short values in a result; values in a list have the list's key."""
    if isinstance(value, Mapping):
        for inner_key, inner_value in value.items():
            yield from _iterate_leaves(inner_value, str(inner_key))
    elif isinstance(value, (list, tuple)):
        for inner_value in value[:20]:
            yield from _iterate_leaves(inner_value, result_key)
    elif (isinstance(value, str) and 0 < len(value) <= 80) or type(value) in (int, float):
        yield result_key, value


def _list_names(directory: Any, item_kind: str) -> list[str]:
    return [item_name for item_name, item in directory.contents.items() if type(item).__name__ == item_kind]


def list_all_file_names(values: ArgumentValues) -> list[str]:
    """The names of all files, in all folders."""
    file_system = values.instances.get("GorillaFileSystem")
    file_names: list[str] = []
    folders = [] if file_system is None else [file_system.root]
    # Calls can put a folder inside itself.
    for _ in range(200):
        if not folders:
            break
        folder = folders.pop()
        file_names += _list_names(folder, "File")
        folders += [folder.contents[folder_name] for folder_name in _list_names(folder, "Directory")]
    return file_names


def words_here(values: ArgumentValues) -> list[str]:
    """The words in the files of the current directory."""
    system = values.instances.get("GorillaFileSystem")
    texts = [] if system is None else [system._current_dir.contents[name].content for name in values.list_names("File")]
    return [word.strip(".,:;()") for text in texts for word in text[:500].split()[:40] if len(word) > 4]


def receivers(values: ArgumentValues) -> list[str]:
    users = values.read_attribute("MessageAPI", "user_map")
    return list(users.values()) if isinstance(users, Mapping) else []


def _long_words(texts: Iterable[Any]) -> list[str]:
    return [word.strip(".,!?") for text in texts for word in str(text).split() if len(word) > 4]


def stocks(values: ArgumentValues) -> list[list[str]]:
    symbols = list(values.read_attribute("TradingBot", "stocks"))
    return [symbols[start : start + size] for size in (2, 3, 4) for start in range(0, max(0, len(symbols) - size), 2)]


def told_numbers(values: ArgumentValues) -> list[float]:
    return [value for entries in values.results.values() for value in entries if type(value) in (int, float)][-8:]


def told_lists(values: ArgumentValues) -> list[list[float]]:
    numbers = told_numbers(values)
    return [numbers[-3:], numbers[-2:]] if len(numbers) >= 3 else []


_NAMED_SOURCES: Mapping[str, Source] = {
    "files": lambda values: values.list_names("File"),
    "folders": lambda values: values.list_names("Directory"),
    "message_words": lambda values: _long_words(
        text for mail in values.read_attribute("MessageAPI", "inbox") for text in mail.values()
    ),
    "tweet_words": lambda values: _long_words(values.list_field("TwitterAPI", "tweets", "content")),
    **{
        source.__name__: source
        for source in (list_all_file_names, words_here, receivers, stocks, told_numbers, told_lists)
    },
}


def _read_source(source_text: str) -> Source:
    """The source of the values of a list in tools.txt."""
    sources = [_make_source(node) for node in ast.parse(f"({source_text},)", mode="eval").body.elts]  # type: ignore[attr-defined]
    return lambda values: itertools.chain.from_iterable(source(values) for source in sources)


def _make_source(node: ast.expr) -> Source:
    match node:
        case ast.Name(id="OMIT"):
            return lambda values: (OMIT,)
        case ast.Name(id=source_name):
            return _NAMED_SOURCES[source_name] if source_name in _NAMED_SOURCES else _read_source(LISTS[source_name])
        case ast.Attribute(value=ast.Name(id="told"), attr=entry_key):
            return lambda values: values.results.get(entry_key, ())
        case ast.Attribute(value=ast.Name(id=class_name), attr=attribute):
            return lambda values: values.list_items(class_name, attribute)
        case ast.Attribute(value=ast.Attribute(value=ast.Name(id=class_name), attr=attribute), attr=entry_key):
            return lambda values: values.list_field(class_name, attribute, entry_key)
    value = ast.literal_eval(node)
    return lambda values: (value,)


# Tool → parameter → the source of values to try.
SOURCES: Mapping[str, Mapping[str, Source]] = {
    tool: {name: _read_source(text) for name, text in parameters.items()} for tool, parameters in PARAMETERS.items()
}

# The most calls offered in total.
_MAX_OFFERS = 150
# The most calls offered for one tool.
_MAX_OFFERS_PER_TOOL = 6
# The most calls tried for one tool.
_MAX_TRIES_PER_TOOL = 10


def draw_calls(apis: Apis, values: ArgumentValues, tool_names: Sequence[str], salt: str) -> list[Call]:
    """Draws at most 150 different calls of these tools that work now, by `salt`: one of each tool, then a second, …"""
    try_call = apis.make_trial()
    calls_of_tools = []
    for tool_name in tool_names:
        calls = _combine_values(tool_name, values, random.Random(repr((tool_name, salt))))
        working_calls = (call for call in itertools.islice(calls, _MAX_TRIES_PER_TOOL) if try_call(call).ok)
        calls_of_tools.append(list(itertools.islice(working_calls, _MAX_OFFERS_PER_TOOL)))
    rounds = itertools.zip_longest(*calls_of_tools)
    return [call for calls_of_round in rounds for call in calls_of_round if call is not None][:_MAX_OFFERS]


def _combine_values(tool_name: str, values: ArgumentValues, rng: random.Random) -> Iterator[Call]:
    """Yields different calls of the tool in random order. No call has two equal arguments."""
    values_by_name = {parameter: list(source(values)) for parameter, source in SOURCES[tool_name].items()}
    if not all(values_by_name.values()):
        return
    seen_arguments: set[str] = set()
    for _ in range(3 * _MAX_TRIES_PER_TOOL):
        drawn_values = {parameter: rng.choice(candidates) for parameter, candidates in values_by_name.items()}
        arguments = {parameter: value for parameter, value in drawn_values.items() if value is not OMIT}
        value_texts = [json.dumps(value) for value in arguments.values()]
        arguments_json = json.dumps(arguments)
        if arguments_json not in seen_arguments and len(set(value_texts)) == len(value_texts):
            seen_arguments.add(arguments_json)
            yield Call(tool_name, arguments)
