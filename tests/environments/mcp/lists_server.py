"""The to-do list of examples/todo as an MCP server that keeps it in memory: for all sessions, or for `each` its own.

With `remembers` it tells all titles that were ever added, which no reset removes.
"""

import collections
import json
import sys
from typing import Literal

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from serve_mcp import serve

Day = Literal["monday", "tuesday", "wednesday", "thursday", "friday"]
server = MCPServer("lists", instructions="Keep the list in order.")
lists = collections.defaultdict(dict)
added = {}


def items(context):
    own = context.request_context.request.headers.get("mcp-session-id") if "each" in sys.argv else ""
    return lists[own]


def item(context, title):
    if title not in items(context):
        raise ToolError(f"{title} is not on the list")
    return items(context)[title]


@server.tool()
def add(title: str, day: Day, context: Context) -> None:
    """Add an item to the list."""
    if title in items(context):
        raise ToolError(f"{title} is on the list already")
    items(context)[title] = {"day": day, "done": False}
    added[title] = None


@server.tool()
def move(title: str, day: Day, context: Context) -> None:
    """Move an item to another day."""
    item(context, title)["day"] = day


@server.tool()
def tick(title: str, context: Context) -> None:
    """Mark an item as done."""
    item(context, title)["done"] = True


@server.tool()
def show(title: str, context: Context) -> str:
    """Show the day of an item, and whether it is done."""
    return json.dumps(item(context, title))


@server.tool()
def everything(context: Context) -> str:
    """Show the whole list."""
    return json.dumps({"items": items(context)})


@server.tool()
def clear(context: Context) -> None:
    """Remove all items."""
    items(context).clear()


@server.tool()
def clear_in_part(context: Context) -> None:
    """Remove all items but one."""
    while len(items(context)) > 1:
        items(context).popitem()


if "remembers" in sys.argv:

    @server.tool()
    def recent() -> str:
        """Show all titles that were ever added."""
        return json.dumps(list(added))


@server.resource("list://titles")
def titles() -> str:
    """The titles on the list."""
    return json.dumps(sorted(lists[""]))


serve(server)
