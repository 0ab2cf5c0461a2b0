"""Starts SGLang servers, and a router in front of them, as child processes.

Each has a log file, and a guard that ends it when this process ends.
"""

import dataclasses
import errno
import os
import shlex
import signal
import socket
import threading
from pathlib import Path

from cojax.host.processes import usable_cores
from cojax.rollout.sglang.guard import GuardedProcess
from cojax.settings.tree import SGLangSettings
from cojax.storage.files import last_lines

# Stand-ins for packages without a CPU build; only CPU servers have them on their path.
_SHIMS = Path(__file__).with_name("cpu_shims")
# Callers also give a dtype: with "auto", log-probs are off by about 0.01.
_CPU_FLAGS = (
    "--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--disable-cuda-graph",
    "--grammar-backend", "none", "--mem-fraction-static", "0.5", "--max-total-tokens", "32768",
    "--sleep-on-idle",
)  # fmt: skip
_CPU_ENVIRONMENT = {"SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": str(_SHIMS)}
# The router sends all requests of one key to one server, new keys to the server with the fewest, and notices within
# seconds that a server is gone. Its own settings wait a minute.
_ROUTER_FLAGS = (
    "--policy", "manual", "--assignment-mode", "min_group", "--health-check-interval-secs", "2",
    "--health-check-timeout-secs", "30", "--health-failure-threshold", "2", "--health-success-threshold", "1",
    "--worker-startup-check-interval", "1", "--log-level", "warn",
)  # fmt: skip
# The server reserves a few positions of its context.
_SPARE_POSITIONS = 8


