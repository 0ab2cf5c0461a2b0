"""An OpenAI-compatible chat endpoint on loopback that answers by a script, which may misbehave."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# (request, its number from 0) → (status, headers, body: an object, or bytes as they are)
Script = Callable[[dict[str, Any], int], tuple[int, Mapping[str, str], Any]]


class ScriptedEndpoint:
    """Its address, every request that it was sent, and the Authorization of each."""

    def __init__(self, script: Script) -> None:
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []
        lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # else a client waits 40 ms for what follows the headers

            def do_POST(handler) -> None:
                body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
                with lock:
                    request_index = len(self.requests)
                    self.requests.append({**body, "path": handler.path})
                    self.keys.append(handler.headers["Authorization"])
                status, headers, answer = script(body, request_index)
                content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                with contextlib.suppress(ConnectionError):
                    handler.send_response(status)
                    for header, value in {"Content-Type": "application/json", **headers}.items():
                        handler.send_header(header, value)
                    handler.send_header("Content-Length", str(len(content)))
                    handler.end_headers()
                    handler.wfile.write(content)

            def log_message(handler, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"


@contextlib.contextmanager
def serving(script: Script) -> Iterator[ScriptedEndpoint]:
    endpoint = ScriptedEndpoint(script)
    threading.Thread(target=endpoint.server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield endpoint
    finally:
        endpoint.server.shutdown()
        endpoint.server.server_close()


def said(text: str | None = None, *calls: tuple[str, Any]) -> tuple[int, dict[str, str], Any]:
    """A completion that says a text and asks for calls: (name, arguments as an object or as JSON text)."""
    tool_calls = [
        {
            "id": f"call_{call_index}",
            "type": "function",
            "function": {
                "name": tool_name,
                "arguments": call_arguments if isinstance(call_arguments, str) else json.dumps(call_arguments),
            },
        }
        for call_index, (tool_name, call_arguments) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": text, **({"tool_calls": tool_calls} if tool_calls else {})}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if tool_calls else "stop"}
    return 200, {}, {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}


def refused(status: int, message: str = "no", **headers: str) -> tuple[int, dict[str, str], Any]:
    return (
        status,
        {header.replace("_", "-"): value for header, value in headers.items()},
        {"error": {"message": message}},
    )


def solver(tasks: Any) -> Script:
    """Makes the calls of a task's solution, one a turn; the task is told by the query in the first user message."""
    solutions = {task.query: task.solution for task in tasks}

    def script(request: dict[str, Any], request_index: int) -> tuple[int, Mapping[str, str], Any]:
        query = next(message["content"] for message in request["messages"] if message["role"] == "user")
        turn_index = sum(message["role"] == "assistant" for message in request["messages"])
        return said(None, *((call.name, dict(call.arguments)) for call in solutions[query][turn_index].calls))

    return script
