"""Connects the processes of a run: `jax.distributed` for their devices, a `Wire` for what they say to each other."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import secrets
import socket
from collections.abc import Callable, Iterator

import jax

# JAX keeps the client of its coordination service, which every process can reach before any device is in use, private.
from jax._src.distributed import global_state

from cojax.distributed.greeting import accept
from cojax.distributed.wire import WireError, connect

# Where JAX looks for what is not given, in its own order.
TRIED = (
    "a TPU pod (its metadata, or TPU_WORKER_HOSTNAMES)",
    "Kubernetes (KUBERNETES_SERVICE_HOST, an indexed Job, and the package `kubernetes`)",
    "Open MPI (OMPI_MCA_orte_hnp_uri)",
    "Slurm (SLURM_JOB_ID, SLURM_STEP_NODELIST, SLURM_NTASKS, SLURM_PROCID, SLURM_LOCALID)",
    "JAX_COORDINATOR_ADDRESS",
)
_KEY = "cojax/wire"


class DistributedError(RuntimeError):
    """The processes of a run cannot work together. The message says which one, why, and what to do."""


@dataclasses.dataclass(frozen=True)
class Start:
    """How to find the other processes.

    `coordinator` is HOST:PORT of process 0. Where it is "", or `processes` or `process` is None, JAX finds it. All must
    be there within `startup` seconds. A process that is silent for `silence` seconds is lost.
    """

    coordinator: str = ""
    processes: int | None = None
    process: int | None = None
    startup: float = 300.0
    silence: float = 60.0


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
    with _explained(how):
        jax.distributed.initialize(
            how.coordinator or None,
            how.processes,
            how.process,
            initialization_timeout=max(1, round(how.startup)),
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
def _explained(how: Start) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        if how.coordinator:
            raise DistributedError(
                f"distributed.coordinator is {how.coordinator}, but {_lower(error)}; set "
                "--config.distributed.processes=N and --config.distributed.process=0 … N−1 in each process"
            ) from error
        raise DistributedError(
            f"distributed is enabled, but no coordinator was given and none was found ({_lower(error)}). Tried: "
            f"{'; '.join(TRIED)}. Set --config.distributed.coordinator=HOST:PORT, .processes and .process, or "
            "--config.distributed.enabled=False"
        ) from error
    except WireError as error:
        raise DistributedError(f"the processes do not find each other: {error}") from error
    except (RuntimeError, OSError) as error:
        place = how.coordinator or global_state.coordinator_address or "the address that was found"
        raise DistributedError(
            f"the processes do not find each other at {place} within distributed.startup={how.startup:g} s: "
            f"{str(error).splitlines()[0]}. Start all of them, with the same coordinator and number of processes, on a "
            "port that is free on the host of process 0"
        ) from error


def _lower(error: Exception) -> str:
    text = " ".join(str(error).split()).rstrip(".")
    return text[:1].lower() + text[1:]
