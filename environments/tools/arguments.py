"""Arguments worth trying in a call: what the tool's schema names, and values that were seen in fitting places."""

import contextlib
import dataclasses
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
WORDS = (
    "amber", "basil", "cedar", "daisy", "ember", "fable", "grove", "hazel", "inlet", "jasper", "knoll", "lilac",
    "maple", "nectar", "olive", "pebble", "quartz", "raven", "sable", "thistle", "umber", "violet", "willow", "zephyr",
)  # fmt: skip
# A value of each format that pydantic's types have.
_VALUES_BY_FORMAT = {
    "date": ("2026-03-02", "2026-03-09"), "time": ("09:30:00", "14:00:00"),
    "date-time": ("2026-03-02T09:30:00", "2026-03-09T14:00:00"), "email": ("amber@example.org", "basil@example.org"),
    "uuid": ("00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"),
    "uri": ("https://example.org/amber", "https://example.org/basil"), "duration": ("PT30M", "PT2H"),
}  # fmt: skip
_OMITTED: Any = object()
Scalar = str | int | float | bool
Schema = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class ValueIndex:
    """The single values in some JSON by their places, those of the first JSON first.

    A place is a path of names. "books/*" are the keys of an object of objects, or the members of a list;
    "books/*/title" is a field of each of them, or "books/*/0" a column; "owner/name" is a field of one object;
    "stock/*=" are the values of an object that has one single value for each of its keys. `repeated` are the places
    that have equal values in one JSON. `texts` are all texts.
    """

    values: Mapping[str, tuple[Scalar, ...]] = dataclasses.field(default_factory=dict)
    repeated: frozenset[str] = frozenset()
    texts: tuple[str, ...] = ()

    def is_distinct(self, place: str) -> bool:
        """Whether all values of the place are different."""
        return place not in self.repeated


@dataclasses.dataclass(frozen=True)
class Source:
    """Where the values of a parameter come from: `places` of the state; `numbers`, which the world takes; new words,
    under which the tool `creates` something. Without any, they come from nowhere. `is_unchecked` says that the tool
    changes the world by a value that is not there too, instead of refusing it."""

    places: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    creates: bool = False
    is_unchecked: bool = False


def index_values(*values: Any) -> ValueIndex:
    """The places of the single values in some JSON."""
    values_by_place: dict[str, dict[Scalar, None]] = {}
    last_seen: dict[tuple[str, Scalar], int] = {}
    repeated: set[str] = set()
    texts: dict[str, None] = {}
    visits_left = _MAX_VISITED_VALUES

    def add(value: Scalar, place: str) -> None:
        values_by_place.setdefault(place, {})[value] = None
        if last_seen.get((place, value)) == number:
            repeated.add(place)
        last_seen[place, value] = number
        if isinstance(value, str):
            texts[value] = None

    def walk(value: Any, place: str, depth: int) -> None:
        nonlocal visits_left
        visits_left -= 1
        if visits_left < 0 or depth > _MAX_WALK_DEPTH:
            return
        value = read_table(value)
        if isinstance(value, Mapping):
            is_collection = bool(place) and has_names_as_keys(value, place)
            for key, member in value.items():
                if is_collection:
                    add(str(key), join(place, "*"))
                is_single = not isinstance(member, (Mapping, list))
                walk(member, join(place, ("*=" if is_single else "*") if is_collection else str(key)), depth + 1)
        elif isinstance(value, list):
            is_row = place.endswith("*") and any(not isinstance(member, (Mapping, list)) for member in value)
            for column, member in enumerate(value):
                walk(member, join(place, str(column) if is_row else "*"), depth + 1)
        elif isinstance(value, (str, int, float)) and value != "":
            add(value, place)

    for number, value in enumerate(values):  # noqa: B007 (`add` reads it)
        walk(value, "", 0)
    return ValueIndex(
        {place: tuple(seen) for place, seen in values_by_place.items()}, frozenset(repeated), tuple(texts)
    )


