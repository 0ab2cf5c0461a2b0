"""Connects the processes of a run, and lets process 0 lead. The others follow it until it ends.

A process that follows runs those `make_operations` that process 0 names.
"""

import atexit
import contextlib
import functools
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import jax
from ml_collections import ConfigDict

from cojax.distributed.operations import Follower, Lead, make_array_files
from cojax.distributed.start import admit, ask_admission, connect_processes, find_devices
from cojax.distributed.wire import Message, Wire
from cojax.host.processes import end_all
from cojax.learner.placement import advance_step, check_finite, copy_arrays, gather_leaf, replicate
from cojax.learner.update import TrainState, join_states, split_states
from cojax.policy.config import ModelConfig
from cojax.policy.parameters import hash_leaves
from cojax.policy.saved_params import save_params
from cojax.policy.transformer import Params
from cojax.report.console import CONSOLE
from cojax.rollout.replicas import ReplicaForwards, spread, spread_leaves
from cojax.run import assemble, methods, processes
from cojax.run.entries import describe
from cojax.run.machine import read_versions
from cojax.run.policies import settle_model
from cojax.run.processes import ALONE, Together
from cojax.settings.ranges import check_ranges
from cojax.settings.tree import DistributedSettings
from cojax.storage.checkpoint import restore_arrays, save_arrays
from cojax.storage.files import lock_folder

_RESTART_HINT = "Run the same command in every process again: the run goes on from its last checkpoint"
# Seconds for other processes to notice a loss, and for them to hear the reason before this one exits.
_LOSS_NOTICE_S, _REASON_DELAY_S = 5.0, 0.5
_FIRST_SIGNAL_STATUS = 128  # runs that a signal stopped exit with this status or a higher one


class Leading:
    """Process 0 of several."""

    def __init__(self, config: ConfigDict, process_count: int, connections: Mapping[int, socket.socket]) -> None:
        self._failure_lock, self._timeout_s = threading.Lock(), config.distributed.deadline
        self._built_event = threading.Event()  # the wire may report before the rest is built
        self.wire = Wire(connections, config.distributed.silence, self._on_loss, self._on_beat, self._on_message)
        self._lead = Lead(self.wire, process_count - 1)
        self.together = Together(
            self._lead, make_array_files(self._lead), on_stop=lambda signal_number: os.kill(os.getpid(), signal_number)
        )
        self._built_event.set()

    def end(self, status: int, line: str) -> None:
        """Ends the other processes with this status. If this process failed, it does not wait for them."""
        if is_error := 0 < status < _FIRST_SIGNAL_STATUS:
            _exit_alone(status)
        self.wire.send({"kind": "failed" if is_error else "end", "status": status, "line": line or "process 0 failed"})
        self.wire.say_farewell()

    def _on_beat(self) -> None:
        self._built_event.wait()
        if (busy_since := self._lead.busy_since) and time.monotonic() - busy_since > self._timeout_s:
            self._fail(f"a computation of all processes takes longer than {_word_timeout(self._timeout_s)}: one hangs")

    def _on_message(self, process_id: int, message: Message) -> bool:
        if message.get("kind") == "stop":
            self._built_event.wait()
            self.together.on_stop(int(message["signal"]))
        elif message.get("kind") == "failed":
            self._fail(f"process {process_id} failed: {message['line']}")
        return message.get("kind") in ("stop", "failed")

    def _on_loss(self, process_id: int, reason: str) -> None:
        self._fail(f"process {process_id} is gone: {reason}. {_RESTART_HINT}")

    def _fail(self, error_line: str) -> None:
        self._built_event.wait()
        if not self._failure_lock.acquire(blocking=False):
            return
        _print_error(error_line)
        with contextlib.suppress(Exception):
            self.wire.send({"kind": "failed", "line": error_line})
        end_all()
        time.sleep(_REASON_DELAY_S)
        os._exit(1)


