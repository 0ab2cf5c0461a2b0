"""Every other process follows: it runs the operations that process 0 names, in order, until process 0 ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from cojax.distributed import broadcast
from cojax.distributed.wire import Wire, WireError
from cojax.learner.batch import TrainBatch

Operations = MutableMapping[str, Callable[..., Any]]


class Follower:
    """Runs the commands of process 0. `operations` are what it can run, by name; one of them may add others."""

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
        for number, at in command["freed"]:
            parts = self.results.get(number, {})
            parts.pop(at, None)
            if not parts:
                self.results.pop(number, None)
        name = command["operation"]
        if name not in self.operations:
            raise WireError(f"process 0 wants {name!r}, which this process does not know")
        self._wire.send({"kind": "at", "number": command["number"]})
        data = broadcast.receive(command["data"]) if command["data"] else []
        result = self.operations[name](*(self._argument(given, data) for given in command["arguments"]))
        broadcast.finish(result)
        made = result if isinstance(result, tuple) else (result,)
        self.results[command["number"]] = dict(enumerate(made))

    def _argument(self, given: Mapping[str, Any], data: Sequence[np.ndarray]) -> Any:
        ((kind, value),) = given.items()
        match kind:
            case "plain":
                return value
            case "array":
                return data[value] if data[value].ndim else data[value][()]
            case "batch":
                return TrainBatch(**{name: self._argument(one, data) for name, one in value.items()})
            case "tuple":
                return tuple(self._argument(one, data) for one in value)
            case "result":
                number, at = value
                return self.results[number][at]
        raise WireError(f"process 0 sent an argument of the kind {kind!r}, which this process does not know")
