"""Operations that all processes run at the same time: process 0 names each (`Lead`), the others follow (`Follower`).

Arrays that are spread over all hosts cannot be sent: each process holds its own part. A command therefore names such an
argument by the command whose result it was. Before the next operation, the others drop the results that process 0 no
longer holds. Of arrays that only process 0 has, small ones travel within the command, others by a collective of all
devices.
"""

import base64
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
ResultKey = tuple[int, int]
# The identities of all arrays of a result, in order.
_LeafIds = tuple[int, ...]
Operations = MutableMapping[str, Callable[..., Any]]
# Message sizes in bytes. There are only two, so two compiled programs are enough.
_SMALL_BYTES, _LARGE_BYTES = 2**16, 2**24
# How a command describes an array: the name of its dtype, and its shape.
ArrayDescription = tuple[str, Sequence[int]]


class Lead:
    """`Hosts` of process 0. Operations of several threads run one after another, in one order in all processes."""

    def __init__(self, wire: Wire, other_count: int) -> None:
        self._wire, self._other_count = wire, other_count
        self._command_number = 0
        self._lock = threading.Lock()  # held by the thread whose operation runs
        # By all arrays of a result: two results may share some, as a policy with merged adapters does with its base.
        self._results: dict[_LeafIds, tuple[ResultKey, list[weakref.ref[Any]]]] = {}
        # Filled by any thread that drops a result.
        self._freed_keys = collections.deque[ResultKey]()
        # When the current operation began, for the watch over its deadline.
        self.busy_since: float | None = None

    @contextlib.contextmanager
    def operation(self, operation_name: str, *arguments: Any) -> Iterator[Callable[[_T], _T]]:
        """As `Hosts.operation`."""
        with self._lock:
            yield from self._run_operation(operation_name, *arguments)

    def _run_operation(self, operation_name: str, *arguments: Any) -> Iterator[Callable[[_T], _T]]:
        host_arrays: list[np.ndarray] = []
        argument_specs = [self._encode(argument, host_arrays) for argument in arguments]
        freed_keys = [self._freed_keys.popleft() for _ in range(len(self._freed_keys))]
        self._command_number += 1
        serial, results = self._command_number, list[Any]()

        def record_result(result: _T) -> _T:
            # Waits for its end, not only its start: the deadline bounds the whole computation.
            results.append(jax.block_until_ready(result))
            return result

        self.busy_since = time.monotonic()
        content = _join_bytes(host_arrays)
        is_small = content.size <= _SMALL_BYTES
        try:
            self._wire.send(
                {
                    "kind": "run", "operation": operation_name, "number": serial, "arguments": argument_specs,
                    "freed": freed_keys, "data": [describe_array(array) for array in host_arrays],
                    "content": base64.b64encode(content.tobytes()).decode() if is_small else None,
                }
            )  # fmt: skip
            self._await_others()
            if not is_small:
                _send_bytes(content)
            yield record_result
        finally:
            self.busy_since = None
        result = results.pop() if results else None
        for index, output in enumerate(result if isinstance(result, tuple) else (result,)):
            self._remember_result((serial, index), output)

    def _await_others(self) -> None:
        """Waits until all other processes are about to run this operation; they may still be compiling."""
        missing_count = self._other_count
        while missing_count:
            _, message = self._wire.receive()
            missing_count -= message.get("kind") == "at" and message["number"] == self._command_number

    def _encode(self, argument: Any, host_arrays: list[np.ndarray]) -> dict[str, Any]:
        """An argument in the form that a command has; adds arrays on the host to `host_arrays`."""
        if isinstance(argument, (np.ndarray, np.generic)):
            host_arrays.append(np.asarray(argument))
            return {"array": len(host_arrays) - 1}
        if argument is None or isinstance(argument, (bool, int, float, str)):
            return {"plain": argument}
        if isinstance(argument, TrainBatch) and isinstance(argument.tokens, np.ndarray):
            field_values = {field.name: getattr(argument, field.name) for field in dataclasses.fields(argument)}
            return {"batch": {name: self._encode(value, host_arrays) for name, value in field_values.items()}}
        if isinstance(argument, tuple) and not hasattr(argument, "_fields"):
            return {"tuple": [self._encode(element, host_arrays) for element in argument]}
        leaves = jax.tree.leaves(argument)
        sent_result = self._results.get(tuple(map(id, leaves)))
        if sent_result is None or any(ref() is not leaf for ref, leaf in zip(sent_result[1], leaves, strict=True)):
            raise RuntimeError("an argument of an operation is not the result of an earlier one; it cannot be sent")
        return {"result": sent_result[0]}

    def _remember_result(self, result_key: ResultKey, result: Any) -> None:
        leaves = [leaf for leaf in jax.tree.leaves(result) if isinstance(leaf, jax.Array)]
        if not leaves:
            self._freed_keys.append(result_key)
            return
        leaf_ids, leaf_refs = tuple(map(id, leaves)), list[weakref.ref[Any]]()

        def forget_result(_leaf_ref: weakref.ref[Any]) -> None:
            """Once one of its arrays is gone, nobody holds the whole result, so nobody can name it."""
            if (entry := self._results.get(leaf_ids)) and entry[1] is leaf_refs and self._results.pop(leaf_ids, None):
                self._freed_keys.append(result_key)

        leaf_refs += [weakref.ref(leaf, forget_result) for leaf in leaves]
        if entry := self._results.get(leaf_ids):
            self._freed_keys.append(entry[0])  # the arrays name the newer result from now on
        self._results[leaf_ids] = (result_key, leaf_refs)


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
                self._run_command(message)
                self.busy_since = None

    def _run_command(self, command: Mapping[str, Any]) -> None:
        for command_number, result_index in command["freed"]:
            results = self.results.get(command_number, {})
            results.pop(result_index, None)
            if not results:
                self.results.pop(command_number, None)
        operation_name = command["operation"]
        if operation_name not in self.operations:
            raise WireError(f"process 0 wants {operation_name!r}, which this process does not know")
        self._wire.send({"kind": "at", "number": command["number"]})
        arrays = _receive_arrays(command["data"], command["content"])
        result = self.operations[operation_name](*(self._decode(argument, arrays) for argument in command["arguments"]))
        jax.block_until_ready(result)
        outputs = result if isinstance(result, tuple) else (result,)
        self.results[command["number"]] = dict(enumerate(outputs))

    def _decode(self, spec: Mapping[str, Any], host_arrays: Sequence[np.ndarray]) -> Any:
        ((spec_kind, value),) = spec.items()
        match spec_kind:
            case "plain":
                return value
            case "array":
                return host_arrays[value] if host_arrays[value].ndim else host_arrays[value][()]
            case "batch":
                return TrainBatch(**{name: self._decode(field_spec, host_arrays) for name, field_spec in value.items()})
            case "tuple":
                return tuple(self._decode(item, host_arrays) for item in value)
            case "result":
                command_number, result_index = value
                return self.results[command_number][result_index]
        raise WireError(f"process 0 sent an argument of the kind {spec_kind!r}, which this process does not know")


