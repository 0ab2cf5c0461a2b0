"""The trainer's side of a worker: an environment that sends its calls, from many threads, to a supervisor process."""

import concurrent.futures
import contextlib
import dataclasses
import functools
import importlib.util
import inspect
import itertools
import logging
import os
import socket
import subprocess
import sys
import threading
import time
import types
import weakref
from collections.abc import Mapping
from typing import Any

from cojax.environment import EnvironmentFailure, EpisodeFailure, LimitExceeded, SandboxLost, running
from cojax.types import Task
from . import wire
from .served import Served, ServedEpisode, await_reply

_LOG = logging.getLogger(__name__)
# Seconds that a supervisor gets to end by itself.
_EXIT_GRACE_S = 15.0
# The supervisor enforces the deadlines. It is given up if it is silent for this many seconds.
_MAX_SILENCE_S = 30.0
# A supervisor that ends is replaced, at most _MAX_RESTARTS times within _RESTART_WINDOW_S seconds.
_MAX_RESTARTS, _RESTART_WINDOW_S = 3, 60.0
# The code of a child's failure → the exception to raise.
_FAILURE_TYPES: dict[str, type[EnvironmentFailure]] = dict.fromkeys(wire.CALL_FAILURES, LimitExceeded)
_FAILURE_TYPES |= dict.fromkeys(wire.CHILD_FAILURES, EpisodeFailure)
# Our top-level packages: in a wheel, this one is inside cojax.
_PACKAGES = tuple(dict.fromkeys(("cojax", __name__.partition(".")[0])))


class IsolatedEnvironment(Served):
    """An environment in a worker; it implements `cojax.environment.Environment`.

    A failure of the host or the worker raises EnvironmentFailure. A failure of the episode's own process raises
    EpisodeFailure, or LimitExceeded if the current call may have caused it. With `runs_policy_code`, both become
    SandboxLost after reset. `layers` says which layers of isolation hold here.
    """

    def __init__(self, client: "Client", runs_policy_code: bool) -> None:
        super().__init__(client.connection.description, client.call)
        self._client, self.runs_policy_code = client, runs_policy_code
        # Ends every process behind this environment.
        self.close = client.close

    def start(self, task: Task) -> ServedEpisode:
        """An episode in its own child, which is killed when the episode is closed."""
        connection, runs_policy_code = self._client.connect(), self.runs_policy_code
        episode = next(connection.episode_ids)

        def call(record_type: Any, op: str, *arguments: Any) -> Any:
            """The child's reply as a record of type `record_type`."""
            try:
                return wire.read(record_type, connection.call(episode, op, list(arguments), connection.bounds.deadline))
            except (EpisodeFailure, LimitExceeded) as failure:
                if runs_policy_code and op != "reset":
                    raise SandboxLost(str(failure)) from failure
                if op == "step" and isinstance(failure, wire.Malformed):
                    # Code in the child could write such a reply on purpose, so that a failing episode counts as lost.
                    raise LimitExceeded(f"the reply to step is not an observation: {failure}") from failure
                raise

        return ServedEpisode(connection, task, call, functools.partial(connection.end_episode, episode))

    @property
    def supervisor(self) -> int:
        """The id of the supervisor, from which all other processes of the environment descend."""
        return self._client.connection.process.pid


class Client:
    """The connection to a supervisor. One that ends is replaced. `launch` holds the arguments of
    `isolate`."""

    def __init__(self, launch: Mapping[str, Any]) -> None:
        self.launch, self.module = launch, launch["module"]
        self.lock = threading.Lock()
        self.restart_times: list[float] = []
        self.is_closed = False
        self.connection = Connection(launch)
        if missing_layers := [layer for layer, is_on in self.connection.description["layers"].items() if not is_on]:
            _LOG.warning("%s runs without these layers of isolation: %s", self.module, ", ".join(missing_layers))

    def close(self) -> None:
        """Ends every process, for good."""
        with self.lock:
            self.is_closed = True
            self.connection.close()

    def connect(self) -> "Connection":
        """The live connection. Raises EnvironmentFailure if supervisors keep ending."""
        with self.lock:
            if self.is_closed:
                raise EnvironmentFailure(f"the worker of {self.module} was closed")
            if self.connection.is_over:
                now = time.monotonic()
                self.restart_times = [moment for moment in self.restart_times if now - moment < _RESTART_WINDOW_S]
                if len(self.restart_times) >= _MAX_RESTARTS:
                    raise EnvironmentFailure(
                        f"the worker of {self.module} ended {_MAX_RESTARTS} times within {_RESTART_WINDOW_S:g} s; "
                        "its last words are on stderr"
                    )
                self.restart_times.append(now)
                _LOG.warning("the worker of %s ended; starting another", self.module)
                self.connection.close()
                self.connection = Connection(self.launch)
            return self.connection

    def call(self, op: str, *arguments: Any) -> Any:
        """The value of a call that concerns the whole environment."""
        timeout_s = self.launch["bounds"].service_deadline
        connection = self.connect()
        try:
            return connection.call(0, op, list(arguments), timeout_s)
        except EnvironmentFailure:
            if not connection.is_over:
                raise
            # The supervisor ended before or during the call. These calls are safe to repeat.
            return self.connect().call(0, op, list(arguments), timeout_s)


