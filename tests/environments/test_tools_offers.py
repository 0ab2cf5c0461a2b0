"""What an environment of tools offers to try, which tools it takes for look-ups, and how it words calls."""

from __future__ import annotations

import random
import threading

import pytest
from patience import patience

from cojax.environment import EnvironmentFailure
from cojax.types import Action, Call, Message, Observation, Task, Triplet
from environments.tools import ToolEnvironment
from environments.tools import environment as tools_environment
from environments.tools.arguments import (
    WORDS,
    ValueIndex,
    draw_calls,
    find_candidates,
    index_values,
    normalise_name,
    singularise,
)
from environments.tools.toolset import Tool
from environments.tools.wording import phrase


def offered(schema, *seen, name="title"):
    return find_candidates(name, schema, {}, index_values(*seen), random.Random(0))


def test_values_are_indexed_by_their_places():
    index = index_values(
        {"items": [{"itemId": 7, "tags": ["red"]}], "files": {"a.txt": {"size": 3}}, "owner": {"name": "Ann"}},
        {"stock": {"tea": 3, "jam": 2}, "rows": [[1, "Bo"], [2, "Bo"]]},
    )
    assert index.values == {
        "items/*/item_id": (7,), "items/*/tags/*": ("red",), "files/*": ("a.txt",), "files/*/size": (3,),
        "owner/name": ("Ann",), "stock/*": ("tea", "jam"), "stock/*=": (3, 2), "rows/*/0": (1, 2), "rows/*/1": ("Bo",),
    }  # fmt: skip
    assert index.repeated == {"rows/*/1"}
    assert index.texts == ("red", "a.txt", "Ann", "tea", "jam", "Bo")
    deep: list = []
    for _ in range(500):
        deep = [deep]
    assert index_values(deep, None, "", "plain text").values == {"": ("plain text",)}


@pytest.mark.parametrize(
    "table",
    [
        {"sku": ["A", "B"], "qty": [1, 2]},
        {"sku": {"0": "A", "1": "B"}, "qty": {"0": 1, "1": 2}},
        [{"sku": "A", "qty": 1}, {"sku": "B", "qty": 2}],
    ],
)
def test_a_data_frame_is_its_rows_however_it_is_written(table):
    assert index_values({"stock": table}).values == {"stock/*/sku": ("A", "B"), "stock/*/qty": (1, 2)}


@pytest.mark.parametrize(
    ("name", "tool", "values"),
    [
        ("book", "lend", ["b1", "b2"]),  # keys of the collection, not the field of a loan
        ("bookId", "lend", ["b1", "b2"]),
        ("reader", "lend", ["Ann", "Bo"]),  # the first field with different values
        ("reader_name", "lend", ["Ann", "Bo"]),
        ("name", "find_reader", ["Ann", "Bo"]),  # of two names, the one in the tool's name
        ("name", "find", ["Ann", "Bo", "Main Street"]),
        ("new_title", "rename", ["Emma", "Ulysses"]),
    ],
)
def test_a_parameter_takes_the_values_of_places_that_have_its_name(name, tool, values):
    index = index_values(
        {
            "loans": [{"book": "b9"}],
            "books": {"b1": {"title": "Emma"}, "b2": {"title": "Ulysses"}},
            "readers": [{"town": "Bonn", "name": "Ann"}, {"town": "Bonn", "name": "Bo"}],
            "branches": [{"name": "Main Street"}],
        }
    )
    found = find_candidates(name, {"type": "string"}, {}, index, random.Random(0), 0, tool)
    assert [value for value in found if value not in WORDS] == values


@pytest.mark.parametrize(
    ("name", "one"),
    [
        ("items", "item"),
        ("boxes", "box"),
        ("cities", "city"),
        ("dishes", "dish"),
        ("status", "status"),
        ("address", "address"),
        ("s", "s"),
    ],
)
def test_a_plural_has_a_singular(name, one):
    assert singularise(name) == one


