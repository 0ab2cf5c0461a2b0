"""Connections of two processes, within one."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

from cojax.distributed.greeting import accept
from cojax.distributed.wire import connect

TOKEN = "a" * 32


@contextlib.contextmanager
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def connected(silence: float = 5.0) -> tuple[socket.socket, socket.socket]:
    """The connection of process 0 to process 1, and its other end."""
    with server() as listening:
        ends: dict[str, socket.socket] = {}
        port = listening.getsockname()[1]
        dials = threading.Thread(target=lambda: ends.update(other=connect("127.0.0.1", port, TOKEN, 1, 5.0, silence)))
        dials.start()
        found = accept(listening, TOKEN, 2, 5.0, silence)
        dials.join()
    return found[1], ends["other"]


def unwanted(number: int, reason: str) -> None:
    raise AssertionError((number, reason))
