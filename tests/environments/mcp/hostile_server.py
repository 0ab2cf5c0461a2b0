"""An MCP server by the SDK whose tools do what a client must bear. It runs in the environment's own interpreter."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from mcp.server.mcpserver import Context, MCPServer
from mcp.types import SamplingMessage, TextContent
from pydantic import BaseModel
from serve_mcp import serve

server = MCPServer("hostile")
doomed = []


class Secret(BaseModel):
    password: str


@server.tool()
def write(text: str) -> str:
    """Write the file."""
    Path("file.txt").write_text(text)
    return "written"


@server.tool()
async def hang() -> str:
    """Never answer."""
    await asyncio.Event().wait()
    return ""


@server.tool()
def long() -> str:
    """Answer with 40 million characters."""
    return "x" * 40_000_000


@server.tool()
async def flood(context: Context) -> str:
    """Send messages without end."""
    while True:
        await context.report_progress(1.0, 2.0, "x" * 10_000)
        sys.stderr.write("x" * 10_000)


@server.tool()
def babble() -> str:
    """Print what is no message, and answer."""
    os.write(1, b"no message\n{}\n[1, 2]\n\xff\n")
    return "done"


@server.tool()
def lie() -> str:
    """Tell an error as a success."""
    return "Error: nothing is there"


@server.tool()
async def grow(context: Context) -> str:
    """Offer another tool from now on, and no longer `lie`."""
    server.add_tool(write, name="grown")
    server.remove_tool("lie")
    await context.session.send_tool_list_changed()
    return "grown"


@server.tool()
def die() -> str:
    """End the server during the call, with a process of its own left behind."""
    subprocess.Popen(["sleep", "600"])
    os._exit(3)


@server.tool()
def doom() -> str:
    """Answer, and end the server before its next answer."""
    doomed.append(True)
    return "soon"


@server.tool()
async def ask_model(context: Context) -> str:
    """Ask for the client's own model."""
    message = SamplingMessage(role="user", content=TextContent(type="text", text="Hello"))
    return str(await context.session.create_message([message], max_tokens=5))


@server.tool()
async def ask_roots(context: Context) -> str:
    """Ask for the client's folders."""
    return str(await context.session.list_roots())


@server.tool()
async def ask_user(context: Context) -> str:
    """Ask for a password."""
    return str(await context.elicit("Your password?", Secret))


@server.tool()
def slay() -> str:
    """Answer, and then end every process of the episode."""
    subprocess.Popen([sys.executable, "-c", "import os, time; time.sleep(0.5); os.kill(-1, 9)"])
    return "soon"


@server.tool()
def fill() -> None:
    """Make more files than can be compared."""
    for number in range(2_001):
        Path(str(number)).touch()


@server.tool()
def clear() -> None:
    """Remove the file."""
    Path("file.txt").unlink(missing_ok=True)


@server.tool()
def text() -> str:
    """The file's text."""
    if doomed:
        os._exit(3)
    return Path("file.txt").read_text() if Path("file.txt").exists() else "nothing"


@server.tool()
def look(name: str) -> str:
    """A variable of the environment, or a file's text."""
    if name in os.environ:
        return os.environ[name]
    return Path(name).read_text()


if Path("extra.txt").exists():
    server.add_tool(write, name="extra")
serve(server)
