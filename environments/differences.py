"""How two plays that should be equal differ, in words; ids and times that a world draws anew are named as such."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# The most differences that are told, and characters of a value.
_MAX_TOLD, _MAX_CHARS = 3, 80
# What is drawn anew: its name, and a regular expression that `ids` of environments/mcp takes.
ID_KINDS = {
    "a UUID": r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}",
    "a time": r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?",
    "a Unix time": r"\b1[5-9]\d{8}(?:\d{3})?(?:\.\d+)?\b",
    "a hexadecimal id": r"\b(?=[0-9a-f]*\d)[0-9a-f]{8,64}\b",
    "an id of letters and digits": r"\b(?=[A-Za-z_-]*\d)(?=[\d_-]*[A-Za-z])[A-Za-z0-9_-]{6,64}\b",
}


def describe_difference(first: Any, second: Any, name: str = "") -> str:
    """Where two JSON values differ, and by what; "" if they do not. `name` is that of the whole."""
    differences = list(_list_differences(first, second, ""))
    told = [
        f"{': '.join(filter(None, (name, path))) or 'it'} is {_write(one)} and {_write(other)}"
        for path, one, other in differences[:_MAX_TOLD]
    ]
    if len(differences) > _MAX_TOLD:
        told.append(f"{len(differences) - _MAX_TOLD} more places")
    return "; ".join(told) + _name_ids(differences) if told else ""


def _list_differences(first: Any, second: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """(path, value, other value) of the smallest parts that differ."""
    if isinstance(first, Mapping) and isinstance(second, Mapping) and first.keys() == second.keys():
        for key in first:
            yield from _list_differences(first[key], second[key], f"{path}/{key}" if path else str(key))
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for index, (one, other) in enumerate(zip(first, second, strict=True)):
            yield from _list_differences(one, other, f"{path}/{index}" if path else str(index))
    elif isinstance(first, Mapping) and isinstance(second, Mapping):
        only_first, only_second = (
            [key for key in one if key not in other] for one, other in ((first, second), (second, first))
        )
        yield f"{path}: the keys", only_first, only_second
    elif isinstance(first, str) and isinstance(second, str) and first != second:
        parsed = [_parse(text) for text in (first, second)]
        if all(isinstance(value, (Mapping, list)) for value in parsed) and parsed[0] != parsed[1]:
            yield from _list_differences(parsed[0], parsed[1], path)
        else:
            yield path, first, second
    elif first != second:
        yield path, first, second


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _write(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}…"


def _name_ids(differences: Sequence[tuple[str, Any, Any]]) -> str:
    """That all differences are ids or times, and the rule that hides them; "" if they are not."""
    kinds: dict[str, str] = {}
    for _, *pair in differences:
        texts = [value if isinstance(value, str) else json.dumps(value, default=str) for value in pair]
        kind = next(
            (kind for kind, rule in ID_KINDS.items() if len({re.sub(rule, "#", text) for text in texts}) == 1), ""
        )
        if not kind:
            return ""
        kinds[kind] = ID_KINDS[kind]
    return (
        f". Each episode draws {' and '.join(kinds)} anew: make them from the setup or by counting or, for an MCP "
        f"server, hide them by --set ids='{'|'.join(kinds.values())}'"
    )
