"""Operations that all processes run at the same time: process 0 names each (`Lead`), the others follow (`Follower`).

Arrays that are spread over all hosts cannot be sent: each process holds its own part. A command therefore names such an
argument by the command whose result it was. Before the next operation, the others drop the results that process 0 no
longer holds. Arrays that only process 0 has travel by a collective of all devices.
"""

import collections
import contextlib
import dataclasses
import itertools
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from cojax.distributed.wire import Wire, WireError
from cojax.learner.batch import TrainBatch
from cojax.learner.update import join_states, split_states
from cojax.storage.checkpoint import ArrayFiles, restore_arrays, save_arrays

_T = TypeVar("_T")
# The number of a command, and the index in its result if that is a tuple.
Place = tuple[int, int]
# The identities of all arrays of a result, in order.
_Leaves = tuple[int, ...]
Operations = MutableMapping[str, Callable[..., Any]]
# Bytes that travel at once: all messages have one of two shapes, so that two programs serve them.
_SMALL, _LARGE = 2**16, 2**24
# How a command describes an array: the name of its dtype, and its shape.
Description = tuple[str, Sequence[int]]


class Lead:
    """`Hosts` of process 0. Only the main thread, which runs all collectives, may use it."""

    def __init__(self, wire: Wire, others: int) -> None:
        self._wire, self._others = wire, others
        self._number = 0
        # By all arrays of a result: two results may share some, as a policy with merged adapters does with its base.
        self._places: dict[_Leaves, tuple[Place, list[weakref.ref[Any]]]] = {}
        # Filled by any thread that drops a result.
        self._free_places = collections.deque[Place]()
        # When the current operation began, for the watch over its deadline.
        self.busy_since: float | None = None

    @contextlib.contextmanager
    def operation(self, name: str, *arguments: Any) -> Iterator[Callable[[_T], _T]]:
        """As `Hosts.operation`. Raises RuntimeError on any thread but the main one."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(
                f"{name} was called on the thread {threading.current_thread().name!r}; what all processes compute "
                "together must be called on the main thread: read the arrays of Weights within Engine.load"
            )
        data: list[np.ndarray] = []
        descriptions = [self._encode(argument, data) for argument in arguments]
        places = [self._free_places.popleft() for _ in range(len(self._free_places))]
        self._number += 1
        number, results = self._number, list[Any]()

        def finish(result: _T) -> _T:
            # Waits for its end, not only its start: the deadline bounds the whole computation.
            results.append(jax.block_until_ready(result))
            return result

        self.busy_since = time.monotonic()
        try:
            self._wire.send(
                {
                    "kind": "run", "operation": name, "number": number, "arguments": descriptions, "freed": places,
                    "data": [describe(array) for array in data],
                }
            )  # fmt: skip
            self._wait()
            if data:
                send_arrays(data)
            yield finish
        finally:
            self.busy_since = None
        result = results.pop() if results else None
        for index, part in enumerate(result if isinstance(result, tuple) else (result,)):
            self._remember((number, index), part)

    def _wait(self) -> None:
        """Waits until all other processes are about to run this operation; they may still be compiling."""
        missing = self._others
        while missing:
            _, message = self._wire.receive()
            missing -= message.get("kind") == "at" and message["number"] == self._number

    def _encode(self, argument: Any, data: list[np.ndarray]) -> dict[str, Any]:
        """An argument in the form that a command has; adds arrays on the host to `data`."""
        if isinstance(argument, (np.ndarray, np.generic)):
            data.append(np.asarray(argument))
            return {"array": len(data) - 1}
        if argument is None or isinstance(argument, (bool, int, float, str)):
            return {"plain": argument}
        if isinstance(argument, TrainBatch) and isinstance(argument.tokens, np.ndarray):
            fields = {field.name: getattr(argument, field.name) for field in dataclasses.fields(argument)}
            return {"batch": {name: self._encode(value, data) for name, value in fields.items()}}
        if isinstance(argument, tuple) and not hasattr(argument, "_fields"):
            return {"tuple": [self._encode(part, data) for part in argument]}
        leaves = jax.tree.leaves(argument)
        entry = self._places.get(tuple(map(id, leaves)))
        if entry is None or any(ref() is not leaf for ref, leaf in zip(entry[1], leaves, strict=True)):
            raise RuntimeError("an argument of an operation is not the result of an earlier one; it cannot be sent")
        return {"result": entry[0]}

    def _remember(self, place: Place, result: Any) -> None:
        leaves = [leaf for leaf in jax.tree.leaves(result) if isinstance(leaf, jax.Array)]
        if not leaves:
            self._free_places.append(place)
            return
        key, refs = tuple(map(id, leaves)), list[weakref.ref[Any]]()

        def free(_ref: weakref.ref[Any]) -> None:
            """Once one of its arrays is gone, nobody holds the whole result, so nobody can name it."""
            if (entry := self._places.get(key)) and entry[1] is refs and self._places.pop(key, None):
                self._free_places.append(place)

        refs += [weakref.ref(leaf, free) for leaf in leaves]
        if entry := self._places.get(key):
            self._free_places.append(entry[0])  # the arrays name the newer result from now on
        self._places[key] = (place, refs)


class Follower:
    """Runs the commands of process 0. `operations` are those that it can run, by name; one of them may add others."""

    def __init__(self, wire: Wire, operations: Operations) -> None:
        self._wire, self.operations = wire, operations
        self.results: dict[int, dict[int, Any]] = {}
        self.busy_since: float | None = None

    def follow(self) -> int:
        """Runs commands until process 0 ends; its exit status."""
        while True:
            _, message = self._wire.receive()
            if message.get("kind") == "end":
                return int(message["status"])
            if message.get("kind") == "run":
                self.busy_since = time.monotonic()
                self._run(message)
                self.busy_since = None

    def _run(self, command: Mapping[str, Any]) -> None:
        for number, index in command["freed"]:
            parts = self.results.get(number, {})
            parts.pop(index, None)
            if not parts:
                self.results.pop(number, None)
        name = command["operation"]
        if name not in self.operations:
            raise WireError(f"process 0 wants {name!r}, which this process does not know")
        self._wire.send({"kind": "at", "number": command["number"]})
        data = receive_arrays(command["data"]) if command["data"] else []
        result = self.operations[name](*(self._argument(argument, data) for argument in command["arguments"]))
        jax.block_until_ready(result)
        values = result if isinstance(result, tuple) else (result,)
        self.results[command["number"]] = dict(enumerate(values))

    def _argument(self, spec: Mapping[str, Any], data: Sequence[np.ndarray]) -> Any:
        ((kind, value),) = spec.items()
        match kind:
            case "plain":
                return value
            case "array":
                return data[value] if data[value].ndim else data[value][()]
            case "batch":
                return TrainBatch(**{name: self._argument(field, data) for name, field in value.items()})
            case "tuple":
                return tuple(self._argument(part, data) for part in value)
            case "result":
                number, index = value
                return self.results[number][index]
        raise WireError(f"process 0 sent an argument of the kind {kind!r}, which this process does not know")


def describe(array: np.ndarray) -> Description:
    return array.dtype.name, list(array.shape)


def send_arrays(arrays: Sequence[np.ndarray]) -> None:
    """In process 0: sends the bytes of arrays, which the others receive by `receive_arrays` at the same time."""
    data = np.concatenate([np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays])
    for start, size in _parts(data.size):
        part = np.zeros(size, np.uint8)
        piece = data[start : start + size]
        part[: piece.size] = piece
        multihost_utils.broadcast_one_to_all(part, is_source=True)


def receive_arrays(descriptions: Sequence[Description]) -> list[np.ndarray]:
    """In every other process: the arrays that process 0 sends."""
    counts = [math.prod(shape) * jnp.dtype(name).itemsize for name, shape in descriptions]
    data = np.empty(sum(counts), np.uint8)
    for start, size in _parts(data.size):
        part = multihost_utils.broadcast_one_to_all(np.zeros(size, np.uint8), is_source=False)
        data[start : start + size] = part[: data.size - start]
    arrays, start = [], 0
    for (name, shape), count in zip(descriptions, counts, strict=True):
        # A copy is aligned as its dtype requires.
        arrays.append(data[start : start + count].copy().view(jnp.dtype(name)).reshape(shape))
        start += count
    return arrays


def _parts(size: int) -> list[tuple[int, int]]:
    """(start, bytes) of the parts in which `size` bytes travel."""
    large = max(0, math.ceil((size - 16 * _SMALL) / _LARGE))
    parts = [_LARGE] * large + [_SMALL] * max(0, math.ceil((size - large * _LARGE) / _SMALL))
    return list(zip(itertools.accumulate(parts, initial=0), parts, strict=False))


def lead_array_files(lead: Lead) -> ArrayFiles:
    """The array files of process 0: of a state, or of a state and that of the second agent."""

    def save(folder: Path, arrays: Any) -> None:
        target, second = split_states(arrays)
        with lead.operation("save", str(folder), target, second):
            save_arrays(folder, arrays)

    def restore(folder: Path, like: Any) -> Any:
        with lead.operation("restore", str(folder), split_states(like)[1] is not None) as finish:
            return join_states(*finish(split_states(restore_arrays(folder, like))))

    return save, restore
