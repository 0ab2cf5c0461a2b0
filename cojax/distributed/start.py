"""Connects the processes of a run: `jax.distributed` for their devices, a `Wire` for what they say to each other."""

import contextlib
import dataclasses
import json
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator

import jax

# JAX keeps the client of its coordination service, which every process can reach before any device is in use, private.
from jax._src.distributed import global_state

from cojax.distributed.wire import WireError, accept, connect
from cojax.settings.tree import DistributedSettings

_SLURM = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
# Where JAX looks for what is not given, in its own order.
TRIED = (
    "a TPU pod (its metadata, or TPU_WORKER_HOSTNAMES)",
    "Kubernetes (KUBERNETES_SERVICE_HOST, an indexed Job, and the package `kubernetes`)",
    "Open MPI (OMPI_MCA_orte_hnp_uri)",
    f"Slurm ({', '.join(_SLURM)})",
    "JAX_COORDINATOR_ADDRESS",
)
_KEY = "cojax/wire"
_START_ALL = (
    "Start all of them, with the same coordinator and number of processes, on a port that is free on the host of "
    "process 0"
)
# Seconds after which a wait is told of, and by which JAX waits longer than this process does.
_TOLD, _LONGER = 5.0, 60.0


class DistributedError(RuntimeError):
    """The processes of a run cannot work together. The message says which one, why, and what to do."""


@dataclasses.dataclass(frozen=True)
class Start:
    """How to find the other processes.

    `coordinator` is HOST:PORT of process 0. Where it is "", or `processes` or `process` is None, JAX finds it. All must
    be there within `startup` seconds. A process that is silent for `silence` seconds is lost.
    """

    coordinator: str = DistributedSettings.coordinator
    processes: int | None = DistributedSettings.processes
    process: int | None = DistributedSettings.process
    startup: float = DistributedSettings.startup
    silence: float = DistributedSettings.silence


@dataclasses.dataclass(frozen=True)
class Connected:
    """This process's number, how many there are, and the connections of its `Wire`."""

    process: int
    processes: int
    connections: dict[int, socket.socket]


def start(how: Start) -> Connected:
    """Connects this process with the others. Raises DistributedError."""
    # Its handler would replace ours of SIGTERM, by which process 0 decides when to stop.
    jax.config.update("jax_enable_preemption_service", False)
    with _explained(how), _watched(how):
        jax.distributed.initialize(
            how.coordinator or None,
            how.processes,
            how.process,
            initialization_timeout=round(how.startup + _LONGER),
            # The wire notices first, and says which process it was.
            heartbeat_timeout_seconds=max(10, round(3 * how.silence)),
            shutdown_timeout_seconds=max(10, round(how.silence)),
        )
    process, processes = global_state.process_id, global_state.num_processes
    client, address = global_state.client, global_state.coordinator_address
    assert client is not None
    assert address is not None
    with _explained(how):
        if process == 0:
            return Connected(0, processes, _accepted(how, processes, client.key_value_set))
        said = json.loads(client.blocking_key_value_get(_KEY, round(1000 * how.startup)))
        host = address.rpartition(":")[0].strip("[]")
        found = connect(host, said["port"], said["token"], process, how.startup, how.silence)
        return Connected(process, processes, {0: found})


def find_devices() -> None:
    """Finds the devices of all processes. JAX does so on first use, and then waits until every process does."""
    jax.devices()


def _accepted(how: Start, processes: int, publish: Callable[[str, str], None]) -> dict[int, socket.socket]:
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    with socket.create_server(("", 0), family=family, dualstack_ipv6=both, backlog=processes) as server:
        token = secrets.token_hex(16)
        publish(_KEY, json.dumps({"port": server.getsockname()[1], "token": token}))
        return accept(server, token, processes, how.startup, how.silence)


@contextlib.contextmanager
def _watched(how: Start) -> Iterator[None]:
    """Tells of a long wait for the other processes, and ends this process with status 1 where they do not come.

    JAX waits in native code, which ends the process by SIGABRT, and in which no handler of a signal runs. So signals
    end the process by themselves meanwhile.
    """
    over = threading.Event()

    def watch() -> None:
        if over.wait(min(_TOLD, how.startup)):
            return
        _say(f"waiting for the other processes at {_place(how)}, for distributed.startup={how.startup:g} s at most")
        if not over.wait(max(0.0, how.startup - _TOLD)):
            _say(f"error: {_not_found(how)}. {_START_ALL}")
            os._exit(1)

    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGTERM)}
    threading.Thread(target=watch, name="start", daemon=True).start()
    try:
        yield
    finally:
        over.set()
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(line: str) -> None:
    sys.stdout.flush()
    os.write(sys.stderr.fileno(), f"{line}\n".encode())


@contextlib.contextmanager
def _explained(how: Start) -> Iterator[None]:
    try:
        yield
    except WireError as error:
        raise DistributedError(f"the processes do not find each other: {error}") from error
    except (RuntimeError, OSError) as error:
        raise DistributedError(f"{_not_found(how)}: {str(error).splitlines()[0]}. {_START_ALL}") from error
    except Exception as error:  # JAX reads what launchers set, and raises whatever comes of it
        if how.coordinator:
            raise DistributedError(
                f"distributed.coordinator is {how.coordinator}, but {_reason(error)}; set "
                "--config.distributed.processes=N and --config.distributed.process=0 … N−1 in each process"
            ) from error
        raise DistributedError(
            f"distributed is enabled, but no coordinator was given and none was found ({_reason(error)}). Tried: "
            f"{'; '.join(TRIED)}. {_half_set()}Set --config.distributed.coordinator=HOST:PORT, .processes and "
            ".process, or --config.distributed.enabled=False"
        ) from error


def _place(how: Start) -> str:
    return how.coordinator or global_state.coordinator_address or "the address that was found"


def _not_found(how: Start) -> str:
    return f"the processes do not find each other at {_place(how)} within distributed.startup={how.startup:g} s"


def _half_set() -> str:
    """What Slurm has not set, where it has set a part."""
    given = [name for name in _SLURM if name in os.environ]
    missing = [name for name in _SLURM if name not in os.environ]
    if not given or not missing:
        return ""
    return f"{given[0]} is set, but {', '.join(missing)} not: start the command by srun. "


def _reason(error: Exception) -> str:
    """Why JAX cannot start, as the middle of a sentence."""
    if isinstance(error, KeyError):
        return f"{error.args[0]} is not set"
    if isinstance(error, IndexError) and (address := os.environ.get("JAX_COORDINATOR_ADDRESS")):
        return f"JAX_COORDINATOR_ADDRESS is {address!r}, expected HOST:PORT"
    text = " ".join(str(error).split()).rstrip(".")
    return text[:1].lower() + text[1:]
