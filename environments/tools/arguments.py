"""Arguments worth trying in a call: what the tool's schema names, and values seen under the parameter's name."""

import contextlib
import functools
import itertools
import random
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cojax.types import Call, canonical
from .toolset import Tool

# For one parameter, this many values are tried that the schema names or that were seen; for free text, new words too.
_MAX_CANDIDATES, _NEW_WORD_COUNT = 12, 2
# At most _MAX_INNER_VALUES of a list or an object within an argument are tried, _MAX_SCHEMA_DEPTH levels deep.
_MAX_INNER_VALUES, _MAX_SCHEMA_DEPTH = 3, 4
# Some draws repeat others, so there are more draws than calls.
_DRAWS_PER_CALL = 4
# At most this many values of a world are visited, at most this many levels deep.
_MAX_VISITED_VALUES, _MAX_WALK_DEPTH = 5_000, 20
# Where nothing has the parameter's name, this many short texts of other names are tried.
_MAX_OTHER_TEXTS, _MAX_TEXT_CHARS = 4, 40
_WORDS = (
    "amber", "basil", "cedar", "daisy", "ember", "fable", "grove", "hazel", "inlet", "jasper", "knoll", "lilac",
    "maple", "nectar", "olive", "pebble", "quartz", "raven", "sable", "thistle", "umber", "violet", "willow", "zephyr",
)  # fmt: skip
_OMITTED: Any = object()
_Scalar = str | int | float | bool
_Schema = Mapping[str, Any]
ValueIndex = Mapping[str, tuple[_Scalar, ...]]  # a key in some JSON, as `name_of` writes it → its values


def index_values(*values: Any) -> ValueIndex:
    """The single values in some JSON by their names, those of the first JSON first.

    A value is seen under its key, and under its key after the singular of what holds it: in {"items": [{"id": 7}]}, 7
    is an `id` and an `item_id`. In an object of objects, {"files": {"a.txt": {}}}, the keys are a `file`, `file_name`
    and `file_id`. Under "" are all texts.
    """
    values_by_key: dict[str, dict[_Scalar, None]] = {}
    visits_left = _MAX_VISITED_VALUES

    def add(value: _Scalar, *keys: str) -> None:
        for key in (*keys, "") if isinstance(value, str) else keys:
            values_by_key.setdefault(key, {})[value] = None

    def walk(value: Any, key: str, holder: str, depth: int) -> None:
        nonlocal visits_left
        visits_left -= 1
        if visits_left < 0 or depth > _MAX_WALK_DEPTH:
            return
        noun = singularise(key)
        if isinstance(value, Mapping):
            keys_are_names = bool(key) and all(isinstance(member, (Mapping, list)) for member in value.values())
            for member_key, member in value.items():
                if keys_are_names:
                    add(str(member_key), noun, f"{noun}_name", f"{noun}_id")
                    walk(member, key if isinstance(member, Mapping) else "", holder, depth + 1)
                else:
                    walk(member, normalise_name(str(member_key)), noun or holder, depth + 1)
        elif isinstance(value, list):
            for member in value:
                walk(member, noun, holder, depth + 1)
        elif isinstance(value, (str, int, float)) and value != "":
            add(value, *dict.fromkeys((key, f"{holder}_{key}".strip("_"))))

    for value in values:
        walk(value, "", "", 0)
    return {key: tuple(seen_values) for key, seen_values in values_by_key.items()}


