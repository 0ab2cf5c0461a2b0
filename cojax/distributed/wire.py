"""Messages between process 0 and the others, and the first sign that one of them is gone.

Every process but 0 holds one connection to process 0. A message is a JSON object behind its length. Both ends send a
sign of life twice a second. A connection that ends without a farewell, or is silent for too long, is a lost process.

Process 0 admits a connection that greets with the token and its number (`accept`). Greetings are read side by side, and
each has a deadline for the whole of it: whoever is slow keeps nobody out.
"""

import contextlib
import hmac
import json
import queue
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Message = Mapping[str, Any]
_LENGTH = struct.Struct(">I")
_LARGEST = 2**24  # bytes of a message
_BEAT = 0.5  # seconds
_SIGN, _FAREWELL = {"kind": "sign"}, {"kind": "farewell"}
# Bytes of a greeting, seconds for the whole of one, and how many more may be under way than there are processes.
_GREETING, _GREETED, _SPARE = 2**12, 5.0, 64


class WireError(RuntimeError):
    """A process cannot be reached, or said what it may not. The message names it."""


class Wire:
    """The connections of this process, by the number of the process at the other end.

    `lost` is called once, on a thread of its own, with the number of a lost process and what was noticed. `beat` is
    called twice a second on another one. `heard` is called with each message as it arrives, and says whether it has
    dealt with it; `receive` gives the others.
    """

    def __init__(
        self,
        connections: Mapping[int, socket.socket],
        silence: float,
        lost: Callable[[int, str], None],
        beat: Callable[[], None] = lambda: None,
        heard: Callable[[int, Message], bool] = lambda number, message: False,
    ) -> None:
        self._connections, self._silence = connections, silence
        self._lost, self._beat, self._heard = lost, beat, heard
        self._locks = {number: threading.Lock() for number in connections}
        self._received = queue.SimpleQueue[tuple[int, Message]]()
        self._parting = threading.Event()
        for number in connections:
            threading.Thread(target=self._listen, args=(number,), name=f"process {number}", daemon=True).start()
        threading.Thread(target=self._send_signs, name="signs of life", daemon=True).start()

    def send(self, message: Message, to: int | None = None) -> None:
        """Sends a message to one process, or to all. One that cannot be reached is lost."""
        for number in self._connections if to is None else (to,):
            try:
                with self._locks[number]:
                    _write(self._connections[number], message)
            except OSError as error:
                self._report(number, f"it cannot be reached ({error})")

    def receive(self, timeout: float | None = None) -> tuple[int, Message]:
        """The next message and its sender. Raises WireError where none comes in time."""
        try:
            return self._received.get(timeout=timeout)
        except queue.Empty:
            raise WireError(f"no message came within {timeout:g} s") from None

    def part(self) -> None:
        """Takes leave of the other processes: from now on none of them is missed."""
        self._parting.set()
        self.send(_FAREWELL)

    def _listen(self, number: int) -> None:
        connection = self._connections[number]
        try:
            while (message := read(connection)).get("kind") != "farewell":
                if message.get("kind") != "sign" and not self._heard(number, message):
                    self._received.put((number, message))
        except TimeoutError:
            self._report(number, f"it has been silent for {self._silence:g} s")
        except OSError as error:
            self._report(number, f"its connection ended ({error.strerror})")
        except WireError as error:
            self._report(number, str(error))

    def _send_signs(self) -> None:
        while not self._parting.wait(_BEAT):
            self._beat()
            self.send(_SIGN)

    def _report(self, number: int, reason: str) -> None:
        if not self._parting.is_set():
            self._parting.set()
            threading.Thread(target=self._lost, args=(number, reason), daemon=True).start()


def connect(host: str, port: int, token: str, process: int, deadline: float, silence: float) -> socket.socket:
    """The connection to process 0, greeted. Raises WireError at the deadline."""
    until = time.monotonic() + deadline
    while True:
        try:
            connection = socket.create_connection((host, port), timeout=5.0)
            break
        except OSError as error:
            if time.monotonic() > until:
                raise WireError(f"process 0 at {host} cannot be reached on port {port}: {error}") from error
            time.sleep(0.2)
    _write(connection, {"token": token, "process": process})
    return ready(connection, silence)


def ready(connection: socket.socket, silence: float) -> socket.socket:
    """The connection as a `Wire` takes it: one that is silent for so many seconds raises TimeoutError."""
    connection.settimeout(silence)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _write(connection: socket.socket, message: Message) -> None:
    text = json.dumps(message).encode()
    if len(text) > _LARGEST:
        raise ValueError(f"a message of {len(text)} bytes; expected at most {_LARGEST}")
    connection.sendall(_LENGTH.pack(len(text)) + text)


def read(connection: socket.socket) -> Message:
    """The next message. Raises OSError, TimeoutError, or WireError for an end or what is no message."""
    size = length(_exactly(connection, _LENGTH.size))
    return message(_exactly(connection, size))


def length(head: bytes, largest: int = _LARGEST) -> int:
    """Bytes of the message behind this head. Raises WireError for too many."""
    (size,) = _LENGTH.unpack(head)
    if size > largest:
        raise WireError(f"it sent a message of {size} bytes; expected at most {largest}")
    return int(size)


def message(text: bytes) -> Message:
    """The message of that text. Raises WireError where it is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WireError(f"it sent what is no message: {error}") from error
    if not isinstance(found, dict):
        raise WireError("it sent what is no message: expected an object")
    return found


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts, missing = [], size
    while missing:
        part = connection.recv(min(missing, 2**20))
        if not part:
            raise WireError("its connection ended")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


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
            missing = _LENGTH.size - len(self._sent)
            if missing <= 0:
                missing += length(self._sent[: _LENGTH.size], _GREETING)
            part = self.connection.recv(missing) if missing else b""
            self._sent += part
            if not part:
                return 0
            if len(self._sent) < _LENGTH.size or len(self._sent) < _LENGTH.size + length(
                self._sent[: _LENGTH.size], _GREETING
            ):
                return None
            said = message(self._sent[_LENGTH.size :])
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
