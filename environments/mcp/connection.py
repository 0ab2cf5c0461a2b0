"""One MCP server over stdio, by the official SDK, as its caller needs it: calls that block.

The server's messages are read during a call alone. One that floods in between waits, as its pipe is full.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import anyio
from mcp import Client, MCPError
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from environments.mcp.world import READS

# The longest message of a server, in bytes; the characters of its last words on stderr; pages of a list of tools.
_MESSAGE, _WORDS, _PAGES = 16 * 2**20, 500, 100


class ServerEnded(Exception):
    """The server has ended, or can no longer be understood."""


class Reply(NamedTuple):
    """What a call returned, as text, and whether the server says that it worked."""

    text: str
    ok: bool


class Connection:
    """A server, started by `open` in its folder with these variables alone. It ends with this process.

    The SDK's client answers every request for sampling, roots and elicitation with an error, and does not offer them.
    """

    def __init__(self, command: Sequence[str], folder: Path, variables: Mapping[str, str]) -> None:
        self._command, self._folder, self._variables = command, folder, variables
        self._loop = asyncio.new_event_loop()
        self._ended, self._words = "", ""
        self._client: Any = None
        self._tasks: list[asyncio.Task[None]] = []
        self.tools: tuple[Mapping[str, Any], ...] = ()

    def open(self) -> None:
        """Starts the server and lists its tools. Raises RuntimeError where that fails."""
        try:
            self._run(self._open())
        except (OSError, MCPError, ServerEnded, ValueError, TimeoutError) as error:
            said = self._words.strip()[-_WORDS:]
            raise RuntimeError(
                f"the server {' '.join(self._command)!r:.300} does not start: {error}; {self._ended}"
                + (f"; its last words: {said}" if said else "")
            ) from error

    def call(self, name: str, arguments: Mapping[str, Any]) -> Reply:
        """The server's reply. Raises ServerEnded."""
        if self._ended:
            raise ServerEnded(self._ended)
        try:
            result = self._run(self._client.call_tool(name, dict(arguments)))
        except (MCPError, RuntimeError, ValueError) as error:
            if self._ended:
                raise ServerEnded(self._ended) from error
            return Reply(str(error), False)
        parts = [_text(block) for block in result.content]
        if not parts and result.structured_content is not None:
            parts = [json.dumps(result.structured_content, ensure_ascii=False)]
        return Reply("\n".join(parts) or "ok", not result.is_error)

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(work)

    async def _open(self) -> None:
        opened: asyncio.Future[Any] = self._loop.create_future()
        self._tasks.append(self._loop.create_task(self._serve(opened)))
        self._client = await opened
        found, cursor = [], None
        for _ in range(_PAGES):
            page = await self._client.list_tools(cursor=cursor)
            found += page.tools
            if not (cursor := page.next_cursor):
                break
        self.tools = tuple(_document(tool) for tool in found)

    async def _serve(self, opened: asyncio.Future[Any]) -> None:
        """Keeps the connection open. The session must be left by the task that entered it."""
        try:
            # By the handshake that servers of every version of the protocol know.
            async with Client(self._transport(), mode="legacy", cache=None) as client:
                opened.set_result(client)
                await self._loop.create_future()
        except BaseException as error:
            if opened.done():
                raise
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            opened.set_exception(error)

    @contextlib.asynccontextmanager
    async def _transport(self) -> AsyncIterator[Any]:
        process = await asyncio.create_subprocess_exec(
            *self._command, cwd=self._folder, env=dict(self._variables), limit=_MESSAGE,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        into, received = anyio.create_memory_object_stream[Any](0)
        sent, out = anyio.create_memory_object_stream[SessionMessage](0)
        self._tasks += map(
            self._loop.create_task,
            (self._read(process, into), self._write(process, out), self._listen(process)),
        )
        yield received, sent

    async def _read(self, process: asyncio.subprocess.Process, into: Any) -> None:
        """Passes the server's messages on. What it prints that is no message is left out."""
        stdout: Any = process.stdout
        async with into:
            try:
                while line := await stdout.readline():
                    with contextlib.suppress(ValueError):
                        await into.send(SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False)))
                self._ended = "the server has ended"
            except ValueError:
                self._ended = f"the server has sent a message of more than {_MESSAGE} bytes"

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


def _document(tool: Any) -> Mapping[str, Any]:
    """The tool in OpenAI function format."""
    function = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
    reads = bool(tool.annotations and tool.annotations.read_only_hint)
    return {"type": "function", "function": function, **({READS: True} if reads else {})}


def _text(block: Any) -> str:
    """A part of a result as text; of what is no text, its kind."""
    if block.type == "text":
        return block.text
    if block.type == "resource" and (text := vars(block.resource).get("text")) is not None:
        return text
    if block.type == "resource_link":
        return f"[resource {block.uri}]"
    return f"[{block.type}]"