def read_table(value: Any) -> Any:
    """An object that stands for a list, as data frames write it: of rows, for columns of equal length; or of values,
    for keys that count from 0. Any other value as it is."""
    if not isinstance(value, Mapping) or not value:
        return value
    if list(value) == [str(number) for number in range(len(value))]:
        return list(value.values())
    columns = {key: read_table(column) for key, column in value.items()}
    lengths = {len(column) if isinstance(column, list) else 0 for column in columns.values()}
    if len(lengths) > 1 or 0 in lengths or len(columns) < 2:
        return value
    are_frames = all(isinstance(column, Mapping) for column in value.values())
    kinds = {frozenset(map(type, column)) for column in columns.values()}
    if any(isinstance(cell, (Mapping, list)) for column in columns.values() for cell in column):
        return value
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    return rows if are_frames or (len(kinds) > 1 and lengths != {1}) else value


def join(place: str, name: str) -> str:
    """The place of that name within another one."""
    name = name if name in ("*", "*=") else normalise_name(name) or "_"
    return f"{place}/{name}" if place else name


def has_names_as_keys(value: Mapping[str, Any], place: str) -> bool:
    """Whether the keys of an object name things, as in {"files": {"a.txt": {}}} and {"stock": {"tea": 3, "jam": 2}},
    and are not the fields of one thing: members are objects or lists, or single values of one kind under a plural."""
    members = list(value.values())
    if all(isinstance(member, (Mapping, list)) for member in members):
        return True
    if any(isinstance(member, (Mapping, list)) for member in members):
        return False
    kinds = {float if type(member) is int else type(member) for member in members} - {type(None)}
    name = place.rpartition("/")[2]
    return len(kinds) <= 1 and (singularise(name) != name or (len(members) > 1 and kinds <= {float}))


def normalise_name(name: str) -> str:
    """A name in lower case with underscores, however it is written: `itemId`, `item-id` and `Item id` are one."""
    return re.sub(r"\W+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)).casefold().strip("_")


def singularise(noun: str) -> str:
    """An English name without the ending of its plural."""
    for plural, ending in (("ies", "y"), ("sses", "ss"), ("shes", "sh"), ("ches", "ch"), ("xes", "x"), ("s", "")):
        if noun.endswith(plural) and len(noun) > len(plural) + 1 and not noun.endswith(("ss", "us", "is")):
            return noun[: -len(plural)] + ending
    return noun


def draw_calls(
    tool: Tool,
    index: ValueIndex,
    max_calls: int,
    rng: random.Random,
    depth: int = 0,
    sources: Mapping[str, Source] | None = None,
) -> Iterator[Call]:
    """Different calls of the tool, at most `max_calls`, in random order; none if a required parameter has no values.

    `sources` says where the values of parameters come from; without it, names alone decide. No call has the same seen
    text twice. `depth` is the level of an object within an argument; of its optional members only the first few are
    tried.
    """
    schema = tool.parameters
    required_names = set(schema.get("required", ()))
    values_by_name: dict[str, list[Any]] = {}
    for parameter, parameter_schema in schema["properties"].items():
        if depth and parameter not in required_names and len(values_by_name) >= _MAX_CANDIDATES:
            continue
        source = (sources or {}).get(parameter)
        values = find_candidates(parameter, parameter_schema, schema, index, rng, depth, tool.name, source)
        if parameter in required_names and not values:
            return
        is_bare = isinstance(parameter_schema, Mapping) and parameter_schema.get("default") is None
        if parameter not in required_names and source == Source() and is_bare:
            continue  # nothing says what its values are, and the tool does without
        # An optional argument is left out in half of the draws.
        values_by_name[parameter] = values if parameter in required_names else [_OMITTED] * max(1, len(values)) + values
    if not values_by_name:
        yield Call(tool.name, {})
        return
    argument_keys: set[str] = set()
    for _ in range(_DRAWS_PER_CALL * max_calls):
        drawn_values = {name: rng.choice(values) for name, values in values_by_name.items()}
        call = Call(tool.name, {name: value for name, value in drawn_values.items() if value is not _OMITTED})
        texts = [value for value in call.arguments.values() if isinstance(value, str) and value in index.texts]
        is_new = (argument_key := canonical(dict(call.arguments))) not in argument_keys
        if is_new and (sources is None or len(texts) == len(set(texts))):
            argument_keys.add(argument_key)
            yield call
            if len(argument_keys) == max_calls:
                return


def find_candidates(
    name: str,
    schema: Any,
    root: Schema,
    index: ValueIndex,
    rng: random.Random,
    depth: int = 0,
    tool_name: str = "",
    source: Source | None = None,
) -> list[Any]:
    """Values worth trying for a parameter of this name: first what the schema names, then what was seen, then new."""
    schema = resolve_reference(schema, root)
    if "const" in schema:
        return [schema["const"]]
    if isinstance(schema.get("enum"), list):
        return list(schema["enum"])
    for keyword in ("anyOf", "oneOf"):
        if schema.get(keyword):
            alternatives = schema[keyword][:_MAX_CANDIDATES] if depth < _MAX_SCHEMA_DEPTH else ()
            values = [
                find_candidates(name, alternative, root, index, rng, depth + 1, tool_name, source)
                for alternative in alternatives
            ]
            return list(itertools.chain.from_iterable(values))[: 2 * _MAX_CANDIDATES]
    values = list(examples) if isinstance(examples := schema.get("examples"), list) else []
    if schema.get("default") is not None:
        values.append(schema["default"])
    if values and source == Source():
        return values
    for type_name in types_of(schema):
        if type_name in ("string", "integer", "number"):
            values += _find_scalars(type_name, name, schema, index, rng, tool_name, source)
        else:
            values += _find_others(type_name, name, schema, root, index, rng, depth, tool_name, source)
    return [value for position, value in enumerate(values) if value not in values[:position]]


def types_of(schema: Schema) -> list[str]:
    """The JSON types of a schema: without a type that of its default, and without both, text and number."""
    defaults = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}
    guessed = defaults.get(type(schema.get("default")), ["string", "integer"])
    named = schema.get("type", guessed if "properties" not in schema else "object")
    return named if isinstance(named, list) else [named]


