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

# Values tried for one parameter: those that the schema names or that were seen, and new ones for free text.
_KNOWN, _NEW = 12, 2
# Values of a list or an object within an argument that are tried; levels of nesting that are followed.
_PARTS, _DEEP = 3, 4
# Draws for each call wanted, because some draws repeat others.
_DRAWS = 4
# The most values of a world that are looked at, and the levels of nesting.
_SEEN, _DEEPEST = 5_000, 20
# Texts of any name that are tried where nothing has the parameter's name, and the most characters of one.
_ANY, _SHORT = 4, 40
_WORDS = (
    "amber", "basil", "cedar", "daisy", "ember", "fable", "grove", "hazel", "inlet", "jasper", "knoll", "lilac",
    "maple", "nectar", "olive", "pebble", "quartz", "raven", "sable", "thistle", "umber", "violet", "willow", "zephyr",
)  # fmt: skip
_MISSING: Any = object()
_Scalar = str | int | float | bool
Seen = Mapping[str, tuple[_Scalar, ...]]  # the name of a place in some JSON, as `name_of` writes it → its values


def seen_in(*values: Any) -> Seen:
    """The single values in some JSON by their names, those of the first JSON first.

    A value is seen under its key, and under its key after the singular of what holds it: in {"items": [{"id": 7}]}, 7
    is an `id` and an `item_id`. In an object of objects, {"files": {"a.txt": {}}}, the keys are a `file`, `file_name`
    and `file_id`. Under "" are all texts.
    """
    index: dict[str, dict[_Scalar, None]] = {}
    budget = _SEEN

    def add(value: _Scalar, *names: str) -> None:
        for name in (*names, "") if isinstance(value, str) else names:
            index.setdefault(name, {})[value] = None

    def walk(value: Any, key: str, holder: str, deep: int) -> None:
        nonlocal budget
        budget -= 1
        if budget < 0 or deep > _DEEPEST:
            return
        noun = singular(key)
        if isinstance(value, Mapping):
            keys_are_names = bool(key) and all(isinstance(member, (Mapping, list)) for member in value.values())
            for name, member in value.items():
                if keys_are_names:
                    add(str(name), noun, f"{noun}_name", f"{noun}_id")
                    walk(member, key if isinstance(member, Mapping) else "", holder, deep + 1)
                else:
                    walk(member, name_of(str(name)), noun or holder, deep + 1)
        elif isinstance(value, list):
            for member in value:
                walk(member, noun, holder, deep + 1)
        elif isinstance(value, (str, int, float)) and value != "":
            add(value, *dict.fromkeys((key, f"{holder}_{key}".strip("_"))))

    for value in values:
        walk(value, "", "", 0)
    return {name: tuple(inner) for name, inner in index.items()}