@dataclasses.dataclass(frozen=True)
class LaunchSettings:
    """How to launch servers.

    `python` is an interpreter that has SGLang. `device` "cpu" runs it without an accelerator, "" lets SGLang choose.
    `flags` are appended to the command line; {index} in them becomes the server's number among those launched together.
    A conversation has at most `max_length` tokens; at most `max_running` completions run in parallel (0: as memory
    allows). `port` is the first server's, 0 means any free one; `logs` is a folder. With `release_memory` servers can
    release memory, with `routes` they can report which experts tokens went through. `servers` are launched together: on
    the CPU they share its cores.
    """

    python: str
    logs: Path
    max_length: int
    dtype: str = "auto"
    device: str = SGLangSettings.device
    flags: str = SGLangSettings.flags
    host: str = "127.0.0.1"
    port: int = SGLangSettings.port
    max_running: int = 0
    release_memory: bool = False
    routes: bool = False
    servers: int = 1

    def __post_init__(self) -> None:
        if not os.access(self.python, os.X_OK):
            raise ValueError(
                f"sglang.python {self.python!r} is no interpreter. Run `make sglang` for one without a GPU, name "
                "your own in --config.sglang.python, or attach to running servers with --config.sglang.urls"
            )
        if self.device not in ("", "cpu"):
            raise ValueError(f"sglang.device is {self.device!r}; expected 'cpu', or '' to leave it to SGLang and flags")

    def command(self, index: int, port: int, model: Path, label: str) -> list[str]:
        """The command line of a server with the weights in `model`, labelled `label`, and token ids in and out."""
        return [
            self.python, "-m", "sglang.launch_server", "--skip-tokenizer-init", "--log-level-http", "warning",
            "--model-path", str(model), "--weight-version", label, "--host", self.host, "--port", str(port),
            "--context-length", str(self.max_length + _SPARE_POSITIONS), "--dtype", self.dtype,
            *(("--max-running-requests", str(self.max_running)) if self.max_running else ()),
            *(("--enable-memory-saver",) if self.release_memory and self.device != "cpu" else ()),
            *(("--enable-return-routed-experts",) if self.routes else ()),
            *(_CPU_FLAGS if self.device == "cpu" else ()),
            *shlex.split(self.flags.replace("{index}", str(index))),
        ]  # fmt: skip

    def environment(self) -> dict[str, str]:
        """Our environment variables, without PYTHONPATH and PYTHONHOME; hub look-ups are off: the model is a folder.

        No module of the current folder is imported in place of the server's own.
        """
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
        kept |= {"PYTHONSAFEPATH": "1", "HF_HUB_OFFLINE": "1", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}
        if self.device != "cpu":
            return kept
        # PyTorch's threads wait busily: more of them than cores take the cores from each other.
        threads = max(1, usable_cores() // self.servers)
        return {"OMP_NUM_THREADS": str(threads), **kept, **_CPU_ENVIRONMENT}


class ServerProcess:
    """One launched server. Once it has ended, `start` may be called again, also with other weights.

    Methods may be called from any thread.
    """

    def __init__(self, launch: LaunchSettings, index: int = 0) -> None:
        self.launch, self.index = launch, index
        self.log = launch.logs / f"server-{index}.log"
        self.port = 0
        self.starts = 0  # attempted, successful or not
        self._guarded = GuardedProcess()
        self._stopped = False
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://{'127.0.0.1' if self.launch.host == '0.0.0.0' else self.launch.host}:{self.port}"

    @property
    def running(self) -> bool:
        return self._guarded.running

    def start(self, model: Path, label: str) -> None:
        """Starts the process without waiting for it. Raises OSError if port or log cannot be opened or after `stop`."""
        with self._lock:
            if self._stopped:
                raise OSError(errno.ESHUTDOWN, f"server {self.index} was stopped for good")
            self._guarded.end(signal.SIGUSR1)
            self.starts += 1
            self.port = free_port(self.launch.host, self.launch.port + self.index if self.launch.port else 0)
            command = self.launch.command(self.index, self.port, model.absolute(), label)
            self._guarded.start(command, self.log, self.launch.environment())

    def stop(self) -> None:
        """Ends the server and its descendants for good, by force after a few seconds, and returns when they are gone.

        May be called twice.
        """
        with self._lock:
            self._stopped = True
            self._guarded.end(signal.SIGTERM)

    def kill(self) -> None:
        """Kills the server and its descendants, as a hung server ignores SIGTERM. Returns when they are gone."""
        with self._lock:
            self._guarded.end(signal.SIGUSR1)

    def tail(self) -> str:
        """The end of its log, for an error message."""
        try:
            return "\n".join(last_lines(self.log)[-15:])
        except OSError:
            return ""


class RouterProcess:
    """A router on `port`, started by the interpreter of `launch`, without servers behind it yet."""

    def __init__(self, launch: LaunchSettings, port: int) -> None:
        self.port, self._launch, self._guarded = port, launch, GuardedProcess()
        self.log = launch.logs / "router.log"

    @property
    def running(self) -> bool:
        return self._guarded.running

    def start(self) -> None:
        """Starts it without waiting for it. Raises OSError if port or log cannot be opened."""
        self._guarded.end(signal.SIGUSR1)
        launch = self._launch
        command = [
            launch.python, "-m", "sglang_router.launch_router", "--host", launch.host,
            "--port", str(free_port(launch.host, self.port)), "--prometheus-port", str(free_port("127.0.0.1")),
            "--prometheus-host", "127.0.0.1", *_ROUTER_FLAGS,
        ]  # fmt: skip
        self._guarded.start(command, self.log, launch.environment())

    def stop(self) -> None:
        """Ends it, and returns when it is gone. May be called twice."""
        self._guarded.end(signal.SIGTERM)


def free_port(host: str, port: int = 0) -> int:
    """`port`, or any free one for 0. Raises OSError, which names the fix, if the port is taken."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise OSError(
                error.errno,
                f"port {port} of {host} cannot be used for an SGLang server: {error.strerror}. Stop what listens "
                "there, or choose another --config.sglang.port (0 takes any free one)",
            ) from error
        return int(probe.getsockname()[1])
