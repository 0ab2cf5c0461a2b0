"""In a worker: a session with one MCP server by the official SDK, as its caller needs it: calls that block.

The transports to a server are a process, over its standard input and output, and streamable HTTP. A transport's
`loss` says why it can no longer be used, "" while it can; `write_last_words()` what the server said, beside its
messages, when it did not start; `explain_refused_message()` why the last message was refused, "" if it was not.
`open_streams()` opens the stream of the server's messages, and the one of messages to it.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.server.mcpserver import MCPServer
from mcp.shared.message import SessionMessage
from mcp_types import CONNECTION_CLOSED, jsonrpc_message_adapter

from ..tools.toolset import to_document
from . import resources

# The longest message of a server, in bytes; the characters of its last words on stderr.
_MAX_MESSAGE_BYTES, _MAX_STDERR_CHARS = 16 * 2**20, 500
# Seconds in which a server must accept a connection. An answer has the deadline of its call.
_CONNECT_TIMEOUT_S = 30.0
# An address at which nobody answers.
_DEAD_ADDRESS = "http://127.0.0.1:9/"
# HTTP statuses.
_CREDENTIAL_STATUSES = (401, 403, 407)


class Process:
    """The server that a command starts in `folder` with only these variables. It ends with this process.

    Its messages are read only during a call. A server that floods in between has to wait, because its pipe is full.
    """

    def __init__(self, command: Sequence[str], folder: Path, variables: Mapping[str, str]) -> None:
        self._command, self._folder, self._variables = command, folder, variables
        self.name, self.loss, self._stderr_text = " ".join(command), "", ""
        self._tasks: list[asyncio.Task[None]] = []

    def write_last_words(self) -> str:
        return f"its last words: {words}" if (words := self._stderr_text.strip()[-_MAX_STDERR_CHARS:]) else ""

    def explain_refused_message(self) -> str:
        return ""

    @contextlib.asynccontextmanager
    async def open_streams(self) -> AsyncIterator[Any]:
        """Starts the server. Yields the stream of its messages and the stream for messages to it. Raises OSError."""
        process = await asyncio.create_subprocess_exec(
            *self._command, cwd=self._folder, env=dict(self._variables), limit=_MAX_MESSAGE_BYTES,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        sink, messages = anyio.create_memory_object_stream[Any](0)
        outbox, outgoing_messages = anyio.create_memory_object_stream[SessionMessage](0)
        coroutines = (self._read(process, sink), self._write(process, outgoing_messages), self._keep_stderr(process))
        self._tasks += map(asyncio.get_running_loop().create_task, coroutines)
        yield messages, outbox

    async def _read(self, process: asyncio.subprocess.Process, sink: Any) -> None:
        """Passes the server's messages on. It skips any other output."""
        stdout: Any = process.stdout
        async with sink:
            try:
                while line := await stdout.readline():
                    with contextlib.suppress(ValueError):
                        await sink.send(SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False)))
                self.loss = "the server has ended"
            except ValueError:
                self.loss = f"the server has sent a message of more than {_MAX_MESSAGE_BYTES} bytes"

    async def _write(self, process: asyncio.subprocess.Process, outgoing_messages: Any) -> None:
        stdin: Any = process.stdin
        async for message in outgoing_messages:
            message_json = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            # The reader notices a server that has ended.
            with contextlib.suppress(OSError):
                stdin.write(message_json.encode() + b"\n")
                await stdin.drain()

    async def _keep_stderr(self, process: asyncio.subprocess.Process) -> None:
        """Keeps the end of what the server writes to stderr."""
        stderr: Any = process.stderr
        while chunk := await stderr.read(65_536):
            self._stderr_text = (self._stderr_text + chunk.decode(errors="replace"))[-4 * _MAX_STDERR_CHARS :]


class Address:
    """The server at `url`. `name` stands for the address in messages, because the address may be a secret.

    Redirects to another host are not followed, so that `headers` reach no other.
    """

    loss = ""

    def __init__(self, name: str, url: str, headers: Mapping[str, str]) -> None:
        self.name, self._url, self._headers = name, url, headers
        self._status = 0

    def write_last_words(self) -> str:
        return self.explain_refused_message()

    def explain_refused_message(self) -> str:
        if self._status in _CREDENTIAL_STATUSES:
            return f"HTTP status {self._status}: it asks for credentials; name their variables in `headers`"
        return f"HTTP status {self._status}" if self._status else ""

    @contextlib.asynccontextmanager
    async def open_streams(self) -> AsyncIterator[Any]:
        """Opens a session. Yields the stream of the server's messages and the stream for messages to it."""
        timeout = httpx2.Timeout(_CONNECT_TIMEOUT_S, read=None)
        event_hooks = {"response": [self._note_status]}
        async with (
            httpx2.AsyncClient(headers=dict(self._headers), timeout=timeout, event_hooks=event_hooks) as client,
            streamable_http_client(self._url, http_client=client, max_sse_event_size=_MAX_MESSAGE_BYTES) as streams,
        ):
            yield streams

    async def _note_status(self, response: httpx2.Response) -> None:
        # A server without a stream of messages beside the calls refuses only that stream.
        if response.request.method == "POST":
            self._status = response.status_code if response.status_code >= 400 else 0


async def import_late_modules() -> None:
    """Imports what requests and calls import late, because a child may not be allowed to read the packages."""
    server = MCPServer("rehearsal")

    async def count() -> int:
        return 1

    server.add_tool(count)
    async with httpx2.AsyncClient() as http_client, Client(server, mode="legacy") as client:
        await client.call_tool("count", {})
        with contextlib.suppress(httpx2.HTTPError):
            await http_client.get(_DEAD_ADDRESS, timeout=1.0)


