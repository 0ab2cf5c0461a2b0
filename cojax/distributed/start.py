"""Connects the processes of a run: `jax.distributed` for their devices, a `Wire` for their messages.

They are admitted if they have the same code and settings, and all see the folders of the run.
"""

import contextlib
import json
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

# Private in JAX: the client of its coordination service, which every process can reach before any device is in use.
from jax._src.distributed import global_state

from cojax.distributed.wire import Wire, WireError, accept, connect
from cojax.settings.tree import DistributedSettings
from cojax.storage.differences import list_differences
from cojax.storage.files import list_missing_folders, remove_empty_folders

_SLURM_VARIABLES = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
# Where JAX looks for values that are not given, in its own order.
JAX_SOURCES = (
    "a TPU pod (its metadata, or TPU_WORKER_HOSTNAMES)",
    "Kubernetes (KUBERNETES_SERVICE_HOST, an indexed Job, and the package `kubernetes`)",
    "Open MPI (OMPI_MCA_orte_hnp_uri)",
    f"Slurm ({', '.join(_SLURM_VARIABLES)})",
    "JAX_COORDINATOR_ADDRESS",
)
_STORE_KEY = "cojax/wire"
_START_ADVICE = (
    "Start all of them, with the same coordinator and number of processes, on a port that is free on the host of "
    "process 0"
)
# Seconds after which a wait is reported, and by which JAX waits longer than this process does.
_REPORT_DELAY_S, _EXTRA_JAX_WAIT_S = 5.0, 60.0


class DistributedError(RuntimeError):
    """The processes of a run cannot work together. The message says which one, why, and what to do."""


def connect_processes(settings: DistributedSettings) -> tuple[int, int, dict[int, socket.socket]]:
    """Connects this process with the others: its number, how many there are, and the connections of its `Wire`.

    Where `coordinator`, HOST:PORT of process 0, is "", or `count` or `process_id` is None, JAX finds it. All must have
    connected within `startup` seconds. A process that is silent for `silence` seconds is lost. Raises DistributedError.
    """
    # Its handler of SIGTERM would replace ours, by which process 0 decides when to stop.
    jax.config.update("jax_enable_preemption_service", False)
    with _explain_errors(settings), _watch_start(settings):
        jax.distributed.initialize(
            settings.coordinator or None,
            settings.processes,
            settings.process,
            initialization_timeout=round(settings.startup + _EXTRA_JAX_WAIT_S),
            # The wire notices first, and says which process it was.
            heartbeat_timeout_seconds=max(10, round(3 * settings.silence)),
            shutdown_timeout_seconds=max(10, round(settings.silence)),
        )
    process_id, count = global_state.process_id, global_state.num_processes
    client, address = global_state.client, global_state.coordinator_address
    assert client is not None
    assert address is not None
    with _explain_errors(settings):
        if process_id == 0:
            dual_stack = socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if dual_stack else socket.AF_INET
            with socket.create_server(("", 0), family=family, dualstack_ipv6=dual_stack, backlog=count) as server:
                token = secrets.token_hex(16)
                client.key_value_set(_STORE_KEY, json.dumps({"port": server.getsockname()[1], "token": token}))
                return 0, count, accept(server, token, count, settings.startup, settings.silence)
        endpoint = json.loads(client.blocking_key_value_get(_STORE_KEY, round(1000 * settings.startup)))
        host = address.rpartition(":")[0].strip("[]")
        connection = connect(host, endpoint["port"], endpoint["token"], process_id, settings.startup, settings.silence)
        return process_id, count, {0: connection}


def find_devices() -> None:
    """Finds the devices of all processes. JAX does that on first use, and waits until every process does."""
    jax.devices()


@contextlib.contextmanager
def _watch_start(how: DistributedSettings) -> Iterator[None]:
    """Reports a long wait for the other processes, and ends this process with status 1 if they do not come.

    JAX waits in native code, which ends the process by SIGABRT and runs no handlers of signals. Meanwhile, signals end
    the process by default.
    """
    end_event = threading.Event()

    def watch_wait() -> None:
        if end_event.wait(min(_REPORT_DELAY_S, how.startup)):
            return
        _say(f"waiting for the other processes at {_address(how)}, for distributed.startup={how.startup:g} s at most")
        if not end_event.wait(max(0.0, how.startup - _REPORT_DELAY_S)):
            _say(f"error: {_describe_failure(how)}. {_START_ADVICE}")
            os._exit(1)

    handlers = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {signum: signal.signal(signum, signal.SIG_DFL) for signum in (signal.SIGINT, signal.SIGTERM)}
    threading.Thread(target=watch_wait, name="start", daemon=True).start()
    try:
        yield
    finally:
        end_event.set()
        for signum, handler in handlers.items():
            signal.signal(signum, handler)


def _say(line: str) -> None:
    sys.stdout.flush()
    os.write(sys.stderr.fileno(), f"{line}\n".encode())


@contextlib.contextmanager
def _explain_errors(config: DistributedSettings) -> Iterator[None]:
    try:
        yield
    except WireError as error:
        raise DistributedError(f"the processes do not find each other: {error}") from error
    except (RuntimeError, OSError) as error:
        raise DistributedError(f"{_describe_failure(config)}: {str(error).splitlines()[0]}. {_START_ADVICE}") from error
    except Exception as error:  # of any type: JAX parses variables that launchers set
        if config.coordinator:
            raise DistributedError(
                f"distributed.coordinator is {config.coordinator}, but {_explain(error)}; set "
                "--config.distributed.processes=N and --config.distributed.process=0 … N−1 in each process"
            ) from error
        raise DistributedError(
            f"distributed is enabled, but no coordinator was given and none was found ({_explain(error)}). Tried: "
            f"{'; '.join(JAX_SOURCES)}. {_half_set()}Set --config.distributed.coordinator=HOST:PORT, .processes and "
            ".process, or --config.distributed.enabled=False"
        ) from error