class Connection:
    """One supervisor process. It ends when this process exits or is killed, if not before.

    Raises EnvironmentFailure if the environment cannot be imported or made. `description` holds the facts about it.
    """

    def __init__(self, launch: Mapping[str, Any]) -> None:
        our_end, their_end = socket.socketpair()
        roots, top = [_locate(package) for package in _PACKAGES], launch["module"].partition(":")[0].partition(".")[0]
        # The supervisor never runs the module's code, and the fork server does when it is confined.
        own_roots = [] if top in _PACKAGES else [_locate(top)]
        boot_code = _write_boot_code(roots)
        with their_end:
            process = start_process(sys.executable, boot_code, "supervisor", their_end)
        self.process, self.socket, self.bounds = process, our_end, launch["bounds"]
        self.send_lock = threading.Lock()
        self.pending_replies: dict[int, concurrent.futures.Future[dict[str, Any]]] = {0: concurrent.futures.Future()}
        self.pending_lock = threading.Lock()
        self.call_ids, self.episode_ids = itertools.count(1), itertools.count(1)
        self.is_over = False
        # When the supervisor last sent something, and the time that each current call had counted by then.
        self.last_heard, self.counted_s = running(), dict[str, float]()
        self.close = weakref.finalize(self, _shut_down, our_end, process, os.getpid())
        _SOCKETS.add(our_end)
        sources = [path for _, file, paths in (*roots, *own_roots) for path in (paths or [os.path.dirname(file or "")])]
        start_order = {**launch, "bounds": dataclasses.asdict(self.bounds), "visible": [*sources, *launch["visible"]]}
        start_order |= {"roots": own_roots, "boot": boot_code}
        first_reply = self.pending_replies[0]
        threading.Thread(target=_read, args=(weakref.ref(self), our_end), name="worker-replies", daemon=True).start()
        self._send(start_order)
        self.description = self._await_value(first_reply, 0)

    def call(self, episode_id: int, op: str, arguments: list[Any], timeout_s: float) -> Any:
        """The value of one call. Raises LimitExceeded for a loss that the call may have caused, or EnvironmentFailure.

        `episode_id` 0 is the environment itself; any other number, from `episode_ids`, begins with `reset`.
        """
        with self.pending_lock:
            call_id = next(self.call_ids)
            future = self.pending_replies[call_id] = concurrent.futures.Future()
        try:
            self._send({"id": call_id, "episode": episode_id, "op": op, "arguments": arguments, "deadline": timeout_s})
            return self._await_value(future, call_id)
        finally:
            with self.pending_lock:
                self.pending_replies.pop(call_id, None)

    def end_episode(self, episode_id: int) -> None:
        """Has the episode's child killed. Never raises."""
        with contextlib.suppress(EnvironmentFailure):
            self._send({"id": -1, "episode": episode_id, "op": "close"})

    def _send(self, message: dict[str, Any]) -> None:
        line = wire.encode(message)
        if len(line) > wire.MAX_REQUEST_BYTES:
            raise EnvironmentFailure(
                f"{message['op']} has {len(line):,} bytes, more than the {wire.MAX_REQUEST_BYTES:,} allowed"
            )
        try:
            with self.send_lock:
                self.socket.sendall(line)
        except OSError as error:
            self.fail()
            raise EnvironmentFailure(f"the worker is gone: {error}") from error

    def _await_value(self, future: concurrent.futures.Future[dict[str, Any]], call_id: int) -> Any:
        """The value in the reply to the call of that number. Time lost to the host does not count against the episode.

        Raises EnvironmentFailure when the supervisor has fallen silent; it is then killed and replaced.
        """
        started_at = running()

        def read_count() -> float:
            if running() - max(started_at, self.last_heard) > _MAX_SILENCE_S:
                self.process.kill()
                self.fail()
                raise EnvironmentFailure(f"the supervisor was silent for {_MAX_SILENCE_S:g} s and was killed")
            return self.counted_s.get(str(call_id), 0.0)

        # The supervisor says how much of the wait counts: while it lasts, and in its reply for the whole call.
        reply = await_reply(future, read_count, lambda: (future.result()["counted"], future.result()["reply"]))
        if "failure" in reply:
            failure_type = _FAILURE_TYPES.get(reply["failure"], EnvironmentFailure)
            raise failure_type(f"{reply['failure']}: {reply['message']}")
        return reply["value"]

    def resolve(self, message: dict[str, Any]) -> None:
        """Hands a reply to the thread that waits for it, and notes when the supervisor sent it."""
        self.last_heard = running()
        if "id" not in message:
            self.counted_s = message["counted"]
            return
        with self.pending_lock:
            future = self.pending_replies.get(message["id"])
            if future is not None and not future.done():
                future.set_result(message)

    def fail(self) -> None:
        """Fails all waiting calls, because the supervisor is gone."""
        with self.pending_lock:
            self.is_over = True
            for future in self.pending_replies.values():
                if not future.done():
                    future.set_result({"counted": 0.0, "reply": wire.explain(wire.HOST, "the worker ended")})
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)