def has_own_values(schema: Any, root: Schema) -> bool:
    """Whether a schema itself says which values make sense: it names some, bounds a number, or has truth values. A
    default alone does not: other values than that make sense too."""
    schema = resolve_reference(schema, root)
    if any(schema.get(keyword) is not None for keyword in ("const", "enum", "examples")):
        return True
    alternatives = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    if alternatives:
        return any(
            has_own_values(other, root)
            for other in alternatives
            if types_of(resolve_reference(other, root)) != ["null"]
        )
    types = types_of(schema)
    if types == ["array"]:
        return has_own_values(schema.get("items", {}), root)
    if types == ["object"]:
        return bool(schema.get("properties")) and all(has_own_values(m, root) for m in schema["properties"].values())
    bounds = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
    return "boolean" in types or schema.get("format") in _VALUES_BY_FORMAT or any(bound in schema for bound in bounds)


def _find_others(
    json_type: str,
    name: str,
    schema: Schema,
    root: Schema,
    index: ValueIndex,
    rng: random.Random,
    depth: int,
    tool_name: str,
    source: Source | None,
) -> list[Any]:
    """Truth values, lists and objects."""
    if json_type in ("boolean", "null"):
        return [True, False] if json_type == "boolean" else [None]
    if depth >= _MAX_SCHEMA_DEPTH:
        return []
    if json_type == "array":
        item_count = max(1, int(schema.get("minItems", 1)))
        item_name = singularise(normalise_name(name))
        items = find_candidates(item_name, schema.get("items", {}), root, index, rng, depth + 1, tool_name, source)
        if len(items) < item_count:
            return []
        return [rng.sample(items, item_count) for _ in range(min(_MAX_INNER_VALUES, len(items)))]
    if json_type == "object":
        tool = Tool(name, "", {**schema, "properties": schema.get("properties", {}), "$defs": root.get("$defs", {})})
        return [dict(call.arguments) for call in draw_calls(tool, index, _MAX_INNER_VALUES, rng, depth + 1)]
    return []


