"""Carries messages between process 0 and the others, and notices first that one of them is gone.

Every process but 0 holds one connection to process 0. A message is the length of a JSON object, then the object. Both
ends send a sign of life twice a second. A connection that ends without a farewell, or is silent for too long, is a lost
process.

Process 0 admits a connection that greets with the token and its number (`accept`). Greetings are read side
by side, and each has one deadline as a whole, so a slow one keeps nobody out.
"""

import contextlib
import functools
import hmac
import json
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from cojax.host.background import run_on_thread

Message = Mapping[str, Any]
_LENGTH_STRUCT = struct.Struct(">I")
_MAX_MESSAGE_BYTES = 2**24  # bytes of a message
_HEARTBEAT_INTERVAL_S = 0.5  # seconds
_HEARTBEAT, _FAREWELL = {"kind": "sign"}, {"kind": "farewell"}
# Bytes of a greeting, seconds for a whole one, and how many more may be under way than there are processes.
_MAX_GREETING_BYTES, _GREETING_TIMEOUT_S, _SPARE_GREETINGS = 2**12, 5.0, 64
_CHECK_INTERVAL_S = 0.05  # seconds between two checks of the greetings


class WireError(RuntimeError):
    """A process cannot be reached, or sent an invalid message. The error names the process."""


class Wire:
    """The connections of this process, by the number of the process at the other end.

    `on_loss` is called once, on its own thread, with the number of a lost process and the reason. `on_heartbeat` is
    called twice a second on another one. `on_message` is called with each message as it arrives, and returns whether it
    has handled it; `receive` gives the others.
    """

    def __init__(
        self,
        connections: Mapping[int, socket.socket],
        max_silence_s: float,
        on_loss: Callable[[int, str], None],
        on_heartbeat: Callable[[], None] = lambda: None,
        on_message: Callable[[int, Message], bool] = lambda process, message: False,
    ) -> None:
        self._connections, self._max_silence_s = connections, max_silence_s
        self._on_loss, self._on_heartbeat, self._on_message = on_loss, on_heartbeat, on_message
        self._locks = {process: threading.Lock() for process in connections}
        self._messages = queue.SimpleQueue[tuple[int, Message]]()
        self._parting_event = threading.Event()
        for process_id in connections:
            threading.Thread(target=self._listen, args=(process_id,), name=f"process {process_id}", daemon=True).start()
        threading.Thread(target=self._send_heartbeats, name="signs of life", daemon=True).start()

    def send(self, message: Message, target_process: int | None = None) -> None:
        """Sends a message to one process, or to all. One that cannot be reached is lost."""
        for process_id in self._connections if target_process is None else (target_process,):
            try:
                with self._locks[process_id]:
                    _write_message(self._connections[process_id], message)
            except OSError as error:
                self._report_loss(process_id, f"it cannot be reached ({error})")

    def receive(self, timeout_s: float | None = None) -> tuple[int, Message]:
        """The next message and its sender. Raises WireError if none comes in time."""
        try:
            return self._messages.get(timeout=timeout_s)
        except queue.Empty:
            raise WireError(f"no message came within {timeout_s:g} s") from None

    def say_farewell(self) -> None:
        """Says farewell to the other processes: from now on none of them counts as lost."""
        self._parting_event.set()
        self.send(_FAREWELL)

    def _listen(self, process_id: int) -> None:
        connection = self._connections[process_id]
        try:
            while (message := read_message(connection)).get("kind") != "farewell":
                if message.get("kind") != "sign" and not self._on_message(process_id, message):
                    self._messages.put((process_id, message))
        except TimeoutError:
            self._report_loss(process_id, f"it has been silent for {self._max_silence_s:g} s")
        except OSError as error:
            self._report_loss(process_id, f"its connection ended ({error.strerror})")
        except WireError as error:
            self._report_loss(process_id, str(error))

    def _send_heartbeats(self) -> None:
        while not self._parting_event.wait(_HEARTBEAT_INTERVAL_S):
            self._on_heartbeat()
            self.send(_HEARTBEAT)

    def _report_loss(self, process_id: int, reason: str) -> None:
        if not self._parting_event.is_set():
            self._parting_event.set()
            threading.Thread(target=self._on_loss, args=(process_id, reason), daemon=True).start()


