"""The supervisor: relays calls between the client and the children, and enforces every limit from outside.

It is started by exec, on one end of a socket pair whose other end is the client's. It never opens an episode. When the
client or the fork server is gone, for whatever reason, it ends and leaves no child behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import resource
import socket
import subprocess
from typing import Any

from cojax.environment import running
from . import wire
from .bounds import Bounds
from .child_supervision import BEAT, Children
from .forkserver import PACKET
from .timer import Timer

# Seconds that the fork server gets to end by itself.
_GRACE = 5.0
# Allocations of so many bytes go back to the system when they are freed. By itself glibc raises its own threshold with
# each larger one that is freed, and keeps what lies below it.
_MMAP_THRESHOLD, _RETURNED = -3, 2**17
# The environment variables of a process that may run a model's code: no keys, no tokens.
_VARIABLES = ("PATH", "LANG", "LC_ALL", "TZ")


def main(descriptor: int) -> None:
    with contextlib.suppress(AttributeError):  # of another C library
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _RETURNED)
    # As many sockets as the system allows: one for each child.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with contextlib.suppress(ConnectionError):
        asyncio.run(_serve(socket.socket(fileno=descriptor), _end_descriptor(os.getppid())))


def _end_descriptor(trainer: int) -> int | None:
    """A descriptor that is readable once the trainer has ended; an inherited copy of its socket could hide the end."""
    try:
        return os.pidfd_open(trainer)
    except (OSError, AttributeError):
        return None


async def _serve(connection: socket.socket, trainer: int | None) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=connection, limit=wire.REQUEST)
    over = asyncio.Event()
    if trainer is not None:
        asyncio.get_running_loop().add_reader(trainer, over.set)
    line = await reader.readline()
    if not line:
        return
    order = wire.decode(line)
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control.setblocking(False)
    with theirs:
        try:
            server = _launch(order, theirs)
        except OSError as error:
            failed = wire.failed(wire.START, f"cannot run {order['python']}: {error}")
            writer.write(wire.encode({"id": 0, "counted": 0.0, "reply": failed}))
            await writer.drain()
            return
    ready: dict[str, Any] = {"failure": wire.START}
    try:
        starting = asyncio.create_task(_first_word(control, order))
        timer, heard = Timer(order["bounds"]["start_deadline"]), running()
        timer.follow(server.pid)
        while not starting.done() and not over.is_set() and not reader.at_eof():
            await asyncio.wait({starting}, timeout=0.1)
            if running() - heard > BEAT:
                heard = running()
                writer.write(wire.encode({"counted": {}}))
            if not starting.done() and timer.counted() > timer.deadline:
                starting.cancel()
                why = f"importing and making the environment took longer than {timer.deadline:g} s"
                starting = asyncio.create_task(asyncio.sleep(0, wire.failed(wire.START, why)))
        if not starting.done():
            return
        ready = starting.result()
        writer.write(wire.encode({"id": 0, "counted": 0.0, "reply": ready}))
        if "failure" not in ready:
            await Children(reader, writer, control, Bounds(**order["bounds"]), over).serve()
        await writer.drain()
    except ConnectionError:
        pass
    finally:
        control.close()
        if "failure" in ready:
            server.kill()
        try:
            await asyncio.to_thread(server.wait, _GRACE)
        except subprocess.TimeoutExpired:
            server.kill()


def _launch(order: dict[str, Any], control: socket.socket) -> subprocess.Popen[bytes]:
    """Starts the fork server with the environment's own interpreter and almost none of our environment variables."""
    variables = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    return subprocess.Popen(
        [order["python"], "-s", "-P", "-c", order["boot"], "forkserver", str(control.fileno())],
        pass_fds=(control.fileno(),),
        # Sets have one order in every child of every fork server.
        env={**variables, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/tmp"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


async def _first_word(control: socket.socket, order: dict[str, Any]) -> dict[str, Any]:
    """Has the environment made and waits for it; returns the reply to the client."""
    loop = asyncio.get_running_loop()
    names = ("module", "roots", "settings", "visible", "hidden", "enclosed", "bounds")
    packet = wire.encode({name: order[name] for name in names})
    if len(packet) > PACKET:
        return wire.failed(wire.START, f"the settings have {len(packet):,} bytes; at most {PACKET:,} can be passed on")
    try:
        await loop.sock_sendall(control, packet)
        word = await loop.sock_recv(control, PACKET)
    except ConnectionError:
        word = b""
    if not word:
        return wire.failed(wire.START, f"{order['python']} ended before the environment was made; see its last words")
    said = wire.decode(word)
    return said if "failure" in said else {"value": said["ready"]}
