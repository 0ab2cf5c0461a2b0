"""An OpenAI-compatible server on loopback that answers by a script, and misbehaves on command as no real one can be
brought to."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from patience import patience


@dataclasses.dataclass(frozen=True)
class Answer:
    """What the server does with one request: `text` of a completion, or `raw` bytes instead of one, after `stall`
    seconds. `drip` seconds pass between single bytes; `hang_up` closes the connection unanswered."""

    text: str | None = ""
    finish: str = "stop"
    status: int = 200
    usage: Any = dataclasses.field(default_factory=lambda: {"prompt_tokens": 100, "completion_tokens": 10})
    raw: bytes | None = None
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    stall: float = 0.0
    drip: float = 0.0
    hang_up: bool = False
    tool_calls: Any = None

    def body(self) -> bytes:
        if self.raw is not None:
            return self.raw
        if self.status != 200:
            return json.dumps({"error": {"message": self.text}}).encode()
        message = {"role": "assistant", "content": self.text, "tool_calls": self.tool_calls}
        choice = {"index": 0, "message": message, "finish_reason": self.finish}
        return json.dumps({"id": "x", "object": "chat.completion", "choices": [choice], "usage": self.usage}).encode()


Script = Callable[[dict[str, Any], "ChatServer"], Answer]


class ChatServer:
    """Keeps the bodies, headers and paths of requests, and how many it was answering at once."""

    def __init__(self, script: Script):
        self.script = script
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.answered: list[dict[str, Any]] = []
        self.at_once = self.max_at_once = 0
        self.guard = threading.Lock()
        self.over = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *_: Any) -> None: ...

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with server.guard:
                    server.bodies.append(body)
                    server.headers.append({header.lower(): value for header, value in self.headers.items()})
                    server.paths.append(self.path)
                    server.at_once += 1
                    server.max_at_once = max(server.max_at_once, server.at_once)
                try:
                    self.answer(body, server.script(body, server))
                finally:
                    with server.guard:
                        server.at_once -= 1

            def answer(self, body: dict[str, Any], answer: Answer) -> None:
                server.over.wait(answer.stall)
                if answer.hang_up:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                content = answer.body()
                self.send_response(answer.status)
                for header, value in {"Content-Type": "application/json", **answer.headers}.items():
                    self.send_header(header, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                with server.guard:
                    server.answered.append(body)
                for chunk in content if answer.drip else [content]:
                    self.wfile.write(bytes([chunk]) if answer.drip else chunk)
                    self.wfile.flush()
                    if answer.drip and server.over.wait(answer.drip):
                        return

        class Server(ThreadingHTTPServer):
            request_queue_size = 512
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """A client that hangs up is what some tests are about."""

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def requests(self) -> int:
        return len(self.bodies)

    def close(self) -> None:
        self.over.set()
        self.server.shutdown()
        self.server.server_close()


@contextlib.contextmanager
def serving(script: Script) -> Iterator[ChatServer]:
    server = ChatServer(script)
    try:
        yield server
    finally:
        server.close()


def in_turn(*answers: Answer) -> Script:
    """The answers one after another, the last one for ever."""
    remaining = list(answers)
    guard = threading.Lock()

    def script(body: dict[str, Any], server: ChatServer) -> Answer:
        with guard:
            return remaining.pop(0) if len(remaining) > 1 else remaining[0]

    return script


def says(value: Any, **about: Any) -> Answer:
    """A completion whose text is this JSON."""
    return Answer(json.dumps(value), **about)


def asked(body: dict[str, Any]) -> str:
    """The system message of a request."""
    return body["messages"][0]["content"]


def last(body: dict[str, Any]) -> str:
    return body["messages"][-1]["content"]


def soon(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + patience(timeout_s)
    while not condition():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.005)


class Endless:
    """Answers one request with this status and a body that never ends, `piece` by piece."""

    def __init__(self, status: int, piece: bytes, pause: float) -> None:
        self.head = b"HTTP/1.1 %d X\r\nLocation: /elsewhere\r\n\r\n" % status
        self.piece, self.pause, self.sent = piece, pause, 0
        self.left, self.over = threading.Event(), threading.Event()

    def __call__(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError), listener.accept()[0] as peer:
            peer.recv(2**16)
            peer.sendall(self.head)
            while not self.over.wait(self.pause):
                peer.sendall(self.piece)
                self.sent += len(self.piece)
        self.left.set()

    @contextlib.contextmanager
    def serving(self) -> Iterator[str]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=self, args=(listener,), daemon=True).start()
            try:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
            finally:
                self.over.set()