def connect(host: str, port: int, token: str, process_id: int, timeout_s: float, max_silence_s: float) -> socket.socket:
    """Connects to process 0 and greets it. Raises WireError after `timeout_s` seconds."""
    end_time = time.monotonic() + timeout_s
    while True:
        try:
            connection = socket.create_connection((host, port), timeout=5.0)
            break
        except OSError as error:
            if time.monotonic() > end_time:
                raise WireError(f"process 0 at {host} cannot be reached on port {port}: {error}") from error
            time.sleep(0.2)
    _write_message(connection, {"token": token, "process": process_id})
    return configure_connection(connection, max_silence_s)


def configure_connection(connection: socket.socket, max_silence_s: float) -> socket.socket:
    """The connection as a `Wire` takes it: one that is silent for so many seconds raises TimeoutError."""
    connection.settimeout(max_silence_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _write_message(connection: socket.socket, message: Message) -> None:
    payload = json.dumps(message).encode()
    if len(payload) > _MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {len(payload)} bytes; expected at most {_MAX_MESSAGE_BYTES}")
    connection.sendall(_LENGTH_STRUCT.pack(len(payload)) + payload)


def read_message(connection: socket.socket, limit: int = _MAX_MESSAGE_BYTES, until: float | None = None) -> Message:
    """The next message.

    Raises OSError; TimeoutError, also at `until`; WireError if the connection ends or sends anything but a message
    of at most `limit` bytes.
    """
    (byte_count,) = _LENGTH_STRUCT.unpack(_read_exactly(connection, _LENGTH_STRUCT.size, until))
    if byte_count > limit:
        raise WireError(f"it sent a message of {byte_count} bytes; expected at most {limit}")
    payload = _read_exactly(connection, byte_count, until)
    try:
        message = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise WireError(f"it sent an invalid message: {error}") from error
    if not isinstance(message, dict):
        raise WireError("it sent an invalid message: expected an object")
    return message


def _read_exactly(connection: socket.socket, byte_count: int, end_time: float | None) -> bytes:
    """The next `byte_count` bytes. Raises TimeoutError at `end_time`, OSError, or WireError if the connection ends."""
    chunks, missing_count = [], byte_count
    while missing_count:
        if end_time is not None:
            connection.settimeout(max(0.001, end_time - time.monotonic()))
        chunk = connection.recv(min(missing_count, 2**20))
        if not chunk:
            raise WireError("its connection ended")
        chunks.append(chunk)
        missing_count -= len(chunk)
    return b"".join(chunks)


def _read_greeting(connection: socket.socket, token: str) -> int:
    """The number of the process that greets, 0 if it is none. Nothing after the greeting is read."""
    end_time = time.monotonic() + _GREETING_TIMEOUT_S
    try:
        greeting = read_message(connection, _MAX_GREETING_BYTES, end_time)
    except (OSError, WireError):
        return 0
    is_authentic = hmac.compare_digest(str(greeting.get("token")).encode("utf-8", "replace"), token.encode())
    return greeting["process"] if is_authentic and type(greeting.get("process")) is int else 0


def _close_connection(connection: socket.socket) -> None:
    """Ends a connection, and with it what another thread reads from it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def accept(
    server: socket.socket, token: str, process_count: int, timeout_s: float, max_silence_s: float
) -> dict[int, socket.socket]:
    """The connections of processes 1 … `process_count` − 1, once all have greeted with the token.

    A connection that greets otherwise, or too late, is closed. Raises WireError, which names the missing ones, after
    `timeout_s` seconds.
    """
    connections: dict[int, socket.socket] = {}
    greetings: dict[socket.socket, Future[int]] = {}
    end_time = time.monotonic() + timeout_s
    server.settimeout(_CHECK_INTERVAL_S)
    try:
        while len(connections) < process_count - 1:
            if time.monotonic() > end_time:
                missing_text = ", ".join(
                    str(process) for process in range(1, process_count) if process not in connections
                )
                raise WireError(f"no connection from process {missing_text} within {timeout_s:g} s")
            with contextlib.suppress(OSError):  # nobody called, or the caller has hung up
                connection, _ = server.accept()
                greetings[connection] = run_on_thread("greeting", functools.partial(_read_greeting, connection, token))
            for connection in [connection for connection, future in greetings.items() if future.done()]:
                future = greetings.pop(connection)
                process_id = 0 if future.exception() else future.result()
                if 0 < process_id < process_count and process_id not in connections:
                    connections[process_id] = configure_connection(connection, max_silence_s)
                else:
                    _close_connection(connection)
            if len(greetings) > process_count + _SPARE_GREETINGS:  # the oldest has to go
                _close_connection(oldest_connection := next(iter(greetings)))
                del greetings[oldest_connection]
    finally:
        for connection in greetings:
            _close_connection(connection)
    return connections
