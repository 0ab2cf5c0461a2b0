"""Messages over real connections: order, signs of life, farewells, losses, and what greets wrongly."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time

import pytest
from patience import patience
from wires import SILENCE, TOKEN, Connected, server

from cojax.distributed import wire as wire_module
from cojax.distributed.wire import WireError, accept, connect, read_message
from cojax.host.background import run_on_thread


class Losses:
    """What a wire reports as lost."""

    def __init__(self) -> None:
        self.found: list[tuple[int, str]] = []
        self.any = threading.Event()

    def __call__(self, number: int, reason: str) -> None:
        self.found.append((number, reason))
        self.any.set()


def test_messages_arrive_in_order_and_signs_of_life_are_not_messages(monkeypatch):
    monkeypatch.setattr(wire_module, "_HEARTBEAT_INTERVAL_S", 0.05)
    beats = threading.Semaphore(0)
    with Connected() as connected:
        first, second = connected.process(0, on_heartbeat=beats.release), connected.process(1)
        for number in range(100):
            first.send({"kind": "run", "number": number})
        assert [second.receive(SILENCE) for _ in range(100)] == [(0, {"kind": "run", "number": n}) for n in range(100)]
        assert beats.acquire(timeout=SILENCE)
        assert beats.acquire(timeout=SILENCE)
        with pytest.raises(WireError, match=r"no message came within 0.01 s"):
            second.receive(0.01)


def test_a_message_that_is_heard_is_not_received():
    heard: list[int] = []
    with Connected() as connected:
        first = connected.process(0)
        second = connected.process(1, on_message=lambda n, m: m["kind"] == "stop" and not heard.append(m["signal"]))
        first.send({"kind": "stop", "signal": 15})
        first.send({"kind": "run"})
        assert second.receive(SILENCE) == (0, {"kind": "run"})
    assert heard == [15]


def test_a_connection_that_ends_without_farewell_is_a_loss_and_one_that_parts_is_none():
    losses = Losses()
    with Connected() as connected:
        connected.process(0, losses)
        connected.other.close()
        assert losses.any.wait(SILENCE)
    assert losses.found == [(1, "its connection ended")]

    losses = Losses()
    with Connected() as connected:
        first, second = connected.process(0, losses), connected.process(1, losses)
        second.say_farewell()
        first.say_farewell()
        connected.other.shutdown(socket.SHUT_RDWR)
        assert not losses.any.wait(0.2)


def test_silence_is_a_loss():
    losses = Losses()
    with Connected(silence=0.2) as connected:
        connected.process(0, losses)
        assert losses.any.wait(SILENCE)
    assert losses.found == [(1, "it has been silent for 0.2 s")]


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (struct.pack(">I", 2**31), "it sent a message of 2147483648 bytes; expected at most 16777216"),
        (struct.pack(">I", 2) + b"[]", "it sent an invalid message: expected an object"),
        (struct.pack(">I", 2) + b"{x", "it sent an invalid message"),
        (struct.pack(">I", 9) + b"{}", "its connection ended"),
    ],
)
def test_what_is_no_message_is_refused(sent, why):
    one, other = socket.socketpair()
    other.sendall(sent)
    other.close()
    with pytest.raises(WireError, match=why):
        read_message(one)


def greeting(message: object) -> bytes:
    text = json.dumps(message).encode()
    return struct.pack(">I", len(text)) + text


def test_strangers_are_hung_up_on_and_the_missing_process_is_named():
    seconds = patience(0.3)
    with server() as listening:
        address = listening.getsockname()
        strangers = []
        for said in (
            greeting({"token": "b" * 32, "process": 1}),
            greeting({"token": TOKEN, "process": 7}),
            greeting({"token": TOKEN, "process": "1"}),
            greeting({"token": TOKEN, "process": True}),
            greeting({"token": "\u00e9\ud800", "process": 1}),
            struct.pack(">I", 0),
            b"GET / HTTP/1.1\r\n\r\n",
        ):
            stranger = socket.create_connection(address)
            stranger.sendall(said)
            strangers.append(stranger)
        process = run_on_thread("process 1", lambda: connect(*address, TOKEN, 1, SILENCE, SILENCE))
        with pytest.raises(WireError, match=f"no connection from process 2 within {seconds:g} s"):
            accept(listening, TOKEN, 3, seconds, SILENCE)
        process.result(SILENCE).close()
        for stranger in strangers:
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(1) == b""
            stranger.close()


def dribble(connection: socket.socket) -> None:
    """Sends the greeting of process 2 so slowly that it takes minutes, until nobody listens any more."""
    with contextlib.suppress(OSError):
        for byte in greeting({"token": TOKEN, "process": 2, "padding": "x" * 3000}):
            connection.sendall(bytes([byte]))
            time.sleep(0.05)


def test_a_greeting_that_never_ends_keeps_nobody_out_and_is_hung_up_on(monkeypatch):
    monkeypatch.setattr(wire_module, "_GREETING_TIMEOUT_S", patience(0.3))
    with server() as listening:
        address = listening.getsockname()
        slow, silent = socket.create_connection(address), socket.create_connection(address)
        dribbles = threading.Thread(target=dribble, args=(slow,))
        dribbles.start()
        found: list[dict[int, socket.socket]] = []
        admits = threading.Thread(target=lambda: found.append(accept(listening, TOKEN, 3, patience(20.0), SILENCE)))
        admits.start()
        first = connect(*address, TOKEN, 1, SILENCE, SILENCE)
        dribbles.join(patience(10.0))
        assert not dribbles.is_alive()
        silent.settimeout(patience(10.0))
        assert silent.recv(1) == b""
        second = connect(*address, TOKEN, 2, SILENCE, SILENCE)
        admits.join(patience(10.0))
        assert found[0].keys() == {1, 2}
    for one in (slow, silent, first, second, *found[0].values()):
        one.close()


def test_of_too_many_that_do_not_greet_the_first_have_to_go(monkeypatch):
    monkeypatch.setattr(wire_module, "_SPARE_GREETINGS", 0)
    with server() as listening:
        address = listening.getsockname()
        silent = [socket.create_connection(address) for _ in range(4)]
        admits = threading.Thread(target=lambda: accept(listening, TOKEN, 2, patience(20.0), SILENCE)[1].close())
        admits.start()
        silent[0].settimeout(patience(10.0))
        assert silent[0].recv(1) == b""
        connect(*address, TOKEN, 1, SILENCE, SILENCE).close()
        admits.join(patience(10.0))
        assert not admits.is_alive()
    for one in silent:
        one.close()


def test_process_0_that_is_not_there_is_named():
    with server() as listening:
        port = listening.getsockname()[1]
    with pytest.raises(WireError, match=f"process 0 at 127.0.0.1 cannot be reached on port {port}"):
        connect("127.0.0.1", port, TOKEN, 1, 0.0, 1.0)