def test_names_are_compared_however_they_are_written():
    assert {normalise_name(name) for name in ("itemId", "item-id", "Item id", "item_id")} == {"item_id"}


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        ({"const": 3}, [3]),
        ({"enum": ["a", None]}, ["a", None]),
        ({"type": "boolean"}, [True, False]),
        ({"type": "integer", "minimum": 5, "maximum": 6}, [5, 6]),
        ({"type": "integer", "exclusiveMinimum": 5, "maximum": 6}, [6]),
        ({"type": "number", "default": 2.5, "maximum": 0}, [2.5]),
        ({"type": ["null", "boolean"]}, [None, True, False]),
        ({"anyOf": [{"enum": [1]}, {"type": "null"}]}, [1, None]),
        ({"type": "array", "items": {"enum": [1]}}, [[1]]),
        ({"type": "array", "items": {"enum": [1]}, "minItems": 2}, []),
        ({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}, [{"a": 1}]),
        ({"type": "string", "examples": ["x"], "pattern": "^x$"}, ["x"]),
        ({"$ref": "#/$defs/missing", "const": 4}, [4]),
    ],
)
def test_a_schema_names_values_to_try(schema, values):
    assert offered(schema) == values


def test_values_seen_under_a_matching_name_come_before_new_words():
    state = {"items": {"milk": {"day": "monday"}, "tea": {"day": "tuesday"}}}
    assert offered({"type": "string"}, state, name="item")[:2] == ["milk", "tea"]
    assert offered({"type": "string"}, state, name="new_day")[:2] == ["monday", "tuesday"]
    assert offered({"type": "string", "maxLength": 3}, state, name="itemName") == ["tea"]
    words = offered({"type": "string"}, state, name="anything")
    assert set(words[:-2]) == {"milk", "tea", "monday", "tuesday"}
    assert not set(words[-2:]) & set(words[:-2])


def test_calls_are_different_and_leave_optional_arguments_out_at_times():
    schema = {"properties": {"a": {"enum": [1, 2]}, "b": {"enum": [3]}}, "required": ["a"]}
    calls = list(draw_calls(Tool("t", "", schema), ValueIndex(), 24, random.Random(0)))
    assert sorted(map(str, (dict(call.arguments) for call in calls))) == [
        "{'a': 1, 'b': 3}", "{'a': 1}", "{'a': 2, 'b': 3}", "{'a': 2}",
    ]  # fmt: skip
    assert list(draw_calls(Tool("t", "", {"properties": {}}), ValueIndex(), 5, random.Random(0))) == [Call("t", {})]
    nothing = {"properties": {"a": {"enum": []}}, "required": ["a"]}
    assert list(draw_calls(Tool("t", "", nothing), ValueIndex(), 5, random.Random(0))) == []


def test_a_query_does_not_double_with_each_look_up():
    steps = [
        Triplet(
            Action(calls=(Call("look", {"a": f"a{n}", "b": f"b{n}"}),)),
            Observation((Message("tool", f'{{"a": "a{n + 1}", "b": "b{n + 1}"}}'),)),
            0,
        )
        for n in range(60)
    ]
    put = Triplet(Action(calls=(Call("put", {"a": "a3", "b": "b3"}),)), Observation((Message("tool", "ok"),)), 0)
    assert phrase([*steps, put], "finish", {"look"}) is None
    said = phrase([*steps[:3], put], "finish", {"look"})
    assert said.startswith('put with a the a that look with a the a that look with a the a that look with a "a0" and b')
    assert said.count("look with") == 14


NODE = {"type": "object", "properties": {"name": {"const": 1}, "next": {"$ref": "#/$defs/node"}}, "required": ["name"]}
FORK = {"anyOf": [{"$ref": "#/$defs/fork"}] * 60}


