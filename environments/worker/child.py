"""The child process: serves the calls of one episode, or of the environment itself, until its socket ends.

It answers one request at a time. It never raises: an exception of the environment is a failure of that call.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Iterator
from typing import Any

from cojax.environment import Charted, Demonstrated, Environment, traits_of
from cojax.types import Action, Task, Triplet, from_json, to_json
from . import wire


def serve(connection: socket.socket, operations: dict[str, Callable[..., Any]]) -> None:
    """Answers requests by `operations`, op → function of its arguments, until the connection ends."""
    stream = connection.makefile("rb")
    while line := stream.readline(wire.REQUEST):
        request = wire.decode(line)
        try:
            answer = {"value": to_json(operations[request["op"]](*request["arguments"]))}
            reply = wire.encode({"n": request["n"], **answer})
        except MemoryError:
            reply = wire.encode({"n": request["n"], **wire.failed(wire.LIMIT, "out of memory")})
        except (Exception, SystemExit) as error:
            reason = f"{type(error).__name__}: {error}".encode("utf-8", "replace").decode()
            reply = wire.encode({"n": request["n"], **wire.failed(wire.ENVIRONMENT, reason)})
        connection.sendall(reply)


def episode_operations(environment: Environment) -> dict[str, Callable[..., Any]]:
    """The calls of one episode; `reset` makes it."""
    running: list[Any] = []

    def reset(task: Any) -> Any:
        running.append(environment.start(from_json(Task, task)))
        return {"messages": running[0].reset(), "tools": running[0].tools()}

    return {
        "reset": reset,
        "step": lambda action: running[0].step(from_json(Action, action)),
        "state": lambda: running[0].state(),
        "affordances": lambda: running[0].affordances(),
        "evaluate": lambda: running[0].evaluate(),
    }


def environment_operations(environment: Environment) -> dict[str, Callable[..., Any]]:
    """The calls that concern the whole environment."""
    operations: dict[str, Callable[..., Any]] = {
        "tools": environment.tools,
        "tasks": environment.tasks,
        "phrase": lambda steps: environment.phrase(from_json(tuple[Triplet, ...], steps)),
    }
    if isinstance(environment, Charted):
        operations |= {"popularity": environment.popularity, "neighbours": environment.neighbours}
    if isinstance(environment, Demonstrated):
        operations |= {"lexicon": environment.lexicon, "demonstrations": _Pages(environment)}
    return operations


def describe(environment: Environment) -> dict[str, Any]:
    """The facts that the client needs to represent the environment."""
    return {
        "name": environment.name,
        "charted": isinstance(environment, Charted),
        "demonstrated": isinstance(environment, Demonstrated),
        "traits": to_json(traits_of(environment)),
    }


class _Pages:
    """Demonstrations in pages. The iterator is kept, so that the next page costs no more than itself."""

    def __init__(self, environment: Demonstrated) -> None:
        self.environment = environment
        self.reading: tuple[Any, ...] = ()
        self.iterator: Iterator[Any] = iter(())
        self.next = 0

    def __call__(self, count: int, seed: int, noise: list[float], start: int, size: int) -> list[Any]:
        """Demonstrations start … start + size - 1; fewer at the end."""
        low, high = noise
        reading = (count, seed, low, high)
        if reading != self.reading or start != self.next:
            self.reading, self.next = reading, start
            everything = iter(self.environment.demonstrations(count, seed, (low, high)))
            self.iterator = itertools.islice(everything, start, None)
        page = list(itertools.islice(self.iterator, size))
        self.next += len(page)
        return page
