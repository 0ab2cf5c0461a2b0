"""Tables share the records of a database; what one world changes, no other sees."""

from environments.tau2.official import Table


def original() -> dict[str, dict[str, object]]:
    return {"a": {"seats": 3}, "b": {"seats": 5}}


def test_a_record_read_by_its_key_is_a_copy() -> None:
    shared = original()
    table = Table(shared)
    table["a"]["seats"] = 2
    assert (table["a"], shared["a"]) == ({"seats": 2}, {"seats": 3})
    assert table.get("b") is not shared["b"]
    assert table.get("none") is None
    assert table.get("none", 7) == 7


def test_only_what_differs_counts_as_changed() -> None:
    table = Table(original())
    assert table.changes() == {}
    table["b"]["seats"] = 4
    table["a"]  # read, and left as it is
    table["c"] = {"seats": 1}
    assert table.changes() == {"b": {"seats": 4}, "c": {"seats": 1}}
    del table["a"]
    assert table.changes() == {"b": {"seats": 4}, "c": {"seats": 1}, "a": None}


def test_a_fork_is_equal_and_independent() -> None:
    shared = original()
    table = Table(shared)
    table["a"]["seats"] = 2
    table["c"] = {"seats": 1}
    del table["b"]
    forked = table.fork()
    assert dict(forked) == {"a": {"seats": 2}, "c": {"seats": 1}}
    forked["a"]["seats"] = 0
    forked["c"]["seats"] = 0
    assert table.changes() == {"a": {"seats": 2}, "c": {"seats": 1}, "b": None}
    assert shared == original()