def test_a_schema_that_holds_itself_ends():
    found = find_candidates("node", {"$ref": "#/$defs/node"}, {"$defs": {"node": NODE}}, ValueIndex(), random.Random(0))
    assert {"name": 1} in found
    assert {"name": 1, "next": {"name": 1}} in found
    endless = {**NODE, "required": ["name", "next"]}
    assert find_candidates("node", endless, {"$defs": {"node": endless}}, ValueIndex(), random.Random(0)) == []
    assert find_candidates("fork", FORK, {"$defs": {"fork": FORK}}, ValueIndex(), random.Random(0)) == []
    wide = {"type": "object", "properties": {f"p{n}": {"$ref": "#/$defs/wide"} for n in range(60)}}
    assert find_candidates("wide", wide, {"$defs": {"wide": wide}}, ValueIndex(), random.Random(0))


def test_a_pattern_is_matched_in_linear_time():
    text = {"type": "string", "examples": ["a" * 60 + "b", "aa"], "pattern": "^(a+)+$"}
    assert "aa" in offered(text)
    assert "a" * 60 + "b" in offered({**text, "pattern": "(?<=a)b"})  # no linear engine reads it


def take(world, item: str) -> None:
    world["items"].remove(item)


def look(world, item: str) -> str:
    return {"lamp": "red", "rope": "blue"}[item]


def hide(world, colour: str) -> None:
    world["hidden"] = colour


def room(tools=(take, look, hide), **settings) -> ToolEnvironment:
    return ToolEnvironment("room", tools, dict, [{"items": ["lamp", "rope"]}], **settings)


def opened(environment, setup=None):
    episode = environment.start(Task("room", "", setup or {"items": ["lamp", "rope"]}))
    episode.reset()
    return episode


def names(episode):
    return [action.calls[0] for action in episode.affordances()]


def test_only_what_works_is_offered_and_trying_changes_nothing():
    episode = opened(room())
    calls = names(episode)
    assert {call.arguments["item"] for call in calls if call.name == "take"} == {"lamp", "rope"}
    assert {call.arguments["item"] for call in calls if call.name == "look"} == {"lamp", "rope"}
    assert calls[-1] == Call("finish", {})
    assert episode.state()["world"] == {"items": ["lamp", "rope"]}
    assert names(opened(room())) == calls


def test_a_value_that_was_shown_is_offered_as_an_argument_and_as_an_answer():
    def see_colour(world, item: str) -> str:
        return look(world, item)

    episode = opened(room([see_colour, hide]))
    episode.step(Action(calls=(Call("see_colour", {"item": "lamp"}),)))
    calls = names(episode)
    assert Call("finish", {"answer": "red"}) in calls
    assert "red" in {call.arguments["colour"] for call in calls if call.name == "hide"}
    episode.step(Action(calls=(Call("finish", {}),)))
    assert episode.affordances() == ()


def test_an_environment_may_name_what_to_try():
    environment = room(affordances=lambda world: [("take", {"item": item}) for item in world["items"]])
    assert names(opened(environment)) == [
        Call("take", {"item": "lamp"}), Call("take", {"item": "rope"}), Call("finish", {}),
    ]  # fmt: skip


def test_a_world_that_cannot_be_copied_offers_calls_untried():
    class World:
        def __init__(self, setup):
            self.items = list(setup["items"])

        def state(self):
            return {"items": self.items}

        def call(self, name, arguments):
            self.items.remove(arguments["item"])

    schema = {"properties": {"item": {"type": "string"}}, "required": ["item"]}

    def make(**settings):
        tools = [{"name": "drop", "parameters": schema}]
        return ToolEnvironment("room", tools, World, [{"items": ["lamp"]}], **settings)

    assert len(names(opened(make(trials=False), {"items": ["lamp"]}))) == 4
    copied = make(fork=lambda world: World({"items": world.items}))
    assert names(opened(copied, {"items": ["lamp"]})) == [Call("drop", {"item": "lamp"}), Call("finish", {})]


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"type": "array", "minItems": "x"}}},
        {"properties": {"a": {"type": "integer", "minimum": "low"}}},
        {"properties": {"a": 7}},
        {"properties": {"a": {"type": "string", "pattern": "("}}, "required": 5},
        {"properties": {"a": {"$ref": "#/properties/a"}}, "required": ["a"]},
    ],
)
def test_a_schema_that_means_nothing_breaks_nothing(schema):
    class World:
        def __init__(self, setup):
            pass

        def call(self, name, arguments):
            return "fine"

        def state(self):
            return {}

    environment = ToolEnvironment("odd", [{"name": "t", "parameters": schema}], World, [{}])
    episode = environment.start(Task("odd", "", {}))
    episode.reset()
    assert episode.affordances()[-1].calls == (Call("finish", {}),)


