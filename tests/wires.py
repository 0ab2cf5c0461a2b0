"""Connections of two processes, within one."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

from patience import patience

from cojax.distributed.wire import Wire, accept, connect
from cojax.host.background import run_on_thread

TOKEN = "a" * 32
SILENCE = patience(5.0)


@contextlib.contextmanager
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def unwanted(number: int, reason: str) -> None:
    raise AssertionError((number, reason))


class Connected:
    """The connection of process 0 to process 1, as `one`, and its `other` end; as a context, closed at its end."""

    def __init__(self, silence: float = SILENCE) -> None:
        with server() as listening:
            port = listening.getsockname()[1]
            dialled = run_on_thread("dials", lambda: connect("127.0.0.1", port, TOKEN, 1, SILENCE, silence))
            self.one = accept(listening, TOKEN, 2, SILENCE, silence)[1]
            self.other = dialled.result(SILENCE)
        self.silence = silence
        self._wires: list[Wire] = []

    def process(self, number: int, lost: Callable[[int, str], None] = unwanted, **settings: Any) -> Wire:
        """The wire of process 0 or 1."""
        ends = {0: {1: self.one}, 1: {0: self.other}}
        self._wires.append(Wire(ends[number], self.silence, lost, **settings))
        return self._wires[-1]

    def close(self) -> None:
        """Ends the threads of all wires: none of them misses the other any more."""
        for wire in self._wires:
            wire.say_farewell()
        for end in (self.one, self.other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def __enter__(self) -> Connected:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
