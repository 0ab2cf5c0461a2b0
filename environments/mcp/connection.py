"""In a worker: a session with one MCP server by the official SDK, as its caller needs it: calls that block."""

import asyncio
import contextlib
import json
import logging
from collections.abc import Coroutine, Mapping
from typing import Any

from mcp import Client, MCPError
from mcp_types import CONNECTION_CLOSED

from . import resources
from .transports import Address, Process

# The most characters of what a server says of its use.
_INSTRUCTIONS = 4_000
# The SDK's message where the server has forgotten the session.
_FORGOTTEN = "Session terminated"
# Of what the SDK reports, all that counts is an answer too.
logging.getLogger("mcp").setLevel(logging.CRITICAL + 1)


# What a call returned, as text, and whether the server says that it worked.
Reply = tuple[str, bool]


class Connection:
    """A session with a server, from `open` on. It ends with this process.

    `tools` is the documentation of its tools in OpenAI function format, `reads` the names of those that it declares to
    change nothing; `has_resources` whether it offers resources; `instructions` what it says of its use. The SDK's
    client answers every request for sampling, roots and elicitation with an error, and does not offer them.
    """

    def __init__(self, transport: Process | Address) -> None:
        self._transport = transport
        self._loop = asyncio.new_event_loop()
        self._client: Any = None
        self._serving: asyncio.Task[None] | None = None
        self.tools: tuple[Mapping[str, Any], ...] = ()
        self.reads: tuple[str, ...] = ()
        self.has_resources, self.instructions = False, ""

    def open(self) -> None:
        """Starts the session, and asks what the server offers. Raises RuntimeError where that fails."""
        try:
            self._loop.run_until_complete(self._open())
        except Exception as error:
            why = (str(error) or type(error).__name__, self._transport.ended, self._transport.last_words())
            said = "; ".join(filter(None, why))
            raise RuntimeError(f"the server {self._transport.name!r:.300} does not start: {said}") from None

    def call(self, name: str, arguments: Mapping[str, Any]) -> Reply:
        """The reply to a call, also of the two tools for resources.

        Raises EOFError where the server has ended, or can no longer be understood.
        """
        if all(tool["function"]["name"] != name for tool in self.tools):
            if name == resources.LIST:
                return self._reply(self._resources())
            if name == resources.READ:
                return self._reply(resources.read(self._client, str(arguments.get("uri", ""))))
        return self._reply(self._result(name, arguments))

    def offers_the_same(self) -> bool:
        """Whether the server still offers the tools that it offered at first."""
        try:
            tools = self._loop.run_until_complete(resources.pages(self._client.list_tools, "tools"))
        except (MCPError, RuntimeError, ValueError):
            return False
        return tuple(map(_document, tools)) == self.tools

    def _reply(self, work: Coroutine[Any, Any, Reply | str]) -> Reply:
        if self._transport.ended:
            work.close()
            raise EOFError(self._transport.ended)
        try:
            found = self._loop.run_until_complete(work)
            return (found, True) if isinstance(found, str) else found
        except (MCPError, RuntimeError, ValueError) as error:
            closed = isinstance(error, MCPError) and (error.code == CONNECTION_CLOSED or str(error) == _FORGOTTEN)
            if self._transport.ended or closed:
                raise EOFError(self._transport.ended or f"the connection to the server is lost: {error}") from error
            return "; ".join(filter(None, (str(error), self._transport.refusal()))), False

    async def _result(self, name: str, arguments: Mapping[str, Any]) -> Reply:
        result = await self._client.call_tool(name, dict(arguments))
        parts = [_text(block) for block in result.content]
        # A tool that returns nothing has {"result": null} where results are structured.
        if not parts and result.structured_content not in (None, {"result": None}):
            parts = [json.dumps(result.structured_content, ensure_ascii=False)]
        return "\n".join(parts) or "ok", not result.is_error

    async def _resources(self) -> str:
        return json.dumps(await resources.listed(self._client), ensure_ascii=False)

    async def _open(self) -> None:
        opened: asyncio.Future[Any] = self._loop.create_future()
        self._serving = self._loop.create_task(self._serve(opened))
        self._client = client = await opened
        found = await resources.pages(client.list_tools, "tools")
        self.tools = tuple(map(_document, found))
        self.reads = tuple(tool.name for tool in found if tool.annotations and tool.annotations.read_only_hint)
        self.instructions = (client.instructions or "")[:_INSTRUCTIONS]
        if client.server_capabilities.resources is not None:
            with contextlib.suppress(MCPError, ValueError):
                self.has_resources = any((await resources.listed(client)).values())

    async def _serve(self, opened: asyncio.Future[Any]) -> None:
        """Keeps the session open. It must be left by the task that entered it."""
        try:
            # By the handshake that servers of every version of the protocol know.
            async with Client(self._transport.streams(), mode="legacy", cache=None) as client:
                opened.set_result(client)
                await self._loop.create_future()
        except BaseException as error:
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            if not opened.done():
                opened.set_exception(error)
            else:
                self._transport.ended = self._transport.ended or f"the connection to the server is lost: {error}"


def _document(tool: Any) -> Mapping[str, Any]:
    """The tool in OpenAI function format."""
    function = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
    return {"type": "function", "function": function}


def _text(block: Any) -> str:
    """A part of a result as text; of what is no text, its kind."""
    if block.type == "text":
        return block.text
    if block.type == "resource":
        return resources.text_of(block.resource)
    if block.type == "resource_link":
        return f"[resource {block.uri}]"
    return f"[{block.type}]"