def _address(settings: DistributedSettings) -> str:
    return settings.coordinator or global_state.coordinator_address or "the address that was found"


def _describe_failure(config: DistributedSettings) -> str:
    return f"the processes do not find each other at {_address(config)} within distributed.startup={config.startup:g} s"


def _half_set() -> str:
    """A sentence on the variables that Slurm has not set, if it has set others; empty otherwise."""
    set_names = [variable for variable in _SLURM_VARIABLES if variable in os.environ]
    missing_names = [variable for variable in _SLURM_VARIABLES if variable not in os.environ]
    if not set_names or not missing_names:
        return ""
    return f"{set_names[0]} is set, but {', '.join(missing_names)} not: start the command by srun. "


def _explain(error: Exception) -> str:
    """Why JAX cannot start, as the middle of a sentence."""
    if isinstance(error, KeyError):
        return f"{error.args[0]} is not set"
    if isinstance(error, IndexError) and (address := os.environ.get("JAX_COORDINATOR_ADDRESS")):
        return f"JAX_COORDINATOR_ADDRESS is {address!r}, expected HOST:PORT"
    message = " ".join(str(error).split()).rstrip(".")
    return message[:1].lower() + message[1:]


_POLL_INTERVAL_S = 0.1


def admit(
    wire: Wire,
    process_count: int,
    facts: Mapping[str, Any],
    folders: Mapping[str, Path],
    timeout_s: float,
    *,
    keeps_folders: bool = True,
) -> None:
    """In process 0: compares every process's facts with its own, and has each read a file in each of the `folders`.

    `folders` maps a setting to the folder that it names. All processes learn the outcome. Folders that were not there
    before stay only if all are admitted, and if `keeps_folders`. Raises DistributedError, which names the process and
    what differs.
    """
    absent_folders = [path for folder in folders.values() for path in list_missing_folders(folder)]
    absent_folders.sort(key=lambda path: len(path.parts), reverse=True)
    try:
        answers = _collect_answers(wire, process_count, "facts", timeout_s)
        faults = [
            f"process {process_id} has other settings, versions or code than process 0: {difference}"
            for process_id in sorted(answers)
            if (difference := list_differences(facts, answers[process_id]["facts"]))
        ]
        for setting, folder in folders.items():
            faults = faults or _find_folder_faults(wire, process_count, setting, folder, timeout_s)
        wire.send({"kind": "verdict", "fault": "; ".join(faults)})
        if faults:
            raise DistributedError("; ".join(faults))
    except BaseException:
        remove_empty_folders(absent_folders)
        raise
    if not keeps_folders:
        remove_empty_folders(absent_folders)


def _find_folder_faults(wire: Wire, process_count: int, setting: str, folder: Path, timeout_s: float) -> list[str]:
    """Which of the other processes do not see the folder of this setting."""
    probe_file = folder / f".seen-{secrets.token_hex(8)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe_file.write_text(probe_file.name)
        wire.send({"kind": "read", "path": str(probe_file.absolute())})
        return [
            f"process {process_id} does not see {folder.absolute()}: {answer['fault']}. Set --config.{setting} to a "
            "folder that all hosts share under one path"
            for process_id, answer in sorted(_collect_answers(wire, process_count, "seen", timeout_s).items())
            if answer["fault"]
        ]
    finally:
        probe_file.unlink(missing_ok=True)


def ask_admission(wire: Wire, facts: Mapping[str, Any], timeout_s: float) -> None:
    """In every other process: answers process 0. Raises DistributedError if it refuses."""
    wire.send({"kind": "facts", "facts": facts})
    while True:
        try:
            _, message = wire.receive(2 * timeout_s)
        except WireError as error:
            raise DistributedError(f"process 0 does not answer: {error}") from error
        if message.get("kind") == "verdict":
            if message["fault"]:
                raise DistributedError(message["fault"])
            return
        if message.get("kind") == "read":
            wire.send({"kind": "seen", "fault": unseen(Path(message["path"]), timeout_s)})


def unseen(path: Path, timeout_s: float) -> str:
    """Why the file cannot be read; empty once it can. A network folder may show it late."""
    end_time = time.monotonic() + timeout_s / 2
    while True:
        try:
            os.listdir(path.parent)  # a cached listing is read anew
            content = path.read_text()
            return "" if content == path.name else f"{path} holds something else there"
        except OSError as error:
            if time.monotonic() > end_time:
                return f"{path.name}, which process 0 wrote there, is missing ({error.strerror})"
        time.sleep(_POLL_INTERVAL_S)


def _collect_answers(wire: Wire, count: int, message_kind: str, timeout_s: float) -> dict[int, Mapping[str, Any]]:
    """The message of this kind from each of the other processes."""
    answers: dict[int, Mapping[str, Any]] = {}
    end_time = time.monotonic() + timeout_s
    while len(answers) < count - 1:
        try:
            process_id, message = wire.receive(max(0.01, end_time - time.monotonic()))
        except WireError as error:
            silent_text = ", ".join(str(process) for process in range(1, count) if process not in answers)
            raise DistributedError(f"process {silent_text} does not answer: {error}") from error
        if message.get("kind") == message_kind:
            answers[process_id] = message
    return answers