def describe_array(array: np.ndarray) -> ArrayDescription:
    return array.dtype.name, list(array.shape)


def _join_bytes(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The bytes of all arrays, one after another."""
    empty = np.zeros(0, np.uint8)
    return np.concatenate([empty, *(np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays)])


def _send_bytes(content: np.ndarray) -> None:
    """In process 0: sends bytes, which the others receive by `_receive_arrays` at the same time."""
    for start, size in _split_bytes(content.size):
        part = np.zeros(size, np.uint8)
        content_part = content[start : start + size]
        part[: content_part.size] = content_part
        multihost_utils.broadcast_one_to_all(part, is_source=True)


def _receive_arrays(descriptions: Sequence[ArrayDescription], base64_text: str | None) -> list[np.ndarray]:
    """In every other process: the arrays of a command, which may hold their bytes as text."""
    byte_counts = [math.prod(shape) * jnp.dtype(dtype_name).itemsize for dtype_name, shape in descriptions]
    if base64_text is not None:
        content = np.frombuffer(base64.b64decode(base64_text), np.uint8)
    else:
        content = np.empty(sum(byte_counts), np.uint8)
        for start, size in _split_bytes(content.size):
            part = multihost_utils.broadcast_one_to_all(np.zeros(size, np.uint8), is_source=False)
            content[start : start + size] = part[: content.size - start]
    arrays, start = [], 0
    for (dtype_name, shape), byte_count in zip(descriptions, byte_counts, strict=True):
        # A copy is aligned as its dtype requires.
        arrays.append(content[start : start + byte_count].copy().view(jnp.dtype(dtype_name)).reshape(shape))
        start += byte_count
    return arrays


def _split_bytes(byte_count: int) -> list[tuple[int, int]]:
    """(start, bytes) of the parts in which `byte_count` bytes travel."""
    large = max(0, math.ceil((byte_count - 16 * _SMALL_BYTES) / _LARGE_BYTES))
    sizes = [_LARGE_BYTES] * large + [_SMALL_BYTES] * max(
        0, math.ceil((byte_count - large * _LARGE_BYTES) / _SMALL_BYTES)
    )
    return list(zip(itertools.accumulate(sizes, initial=0), sizes, strict=False))


def make_array_files(leader: Lead) -> ArrayFiles:
    """The array files of process 0: of a state, or of a state and that of the second agent."""

    def save_together(folder: Path, arrays: Any) -> None:
        target_state, second_state = split_states(arrays)
        with leader.operation("save", str(folder), target_state, second_state):
            save_arrays(folder, arrays)

    def restore_together(folder: Path, like: Any) -> Any:
        with leader.operation("restore", str(folder), split_states(like)[1] is not None) as finish:
            return join_states(*finish(split_states(restore_arrays(folder, like))))

    return save_together, restore_together
