"""In a worker: the ways to a server, as a process over its standard input and output, or over streamable HTTP.

A way's `ended` says why it can be used no more, "" while it can; `last_words()` what the server said, beside its
messages, when it did not start; `refusal()` why the last message was refused, "" where it was not. `streams()` opens
the stream of the server's messages, and the one of messages to it.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.mcpserver import MCPServer
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

# The longest message of a server, in bytes; the characters of its last words on stderr.
_MESSAGE, _WORDS = 16 * 2**20, 500
# Seconds in which a server must accept a connection. An answer has the deadline of its call.
_CONNECT = 30.0
# An address at which nobody answers.
_NOBODY = "http://127.0.0.1:9/"
# HTTP statuses.
_CREDENTIALS = (401, 403, 407)


class Process:
    """The server that a command starts in `folder` with these variables alone. It ends with this process.

    Its messages are read during a call alone. A server that floods in between waits, as its pipe is full.
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
            *self._command, cwd=self._folder, env=dict(self._variables), limit=_MESSAGE,
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
                self.ended = f"the server has sent a message of more than {_MESSAGE} bytes"

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


class Address:
    """The server at `url`. `name` stands for the address in messages, as the address may be a secret.

    Redirects to another host are not followed, so that `headers` reach no other.
    """

    ended = ""

    def __init__(self, name: str, url: str, headers: Mapping[str, str]) -> None:
        self.name, self._url, self._headers = name, url, headers
        self._refused = 0

    def last_words(self) -> str:
        return self.refusal()

    def refusal(self) -> str:
        if self._refused in _CREDENTIALS:
            return f"HTTP status {self._refused}: it asks for credentials; name their variables in `headers`"
        return f"HTTP status {self._refused}" if self._refused else ""

    @contextlib.asynccontextmanager
    async def streams(self) -> AsyncIterator[Any]:
        """Opens a session; its messages, and a stream for those to the server."""
        timeout = httpx2.Timeout(_CONNECT, read=None)
        hooks = {"response": [self._note]}
        async with (
            httpx2.AsyncClient(headers=dict(self._headers), timeout=timeout, event_hooks=hooks) as client,
            streamable_http_client(self._url, http_client=client, max_sse_event_size=_MESSAGE) as streams,
        ):
            yield streams

    async def _note(self, response: httpx2.Response) -> None:
        # That there is no stream of messages beside the calls is no refusal.
        if response.request.method == "POST":
            self._refused = response.status_code if response.status_code >= 400 else 0


async def rehearse() -> None:
    """Imports what requests and calls import late, as a child may not be allowed to read the packages."""
    server = MCPServer("rehearsal")

    async def count() -> int:
        return 1

    server.add_tool(count)
    async with httpx2.AsyncClient() as web, Client(server, mode="legacy") as client:
        await client.call_tool("count", {})
        with contextlib.suppress(httpx2.HTTPError):
            await web.get(_NOBODY, timeout=1.0)
