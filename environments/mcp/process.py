"""In a worker: a server as a process of its own, over its standard input and output.

Its messages are read during a call alone. A server that floods in between waits, as its pipe is full.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

# The longest message of a server, in bytes; the characters of its last words on stderr.
MESSAGE, _WORDS = 16 * 2**20, 500


class Process:
    """The server that a command starts in `folder` with these variables alone. It ends with this process.

    `ended` says why it can be called no more, "" while it can.
    """

    def __init__(self, command: Sequence[str], folder: Path, variables: Mapping[str, str]) -> None:
        self._command, self._folder, self._variables = command, folder, variables
        self.name, self.ended, self._words = " ".join(command), "", ""
        self._tasks: list[asyncio.Task[None]] = []

    def last_words(self) -> str:
        return f"its last words: {said}" if (said := self._words.strip()[-_WORDS:]) else ""

    def refusal(self) -> str:
        return ""

    @contextlib.asynccontextmanager
    async def streams(self) -> AsyncIterator[Any]:
        """Starts the server; its messages, and a stream for those to it. Raises OSError."""
        process = await asyncio.create_subprocess_exec(
            *self._command, cwd=self._folder, env=dict(self._variables), limit=MESSAGE,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        into, received = anyio.create_memory_object_stream[Any](0)
        sent, out = anyio.create_memory_object_stream[SessionMessage](0)
        works = (self._read(process, into), self._write(process, out), self._listen(process))
        self._tasks += map(asyncio.get_running_loop().create_task, works)
        yield received, sent

    async def _read(self, process: asyncio.subprocess.Process, into: Any) -> None:
        """Passes the server's messages on. What it prints that is no message is left out."""
        stdout: Any = process.stdout
        async with into:
            try:
                while line := await stdout.readline():
                    with contextlib.suppress(ValueError):
                        await into.send(SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False)))
                self.ended = "the server has ended"
            except ValueError:
                self.ended = f"the server has sent a message of more than {MESSAGE} bytes"

    async def _write(self, process: asyncio.subprocess.Process, out: Any) -> None:
        stdin: Any = process.stdin
        async for message in out:
            line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            # One that has ended is noticed by the reader.
            with contextlib.suppress(OSError):
                stdin.write(line.encode() + b"\n")
                await stdin.drain()

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        """Keeps the end of what the server writes to stderr."""
        stderr: Any = process.stderr
        while part := await stderr.read(65_536):
            self._words = (self._words + part.decode(errors="replace"))[-4 * _WORDS :]