def test_look_ups_are_the_tools_that_changed_nothing_when_they_were_tried():
    def never(world, item: str) -> None:
        raise ValueError("there is none")

    found = room([take, look, hide, never])
    assert [tool.__name__ for tool in (take, look, hide, never) if found.is_lookup(tool.__name__)] == ["look"]
    assert [name for name in ("take", "look") if room(lookups=["take"]).is_lookup(name)] == ["take"]


def test_a_trial_that_does_not_end_asks_for_the_names_of_look_ups(monkeypatch):
    monkeypatch.setattr(tools_environment, "_TRIAL_TIMEOUT_S", 0.05)
    going_on = threading.Event()

    def wait(world) -> str:
        """Waits."""
        going_on.wait(patience(60))
        return "done"

    environment = room([wait, take])
    try:
        for _ in range(2):
            with pytest.raises(EnvironmentFailure, match=r"cannot tell whether 'wait' is a look-up.*lookups=\["):
                environment.is_lookup("wait")
    finally:
        going_on.set()
    assert room([wait, take], lookups=["wait"]).is_lookup("wait")


def steps(*pairs):
    return [
        Triplet(Action(calls=(call,)), Observation((Message("tool", text),), done=call.name == "finish"), 0)
        for call, text in pairs
    ]


def worded(*pairs):
    return phrase(steps(*pairs), "finish", {"look", "getItem"})


LOOK, TAKE = Call("look", {"item": "lamp"}), Call("take", {"item": "rope"})
END = (Call("finish", {}), "ok")


@pytest.mark.parametrize(
    ("pairs", "query"),
    [
        ([(TAKE, "ok"), END], 'take with item "rope"'),
        ([(Call("take_all"), "ok"), (TAKE, "ok"), END], 'take all, then take with item "rope"'),
        ([(LOOK, "red"), (Call("finish", {"answer": "red"}), "ok")], 'tell what look with item "lamp" says'),
        (
            [(LOOK, "red"), (Call("hide", {"colour": "red"}), "ok"), END],
            'hide with colour what look with item "lamp" shows',
        ),
        (
            [(LOOK, '{"colour": "red", "n": 1}'), (Call("hide", {"colour": "red"}), "ok"), END],
            'hide with colour the colour that look with item "lamp" shows',
        ),
        (
            [(Call("getItem", {"id": 3}), '[{"n": 4}]'), (Call("hide", {"n": 4, "all": True}), "ok"), END],
            "hide with n the n that get Item with id 3 shows and all true",
        ),
        # The look-up is not used, or its result is known already, or shown in two places.
        ([(LOOK, "red"), (TAKE, "ok"), END], None),
        ([(LOOK, '["red", "red"]'), (Call("hide", {"colour": "red"}), "ok"), END], None),
        ([(LOOK, '{"a": "red", "b": "red"}'), (Call("hide", {"colour": "red"}), "ok"), END], None),
        ([(TAKE, "gone"), (Call("finish", {"answer": "gone"}), "ok")], None),
        ([(LOOK, "red"), (Call("finish", {"answer": "blue"}), "ok")], None),
        ([END, (TAKE, "ok")], None),
        ([END], None),
        ([], None),
    ],
)
def test_calls_are_worded_plainly_and_a_look_up_by_its_use(pairs, query):
    assert worded(*pairs) == query


def test_a_refused_call_has_no_words():
    refused = Triplet(Action(calls=(TAKE,)), Observation((Message("tool", "error: no"),), ok=False), 0)
    assert phrase([refused, *steps(END)], "finish", set()) is None
