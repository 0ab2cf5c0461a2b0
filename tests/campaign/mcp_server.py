"""An MCP server of the campaign, by the standard library alone: a list of words, and tools that break what shows it.

python mcp_server.py [reused]    a reused server has no tool that breaks it
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WORDS: list[str] = []
HIDDEN: list[str] = []
BROKEN: list[str] = []
# Where a word beside the state is kept, besides in this process.
PLACES = [Path(__file__).parent, Path.home(), Path(tempfile.gettempdir()), Path("/tmp"), Path("/dev/shm")]
TEXT = {"text": {"type": "string"}}


def add(text: str) -> str:
    WORDS.append(text)
    return "added"


def everything() -> str:
    match BROKEN[-1:]:
        case ["end"]:
            os._exit(0)
        case ["stall"]:
            time.sleep(3_600)
        case ["long"]:
            return "x" * 20_000_000
        case ["random"]:
            return str(time.monotonic_ns())
        case ["deep"]:
            return "[" * 100_000 + "]" * 100_000
        case ["refuse"]:
            raise ValueError("no")
        case ["endless"]:
            while True:
                os.write(1, b"x" * 65_536)
    return json.dumps({"words": WORDS})


def clear() -> str:
    WORDS.clear()
    return "cleared"


def hide(text: str) -> str:
    """Keeps a word beside the state, wherever that goes."""
    HIDDEN.append(text)
    for place in PLACES:
        try:
            (place / f"world-{text}").write_text(text)
        except OSError:
            continue
    return "hidden"


def recall() -> str:
    found = [path.name for place in PLACES if place.is_dir() for path in place.glob("world-*")]
    return json.dumps(sorted({*HIDDEN, *found}))


def spoil(way: str) -> str:
    """Answers, and breaks what comes afterwards. `now` ends the server during the call, `hang` never answers."""
    if way == "now":
        os._exit(3)
    while way == "hang":
        time.sleep(3_600)
    BROKEN.append(way)
    return "spoiled"


TOOLS: dict[str, tuple[Callable[..., str], dict[str, Any]]] = {
    "add": (add, TEXT), "everything": (everything, {}), "clear": (clear, {}), "hide": (hide, TEXT),
    "recall": (recall, {}), "spoil": (spoil, {"way": {"type": "string"}}),
}  # fmt: skip
if sys.argv[1:] == ["reused"]:
    del TOOLS["spoil"]


def answer(method: str, given: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        about = {"name": "campaign", "version": "1"}
        return {"protocolVersion": given["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": about}
    if method == "tools/list":
        return {
            "tools": [
                {"name": name, "inputSchema": {"type": "object", "properties": fields, "required": list(fields)}}
                for name, (_, fields) in TOOLS.items()
            ]
        }
    if method != "tools/call":
        return {}
    try:
        text, wrong = TOOLS[given["name"]][0](**given.get("arguments", {})), False
    except ValueError as error:
        text, wrong = str(error), True
    return {"content": [{"type": "text", "text": text}], "isError": wrong}


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" in asked:
            found = {"jsonrpc": "2.0", "id": asked["id"], "result": answer(asked["method"], asked.get("params", {}))}
            print(json.dumps(found), flush=True)
            if BROKEN[-1:] == ["after"]:
                os._exit(0)


if __name__ == "__main__":
    main()