# The most characters of a server's instructions for its use.
_MAX_INSTRUCTION_CHARS = 4_000
# The SDK's message if the server has forgotten the session.
_FORGOTTEN = "Session terminated"
# Whatever matters in the SDK's log is also an answer.
logging.getLogger("mcp").setLevel(logging.CRITICAL + 1)


# What a call returned, as text, and whether the server says that it worked.
Reply = tuple[str, bool]


class Connection:
    """A session with a server, from `open` on. It ends with this process.

    `tools` is the documentation of its tools in OpenAI function format, `reads` the names of those that it
    declares to change nothing; `has_resources` whether it offers resources; `instructions` what it says of its use. The
    SDK's client answers every request for sampling, roots and elicitation with an error, and does not offer them.
    """

    def __init__(self, transport: Process | Address) -> None:
        self._transport = transport
        self._loop = asyncio.new_event_loop()
        self._client: Any = None
        self._session_task: asyncio.Task[None] | None = None
        self.tools: tuple[Mapping[str, Any], ...] = ()
        self.reads: tuple[str, ...] = ()
        self.has_resources, self.instructions = False, ""

    def open(self) -> None:
        """Starts the session, and asks what the server offers. Raises RuntimeError if that fails."""
        try:
            self._loop.run_until_complete(self._open_session())
        except Exception as error:
            reasons = (str(error) or type(error).__name__, self._transport.loss, self._transport.write_last_words())
            reason = "; ".join(filter(None, reasons))
            raise RuntimeError(f"the server {self._transport.name!r:.300} does not start: {reason}") from None

    def call(self, tool_name: str, arguments: Mapping[str, Any]) -> Reply:
        """The reply to a call, including one of the two tools for resources.

        Raises EOFError if the server has ended, or can no longer be understood.
        """
        if all(tool["function"]["name"] != tool_name for tool in self.tools):
            if tool_name == resources.LIST_TOOL:
                return self._await_reply(self._list_resources())
            if tool_name == resources.READ_TOOL:
                return self._await_reply(resources.read_resource(self._client, str(arguments.get("uri", ""))))
        return self._await_reply(self._call_tool(tool_name, arguments))

    def still_offers_tools(self) -> bool:
        """Whether the server still offers the tools that it offered at first."""
        try:
            tools = self._loop.run_until_complete(resources.pages(self._client.list_tools, "tools"))
        except (MCPError, RuntimeError, ValueError):
            return False
        return tuple(map(_to_document, tools)) == self.tools

    def _await_reply(self, coroutine: Coroutine[Any, Any, Reply | str]) -> Reply:
        if self._transport.loss:
            coroutine.close()
            raise EOFError(self._transport.loss)
        try:
            result = self._loop.run_until_complete(coroutine)
            return (result, True) if isinstance(result, str) else result
        except (MCPError, RuntimeError, ValueError) as error:
            is_closed = isinstance(error, MCPError) and (error.code == CONNECTION_CLOSED or str(error) == _FORGOTTEN)
            if self._transport.loss or is_closed:
                raise EOFError(self._transport.loss or f"the connection to the server is lost: {error}") from error
            return "; ".join(filter(None, (str(error), self._transport.explain_refused_message()))), False

    async def _call_tool(self, tool_name: str, arguments: Mapping[str, Any]) -> Reply:
        tool_result = await self._client.call_tool(tool_name, dict(arguments))
        texts = [_to_text(block) for block in tool_result.content]
        # A tool that returns nothing has {"result": null} if its results are structured.
        if not texts and tool_result.structured_content not in (None, {"result": None}):
            texts = [json.dumps(tool_result.structured_content, ensure_ascii=False)]
        return "\n".join(texts) or "ok", not tool_result.is_error

    async def _list_resources(self) -> str:
        return json.dumps(await resources.list_resources(self._client), ensure_ascii=False)

    async def _open_session(self) -> None:
        client_future: asyncio.Future[Any] = self._loop.create_future()
        self._session_task = self._loop.create_task(self._keep_session(client_future))
        self._client = client = await client_future
        tools = await resources.pages(client.list_tools, "tools")
        self.tools = tuple(map(_to_document, tools))
        self.reads = tuple(tool.name for tool in tools if tool.annotations and tool.annotations.read_only_hint)
        self.instructions = (client.instructions or "")[:_MAX_INSTRUCTION_CHARS]
        if client.server_capabilities.resources is not None:
            with contextlib.suppress(MCPError, ValueError):
                self.has_resources = any((await resources.list_resources(client)).values())

    async def _keep_session(self, client_future: asyncio.Future[Any]) -> None:
        """Keeps the session open. It must be left by the task that entered it."""
        try:
            # By the handshake that servers of every version of the protocol know.
            async with Client(self._transport.open_streams(), mode="legacy", cache=None) as client:
                client_future.set_result(client)
                await self._loop.create_future()
        except BaseException as error:
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            if not client_future.done():
                client_future.set_exception(error)
            else:
                self._transport.loss = self._transport.loss or f"the connection to the server is lost: {error}"


def _to_document(tool: Any) -> Mapping[str, Any]:
    """The tool in OpenAI function format."""
    return to_document(tool.name, tool.description or "", tool.input_schema)


def _to_text(block: Any) -> str:
    """A part of a result as text; its kind, if it is not text."""
    if block.type == "text":
        return block.text
    if block.type == "resource":
        return resources.to_text(block.resource)
    if block.type == "resource_link":
        return f"[resource {block.uri}]"
    return f"[{block.type}]"
