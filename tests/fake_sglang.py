"""Stand-ins for SGLang servers and a router: small HTTP servers that answer as they do, and misbehave on command."""

import contextlib
import dataclasses
import json
import socket
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
from compiling import drawn
from patience import patience

from cojax.policy.config import ModelConfig
from cojax.policy.parameters import to_hf
from cojax.rollout.engine import Completion, Sampling, Weights
from cojax.rollout.sglang.engine import SGLangEngine
from cojax.rollout.sglang.server import LaunchSettings
from cojax.settings.tree import SGLangSettings

CONFIG = ModelConfig(112, 32, 48, 1, 2, 1, 16, max_position_embeddings=512)
PARAMS = drawn(CONFIG, 0)
LIMITS = SGLangSettings(startup_deadline=5.0, sync_deadline=2.0, probe_every=0.1)


def with_settings(limits: SGLangSettings = LIMITS, **given: Any) -> dict[str, Any]:
    """Keywords of an engine: what is given, with all that is a setting of the section `sglang` among its settings."""
    own_settings = ({field.name for field in dataclasses.fields(SGLangSettings)} - {"folder", "urls"}) & given.keys()
    settings = dataclasses.replace(limits, **{name: given[name] for name in own_settings})
    return {"settings": settings, **{name: value for name, value in given.items() if name not in own_settings}}


def weights(version: int) -> Weights:
    return Weights(version, lambda: to_hf(CONFIG, PARAMS))


class FakeServer:
    """Answers SGLang's calls, records them, and samples token 7 throughout.

    `behave(path, body, answer)` may change the answer, sleep, or return another status than 200; 0 hangs up unanswered.
    """

    def __init__(self, port: int = 0) -> None:
        self.version, self.calls, self.bodies = "boot", [], []
        self.behave: Callable[[str, dict, dict], int] = lambda path, body, answer: 200
        self.paused = False
        self.released: set[str] = set()
        self.about = {"enable_memory_saver": True, "device": "cuda", "internal_states": [{"startup_time": id(self)}]}
        self.connections: list[socket.socket] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # else a client waits 40 ms for what follows the headers

            def log_message(self, *_: Any) -> None: ...

            def setup(self) -> None:
                super().setup()
                server.connections.append(self.connection)

            def do_GET(self) -> None:
                self.answer({})

            def do_POST(self) -> None:
                self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def answer(self, body: dict) -> None:
                path = self.path.strip("/")
                server.calls.append(path)
                server.bodies.append(body)
                answer = server.reply(path, body)
                status = server.behave(path, body, answer)
                if path == "update_weights_from_disk" and status == 200:
                    server.version = body["weight_version"]
                if status == 0:
                    self.close_connection = True
                    return
                content = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        class Server(ThreadingHTTPServer):
            request_queue_size = 512

            def handle_error(self, *_: object) -> None:
                """Says nothing: in some tests the client hangs up on purpose."""

        self.server = Server(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def reply(self, path: str, body: dict) -> dict:
        if path == "model_info":
            return {"weight_version": self.version}
        if path == "server_info":
            return self.about
        if path == "release_memory_occupation":
            assert self.paused, "it is not idle"
            self.released |= set(body["tags"])
        if path == "resume_memory_occupation":
            if not set(body["tags"]) <= self.released:  # as the real one
                threading.Thread(target=self.close).start()
                raise ConnectionError("dies")
            self.released -= set(body["tags"])
        if path in ("generate", "health"):
            assert not self.released, "there is no memory for it"
        if path == "update_weights_from_disk":
            assert "weights" not in self.released, "there is no room for it"
        if path == "pause_generation":
            self.paused = True
        if path == "continue_generation":
            self.paused = False
        if path == "generate":
            count = min(3, body["sampling_params"]["max_new_tokens"])
            spans = [{"version": self.version, "start": 0, "end": count}]
            about = {
                "finish_reason": {"type": "length"},
                "output_token_logprobs": [[-1.5, 7, None]] * count,
                "weight_versions": spans,
            }
            return {"output_ids": [7] * count, "meta_info": about}
        return {}

    def count(self, path: str) -> int:
        return self.calls.count(path)

    def close(self) -> None:
        """Ends as a killed server does: it listens no more, and all connections break."""
        self.server.shutdown()
        self.server.server_close()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class Router:
    """Forwards completions to fake servers, those of one key to one of them; answers 404 on any other path."""

    def __init__(self, servers: list[FakeServer]) -> None:
        self.keys: list[str] = []
        # A connection for each request, as a server may have come or gone.
        self.client = httpx.Client(verify=False, timeout=30, limits=httpx.Limits(max_keepalive_connections=0))
        router = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *_: Any) -> None: ...

            def do_GET(self) -> None:
                content = json.dumps({"workers": [{"id": one.url, "url": one.url} for one in servers]}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                key = self.headers["X-SMG-Routing-Key"]
                router.keys.append(key)
                server = servers[int(key, 16) % len(servers)]
                if self.path != "/generate":
                    status, content = 404, b"{}"
                else:
                    try:
                        reply = router.client.post(f"{server.url}/generate", content=body)
                        status, content = reply.status_code, reply.content
                    except httpx.HTTPError:
                        status, content = 503, b"{}"
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.client.close()


def ask(engine: SGLangEngine, session: str = "a", **settings: Any) -> Completion:
    return engine.generate([1, 2, 3], Sampling(**settings), session=session, seed=(1, 2))


def hang_on(over: threading.Event, *paths: str) -> Callable[[str, dict, dict], int]:
    """A behaviour that hangs on these paths until the event is set, at most three seconds."""

    def behave(path: str, body: dict, answer: dict) -> int:
        if path in paths:
            over.wait(patience(3))
        return 200

    return behave


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + patience(10)
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.01)


# A program that takes the command line of SGLang and serves what its arguments say. Started while there is a file
# `hold`, it serves once there is one `release`. Starts and updates are logged.
SERVER = """#!{python}
import json, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

given = dict(zip(sys.argv, sys.argv[1:]))
# Read before the start is logged, upon which the test may change it.
held = Path("{hold}").exists()
with open("{starts}", "a") as log:
    log.write(given["--port"] + " " + given["--weight-version"] + " " + given["--model-path"] + "\\n")
while held and not Path("{release}").exists():
    time.sleep(0.02)
if not (Path(given["--model-path"]) / "config.json").exists():
    sys.exit("no model there")
label = given["--weight-version"]

class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_): ...
    def do_GET(self):
        self.answer()
    def do_POST(self):
        global label
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/update_weights_from_disk":
            with open("{updates}", "a") as log:
                log.write(given["--port"] + " " + body["weight_version"] + "\\n")
            if not (Path(body["model_path"]) / "config.json").exists():
                return self.answer(400)
        label = body.get("weight_version", label)
        self.answer()
    def answer(self, status=200):
        content = json.dumps({{"weight_version": label}}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

ThreadingHTTPServer((given["--host"], int(given["--port"])), Handler).serve_forever()
"""


class FakeLaunch:
    """LaunchSettings settings for such programs, and the record of their starts and updates."""

    def __init__(self, folder: Path) -> None:
        self.starts, self.updates, self.hold, self.release = paths = [
            folder / name for name in ("starts", "updates", "hold", "release")
        ]
        program = folder / "python"
        program.write_text(SERVER.format(python=sys.executable, **{path.name: path for path in paths}))
        program.chmod(0o755)
        self.launch = LaunchSettings(str(program), folder / "logs", 64)

    def started(self) -> list[list[str]]:
        """Port, label and folder of each start."""
        return [line.split() for line in self.starts.read_text().splitlines()] if self.starts.exists() else []
