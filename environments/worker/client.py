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

from cojax.environment import EnvironmentFailure, EpisodeFailure, LimitExceeded, PolicyLoss, running
from cojax.types import Task
from . import wire
from .served import Served, ServedEpisode, await_reply

_LOG = logging.getLogger(__name__)
# Seconds that a supervisor gets to end by itself.
_GRACE = 15.0
# The supervisor enforces the deadlines; one that is silent for this many seconds is given up.
_SILENCE = 30.0
# A supervisor that ends is replaced, at most _REPLACED times within _WITHIN seconds.
_REPLACED, _WITHIN = 3, 60.0
# The code of a child's failure → the exception to raise.
_FAILURES: dict[str, type[EnvironmentFailure]] = dict.fromkeys(wire.OF_THE_CALL, LimitExceeded)
_FAILURES |= dict.fromkeys(wire.OF_THE_CHILD, EpisodeFailure)
# Our top-level packages: in a wheel, this one is inside cojax.
_OURS = tuple(dict.fromkeys(("cojax", __name__.partition(".")[0])))


class IsolatedEnvironment(Served):
    """An environment in a worker; it implements `cojax.environment.Environment`.

    A failure of the host or the worker raises EnvironmentFailure. A failure of the episode's own process raises
    EpisodeFailure, or LimitExceeded if the current call may have caused it. With `runs_policy_code`, both become
    PolicyLoss after reset. `layers` says which layers of isolation hold here.
    """

    def __init__(self, client: "Client", runs_policy_code: bool) -> None:
        super().__init__(client.connection.description, client.call)
        self._client, self.runs_policy_code = client, runs_policy_code
        # Ends every process behind this environment.
        self.close = client.close

    def start(self, task: Task) -> ServedEpisode:
        """An episode in its own child, which is killed when the episode is closed."""
        connection, runs_policy_code = self._client.connect(), self.runs_policy_code
        number = next(connection.episodes)

        def call(kind: Any, op: str, *arguments: Any) -> Any:
            """The child's reply as a record of type `kind`."""
            try:
                return wire.read(kind, connection.call(number, op, list(arguments), connection.bounds.deadline))
            except (EpisodeFailure, LimitExceeded) as failure:
                if runs_policy_code and op != "reset":
                    raise PolicyLoss(str(failure)) from failure
                if op == "step" and isinstance(failure, wire.Malformed):
                    # Code in the child could write such a reply on purpose, so that a failing episode counts as lost.
                    raise LimitExceeded(f"the reply to step is not an observation: {failure}") from failure
                raise

        return ServedEpisode(connection, task, call, functools.partial(connection.end_episode, number))

    @property
    def supervisor(self) -> int:
        """The id of the supervisor, from which all other processes of the environment descend."""
        return self._client.connection.process.pid


class Client:
    """The connection to a supervisor. One that ends is replaced. `launch` holds the arguments of `isolate`."""

    def __init__(self, launch: Mapping[str, Any]) -> None:
        self.launch, self.module = launch, launch["module"]
        self.lock = threading.Lock()
        self.replacements: list[float] = []
        self.is_closed = False
        self.connection = Connection(launch)
        if missing := [name for name, holds in self.connection.description["layers"].items() if not holds]:
            _LOG.warning("%s runs without these layers of isolation: %s", self.module, ", ".join(missing))

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
                self.replacements = [moment for moment in self.replacements if now - moment < _WITHIN]
                if len(self.replacements) >= _REPLACED:
                    raise EnvironmentFailure(
                        f"the worker of {self.module} ended {_REPLACED} times within {_WITHIN:g} s; "
                        "its last words are on stderr"
                    )
                self.replacements.append(now)
                _LOG.warning("the worker of %s ended; starting another", self.module)
                self.connection.close()
                self.connection = Connection(self.launch)
            return self.connection

    def call(self, op: str, *arguments: Any) -> Any:
        """The value of a call that concerns the whole environment."""
        deadline = self.launch["bounds"].service_deadline
        connection = self.connect()
        try:
            return connection.call(0, op, list(arguments), deadline)
        except EnvironmentFailure:
            if not connection.is_over:
                raise
            # The supervisor ended before or during the call. These calls are safe to repeat.
            return self.connect().call(0, op, list(arguments), deadline)


