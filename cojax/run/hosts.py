"""Connects the processes of a run, and lets process 0 lead. The others follow it until it ends.

A process that follows runs those `operations` that process 0 names.
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

from cojax.distributed.operations import Follower, Lead, lead_array_files
from cojax.distributed.start import admit, ask_admission, find_devices, start
from cojax.distributed.wire import Message, Wire
from cojax.host.processes import end_all
from cojax.learner.placement import advance, copy_arrays, finite, gather_leaf, replicate
from cojax.learner.update import TrainState, join_states, split_states
from cojax.policy.config import ModelConfig
from cojax.policy.parameters import fingerprint
from cojax.policy.saved_params import save_params
from cojax.policy.transformer import Params
from cojax.report.console import CONSOLE
from cojax.run import assemble, methods, processes
from cojax.run.entries import describe
from cojax.run.machine import versions_and_commit
from cojax.run.policies import with_absolute_path
from cojax.run.processes import ALONE, Together
from cojax.settings.ranges import check_ranges
from cojax.settings.tree import DistributedSettings
from cojax.storage.checkpoint import restore_arrays, save_arrays
from cojax.storage.files import lock_folder

_AGAIN = "Run the same command in every process again: the run goes on from its last checkpoint"
# Seconds until other processes notice a loss, and seconds for others to hear the reason before a connection ends.
_NOTICED, _HEARD = 5.0, 0.5
_SIGNALLED = 128  # exit statuses from here on belong to runs that a signal stopped


class Leading:
    """Process 0 of several."""

    def __init__(self, config: ConfigDict, count: int, connections: Mapping[int, socket.socket]) -> None:
        self._failed, self._deadline = threading.Lock(), config.distributed.deadline
        self._ready = threading.Event()  # the wire may report before the rest is built
        self.wire = Wire(connections, config.distributed.silence, self._on_loss, self._beat, self._on_message)
        self._lead = Lead(self.wire, count - 1)
        self.together = Together(
            self._lead, lead_array_files(self._lead), on_stop=lambda number: os.kill(os.getpid(), number)
        )
        self._ready.set()

    def end(self, status: int, line: str) -> None:
        """Ends the other processes with this status. If this process failed, it does not wait for them."""
        if fails := 0 < status < _SIGNALLED:
            _leave_with(status)
        self.wire.send({"kind": "failed" if fails else "end", "status": status, "line": line or "process 0 failed"})
        self.wire.part()

    def _beat(self) -> None:
        self._ready.wait()
        if (since := self._lead.busy_since) and time.monotonic() - since > self._deadline:
            self._fail(f"a computation of all processes takes longer than {_seconds(self._deadline)}: one hangs")

    def _on_message(self, number: int, message: Message) -> bool:
        if message.get("kind") == "stop":
            self._ready.wait()
            self.together.on_stop(int(message["signal"]))
        elif message.get("kind") == "failed":
            self._fail(f"process {number} failed: {message['line']}")
        return message.get("kind") in ("stop", "failed")

    def _on_loss(self, number: int, reason: str) -> None:
        self._fail(f"process {number} is gone: {reason}. {_AGAIN}")

    def _fail(self, line: str) -> None:
        self._ready.wait()
        if not self._failed.acquire(blocking=False):
            return
        _say(line)
        with contextlib.suppress(Exception):
            self.wire.send({"kind": "failed", "line": line})
        end_all()
        time.sleep(_HEARD)
        os._exit(1)


class Following:
    """One of the other processes."""

    def __init__(self, config: ConfigDict, number: int, connections: Mapping[int, socket.socket]) -> None:
        self.number, self._deadline, self._asked = number, config.distributed.deadline, 0
        self.wire = Wire(connections, config.distributed.silence, self._on_loss, self._beat, self._on_message)
        self._follower = Follower(self.wire, {})
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._receive)

    def follow(self, config: ConfigDict) -> int:
        """Runs the operations that process 0 names; returns its exit status."""
        self._follower.operations = operations(config)
        CONSOLE.print(f"process {self.number}: follows process 0")
        try:
            status = self._follower.follow()
        except Exception as error:
            # If another process is lost, process 0 says which.
            time.sleep(_NOTICED if isinstance(error, jax.errors.JaxRuntimeError) else 0.0)
            self.wire.send({"kind": "failed", "line": " ".join(f"{type(error).__name__}: {error}".split())[:1000]})
            raise
        self.wire.part()
        CONSOLE.print(f"process {self.number}: ended with process 0")
        return status

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            os._exit(128 + number)
        self._asked = number

    def _beat(self) -> None:
        if self._asked > 0:
            self.wire.send({"kind": "stop", "signal": self._asked})
            self._asked = -1
        if (since := self._follower.busy_since) and time.monotonic() - since > self._deadline:
            _end(f"a computation of all processes takes longer than {_seconds(self._deadline)}: one hangs")

    def _on_message(self, number: int, message: Message) -> bool:
        if message.get("kind") == "failed":
            _end(f"process 0 ended: {message['line']}")
        return False

    def _on_loss(self, number: int, reason: str) -> None:
        _end(f"process 0 is gone: {reason}. {_AGAIN}")


def _seconds(deadline: float) -> str:
    return f"distributed.deadline={deadline:g} s"


def _say(line: str) -> None:
    # Not by the console: JAX may end this process at any moment.
    os.write(sys.stderr.fileno(), f"error: {line}\n".encode())


def _end(line: str) -> None:
    _say(line)
    os._exit(1)


def _leave_with(status: int) -> None:
    """Has this process exit without the others, for which JAX would wait. Runs before JAX's own exit handler."""

    @atexit.register
    def leave() -> None:
        end_all()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


