"""How process 0 admits the connections of the others: each greets with the token and its number.

Greetings are read side by side, and each has a deadline for the whole of it: whoever is slow keeps nobody out.
"""

from __future__ import annotations

import contextlib
import hmac
import selectors
import socket
import time
from collections.abc import Iterator

from cojax.distributed.wire import LENGTH, WireError, length, message, ready

# Bytes of a greeting, seconds for the whole of one, and how many more may be under way than there are processes.
_LARGEST, _GREETED, _SPARE = 2**12, 5.0, 64


class _Greeting:
    """A connection that has not greeted yet, and what it has sent so far."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self.until = connection, time.monotonic() + _GREETED
        self._sent = b""

    def take(self, token: str) -> int | None:
        """The number of the process that greets, 0 where it is none; None as long as more is to come.

        Nothing behind the greeting is taken: that is for the `Wire`.
        """
        try:
            missing = LENGTH - len(self._sent)
            if missing <= 0:
                missing += length(self._sent[:LENGTH], _LARGEST)
            part = self.connection.recv(missing) if missing else b""
            self._sent += part
            if not part:
                return 0
            if len(self._sent) < LENGTH or len(self._sent) < LENGTH + length(self._sent[:LENGTH], _LARGEST):
                return None
            said = message(self._sent[LENGTH:])
        except BlockingIOError:
            return None
        except (OSError, WireError):
            return 0
        known = hmac.compare_digest(str(said.get("token")).encode("utf-8", "replace"), token.encode())
        return said["process"] if known and type(said.get("process")) is int else 0


class _Greetings:
    """Whoever calls at a server and has not greeted yet: at most so many at a time."""

    def __init__(self, server: socket.socket, token: str, most: int) -> None:
        self._server, self._token, self._most = server, token, most
        self._open: list[_Greeting] = []
        self._selector = selectors.DefaultSelector()
        server.setblocking(False)
        self._selector.register(server, selectors.EVENT_READ)

    def finished(self, until: float) -> Iterator[tuple[int, socket.socket]]:
        """Connections whose greeting is over, with the number that each gave, 0 for none. Waits at most `until`."""
        ends = min([until, *(one.until for one in self._open)])
        for key, _ in self._selector.select(max(0.0, ends - time.monotonic())):
            if key.data is None:
                self._take_in()
            elif (number := key.data.take(self._token)) is not None:
                self._let_go(key.data)
                yield number, key.data.connection
        late = [one for one in self._open if one.until <= time.monotonic()]
        # Where too many are there, those that came first have to go.
        for greeting in late or self._open[: max(0, len(self._open) - self._most)]:
            self._let_go(greeting)
            yield 0, greeting.connection

    def close(self) -> None:
        for greeting in tuple(self._open):
            self._let_go(greeting)
            greeting.connection.close()
        self._selector.close()

    def _take_in(self) -> None:
        with contextlib.suppress(OSError):  # whoever called may have hung up
            connection, _ = self._server.accept()
            connection.setblocking(False)
            self._open.append(greeting := _Greeting(connection))
            self._selector.register(connection, selectors.EVENT_READ, greeting)

    def _let_go(self, greeting: _Greeting) -> None:
        self._selector.unregister(greeting.connection)
        self._open.remove(greeting)


def accept(
    server: socket.socket, token: str, processes: int, deadline: float, silence: float
) -> dict[int, socket.socket]:
    """The connections of processes 1 … `processes` − 1, once all have greeted with the token.

    What greets otherwise, or not in time, is hung up on. Raises WireError, which names the missing ones, at the
    deadline.
    """
    found: dict[int, socket.socket] = {}
    until = time.monotonic() + deadline
    with contextlib.closing(_Greetings(server, token, processes + _SPARE)) as greetings:
        while len(found) < processes - 1:
            if time.monotonic() > until:
                missing = ", ".join(str(number) for number in range(1, processes) if number not in found)
                raise WireError(f"no connection from process {missing} within {deadline:g} s")
            for number, connection in greetings.finished(until):
                if 0 < number < processes and number not in found:
                    found[number] = ready(connection, silence)
                else:
                    connection.close()
    return found
