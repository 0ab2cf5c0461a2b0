"""Serves the report of a run in progress, on this machine alone; it writes nothing to the run directory.

A page asks for news and waits. Until a file has changed, the server only looks at sizes and times, once a second.
"""

import contextlib
import http.server
import math
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cojax.report.episodes import EpisodeIndex, make_page_form
from cojax.report.lineage import find_task_id
from cojax.report.page import build_contents, render_page
from cojax.report.pieces import PIECES_FOLDER, Pieces, name_steps_piece, piece, strict_json
from cojax.report.run import Json, read_run
from cojax.storage.files import StorageError

HOST = "127.0.0.1"
POLL_S = 1.0  # seconds between two looks
MAX_WAIT_S = 25.0  # seconds that a page's request may wait for news
MAX_CONNECTIONS = 32  # connections at a time, each with its thread
READ_TIMEOUT_S = 10.0  # seconds for a request to arrive, and for an answer to be taken
REST_FACTOR = 10  # the pause before the next drawing, in times that the last one took
_WATCHED_FILES = (
    "config.json", "metrics.jsonl", "tasks.jsonl", "drafts.jsonl", "summary.json", "zero_shot.json", "final.json",
    "episodes",
)  # fmt: skip
STAMP = "live"


class LiveReport:
    """The current contents of a run's page. One thread at a time draws them; the others wait for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._episode_index, self._state_by_file = EpisodeIndex(), dict[str, tuple[int, int] | None]()
        self._last_file_states: list[tuple[int, int] | None] = []
        self._page: Json = {}
        self._version = 0
        self._pieces = Pieces(STAMP)
        self._next_draw_time = 0.0  # when it may be drawn again, by the monotonic clock

    def read_data(self) -> Json:
        """Returns what the page shows. If the run has changed, it is drawn again, within REST_FACTOR.

        Raises FileNotFoundError for a folder that is not a run, and StorageError for a damaged one.
        """
        with self._lock:
            file_states = self._stat_watched_files()
            if file_states != self._last_file_states and (not self._page or time.monotonic() >= self._next_draw_time):
                start_time = time.monotonic()
                self._draw_page()
                self._last_file_states = file_states
                self._next_draw_time = time.monotonic() + max(POLL_S, REST_FACTOR * (time.monotonic() - start_time))
            return self._page

    def wait_for_newer(self, version: int) -> Json | None:
        """Waits for a version other than `version` and returns its data, or None after MAX_WAIT_S."""
        end_time = time.monotonic() + MAX_WAIT_S
        while (page_data := self.read_data())["live"] == version:
            if time.monotonic() >= end_time:
                return None
            time.sleep(POLL_S)
        return page_data

    def read_piece(self, name: str) -> str | None:
        """The piece of that name; None if there is none."""
        with self._lock:
            if name in self._pieces.scripts:
                return self._pieces.scripts[name]
            step_by_piece = {name_steps_piece(step): step for step in self._episode_index.steps}
        if name not in step_by_piece:
            return None
        run = read_run(self.folder)
        show, step = make_page_form(run), step_by_piece[name]
        return piece(STAMP, name, [show(episode, find_task_id(episode), step) for episode in run.episodes.read(step)])

    def _draw_page(self) -> None:
        run = read_run(self.folder)
        state_by_file = {path.name: _stat_file(path) for path in map(run.episodes.path, run.episodes.list_steps())}
        # A run that was resumed plays its last steps again.
        if any(state_by_file.get(file_name) != state for file_name, state in self._state_by_file.items()):
            self._episode_index = EpisodeIndex()
        self._state_by_file = state_by_file
        pieces = Pieces(STAMP)
        page_data = build_contents(run, pieces, self._episode_index)
        self._version += 1
        self._pieces = pieces
        self._page = {**page_data, "pieces": pieces.describe(), "live": self._version}

    def _stat_watched_files(self) -> list[tuple[int, int] | None]:
        """Size and time of the files that a step changes."""
        return [_stat_file(self.folder / name) for name in _WATCHED_FILES]


def _stat_file(path: Path) -> tuple[int, int] | None:
    """Size and time of a file; None if it does not exist."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns


def serve(folder: str | Path, port: int = 0, on_ready: Callable[[str], None] = lambda address: None) -> None:
    """Serves until it is interrupted. `on_ready` is called with the address once the page can be opened.

    Raises FileNotFoundError when `folder` is not a run directory, StorageError for a damaged one, and OSError for a
    port that is taken.
    """
    report = LiveReport(Path(folder))
    report.read_data()
    try:
        server = ReportServer(report, port)
    except OSError as error:
        raise OSError(f"port {port} cannot be served ({error}); choose another --port") from error
    with server:
        on_ready(f"http://{HOST}:{server.server_port}/")
        server.serve_forever()


class ReportServer(http.server.ThreadingHTTPServer):
    """The server of a live report, on this machine's own address alone. Port 0 is a free one.

    It has at most MAX_CONNECTIONS at a time. One that owes a request is cut off after READ_TIMEOUT_S, or to make
    room for a new one.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128  # connections that wait for this process; the system delays further ones by seconds

    def __init__(self, report: LiveReport, port: int = 0) -> None:
        super().__init__((HOST, port), _Handler)
        self.report, self._lock = report, threading.Lock()
        # Connection → the time since which it owes a request; infinity while it gets its answer.
        self._idle_since: dict[Any, float] = {}

    def set_idle_since(self, connection: socket.socket, idle_since: float) -> None:
        """Notes the time since which a connection owes a request, unless it was cut off."""
        with self._lock:
            if connection in self._idle_since:
                self._idle_since[connection] = idle_since

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(self._idle_since) >= MAX_CONNECTIONS:
            self._cut_off_connections(time.monotonic(), max_connections=1)
        if len(self._idle_since) >= MAX_CONNECTIONS:  # all are answered
            self.shutdown_request(request)
            return
        with self._lock:
            self._idle_since[request] = time.monotonic()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """The server calls it after each connection, and twice a second."""
        self._cut_off_connections(time.monotonic() - READ_TIMEOUT_S)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._idle_since.pop(request, None)
        super().shutdown_request(request)

    def _cut_off_connections(self, owed_before: float, max_connections: int = MAX_CONNECTIONS) -> None:
        """Ends up to `max_connections` that have owed a request since `owed_before` or earlier, the oldest first."""
        with self._lock:
            late_connections = [connection for connection, since in self._idle_since.items() if since <= owed_before]
            for connection in sorted(late_connections, key=self._idle_since.__getitem__)[:max_connections]:
                del self._idle_since[connection]
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)  # its thread reads end-of-file, and exits


class _Handler(http.server.BaseHTTPRequestHandler):
    timeout = READ_TIMEOUT_S
    server: ReportServer
    protocol_version = "HTTP/1.1"

    def handle(self) -> None:
        # A page that is closed does not wait for its answer.
        with contextlib.suppress(ConnectionError, TimeoutError):
            super().handle()

    def handle_one_request(self) -> None:
        self.server.set_idle_since(self.connection, time.monotonic())
        super().handle_one_request()

    def do_GET(self) -> None:
        self.server.set_idle_since(self.connection, math.inf)
        # Another name means that a page from elsewhere resolved its own name to this address (DNS rebinding).
        _, port = self.connection.getsockname()[:2]
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            return self._send_answer(403, "text/plain", f"open http://{HOST}:{port}/")
        try:
            self._send_answer(*_find_answer(self.server.report, self.path))
        except (FileNotFoundError, StorageError, KeyError, TypeError, ValueError) as error:
            self._send_answer(503, "text/plain", f"{type(error).__name__}: {error}")

    def _send_answer(self, status: int, content_type: str, text: str) -> None:
        body = text.encode("utf-8", "replace")
        self.send_response(status)
        for header_name, header_value in (
            ("Content-Type", f"{content_type}; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
        ):
            self.send_header(header_name, header_value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Logs nothing: a line for each request would bury the address."""


def _find_answer(report: LiveReport, path: str) -> tuple[int, str, str]:
    """Status, type and text of the answer."""
    url = urlsplit(path)
    if url.path == "/":
        return 200, "text/html", render_page(report.read_data())
    if url.path == "/data.json":
        after_version = parse_qs(url.query).get("after", ["0"])[0]
        data = report.wait_for_newer(int(after_version) if after_version.isdecimal() else 0)
        return (200, "application/json", strict_json(data)) if data else (204, "text/plain", "")
    piece_name = url.path.removeprefix(f"/{PIECES_FOLDER}/").removesuffix(".js")
    script = report.read_piece(piece_name) if url.path == f"/{PIECES_FOLDER}/{piece_name}.js" else None
    return (200, "text/javascript", script) if script else (404, "text/plain", "no such page")