def name_of(name: str) -> str:
    """A name in lower case with underscores, however it is written: `itemId`, `item-id` and `Item id` are one."""
    return re.sub(r"\W+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)).casefold().strip("_")


def singular(name: str) -> str:
    """An English name without the ending of its plural."""
    for plural, ending in (("ies", "y"), ("sses", "ss"), ("xes", "x"), ("s", "")):
        if name.endswith(plural) and len(name) > len(plural) + 1 and not name.endswith("ss"):
            return name[: -len(plural)] + ending
    return name


def calls_of(tool: Tool, index: Seen, count: int, rng: random.Random, deep: int = 0) -> Iterator[Call]:
    """Different calls of the tool, at most `count`, in random order; none if a required parameter has no values.

    `deep` is the level of an object within an argument; of its optional members only the first few are tried.
    """
    schema = tool.parameters
    required_names = set(schema.get("required", ()))
    options: dict[str, list[Any]] = {}
    for name, inner in schema["properties"].items():
        if deep and name not in required_names and len(options) >= _KNOWN:
            continue
        values = candidates(name, inner, schema, index, rng, deep)
        if name in required_names and not values:
            return
        # An optional argument is left out in half of the draws.
        options[name] = values if name in required_names else [_MISSING] * max(1, len(values)) + values
    if not options:
        yield Call(tool.name, {})
        return
    keys: set[str] = set()
    for _ in range(_DRAWS * count):
        draw = {name: rng.choice(values) for name, values in options.items()}
        call = Call(tool.name, {name: value for name, value in draw.items() if value is not _MISSING})
        if (key := canonical(dict(call.arguments))) not in keys:
            keys.add(key)
            yield call
            if len(keys) == count:
                return


def candidates(
    name: str, schema: Any, root: Mapping[str, Any], index: Seen, rng: random.Random, deep: int = 0
) -> list[Any]:
    """Values worth trying for a parameter of this name: first what the schema names, then what was seen, then new."""
    schema = _resolve(schema, root)
    if "const" in schema:
        return [schema["const"]]
    if isinstance(schema.get("enum"), list):
        return list(schema["enum"])
    for keyword in ("anyOf", "oneOf"):
        if schema.get(keyword):
            schemas = schema[keyword][:_KNOWN] if deep < _DEEP else ()
            values = [candidates(name, alternative, root, index, rng, deep + 1) for alternative in schemas]
            return list(itertools.chain.from_iterable(values))[: 2 * _KNOWN]
    kind = schema.get("type", "string")
    kinds = kind if isinstance(kind, list) else [kind]
    values = list(examples) if isinstance(examples := schema.get("examples"), list) else []
    if schema.get("default") is not None:
        values.append(schema["default"])
    for alternative in kinds:
        values += _of_kind(alternative, name, schema, root, index, rng, deep)
    return [value for number, value in enumerate(values) if value not in values[:number]]


def _of_kind(
    kind: str, name: str, schema: Mapping[str, Any], root: Mapping[str, Any], index: Seen, rng: random.Random, deep: int
) -> list[Any]:
    if kind == "boolean":
        return [True, False]
    if kind == "null":
        return [None]
    if kind == "array":
        length = max(1, int(schema.get("minItems", 1)))
        inner = candidates(singular(name_of(name)), schema.get("items", {}), root, index, rng, deep + 1)
        if deep >= _DEEP or len(inner) < length:
            return []
        return [rng.sample(inner, length) for _ in range(min(_PARTS, len(inner)))]
    if kind == "object":
        if deep >= _DEEP:
            return []
        tool = Tool(name, "", {**schema, "properties": schema.get("properties", {}), "$defs": root.get("$defs", {})})
        return [dict(call.arguments) for call in calls_of(tool, index, _PARTS, rng, deep + 1)]
    matches = [value for value in _matching(name, index) if _fits(value, kind, schema)][:_KNOWN]
    if kind in ("integer", "number"):
        low = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
        near = [low + step for step in range(_PARTS)]
        return matches + [value for value in near if _fits(value, kind, schema)]
    others = [] if matches else [value for value in index.get("", ()) if _fits(value, kind, schema)]
    others = [value for value in others if len(str(value)) <= _SHORT]
    new = [word for word in rng.sample(_WORDS, _NEW) if _fits(word, kind, schema)]
    return matches + rng.sample(others, min(_ANY, len(others))) + new


def _matching(name: str, index: Seen) -> Iterator[_Scalar]:
    """Values seen under this name, or else under a name that ends it or that it ends."""
    key = name_of(name)
    if key in index:
        yield from index[key]
        return
    for other, values in index.items():
        if other and (f"_{key}".endswith(f"_{other}") or other.endswith(f"_{key}") or singular(key) == other):
            yield from values


def _fits(value: Any, kind: str, schema: Mapping[str, Any]) -> bool:
    """Whether a value is of the schema's kind and within its bounds."""
    if kind == "string":
        if not isinstance(value, str) or not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 200):
            return False
        # In linear time: a server chooses the pattern. One that cannot be read matches.
        matches = _compile(pattern) if isinstance(pattern := schema.get("pattern"), str) else None
        return matches is None or matches(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or (kind == "integer" and value != int(value)):
        return False
    above = value >= schema.get("minimum", value) and value > schema.get("exclusiveMinimum", value - 1)
    return above and value <= schema.get("maximum", value) and value < schema.get("exclusiveMaximum", value + 1)


@functools.lru_cache(maxsize=256)
def _compile(pattern: str) -> Callable[[str], bool] | None:
    # An interpreter of a worker may lack it.
    with contextlib.suppress(ImportError):
        from pydantic_core import SchemaError, SchemaValidator, core_schema

        with contextlib.suppress(SchemaError):
            return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex")).isinstance_python
    return None


def _resolve(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema that a reference within the document stands for, merged with what stands beside the reference."""
    for _ in range(_DEEP):
        if not isinstance(schema, Mapping):
            return {}
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        target: Any = root
        for part in reference.removeprefix("#/").split("/"):
            target = target.get(part, {}) if isinstance(target, Mapping) else {}
        schema = {**target, **{name: value for name, value in schema.items() if name != "$ref"}}
    return {}
