"""Process 0 names results of earlier operations; the follower holds its own until process 0 lets go of them."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from patience import patience
from wires import Connected

from cojax.distributed.operations import Follower, Lead, describe_array
from cojax.distributed.wire import WireError


def filled(number: int) -> dict[str, Any]:
    return {"a": jnp.full(3, number), "b": jnp.full(2, -number)}


def both(one: dict[str, Any], other: dict[str, Any] | None) -> tuple[Any, str]:
    return {"a": one["a"] + (0 if other is None else other["a"])}, "said"


def added(tree: dict[str, Any]) -> dict[str, Any]:
    """A new array beside one of the argument's own, as adapters leave some matrices as they are."""
    return {"a": tree["a"], "b": tree["b"] + 1}


OPERATIONS: dict[str, Callable[..., Any]] = {
    "filled": filled, "both": both, "added": added, "sum": lambda tree: float(tree["a"].sum()),
    "second": lambda tree: float(tree["b"][0]),
}  # fmt: skip


class Pair:
    """A lead in this thread and a follower in another, each of which computes for itself."""

    def __init__(self) -> None:
        self.connected = Connected()
        self.wire = self.connected.process(0)
        self.lead = Lead(self.wire, 1)
        self.follower = Follower(self.connected.process(1), dict(OPERATIONS))
        self.ended: list[Any] = []
        self.thread = threading.Thread(target=self._follow)
        self.thread.start()

    def _follow(self) -> None:
        try:
            self.ended.append(self.follower.follow())
        except WireError as error:
            self.ended.append(str(error))

    def run(self, name: str, *arguments: Any) -> Any:
        with self.lead.operation(name, *arguments) as finish:
            return finish(OPERATIONS[name](*arguments))

    def end(self) -> Any:
        self.wire.send({"kind": "end", "status": 3, "line": ""})
        self.thread.join(patience(5.0))
        return self.ended[0]


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    if made.thread.is_alive():
        made.end()
    made.connected.close()


def held(pair: Pair) -> list[float]:
    """The first number of what the follower holds, after an operation that makes it let go of the rest."""
    pair.run("sum", pair.run("filled", 0))
    assert pair.end() == 3
    trees = [one for parts in pair.follower.results.values() for one in parts.values() if isinstance(one, dict)]
    return sorted(float(tree["a"][0]) for tree in trees)


def test_the_follower_computes_with_its_own_results_and_ends_with_process_0(pair):
    one, other = pair.run("filled", 5), pair.run("filled", 7)
    total, said = pair.run("both", one, other)
    assert said == "said"
    assert np.array_equal(total["a"], [12, 12, 12])
    same, _ = pair.run("both", total, None)
    del one
    assert held(pair) == [0.0, 7.0, 12.0, 12.0]
    assert np.array_equal(same["a"], [12, 12, 12])


def test_what_process_0_lets_go_of_the_follower_lets_go_of(pair):
    kept = [pair.run("filled", number) for number in range(5)]
    del kept[1:4]
    gc.collect()
    assert held(pair) == [0.0, 0.0, 4.0]
    assert len(kept) == 2


def test_a_result_that_shares_an_array_is_let_go_of_as_well_and_the_other_keeps_its_name(pair):
    base = pair.run("filled", 3)
    sums = [pair.run("added", base) for _ in range(2)]
    assert [pair.run("second", one) for one in (base, *sums)] == [-3.0, -2.0, -2.0]
    del sums
    assert pair.run("second", base) == -3.0
    assert held(pair) == [0.0, 3.0]


def test_of_two_results_with_the_same_arrays_the_follower_keeps_one(pair):
    base = pair.run("filled", 3)
    with pair.lead.operation("both", base, None) as finish:
        finish((base, "same"))
    assert held(pair) == [0.0, 3.0]
    del base


def test_an_array_that_no_operation_made_cannot_be_sent(pair):
    with pytest.raises(RuntimeError, match="not the result of an earlier one"):
        pair.run("sum", {"a": jnp.ones(2)})


def test_operations_of_several_threads_run_one_after_another(pair):
    """Each block is left before the next is entered; the follower runs them in the order of their numbers."""
    inside, seen = [0], []

    def work(number: int) -> None:
        for _ in range(20):
            with pair.lead.operation("filled", number) as finish:
                inside[0] += 1
                seen.append(inside[0])
                finish(filled(number))
                inside[0] -= 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience(30.0))
    assert seen == [1] * 60
    assert held(pair) == [0.0]


def test_arrays_travel_within_the_command_if_they_are_small(pair):
    arrays = np.arange(3, dtype=np.int16), np.float32(0.5)
    pair.follower.operations["check"] = lambda first, second: seen.append((first.tolist(), first.dtype, float(second)))
    seen: list[Any] = []
    with pair.lead.operation("check", *arrays):
        pass
    assert pair.end() == 3
    assert seen == [([0, 1, 2], np.int16, 0.5)]


def test_an_operation_that_the_follower_does_not_know_ends_it(pair):
    pair.wire.send({"kind": "run", "operation": "os.system", "number": 1, "arguments": [], "freed": [], "data": []})
    pair.thread.join(patience(5.0))
    assert pair.ended == ["process 0 wants 'os.system', which this process does not know"]


def test_arrays_are_described_by_dtype_and_shape():
    assert describe_array(np.zeros((2, 3), np.int8)) == ("int8", [2, 3])
    assert describe_array(np.asarray(np.float32(1))) == ("float32", [])
