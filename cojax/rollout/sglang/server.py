"""One SGLang server of a fleet: its state, how it loads new weights, and how a launched one is started.

A launched server has a log file, and a guard that ends it when this process ends. A router is launched in the same way.
"""

import asyncio
import dataclasses
import errno
import logging
import os
import shlex
import signal
import socket
import threading
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from cojax.host.processes import GuardedProcess, usable_cores
from cojax.rollout.sglang.client import ReleasedMemory, RequestFailed, RequestRefused, ServerClient
from cojax.settings.tree import SGLangSettings
from cojax.storage.files import read_last_lines

_LAUNCH_FLAGS: Mapping[str, list[str]] = tomllib.loads(Path(__file__).with_name("flags.toml").read_bytes().decode())
# Stand-ins for packages without a CPU build; only CPU servers have them on their path.
_CPU_ENVIRONMENT = {"SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": str(Path(__file__).with_name("cpu_shims"))}
# The server keeps a few positions of its context for itself.
_SPARE_POSITIONS = 8


@dataclasses.dataclass(frozen=True)
class LaunchSettings:
    """How to launch servers.

    `python_path` is an interpreter that has SGLang. `device` "cpu" runs it without an accelerator, "" lets SGLang
    choose. `flags` are appended to the command line; {index} in them becomes the server's number among those launched
    together. A conversation has at most `max_length` tokens; at most `max_requests` completions run in parallel (0: as
    memory allows). `port` is the first server's, 0 means any free one; `log_folder` is a folder. With `release_memory`
    servers can release memory, with `routes` they can report which experts tokens went through. `servers`
    are
    launched together: on the CPU they share its cores.
    """

    python_path: str
    log_folder: Path
    max_length: int
    dtype: str = "auto"
    device: str = SGLangSettings.device
    flags: str = SGLangSettings.flags
    host: str = "127.0.0.1"
    port: int = SGLangSettings.port
    max_requests: int = 0
    release_memory: bool = False
    routes: bool = False
    servers: int = 1

    def __post_init__(self) -> None:
        if not os.access(self.python_path, os.X_OK):
            raise ValueError(
                f"sglang.python {self.python_path!r} is no interpreter. Run `make sglang` for one without a GPU, name "
                "your own in --config.sglang.python, or attach to running servers with --config.sglang.urls"
            )
        if self.device not in ("", "cpu"):
            raise ValueError(f"sglang.device is {self.device!r}; expected 'cpu', or '' to leave it to SGLang and flags")

    def url(self, port: int) -> str:
        """The address, on this host, of the server that listens on a port."""
        return f"http://{'127.0.0.1' if self.host == '0.0.0.0' else self.host}:{port}"

    def make_command(self, server_index: int, port: int, folder: Path, weights_label: str) -> list[str]:
        """The command line of a server of the weights in `folder`, labelled `weights_label`; token ids in and out."""
        return [
            self.python_path, "-m", "sglang.launch_server", "--skip-tokenizer-init", "--log-level-http", "warning",
            "--model-path", str(folder), "--weight-version", weights_label, "--host", self.host, "--port", str(port),
            "--context-length", str(self.max_length + _SPARE_POSITIONS), "--dtype", self.dtype,
            *(("--max-running-requests", str(self.max_requests)) if self.max_requests else ()),
            *(("--enable-memory-saver",) if self.release_memory and self.device != "cpu" else ()),
            *(("--enable-return-routed-experts",) if self.routes else ()),
            *(_LAUNCH_FLAGS["cpu"] if self.device == "cpu" else ()),
            *shlex.split(self.flags.replace("{index}", str(server_index))),
        ]  # fmt: skip

    def make_router_command(self, port: int) -> list[str]:
        """The command line of a router without servers behind it yet. Raises OSError if the port is taken."""
        return [
            self.python_path, "-m", "sglang_router.launch_router", "--host", self.host,
            "--port", str(find_free_port(self.host, port)), "--prometheus-port", str(find_free_port("127.0.0.1")),
            "--prometheus-host", "127.0.0.1", *_LAUNCH_FLAGS["router"],
        ]  # fmt: skip

    def environment(self) -> dict[str, str]:
        """Our environment variables, without PYTHONPATH and PYTHONHOME; hub look-ups are off: the model is a folder.

        No module of the current folder is imported in place of the server's own.
        """
        variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
        variables |= {"PYTHONSAFEPATH": "1", "HF_HUB_OFFLINE": "1", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}
        if self.device != "cpu":
            return variables
        # PyTorch's threads busy-wait: if there are more threads than cores, they slow each other down.
        thread_count = max(1, usable_cores() // self.servers)
        return {"OMP_NUM_THREADS": str(thread_count), **variables, **_CPU_ENVIRONMENT}


class ServerProcess:
    """One launched server. Once it has ended, `start` may be called again, even with other weights.

    Methods may be called from any thread.
    """

    def __init__(self, launch: LaunchSettings, server_index: int = 0) -> None:
        self.launch, self.index = launch, server_index
        self.log = launch.log_folder / f"server-{server_index}.log"
        self.port = 0
        self.starts = 0  # attempted, successful or not
        self._guarded_process = GuardedProcess()
        self._is_stopped = False
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return self.launch.url(self.port)

    @property
    def is_running(self) -> bool:
        return self._guarded_process.is_running

    def start(self, model_folder: Path, weights_label: str) -> None:
        """Starts the process without waiting for it. Raises OSError if port or log cannot be opened or after `stop`."""
        with self._lock:
            if self._is_stopped:
                raise OSError(errno.ESHUTDOWN, f"server {self.index} was stopped for good")
            self._guarded_process.end(signal.SIGUSR1)
            self.starts += 1
            self.port = find_free_port(self.launch.host, self.launch.port + self.index if self.launch.port else 0)
            command = self.launch.make_command(self.index, self.port, model_folder.absolute(), weights_label)
            self._guarded_process.start(command, self.log, self.launch.environment())

    def stop(self) -> None:
        """Ends the server and its descendants for good, by force after a few seconds. Returns when they are gone.

        May be called twice.
        """
        with self._lock:
            self._is_stopped = True
            self._guarded_process.end(signal.SIGTERM)

    def kill(self) -> None:
        """Kills the server and its descendants, as a hung server ignores SIGTERM. Returns when they are gone."""
        with self._lock:
            self._guarded_process.end(signal.SIGUSR1)

    def read_log_tail(self) -> str:
        """The end of its log, for an error message."""
        try:
            return "\n".join(read_last_lines(self.log)[-15:])
        except OSError:
            return ""


def find_free_port(host: str, port: int = 0) -> int:
    """`port`, or any free one for 0. Raises OSError, which names the fix, if the port is taken."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe_socket:
        probe_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe_socket.bind((host, port))
        except OSError as error:
            raise OSError(
                error.errno,
                f"port {port} of {host} cannot be used for an SGLang server: {error.strerror}. Stop what listens "
                "there, or choose another --config.sglang.port (0 takes any free one)",
            ) from error
        return int(probe_socket.getsockname()[1])


_LOG = logging.getLogger(__name__)
_START_POLL_S = 0.5  # seconds between two checks of a server that starts
_WEIGHTS_POLL_S = 0.2  # seconds between two checks of a server that loads weights by itself

# new: it has had no weights yet. up: it serves the current ones. updating: a sync gives it new ones. down: it gets no
# requests; its watch checks its health. recovering: its watch brings it back. resting: it has released its memory until
# the next sync. lost: a launched server that is not started again.
State = Literal["new", "up", "updating", "down", "recovering", "resting", "lost"]


@dataclasses.dataclass(frozen=True)
class LabelledWeights:
    """One version of the weights on disk: a model folder, and the label under which servers report it."""

    folder: Path
    label: str


@dataclasses.dataclass(eq=False)
class Server:
    """One server and its known state; `process` is None unless this trainer launched it."""

    client: ServerClient
    process: ServerProcess | None
    restarts_left: int
    state: State = "new"
    fault: str = "not started"
    is_absent: bool = False  # nothing answered the last call: perhaps it is not started yet
    loaded_label: str = ""  # of the weights that it loaded last
    session_count: int = 0
    recovery_count: int = 0  # recoveries that have ended, successful or not
    reply_count: int = 0  # since the last check; one reply shows that it is alive
    miss_count: int = 0  # in a row without an answer
    silent_since: float = 0.0  # on the monotonic clock; 0 while it answers
    refused_labels: list[str] = dataclasses.field(default_factory=list)  # labels of weights refused since it was up
    released_memory: ReleasedMemory = dataclasses.field(default_factory=ReleasedMemory)
    reading_folder: Path | None = None  # the folder that it is loading, which must not be removed
    requests: set[asyncio.Task[Any]] = dataclasses.field(default_factory=set)
    check_now: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        return f"server {self.process.index}" if self.process else self.client.url

    @property
    def is_up(self) -> bool:
        return self.state == "up"

    async def load_target(
        self, target: LabelledWeights, timeout_s: float, is_due: Callable[[], bool], *, follow: bool, alive: bool = True
    ) -> None:
        """Has the server load the target. With `follow` it does so by itself: this waits while the target `is_due`.

        Raises TimeoutError after `timeout_s` seconds, RequestRefused, and RequestFailed. Exception: a following server
        that is not `alive`, because it has never answered, may still be starting, so RequestFailed is not raised for
        it.
        """
        self.reading_folder = target.folder
        try:
            async with asyncio.timeout(timeout_s):
                if follow:
                    await self._await_weights(target, alive, is_due)
                else:
                    await self._update(target)
        except (RequestFailed, RequestRefused):  # after a timeout it may still be reading
            self.reading_folder = None
            raise
        self.reading_folder = None
        self.loaded_label = target.label if is_due() or not follow else self.loaded_label

    async def _update(self, target: LabelledWeights) -> None:
        try:
            await self.client.update(target.folder, target.label, self.released_memory)
        except RequestRefused as refusal:
            raise RequestRefused(f"{refusal}. The folder must be there for the server under the same path") from refusal

    async def _await_weights(self, target: LabelledWeights, is_alive: bool, is_due: Callable[[], bool]) -> None:
        while is_due():  # a server that reads slowly may skip a version
            try:
                if await self.client.read_version() == target.label:
                    return
            except RequestFailed:
                if is_alive:
                    raise
            await asyncio.sleep(_WEIGHTS_POLL_S)

    def may_start(self) -> bool:
        """Whether a launched server may be started; every start but the first uses up one restart."""
        assert self.process is not None
        if not self.process.starts:
            return True
        self.refused_labels.clear()
        if not self.restarts_left:
            self.fault = f"it was restarted as often as sglang.restarts allows; {self.fault}"
            _LOG.error("%s is given up: %s", self.name, self.fault)
            return False
        self.restarts_left -= 1
        _LOG.warning("%s is started again, %d more times at most", self.name, self.restarts_left)
        return True

    async def start(self, target: LabelledWeights, timeout_s: float, *, takes_any: bool) -> None:
        """Starts the process with the target and waits until it serves the target; with `takes_any`, any weights.

        Raises RequestFailed if it does not within `timeout_s` seconds, OSError if port or log cannot be opened.
        """
        assert self.process is not None
        self.reading_folder = target.folder
        try:
            await self.released_memory.remove(self.released_memory.kinds)
            await asyncio.to_thread(self.process.start, target.folder, target.label)
            self.client = dataclasses.replace(self.client, url=self.process.url)
            async with asyncio.timeout(timeout_s):
                await self._wait_until_ready(self.process, target, takes_any)
        except TimeoutError:
            log_path = self.process.log
            raise RequestFailed(f"not ready within {timeout_s:g} s (sglang.startup_deadline); see {log_path}") from None
        finally:
            self.reading_folder = None
        self.loaded_label = target.label

    async def _wait_until_ready(self, process: ServerProcess, target: LabelledWeights, takes_any: bool) -> None:
        while True:
            if not process.is_running:
                raise RequestFailed(f"it ended while starting; {process.log} ends:\n{process.read_log_tail()}")
            try:
                await self.client.check_health()
                weights_label = await self.client.read_version()
                if weights_label == target.label or takes_any:
                    _LOG.info("%s is ready at %s", self.name, process.url)
                    return
                self.fault = f"port {process.port} serves weights {weights_label!r}: it is another server's"
            except (RequestFailed, RequestRefused) as error:
                self.fault = str(error)
            await asyncio.sleep(_START_POLL_S)