def _find_scalars(
    json_type: str,
    name: str,
    schema: Schema,
    index: ValueIndex,
    rng: random.Random,
    tool_name: str,
    source: Source | None,
) -> list[Any]:
    """Texts and numbers: from the places of the source or, without one, from those that have the parameter's name."""
    if isinstance(schema.get("format"), str) and schema["format"] in _VALUES_BY_FORMAT:
        return [*_VALUES_BY_FORMAT[schema["format"]]]
    is_found = source is not None and bool(source.places or source.numbers)
    # What no trial found may have been shown meanwhile.
    is_named = source is None or not (is_found or source.creates)
    places = find_places(name, json_type, schema, index, tool_name) if is_named else source.places  # type: ignore[union-attr]
    seen_values = list(itertools.chain.from_iterable(read_place(place, json_type, schema, index) for place in places))
    seen_values = seen_values[:_MAX_CANDIDATES]
    if json_type in ("integer", "number"):
        near_values = [] if is_found or (source and seen_values) else list_small_numbers(json_type, schema)
        return [*seen_values, *(source.numbers if source else ()), *near_values]
    new_words = [word for word in rng.sample(WORDS, _NEW_WORD_COUNT) if fits(word, json_type, schema)]
    if source is not None:
        return seen_values + (new_words if source.creates or not (is_found or seen_values) else [])
    other_texts = [] if seen_values else [value for value in index.texts if fits(value, json_type, schema)]
    other_texts = [value for value in other_texts if len(str(value)) <= _MAX_TEXT_CHARS]
    return seen_values + rng.sample(other_texts, min(_MAX_OTHER_TEXTS, len(other_texts))) + new_words


def list_small_numbers(json_type: str, schema: Schema) -> list[int | float]:
    """The lowest numbers that the schema allows, from 1 on if it names no bound."""
    lowest = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
    return [lowest + n for n in range(_MAX_INNER_VALUES) if fits(lowest + n, json_type, schema)]


def read_place(place: str, json_type: str, schema: Schema, index: ValueIndex) -> list[Scalar]:
    """The values of a place that the schema allows. Keys of digits are numbers where a number is wanted."""
    values: Any = index.values.get(place, ())
    if json_type == "integer" and place.endswith("/*"):
        values = [
            int(value) if isinstance(value, str) and re.fullmatch(r"\d{1,9}", value) else value for value in values
        ]
    return [value for value in values if fits(value, json_type, schema)]


def find_places(name: str, json_type: str, schema: Schema, index: ValueIndex, tool_name: str = "") -> tuple[str, ...]:
    """The places that have the parameter's name: first those of collections of such things, then fields of that name,
    then names that end alike. Of several, those in a collection that the tool's name names."""
    key = normalise_name(name)
    places_by_rank: dict[int, list[str]] = {}
    for place in index.values:
        rank = _rank_place(key, place, json_type, schema, index)
        if rank is not None and read_place(place, json_type, schema, index):
            places_by_rank.setdefault(rank, []).append(place)
    places = places_by_rank[min(places_by_rank)] if places_by_rank else []
    tool_words = {singularise(word) for word in normalise_name(tool_name).split("_")}
    own_places = [place for place in places if tool_words & {singularise(word) for word in place.split("/")[:-1]}]
    return tuple(own_places or places)


def _rank_place(key: str, place: str, json_type: str, schema: Schema, index: ValueIndex) -> int | None:
    """How well a place fits a parameter's name, 0 best; None if it does not."""
    *holders, last = place.split("/")
    noun = next((singularise(holder) for holder in reversed(holders) if holder[:1] != "*" and not holder.isdigit()), "")
    if last == "*":
        return 0 if key in (noun, f"{noun}_name", f"{noun}_id") else 2 if _end_alike(key, noun) else None
    if last == "*=":
        return 1 if key == noun else None
    is_row = bool(holders) and holders[-1] == "*" and "/".join(holders) not in index.values
    names_row = key == noun or (last.isdigit() and key in (f"{noun}_name", f"{noun}_id"))
    if is_row and names_row and place == find_identifier(place, json_type, schema, index):
        return 0
    if key == f"{noun}_{last}" and noun:
        return 0
    if key in (last, singularise(last)):
        return 1
    return 2 if _end_alike(key, last) or _end_alike(key, f"{noun}_{last}") else None


def find_identifier(place: str, json_type: str, schema: Schema, index: ValueIndex) -> str:
    """The place of the first field, in the rows of a collection, whose values fit the schema and are all different."""
    rows = place.rpartition("/")[0]
    fields = (other for other in index.values if other.rpartition("/")[0] == rows)
    return next((f for f in fields if index.is_distinct(f) and read_place(f, json_type, schema, index)), "")


def _end_alike(key: str, other: str) -> bool:
    return bool(key and other) and (f"_{key}".endswith(f"_{other}") or f"_{other}".endswith(f"_{key}"))


def fits(value: Any, kind: str, schema: Mapping[str, Any]) -> bool:
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


def resolve_reference(schema: Any, root_schema: Mapping[str, Any]) -> Mapping[str, Any]:
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