class Connection:
    """One supervisor process. It ends when this process exits or is killed, if not before.

    Raises EnvironmentFailure if the environment cannot be imported or made. `description` holds the facts about it.
    """

    def __init__(self, launch: Mapping[str, Any]) -> None:
        ours, theirs = socket.socketpair()
        roots, top = [_root(name) for name in _OURS], launch["module"].partition(":")[0].partition(".")[0]
        # The supervisor never runs the module's code, and the fork server does when it is confined.
        own = [] if top in _OURS else [_root(top)]
        boot = _boot_code(roots)
        with theirs:
            process = start_process(sys.executable, boot, "supervisor", theirs)
        self.process, self.socket, self.bounds = process, ours, launch["bounds"]
        self.sending = threading.Lock()
        self.pending: dict[int, concurrent.futures.Future[dict[str, Any]]] = {0: concurrent.futures.Future()}
        self.waiting = threading.Lock()
        self.numbers, self.episodes = itertools.count(1), itertools.count(1)
        self.is_over = False
        # When the supervisor last sent something, and the time that each current call had counted by then.
        self.last_heard, self.counts = running(), dict[str, float]()
        self.close = weakref.finalize(self, _shut, ours, process, os.getpid())
        _SOCKETS.add(ours)
        sources = [path for _, origin, paths in (*roots, *own) for path in (paths or [os.path.dirname(origin or "")])]
        order = {**launch, "bounds": dataclasses.asdict(self.bounds), "visible": [*sources, *launch["visible"]]}
        order |= {"roots": own, "boot": boot}
        first = self.pending[0]
        threading.Thread(target=_read, args=(weakref.ref(self), ours), name="worker-replies", daemon=True).start()
        self._send(order)
        self.description = self._value(first, 0)

    def call(self, episode: int, op: str, arguments: list[Any], deadline: float) -> Any:
        """The value of one call. Raises LimitExceeded for a loss that the call may have caused, or EnvironmentFailure.

        `episode` 0 is the environment itself; any other number, from `episodes`, begins with `reset`.
        """
        with self.waiting:
            number = next(self.numbers)
            future = self.pending[number] = concurrent.futures.Future()
        try:
            self._send({"id": number, "episode": episode, "op": op, "arguments": arguments, "deadline": deadline})
            return self._value(future, number)
        finally:
            with self.waiting:
                self.pending.pop(number, None)

    def end_episode(self, episode: int) -> None:
        """Has the episode's child killed. Never raises."""
        with contextlib.suppress(EnvironmentFailure):
            self._send({"id": -1, "episode": episode, "op": "close"})

    def _send(self, message: dict[str, Any]) -> None:
        line = wire.encode(message)
        if len(line) > wire.REQUEST:
            raise EnvironmentFailure(f"{message['op']} has {len(line):,} bytes, more than the {wire.REQUEST:,} allowed")
        try:
            with self.sending:
                self.socket.sendall(line)
        except OSError as error:
            self.fail()
            raise EnvironmentFailure(f"the worker is gone: {error}") from error

    def _value(self, future: concurrent.futures.Future[dict[str, Any]], number: int) -> Any:
        """The value in the reply to the call of that number. Time lost to the host does not count against the episode.

        Raises EnvironmentFailure when the supervisor has fallen silent; it is then killed and replaced.
        """
        began = running()

        def read_count() -> float:
            if running() - max(began, self.last_heard) > _SILENCE:
                self.process.kill()
                self.fail()
                raise EnvironmentFailure(f"the supervisor was silent for {_SILENCE:g} s and was killed")
            return self.counts.get(str(number), 0.0)

        # The supervisor says how much of the wait counts: while it lasts, and in its reply for the whole call.
        reply = await_reply(future, read_count, lambda: (future.result()["counted"], future.result()["reply"]))
        if "failure" in reply:
            kind = _FAILURES.get(reply["failure"], EnvironmentFailure)
            raise kind(f"{reply['failure']}: {reply['message']}")
        return reply["value"]

    def resolve(self, message: dict[str, Any]) -> None:
        """Hands a reply to the thread that waits for it, and notes when the supervisor sent it."""
        self.last_heard = running()
        if "id" not in message:
            self.counts = message["counted"]
            return
        with self.waiting:
            future = self.pending.get(message["id"])
            if future is not None and not future.done():
                future.set_result(message)

    def fail(self) -> None:
        """Fails all waiting calls, because the supervisor is gone."""
        with self.waiting:
            self.is_over = True
            for future in self.pending.values():
                if not future.done():
                    future.set_result({"counted": 0.0, "reply": wire.explain(wire.HOST, "the worker ended")})
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)


