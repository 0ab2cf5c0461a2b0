"""A chat endpoint on loopback that answers by a script, which can misbehave as no real endpoint can be made to."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

# (path, body, number of earlier requests, connection) → the bytes of the whole answer. None closes the connection: the
# script has written to it whatever it wanted. `EndpointServer.over` is set when the server closes.
Script = Callable[[str, Any, int, socket.socket], bytes | None]
_LONGEST = 64 * 2**20


class EndpointServer:
    """Answers each connection on a thread of its own, and keeps the headers of every request."""

    def __init__(self, script: Script) -> None:
        self.script, self.over, self.lock = script, threading.Event(), threading.Lock()
        self.heads: list[str] = []
        self.open: set[socket.socket] = set()
        self.listening = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self.listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.threads = [threading.Thread(target=self._accept, daemon=True)]
        self.threads[0].start()

    def close(self) -> None:
        self.over.set()
        for one in (self.listening, *list(self.open)):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self.listening.close()
        for thread in list(self.threads):
            thread.join(5.0)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while not self.over.is_set():
                connection, _ = self.listening.accept()
                with self.lock:
                    self.open.add(connection)
                    self.threads.append(threading.Thread(target=self._serve, args=(connection,), daemon=True))
                self.threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), connection, connection.makefile("rb") as stream:
            while head := _head(stream):
                path = head.split()[1]
                length = next((int(line.split(":")[1]) for line in head.lower().splitlines() if
                               line.startswith("content-length:")), 0)  # fmt: skip
                body = json.loads(stream.read(min(length, _LONGEST)) or b"null")
                with self.lock:
                    before = len(self.heads)
                    self.heads.append(head)
                answer = self.script(path, body, before, connection)
                if answer is None:
                    break
                connection.sendall(answer)
        with self.lock:
            self.open.discard(connection)


def _head(stream: Any) -> str:
    lines = []
    while (line := stream.readline(65_536)) not in (b"", b"\r\n"):
        lines.append(line.decode("latin-1").rstrip())
    return "\n".join(lines)


def answered(content: bytes | Any, status: int = 200, **headers: str) -> bytes:
    """An HTTP answer. Bytes are sent as they are, anything else as JSON."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    named = {"Content-Type": "application/json", "Content-Length": str(len(body))}
    named |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    return f"HTTP/1.1 {status} x\r\n{lines}\r\n".encode("latin-1") + body


def completion(text: Any, finish: str = "stop", **message: Any) -> dict[str, Any]:
    """A chat completion with this text."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text, **message}, "finish_reason": finish}
    usage = {"prompt_tokens": 100, "completion_tokens": 10}
    return {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}


@contextlib.contextmanager
def serving(script: Script) -> Iterator[EndpointServer]:
    server = EndpointServer(script)
    try:
        yield server
    finally:
        server.close()