def normalise_name(name: str) -> str:
    """A name in lower case with underscores, however it is written: `itemId`, `item-id` and `Item id` are one."""
    return re.sub(r"\W+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)).casefold().strip("_")


def singularise(noun: str) -> str:
    """An English name without the ending of its plural."""
    for plural, ending in (("ies", "y"), ("sses", "ss"), ("xes", "x"), ("s", "")):
        if noun.endswith(plural) and len(noun) > len(plural) + 1 and not noun.endswith("ss"):
            return noun[: -len(plural)] + ending
    return noun


def draw_calls(tool: Tool, index: ValueIndex, max_calls: int, rng: random.Random, depth: int = 0) -> Iterator[Call]:
    """Different calls of the tool, at most `max_calls`, in random order; none if a required parameter has no values.

    `depth` is the level of an object within an argument; of its optional members only the first few are tried.
    """
    schema = tool.parameters
    required_names = set(schema.get("required", ()))
    values_by_name: dict[str, list[Any]] = {}
    for parameter, parameter_schema in schema["properties"].items():
        if depth and parameter not in required_names and len(values_by_name) >= _MAX_CANDIDATES:
            continue
        values = find_candidates(parameter, parameter_schema, schema, index, rng, depth)
        if parameter in required_names and not values:
            return
        # An optional argument is left out in half of the draws.
        values_by_name[parameter] = values if parameter in required_names else [_OMITTED] * max(1, len(values)) + values
    if not values_by_name:
        yield Call(tool.name, {})
        return
    argument_keys: set[str] = set()
    for _ in range(_DRAWS_PER_CALL * max_calls):
        drawn_values = {name: rng.choice(values) for name, values in values_by_name.items()}
        call = Call(tool.name, {name: value for name, value in drawn_values.items() if value is not _OMITTED})
        if (argument_key := canonical(dict(call.arguments))) not in argument_keys:
            argument_keys.add(argument_key)
            yield call
            if len(argument_keys) == max_calls:
                return


def find_candidates(
    name: str, schema: Any, root: Mapping[str, Any], index: ValueIndex, rng: random.Random, depth: int = 0
) -> list[Any]:
    """Values worth trying for a parameter of this name: first what the schema names, then what was seen, then new."""
    schema = _resolve_reference(schema, root)
    if "const" in schema:
        return [schema["const"]]
    if isinstance(schema.get("enum"), list):
        return list(schema["enum"])
    for keyword in ("anyOf", "oneOf"):
        if schema.get(keyword):
            alternatives = schema[keyword][:_MAX_CANDIDATES] if depth < _MAX_SCHEMA_DEPTH else ()
            values = [find_candidates(name, alternative, root, index, rng, depth + 1) for alternative in alternatives]
            return list(itertools.chain.from_iterable(values))[: 2 * _MAX_CANDIDATES]
    type_spec = schema.get("type", "string")
    json_types = type_spec if isinstance(type_spec, list) else [type_spec]
    values = list(examples) if isinstance(examples := schema.get("examples"), list) else []
    if schema.get("default") is not None:
        values.append(schema["default"])
    for type_name in json_types:
        values += _find_candidates_of_type(type_name, name, schema, root, index, rng, depth)
    return [value for position, value in enumerate(values) if value not in values[:position]]


def _find_candidates_of_type(
    json_type: str, name: str, schema: _Schema, root: _Schema, index: ValueIndex, rng: random.Random, depth: int
) -> list[Any]:
    if json_type in ("boolean", "null"):
        return [True, False] if json_type == "boolean" else [None]
    if json_type == "array":
        item_count = max(1, int(schema.get("minItems", 1)))
        item_values = find_candidates(
            singularise(normalise_name(name)), schema.get("items", {}), root, index, rng, depth + 1
        )
        if depth >= _MAX_SCHEMA_DEPTH or len(item_values) < item_count:
            return []
        return [rng.sample(item_values, item_count) for _ in range(min(_MAX_INNER_VALUES, len(item_values)))]
    if json_type == "object":
        if depth >= _MAX_SCHEMA_DEPTH:
            return []
        tool = Tool(name, "", {**schema, "properties": schema.get("properties", {}), "$defs": root.get("$defs", {})})
        return [dict(call.arguments) for call in draw_calls(tool, index, _MAX_INNER_VALUES, rng, depth + 1)]
    seen_values = [value for value in _find_seen(name, index) if _fits(value, json_type, schema)][:_MAX_CANDIDATES]
    if json_type in ("integer", "number"):
        lowest = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
        near_values = [lowest + offset for offset in range(_MAX_INNER_VALUES)]
        return seen_values + [value for value in near_values if _fits(value, json_type, schema)]
    other_texts = [] if seen_values else [value for value in index.get("", ()) if _fits(value, json_type, schema)]
    other_texts = [value for value in other_texts if len(str(value)) <= _MAX_TEXT_CHARS]
    new_words = [word for word in rng.sample(_WORDS, _NEW_WORD_COUNT) if _fits(word, json_type, schema)]
    return seen_values + rng.sample(other_texts, min(_MAX_OTHER_TEXTS, len(other_texts))) + new_words


def _find_seen(parameter_name: str, value_index: ValueIndex) -> Iterator[_Scalar]:
    """Values seen under this name, or else under a name that ends it or that it ends."""
    key = normalise_name(parameter_name)
    if key in value_index:
        yield from value_index[key]
        return
    for other, values in value_index.items():
        if other and (f"_{key}".endswith(f"_{other}") or other.endswith(f"_{key}") or singularise(key) == other):
            yield from values


def _fits(value: Any, kind: str, schema: Mapping[str, Any]) -> bool:
    """Whether a value is of the schema's kind and within its bounds."""
    if kind == "string":
        if not isinstance(value, str) or not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 200):
            return False
        # In linear time: a server chooses the pattern. One that cannot be read matches.
        matches_pattern = _compile_pattern(pattern) if isinstance(pattern := schema.get("pattern"), str) else None
        return matches_pattern is None or matches_pattern(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or (kind == "integer" and value != int(value)):
        return False
    is_above = value >= schema.get("minimum", value) and value > schema.get("exclusiveMinimum", value - 1)
    return is_above and value <= schema.get("maximum", value) and value < schema.get("exclusiveMaximum", value + 1)


@functools.lru_cache(maxsize=256)
def _compile_pattern(pattern: str) -> Callable[[str], bool] | None:
    # An interpreter of a worker may lack it.
    with contextlib.suppress(ImportError):
        from pydantic_core import SchemaError, SchemaValidator, core_schema

        with contextlib.suppress(SchemaError):
            return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex")).isinstance_python
    return None


def _resolve_reference(schema: Any, root_schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema that a reference within the document stands for, merged with what stands beside the reference."""
    for _ in range(_MAX_SCHEMA_DEPTH):
        if not isinstance(schema, Mapping):
            return {}
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        target_schema: Any = root_schema
        for segment in reference.removeprefix("#/").split("/"):
            target_schema = target_schema.get(segment, {}) if isinstance(target_schema, Mapping) else {}
        schema = {**target_schema, **{key: value for key, value in schema.items() if key != "$ref"}}
    return {}