class Following:
    """One of the other processes."""

    def __init__(self, config: ConfigDict, process_id: int, connections: Mapping[int, socket.socket]) -> None:
        self.number, self._timeout_s, self._signal_number = process_id, config.distributed.deadline, 0
        self.wire = Wire(connections, config.distributed.silence, self._on_loss, self._on_beat, self._on_message)
        self._follower = Follower(self.wire, {})
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signal_number, self._receive_signal)

    def follow(self, config: ConfigDict) -> int:
        """Runs the operations that process 0 names; returns its exit status."""
        self._follower.operations = make_operations(config)
        CONSOLE.print(f"process {self.number}: follows process 0")
        try:
            status = self._follower.follow()
        except Exception as error:
            # If another process is lost, process 0 says which.
            time.sleep(_LOSS_NOTICE_S if isinstance(error, jax.errors.JaxRuntimeError) else 0.0)
            self.wire.send({"kind": "failed", "line": " ".join(f"{type(error).__name__}: {error}".split())[:1000]})
            raise
        self.wire.say_farewell()
        CONSOLE.print(f"process {self.number}: ended with process 0")
        return status

    def _receive_signal(self, signal_number: int, frame: FrameType | None) -> None:
        if self._signal_number:
            os._exit(128 + signal_number)
        self._signal_number = signal_number

    def _on_beat(self) -> None:
        if self._signal_number > 0:
            self.wire.send({"kind": "stop", "signal": self._signal_number})
            self._signal_number = -1
        if (busy_since := self._follower.busy_since) and time.monotonic() - busy_since > self._timeout_s:
            _fail_now(f"a computation of all processes takes longer than {_word_timeout(self._timeout_s)}: one hangs")

    def _on_message(self, process_id: int, message: Message) -> bool:
        if message.get("kind") == "failed":
            _fail_now(f"process 0 ended: {message['line']}")
        return False

    def _on_loss(self, process_id: int, reason: str) -> None:
        _fail_now(f"process 0 is gone: {reason}. {_RESTART_HINT}")


def _word_timeout(timeout_s: float) -> str:
    return f"distributed.deadline={timeout_s:g} s"


def _print_error(error_line: str) -> None:
    # Not by the console: JAX may end this process at any moment.
    os.write(sys.stderr.fileno(), f"error: {error_line}\n".encode())


def _fail_now(error_line: str) -> None:
    _print_error(error_line)
    os._exit(1)


def _exit_alone(status: int) -> None:
    """Has this process exit without the others, for which JAX would wait. Runs before JAX's own exit handler."""

    @atexit.register
    def exit_now() -> None:
        end_all()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


@contextlib.contextmanager
def connect_together(config: ConfigDict, preflight: bool = False) -> Iterator[Together | Following]:
    """Connects the processes of a run, and ends them all together. Raises ValueError and DistributedError.

    A preflight neither locks the workdir nor leaves one behind.
    """
    if processes.is_enabled(config):
        check_ranges(config)  # before waiting for the others
    processes.check_processes(config)
    if not processes.is_enabled(config):
        yield ALONE
        return
    distributed, workdir = config.distributed, Path(config.workdir)
    lock_file = None if preflight or distributed.process is None else _lock_workdir(workdir, distributed.process)
    if lock_file and not distributed.process:
        lock_file.close()  # the run takes it again once all processes are connected
    process_id, process_count, connections = connect_processes(DistributedSettings(**distributed))
    if process_count == 1:
        yield ALONE
        return
    shared_facts = {**_gather_shared_facts(config), "check": preflight}
    if process_id:
        following = Following(config, process_id, connections)
        try:
            ask_admission(following.wire, shared_facts, distributed.startup)
            find_devices()
            lock_file = lock_file or (None if preflight else _lock_workdir(workdir, process_id))
            yield following
        except Exception:
            _exit_alone(1)
            raise
        finally:
            del lock_file
        return
    leading = Leading(config, process_count, connections)
    exit_status, error_line = 1, ""
    try:
        folders = processes.list_shared_folders(config)
        admit(leading.wire, process_count, shared_facts, folders, distributed.startup, keeps_folders=not preflight)
        find_devices()
        processes.check_several(config)
        yield leading.together
    except SystemExit as system_exit:
        exit_status = system_exit.code if isinstance(system_exit.code, int) else int(system_exit.code is not None)
        raise
    except jax.errors.JaxRuntimeError:
        time.sleep(_LOSS_NOTICE_S)  # the wire reports which process is lost, and ends this one
        raise
    except Exception as error:
        error_line = " ".join(str(error).split())
        raise
    finally:
        leading.end(exit_status, error_line)