def _read(connection: weakref.ref[Connection], our_end: socket.socket) -> None:
    """Hands out replies until the socket ends. Holds no reference that would keep the connection alive."""
    with contextlib.suppress(OSError, ValueError), our_end.makefile("rb") as lines:
        for reply_line in lines:
            if (live_connection := connection()) is None:
                return
            live_connection.resolve(wire.decode(reply_line))
            del live_connection
    if (live_connection := connection()) is not None:
        live_connection.fail()


# A process forked from ours must neither hold these sockets open nor write to them.
_SOCKETS: weakref.WeakSet[socket.socket] = weakref.WeakSet()

os.register_at_fork(after_in_child=lambda: list(map(socket.socket.close, list(_SOCKETS))))


def _shut_down(our_end: socket.socket, process: subprocess.Popen[bytes], owner_pid: int) -> None:
    """Ends the supervisor by closing its socket; it kills every child before it ends."""
    if os.getpid() != owner_pid:
        return
    with contextlib.suppress(OSError):
        our_end.shutdown(socket.SHUT_RDWR)
    our_end.close()
    try:
        process.wait(_EXIT_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def start_process(
    python: str, boot_code: str, module_name: str, socket_end: socket.socket, variables: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Starts a process that runs a module of this package through `boot_code`.

    The process inherits `socket_end`, one end of a socket pair.
    """
    command, null = [python, "-s", "-P", "-c", boot_code, module_name, str(socket_end.fileno())], subprocess.DEVNULL
    return subprocess.Popen(
        command, pass_fds=(socket_end.fileno(),), env=variables, stdin=null, stdout=null, start_new_session=True
    )


def _write_boot_code(roots: list[Any]) -> str:
    """Code that imports our packages from their folders, and runs a module of this one.

    Nothing else is imported from those folders: all other imports are the interpreter's own.
    """
    start = f"importlib.import_module({__package__!r} + '.' + sys.argv[1]).main(int(sys.argv[2]))"
    return f"import importlib.util, sys, types\n{_IMPORT_FROM}\nfor root in {roots!r}:\n    import_from(*root)\n{start}"


def import_from(package_name: str, file_path: str | None, folders: list[str] | None) -> None:
    """Imports a top-level package or module from its own place, and from no other. Raises what the import raises."""
    if file_path is None:
        sys.modules[package_name] = types.ModuleType(package_name)
        sys.modules[package_name].__path__ = folders or []
        return
    spec = importlib.util.spec_from_file_location(package_name, file_path, submodule_search_locations=folders)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file_path} cannot be imported; expected a Python module")
    sys.modules[package_name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[package_name])


# Read now: the file may have changed by the time a supervisor is replaced.
_IMPORT_FROM = inspect.getsource(import_from)


def _locate(package: str) -> tuple[str, str | None, list[str] | None]:
    """Name, file and folders of a top-level package. Raises ValueError for one that cannot be found."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise ValueError(
            f"no module {package!r} to isolate in {os.getcwd()} or among the installed packages; run this from the "
            "folder that holds the module"
        )
    folders = None if spec.submodule_search_locations is None else list(spec.submodule_search_locations)
    return package, spec.origin, folders