def _read(connection: weakref.ref[Connection], source: socket.socket) -> None:
    """Hands out replies until the socket ends. Holds no reference that would keep the connection alive."""
    with contextlib.suppress(OSError, ValueError), source.makefile("rb") as lines:
        for line in lines:
            if (alive := connection()) is None:
                return
            alive.resolve(wire.decode(line))
            del alive
    if (alive := connection()) is not None:
        alive.fail()


# A process forked from ours must neither hold these sockets open nor write to them.
_SOCKETS: weakref.WeakSet[socket.socket] = weakref.WeakSet()

os.register_at_fork(after_in_child=lambda: list(map(socket.socket.close, list(_SOCKETS))))


def _shut(ours: socket.socket, process: subprocess.Popen[bytes], owner: int) -> None:
    """Ends the supervisor by closing its socket; it kills every child before it ends."""
    if os.getpid() != owner:
        return
    with contextlib.suppress(OSError):
        ours.shutdown(socket.SHUT_RDWR)
    ours.close()
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def start_process(
    python: str, boot: str, module: str, end: socket.socket, env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Starts a process that runs a module of this package by the code `boot`, and holds `end` of a socket pair."""
    command, nowhere = [python, "-s", "-P", "-c", boot, module, str(end.fileno())], subprocess.DEVNULL
    return subprocess.Popen(
        command, pass_fds=(end.fileno(),), env=env, stdin=nowhere, stdout=nowhere, start_new_session=True
    )


def _boot_code(roots: list[Any]) -> str:
    """Code that imports our packages from their folders, and runs a module of this one.

    Nothing else is imported from those folders: all other imports are the interpreter's own.
    """
    run = f"importlib.import_module({__package__!r} + '.' + sys.argv[1]).main(int(sys.argv[2]))"
    return f"import importlib.util, sys, types\n{_IMPORT_FROM}\nfor root in {roots!r}:\n    import_from(*root)\n{run}"


def import_from(name: str, origin: str | None, places: list[str] | None) -> None:
    """Imports a top-level package or module from its own place, and from no other. Raises what the import raises."""
    if origin is None:
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = places or []
        return
    spec = importlib.util.spec_from_file_location(name, origin, submodule_search_locations=places)
    if spec is None or spec.loader is None:
        raise ImportError(f"{origin} cannot be imported; expected a Python module")
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


# Read now: the file may have changed by the time a supervisor is replaced.
_IMPORT_FROM = inspect.getsource(import_from)


def _root(package: str) -> tuple[str, str | None, list[str] | None]:
    """Name, file and folders of a top-level package. Raises ValueError for one that cannot be found."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise ValueError(
            f"no module {package!r} to isolate in {os.getcwd()} or among the installed packages; run this from the "
            "folder that holds the module"
        )
    places = None if spec.submodule_search_locations is None else list(spec.submodule_search_locations)
    return package, spec.origin, places