@contextlib.contextmanager
def together(config: ConfigDict, preflight: bool = False) -> Iterator[Together | Following]:
    """Connects the processes of a run, and ends them all together. Raises ValueError and DistributedError.

    A preflight neither locks the workdir nor leaves one behind.
    """
    if processes.is_enabled(config):
        check_ranges(config)  # before waiting for the others
    processes.check(config)
    if not processes.is_enabled(config):
        yield ALONE
        return
    section, folder = config.distributed, Path(config.workdir)
    lock = None if preflight or section.process is None else _lock(folder, section.process)
    if lock and not section.process:
        lock.close()  # the run takes it again once all processes are connected
    process, count, connections = start(DistributedSettings(**section))
    if count == 1:
        yield ALONE
        return
    facts = {**_facts(config), "check": preflight}
    if process:
        following = Following(config, process, connections)
        try:
            ask_admission(following.wire, facts, section.startup)
            find_devices()
            lock = lock or (None if preflight else _lock(folder, process))
            yield following
        except Exception:
            _leave_with(1)
            raise
        finally:
            del lock
        return
    leading = Leading(config, count, connections)
    status, line = 1, ""
    try:
        folders = processes.shared_folders(config)
        admit(leading.wire, count, facts, folders, section.startup, keep=not preflight)
        find_devices()
        processes.check_several(config)
        yield leading.together
    except SystemExit as system_exit:
        status = system_exit.code if isinstance(system_exit.code, int) else int(system_exit.code is not None)
        raise
    except jax.errors.JaxRuntimeError:
        time.sleep(_NOTICED)  # the wire reports which process is lost, and ends this one
        raise
    except Exception as error:
        line = " ".join(str(error).split())
        raise
    finally:
        leading.end(status, line)


def _lock(folder: Path, process: int) -> TextIO | None:
    """Locks an existing folder, so that a second process of this number does not disturb the first one's run."""
    if not folder.is_dir():
        return None
    return lock_folder(folder, "--config.workdir", f".lock-{process}" if process else ".lock")


def _facts(config: ConfigDict) -> dict[str, Any]:
    """Returns the facts that must be equal in all processes."""
    settings = json.loads(json.dumps(config.to_dict()))
    del settings["distributed"]
    code = {name: {"name": entry["name"], "hash": entry.get("hash")} for name, entry in describe(config).items()}
    return json.loads(json.dumps({"settings": settings, **versions_and_commit(), "code": code}))


def operations(config: ConfigDict) -> dict[str, Callable[..., Any]]:
    """Returns the operations of a run by name. `build` adds those of the learner."""
    config = methods.apply_method(with_absolute_path(config))
    by_name: dict[str, Callable[..., Any]] = {}
    initial: list[TrainState] = []  # its outlines

    def load(folder: str, seed: int, model: str) -> Params:
        by_name["gather_leaf"] = functools.partial(gather_leaf, shape(model))
        return processes.read_params(ALONE, folder, shape(model), seed, processes.mesh_of(config))

    def build(model: str, params: Params) -> None:
        learner = assemble.learner_on(config, shape(model), processes.mesh_of(config), params)
        by_name.update(
            advance=advance,
            copy=copy_arrays,
            prepare=learner.prepare,
            update=learner.update_once,
            policy=learner.policy,
            policy_fingerprint=learner.fingerprint,
            replicate=replicate,
            gather_leaf=functools.partial(gather_leaf, learner.config),
            finite=functools.partial(finite, learner.config),
            save_params=save_params,
        )

        def init(params: Params, seed: int) -> TrainState:
            state = learner.init(params, seed)
            initial[:] = [processes.outlines(state)]
            return state

        by_name["init"] = init

    def save(folder: str, target: TrainState, second: TrainState | None) -> None:
        save_arrays(Path(folder), join_states(target, second))

    def restore(folder: str, with_second: bool) -> tuple[TrainState, TrainState | None]:
        return split_states(restore_arrays(Path(folder), join_states(initial[0], initial[0] if with_second else None)))

    by_name |= {"load": load, "build": build, "save": save, "restore": restore, "fingerprint": fingerprint}
    return by_name


def shape(text: str) -> ModelConfig:
    """Parses the model's shape that process 0 sent."""
    return ModelConfig(**json.loads(text))
