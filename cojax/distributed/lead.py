"""Process 0 leads: before it runs an operation, it tells the other processes to run the same one.

The others cannot be sent arrays that are spread over all hosts: they hold their own parts. A command therefore names
such an argument by the command whose result it was. What process 0 no longer holds, the others let go of before the
next operation.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np

from cojax.distributed import broadcast
from cojax.distributed.wire import Wire
from cojax.learner.batch import TrainBatch

_T = TypeVar("_T")
# The number of a command, and the place in its result where that is a tuple.
Place = tuple[int, int]
# The identities of all arrays of a result, in order.
_Leaves = tuple[int, ...]


class Lead:
    """Runs operations in all processes. Used on the main thread alone, where all collectives are.

    `hosts(name)` is what a learner of that name is given as its hosts.
    """

    def __init__(self, wire: Wire, others: int) -> None:
        self._wire, self._others = wire, others
        self._number = 0
        # By all arrays of a result: two results may share some, as a policy does that adapters were summed into.
        self._places: dict[_Leaves, tuple[Place, list[weakref.ref[Any]]]] = {}
        # Filled by whichever thread lets go of a result.
        self._freed = collections.deque[Place]()
        # When the operation that runs began, for whoever watches over its deadline.
        self.busy_since: float | None = None

    def hosts(self, learner: str) -> LearnerHosts:
        return LearnerHosts(self, learner)

    def run(self, operation: str, compute: Callable[..., _T], *arguments: Any) -> _T:
        """As `Hosts.run`. Raises RuntimeError on another thread than the main one."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(
                f"{operation} was called on the thread {threading.current_thread().name!r}; what all processes compute "
                "together must be called on the main thread: read the arrays of Weights within Engine.load"
            )
        data: list[np.ndarray] = []
        given = [self._described(argument, data) for argument in arguments]
        freed = [self._freed.popleft() for _ in range(len(self._freed))]
        self._number += 1
        self.busy_since = time.monotonic()
        try:
            self._wire.send(
                {
                    "kind": "run", "operation": operation, "number": self._number, "arguments": given, "freed": freed,
                    "data": [broadcast.describe(array) for array in data],
                }
            )  # fmt: skip
            self._wait()
            if data:
                broadcast.send(data)
            # To be done, not only begun: the deadline is of the whole computation.
            result = broadcast.finish(compute(*arguments))
        finally:
            self.busy_since = None
        for at, part in enumerate(result if isinstance(result, tuple) else (result,)):
            self._remember((self._number, at), part)
        return result

    def _wait(self) -> None:
        """Waits until all other processes are about to run this operation: they may have been compiling until now."""
        missing = self._others
        while missing:
            _, message = self._wire.receive()
            missing -= message.get("kind") == "at" and message["number"] == self._number

    def _described(self, argument: Any, data: list[np.ndarray]) -> dict[str, Any]:
        """An argument as a command holds it; arrays on the host are added to `data`."""
        if isinstance(argument, (np.ndarray, np.generic)):
            data.append(np.asarray(argument))
            return {"array": len(data) - 1}
        if argument is None or isinstance(argument, (bool, int, float, str)):
            return {"plain": argument}
        if isinstance(argument, TrainBatch) and isinstance(argument.tokens, np.ndarray):
            fields = {field.name: getattr(argument, field.name) for field in dataclasses.fields(argument)}
            return {"batch": {name: self._described(value, data) for name, value in fields.items()}}
        if isinstance(argument, tuple) and not hasattr(argument, "_fields"):
            return {"tuple": [self._described(part, data) for part in argument]}
        leaves = jax.tree.leaves(argument)
        found = self._places.get(tuple(map(id, leaves)))
        if found is None or any(known() is not leaf for known, leaf in zip(found[1], leaves, strict=True)):
            raise RuntimeError("an argument of an operation is not the result of an earlier one; it cannot be sent")
        return {"result": found[0]}

    def _remember(self, place: Place, result: Any) -> None:
        leaves = [leaf for leaf in jax.tree.leaves(result) if isinstance(leaf, jax.Array)]
        if not leaves:
            self._freed.append(place)
            return
        key, known = tuple(map(id, leaves)), list[weakref.ref[Any]]()

        def free(gone: weakref.ref[Any]) -> None:
            """Without one of its arrays, nobody holds the whole result, and nobody can name it."""
            if (found := self._places.get(key)) and found[1] is known and self._places.pop(key, None):
                self._freed.append(place)

        known += [weakref.ref(leaf, free) for leaf in leaves]
        if found := self._places.get(key):
            self._freed.append(found[0])  # from now on the same arrays name the newer result
        self._places[key] = (place, known)


@dataclasses.dataclass(frozen=True, eq=False)
class LearnerHosts:
    """`Hosts` of one learner, by whose name the other processes know it."""

    lead: Lead
    learner: str

    def run(self, operation: str, compute: Callable[..., _T], *arguments: Any) -> _T:
        return self.lead.run(f"{self.learner}.{operation}", compute, *arguments)