def _lock_workdir(workdir: Path, process_id: int) -> TextIO | None:
    """Locks an existing folder, so that a second process of this number does not disturb the first one's run."""
    if not workdir.is_dir():
        return None
    return lock_folder(workdir, "--config.workdir", f".lock-{process_id}" if process_id else ".lock")


def _gather_shared_facts(config: ConfigDict) -> dict[str, Any]:
    """Returns the facts that must be equal in all processes."""
    run_settings = json.loads(json.dumps(config.to_dict()))
    del run_settings["distributed"]
    code = {setting: {"name": entry["name"], "hash": entry.get("hash")} for setting, entry in describe(config).items()}
    return json.loads(json.dumps({"settings": run_settings, **read_versions(), "code": code}))


def make_operations(config: ConfigDict) -> dict[str, Callable[..., Any]]:
    """Returns the operations of a run by name. `build` adds those of the learner."""
    config = methods.apply_method(settle_model(config))
    operation_by_name: dict[str, Callable[..., Any]] = {}
    structs: list[TrainState] = []  # those of the initial state

    def load(model_folder: str, seed: int, shape_text: str) -> Params:
        operation_by_name["gather_leaf"] = functools.partial(gather_leaf, parse_shape(shape_text))
        return processes.read_params(ALONE, model_folder, parse_shape(shape_text), seed, processes.make_mesh_of(config))

    def build(shape_text: str, params: Params) -> None:
        learner = assemble.make_learner(config, parse_shape(shape_text), processes.make_mesh_of(config), params)
        operation_by_name.update(
            advance=advance_step,
            copy=copy_arrays,
            prepare=learner.prepare,
            update=learner.update_once,
            policy=learner.policy,
            policy_fingerprint=learner.fingerprint,
            replicate=replicate,
            gather_leaf=functools.partial(gather_leaf, learner.config),
            finite=functools.partial(check_finite, learner.config),
            save_params=save_params,
        )

        def init(params: Params, seed: int) -> TrainState:
            state = learner.init(params, seed)
            structs[:] = [processes.make_outlines(state)]
            return state

        operation_by_name["init"] = init

    def build_engine(shape_text: str, slot_count: int, page_count: int, page_length: int) -> None:
        model, mesh = parse_shape(shape_text), processes.make_mesh_of(config)
        assert mesh is not None
        forwards = ReplicaForwards(model, slot_count, page_count, page_length, mesh)
        operation_by_name.update(
            forward=forwards.run,
            spread=functools.partial(spread, model, mesh),
            spread_leaves=functools.partial(spread_leaves, model, mesh),
        )

    def save(checkpoint_folder: str, train_state: TrainState, second_state: TrainState | None) -> None:
        save_arrays(Path(checkpoint_folder), join_states(train_state, second_state))

    def restore(folder: str, has_second: bool) -> tuple[TrainState, TrainState | None]:
        return split_states(restore_arrays(Path(folder), join_states(structs[0], structs[0] if has_second else None)))

    operation_by_name |= {
        "load": load, "build": build, "build_engine": build_engine, "save": save, "restore": restore,
        "fingerprint": hash_leaves,
    }  # fmt: skip
    return operation_by_name


def parse_shape(shape_text: str) -> ModelConfig:
    """Parses the model's shape that process 0 sent."""
    return ModelConfig(**json.loads(shape_text))
