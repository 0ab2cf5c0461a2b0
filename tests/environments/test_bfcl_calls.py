import math
import pickle

import pytest

from cojax.types import Call
from environments.bfcl.calls import Apis, copy_state, explain_refusal, is_failure, parse_call, render, shorten


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pwd()", ("pwd", [], {})),
        ("sort('a.txt')", ("sort", ["a.txt"], {})),
        ("tail(file_name='a', lines=-3)", ("tail", [], {"file_name": "a", "lines": -3})),
        ("f([1, 2.5], (True, None))", ("f", [[1, 2.5], [True, None]], {})),
        ("edit(updates={'priority': 2, 'tags': []})", ("edit", [], {"updates": {"priority": 2, "tags": []}})),
    ],
)
def test_literal_calls_are_read(text: str, expected: tuple) -> None:
    assert parse_call(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "os.system('true')",
        "().__class__.__bases__",
        "f(g())",
        "f(globals())",
        "f(x)",
        "f(*[1])",
        "f(**{'a': 1})",
        "f({**{}})",
        "f({1: 2})",
        "f(1 + 1)",
        "f(-'a')",
        "f(b'x')",
        "f(1j)",
        "f(f'{1}')",
        "f([x for x in 'ab'])",
        "f(lambda: 1)",
        "f(a=1, a=2)",
        "f()()",
        "f",
        "f(); g()",
        "(" * 500,
        "f(" + "[" * 300 + "]" * 300 + ")",
        "f('\x00')",
        "",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_call(text)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"a": "x" * 100_001}, "more than 100000 characters in the arguments"),
        ({"x" * 100_001: 1}, "more than 100000 characters in the arguments"),
        ({"a": [0] * 5_000}, "more than 5000 values in the arguments"),
        ({"a": math.nan}, "an argument is no finite number"),
        ({"a": [-math.inf]}, "an argument is no finite number"),
        ({"a": 10**301}, "a number is too large"),
        ({"a": b"x"}, "an argument is of type bytes; JSON has none"),
    ],
)
def test_arguments_an_api_could_choke_on_are_kept_from_it(arguments: dict, reason: str) -> None:
    assert explain_refusal(arguments) == reason
    assert explain_refusal({"a": 1, "b": ["x", {"c": None}], "d": 2.5, "e": True}) == ""


def test_deep_arguments_are_refused_without_recursion() -> None:
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    assert explain_refusal({"a": deep}) == "arguments nested deeper than 16"
    while deep:  # taken apart by hand: freeing it would recurse
        deep = deep.pop()


def test_results_are_shown_by_the_official_rule() -> None:
    assert render("as it is") == "as it is"
    assert render({"a": [1, None]}) == '{"a": [1, null]}'
    assert render({"a": {1}}) == "{'a': {1}}"
    assert render([1, "b"]) == "[1, 'b']"
    assert render(None) == "None"
    assert render("x" * 200_003) == "x" * 200_000 + " [3 characters cut]"


def test_an_api_says_itself_when_it_failed() -> None:
    assert is_failure({"error": "no such file"})
    assert is_failure([{"error": "log in first"}])
    assert is_failure(["Error: log in first"])
    assert not is_failure({"errors": 0})
    assert not is_failure("No error")
    assert not is_failure([])


def test_long_values_are_told_by_their_hash() -> None:
    assert shorten("short") == "short"
    assert shorten("x" * 600) == shorten("x" * 600) != shorten("x" * 601)
    assert len(shorten("x" * 600)) == 21


class SampleApi:
    """An API in the style of the benchmark's."""

    def __init__(self) -> None:
        self.items: list = []
        self.counts = {1: "one", "1": "digit"}
        self._hidden = 0

    def put(self, item: str, tags: list = []) -> dict:  # noqa: B006
        tags.append(item)
        self.items.append(tags)
        return {"tags": tags}

    def burn(self) -> None:
        raise OSError("smoke")

    def power(self, base: int, exponent: int) -> dict:
        return {"result": base**exponent}

    def secret(self) -> str:
        return "secret"


def sample_apis() -> Apis:
    return Apis(
        {"SampleApi": SampleApi()}, {"put": "SampleApi", "burn": "SampleApi", "power": "SampleApi", "else": "Elsewhere"}
    )


def test_only_named_tools_run_and_no_error_leaves() -> None:
    apis = sample_apis()
    assert apis.run(Call("put", {"item": "a"})).text == '{"tags": ["a"]}'
    assert apis.run(Call("burn")).text == "Error during execution: smoke"
    assert apis.run(Call("secret")).text == "Error during execution: there is no function 'secret'"
    assert apis.run(Call("__init__")).text == "Error during execution: there is no function '__init__'"
    assert not apis.run(Call("put", {"self": 1, "item": "a"})).ok
    assert not apis.run(Call("put", {"item": "a", "no such": 1})).ok
    huge = apis.run(Call("power", {"base": 10, "exponent": 5000}))
    assert not huge.ok
    assert huge.text.startswith("Error during execution: Exceeds the limit")


def test_calls_share_neither_defaults_nor_arguments() -> None:
    apis, mine = sample_apis(), ["mine"]
    apis.run(Call("put", {"item": "a"}))
    assert apis.run(Call("put", {"item": "b"})).text == '{"tags": ["b"]}'
    apis.run(Call("put", {"item": "c", "tags": mine}))
    assert mine == ["mine"]


def test_a_trial_and_a_snapshot_leave_the_instance_alone() -> None:
    apis = sample_apis()
    tried = apis.make_trial()
    assert tried(Call("put", {"item": "a"})).ok
    snapshot = apis.pickle_instances()
    apis.run(Call("put", {"item": "b"}))
    assert pickle.loads(snapshot)["SampleApi"].items == []
    assert apis.instances["SampleApi"].items == [["b"]]


def test_the_public_state_is_json() -> None:
    assert copy_state(SampleApi()) == {"items": [], "counts": {"key:1": "one", "1": "digit"}}
    full = SampleApi()
    full.items = [(1, 2.5), {3, 1}, math.nan, 10**4001, SampleApi()]
    items = copy_state(full)["items"]
    assert items[:3] == [[1, 2.5], {"set": ["1", "3"]}, "float:nan"]
    assert items[3].startswith("0x")
    assert items[4] == {"SampleApi": {"items": [], "counts": {"key:1": "one", "1": "digit"}}}


def test_the_public_state_of_what_holds_itself_ends() -> None:
    loop, twice = SampleApi(), SampleApi()
    loop.items = [loop]
    below: list = []
    for _ in range(39):
        below = [below, below]
    twice.items = below
    assert copy_state(loop)
    assert copy_state(twice)
