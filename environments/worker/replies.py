"""Reads replies of children, which are not trusted: bytes, values and depth are bounded as they come in.

A reply made of empty lists takes 30 times its bytes once it is parsed, so values are counted before parsing.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable

from . import wire

# Bytes read at a time; a reply of more bytes asks for room.
_PART = 64 * 2**10
# Bytes that the large replies of all children may take together, and how many copies there are of each: as read, as
# examined, as sent on, and as kept by the allocator.
_ROOM, _COPIES = 96 * 2**20, 4
# The deepest nesting of a reply.
_DEPTH = 256
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


class Scan:
    """Counts the values and nesting levels of JSON text, part by part; the contents of strings do not count."""

    def __init__(self, values: int, depth: int = _DEPTH) -> None:
        self.most, self.deepest = values, depth
        self.values = self.depth = 0
        self.quoted = self.escaped = False

    def take(self, part: bytes) -> None:
        """Counts one part. Raises ValueError where the text so far has too many values or levels, or is not ASCII."""
        if not part.isascii():
            raise ValueError("it is not ASCII")
        if self.escaped and part:
            part = part[1:]
            self.escaped = False
        if (len(part) - len(part.rstrip(b"\\"))) % 2:
            part, self.escaped = part[:-1], True
        part = part.replace(b"\\\\", b"").replace(b'\\"', b"")
        self.values += (part.count(b'"') + self.quoted) // 2
        self._bound()
        pieces = part.split(b'"')
        outside = b"".join(pieces[self.quoted :: 2])
        self.quoted ^= len(pieces) % 2 == 0
        self.values += sum(map(outside.count, (b",", b":", b"[", b"{")))
        self._bound()
        for bracket in outside.translate(None, _NOT_BRACKETS):
            self.depth += 1 if bracket in b"[{" else -1
            if not 0 <= self.depth <= self.deepest:
                raise ValueError(f"it nests deeper than {self.deepest} levels, or ends what it did not begin")

    def _bound(self) -> None:
        if self.values > self.most:
            raise ValueError(f"it holds more than {self.most:,} values")


class Room:
    """Admits as many large replies at the same time as memory has room for, at least one; the others wait."""

    def __init__(self, reply: int) -> None:
        self._free = asyncio.Semaphore(max(1, _ROOM // (_COPIES * reply)))

    async def admit(self, held: contextlib.AsyncExitStack) -> None:
        """Waits for room; closing `held` frees it."""
        await held.enter_async_context(self._free)


async def receive(
    source: socket.socket, scan: Scan, limit: int, admit: Callable[[], Awaitable[None]], begun: Callable[[], None]
) -> bytes:
    """Reads one line of at most `limit` bytes. Calls `begun` when bytes arrive; awaits `admit` once for a large line.

    Raises ConnectionError where the child hangs up, and ValueError where the line exceeds a bound or more follows it.
    """
    loop = asyncio.get_running_loop()
    line = bytearray()
    large = False
    while True:
        part = await loop.sock_recv(source, _PART)
        if not part:
            raise ConnectionError("the child hung up")
        begun()
        head, ended, rest = part.partition(b"\n")
        scan.take(head)
        line += head
        if len(line) > limit:
            raise ValueError(f"it is longer than {limit:,} bytes")
        if rest:
            raise ValueError("more follows it")
        if ended:
            return bytes(line)
        if len(line) > _PART:
            if not large:
                large = True
                await admit()
            await asyncio.sleep(0)  # others have their turn


def peek(source: socket.socket) -> bytes | None:
    """The first byte that waits to be read: None if there is none, b"" if the child hung up."""
    try:
        return source.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return None
    except OSError:
        return b""


class OutOfMemory(Exception):
    """The child reports that it ran out of memory."""


def checked(line: bytes, call: int) -> bytes:
    """The reply to pass on to the client. Raises ValueError where it is no reply to this call, and OutOfMemory."""
    answer = wire.decode(line)
    if type(answer.get("n")) is not int or answer["n"] != call:
        raise ValueError("it has not the number of the call")
    if answer.keys() == {"n", "value"}:
        return line
    if answer.keys() != {"n", "failure", "message"} or not isinstance(answer["message"], str):
        raise ValueError("it has neither a value nor a failure")
    if answer["failure"] == wire.LIMIT:
        raise OutOfMemory(answer["message"])
    return failure(wire.ENVIRONMENT, answer["message"])


def failure(code: str, message: str) -> bytes:
    """A reply that says why there is no value."""
    return wire.encode(wire.failed(code, message)).rstrip()
