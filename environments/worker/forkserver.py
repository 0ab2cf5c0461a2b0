"""The fork server: imports and makes the environment once, then forks a child for every episode.

It is one single-threaded process in the environment's own virtual environment, and opens no episode itself. On its
control socket it receives one message a packet: {"spawn": number, "slot", "kind"} with the child's end of a socket
pair, or {"kill": number}. It sends {"ready"} or {"failure", "message"} once, then {"born": number, "pid"} and
{"exited": number, "slot", "reason"}. A number is never used twice. A slot, with its user id, is used again once nothing
of its last child is left.
"""

import contextlib
import gc
import importlib
import os
import platform
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cojax.types import to_json
from . import kernel, view, wire
from .bounds import Bounds, Layers
from .client import import_from
from .sandbox import confine, enclose, leave_scratch, separate, sweep, try_child
from .served import Operations, Prepared, describe, environment_operations, episode_operations

# The longest message on the control socket, in bytes; seconds that preparing an environment may take.
MAX_PACKET_BYTES, _PREPARATION_S = 64 * 2**10, 30.0


def main(control_descriptor: int) -> None:
    """Serves until the control socket ends; then ends every child."""
    control = socket.socket(fileno=control_descriptor)
    supervisor_pid = os.getppid()
    kernel.die_with_parent()
    if os.getppid() != supervisor_pid:
        return
    order = wire.decode(control.recv(MAX_PACKET_BYTES))
    layers = Layers()
    try:
        bounds = Bounds(**order["bounds"])
        layers = enclose(
            [*view.list_needed_files(), *order["visible"]] if order["enclosed"] else None, order["hidden"], bounds
        )
        if obstacle := try_child(bounds, layers):
            raise RuntimeError(f"no child can be confined here: {obstacle}")
        for package_root in order["roots"]:
            import_from(*package_root)
        module_name, _, function_name = order["module"].partition(":")
        environment = vars(importlib.import_module(module_name))[function_name or "make"](**order["settings"])
        if isinstance(environment, Prepared):
            environment.adopt(_prepare_apart(environment))
        ready_reply = {**describe(environment), "layers": layers.status(), "python": platform.python_version()}
    except BaseException as error:
        leave_scratch(layers)
        control.send(wire.encode(wire.explain(wire.START, _explain_error(error))))
        return
    # Memory pages that nothing writes to stay shared with every child.
    gc.collect()
    gc.freeze()
    control.send(wire.encode({"ready": ready_reply}))
    _Children(control, environment, bounds, layers).serve()
    leave_scratch(layers)


def _explain_error(error: BaseException) -> str:
    """The message of an exception, and where it was raised, unless that is in this package: its errors name the fix."""
    message = "".join(traceback.format_exception_only(error)).strip()[:1_000]
    if isinstance(error, ModuleNotFoundError):
        message += f"; a worker imports the packages of {sys.prefix} and the package of its environment's module alone"
    frames = traceback.extract_tb(error.__traceback__)
    our_folder = Path(__file__).parents[1]
    if isinstance(error, ValueError) and frames and Path(frames[-1].filename).is_relative_to(our_folder):
        return message
    return f"{message}\n{''.join(traceback.format_list(frames))[-1_000:]}".rstrip()


def _prepare_apart(environment: Prepared) -> Any:
    """What a child finds out for all episodes, which would otherwise each find it out; None if it takes too long."""
    read_end, write_end = os.pipe()
    if not (child_pid := os.fork()):
        with _exit_after():
            kernel.die_with_parent()
            os.close(read_end)
            with open(write_end, "wb") as stream:
                stream.write(wire.encode(environment.prepare()))
    os.close(write_end)
    reply, end_s = b"", time.monotonic() + _PREPARATION_S
    with open(read_end, "rb", buffering=0) as pipe, selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while selector.select(max(0.0, end_s - time.monotonic())) and (chunk := pipe.read(MAX_PACKET_BYTES)):
            reply += chunk
    _kill_process(child_pid)
    os.waitpid(child_pid, 0)
    try:
        return wire.decode(reply)
    except ValueError:
        return None


class _Children:
    """Forks the children, kills them and cleans up after them."""

    def __init__(self, control: socket.socket, environment: Any, bounds: Bounds, layers: Layers) -> None:
        self.control, self.environment, self.bounds, self.layers = control, environment, bounds, layers
        self.child_by_pid: dict[int, tuple[int, int]] = {}  # process id → (number, slot)
        self.remover_pids: set[int] = set()
        self.find_offenders = None if layers.files else view.watch_scratch(layers.scratch, bounds)

    def serve(self) -> None:
        wakeup_end, waker_end = socket.socketpair()
        for socket_end in (wakeup_end, waker_end):
            socket_end.setblocking(False)
        signal.set_wakeup_fd(waker_end.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda signal_number, frame: None)
        with selectors.DefaultSelector() as selector:
            selector.register(self.control, selectors.EVENT_READ)
            selector.register(wakeup_end, selectors.EVENT_READ)
            while True:
                wait_s = view.COUNT_PERIOD_S if self.find_offenders and self.child_by_pid else None
                ready_sockets = {selector_key.fileobj for selector_key, _ in selector.select(wait_s)}
                if wakeup_end in ready_sockets:
                    wakeup_end.recv(4_096)
                    self._clean_up_ended()
                if self.control in ready_sockets and not self._carry_out_order():
                    break
                if self.find_offenders:
                    number_by_slot = {slot: child_number for child_number, slot in self.child_by_pid.values()}
                    for slot in self.find_offenders(number_by_slot):
                        self._kill_child(number_by_slot[slot])
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for child_number, _ in list(self.child_by_pid.values()):
            self._kill_child(child_number)
        while self.child_by_pid:
            self._clean_up(*os.waitpid(-1, 0))
        for remover_pid in list(self.remover_pids):
            _kill_process(remover_pid)
            os.waitpid(remover_pid, 0)

    def _carry_out_order(self) -> bool:
        """Carries out one order; False if the control socket has ended."""
        packet, descriptors, _, _ = socket.recv_fds(self.control, MAX_PACKET_BYTES, 1)
        if not packet:
            return False
        order = wire.decode(packet)
        if "kill" in order:
            self._kill_child(order["kill"])
        else:
            with socket.socket(fileno=descriptors[0]) as connection:
                self._fork_child(connection, order["spawn"], order["slot"], order["kind"])
        return True

    def _fork_child(self, connection: socket.socket, child_number: int, slot: int, child_kind: str) -> None:
        try:
            child_pid = os.fork()
        except OSError as error:
            self._send({"exited": child_number, "slot": slot, "reason": f"cannot fork: {error}"})
            return
        if child_pid:
            self.child_by_pid[child_pid] = (child_number, slot)
            self._send({"born": child_number, "pid": child_pid})
            return
        with _exit_after():
            kernel.die_with_parent()
            separate(self.layers)
            if self.layers.processes:
                self._run_as_first_process(connection, slot, child_kind)
            else:
                self._serve_child(connection, slot, child_kind)

    def _run_as_first_process(self, connection: socket.socket, slot: int, child_kind: str) -> None:
        """Forks once more: when the first process of a namespace ends, all others in it end too."""
        read_end, write_end = os.pipe()
        if inner_pid := os.fork():
            os.close(read_end)
            connection.close()
            self.control.close()
            # Ends after the inner process, so that nothing of the child is left once this process has been waited for.
            signal.signal(signal.SIGTERM, lambda signal_number, frame: _kill_process(inner_pid))
            _, status = os.waitpid(inner_pid, 0)
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
        with _exit_after():
            os.close(write_end)
            self._serve_child(connection, slot, child_kind, lambda: _is_closed(read_end))

    def _serve_child(
        self, connection: socket.socket, slot: int, child_kind: str, is_orphan: Callable[[], bool] = lambda: False
    ) -> None:
        """Serves as the child: confined, with its socket as the only open file."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        make_operations = episode_operations if child_kind == "episode" else environment_operations
        confine(self.bounds, self.layers, slot)
        if is_orphan():
            return
        serve_operations(_keep_only(connection), make_operations(self.environment))

    def _kill_child(self, child_number: int) -> None:
        for child_pid, (candidate_number, _) in self.child_by_pid.items():
            if candidate_number == child_number:
                with contextlib.suppress(ProcessLookupError):
                    if self.layers.processes:
                        os.kill(child_pid, signal.SIGTERM)
                        # A stopped process acts on the signal only once it is continued.
                        os.kill(child_pid, signal.SIGCONT)
                    else:
                        (os.killpg if os.getpgid(child_pid) == child_pid else os.kill)(child_pid, signal.SIGKILL)

    def _clean_up_ended(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (wait_result := os.waitpid(-1, os.WNOHANG))[0]:
                self._clean_up(*wait_result)

    def _clean_up(self, child_pid: int, status: int) -> None:
        self.remover_pids.discard(child_pid)
        if child_pid not in self.child_by_pid:
            return  # an adopted orphan
        child_number, slot = self.child_by_pid.pop(child_pid)
        with contextlib.suppress(OSError):
            os.killpg(child_pid, signal.SIGKILL)
        if remover_pid := sweep(self.layers, slot, set(self.child_by_pid) | self.remover_pids):
            self.remover_pids.add(remover_pid)
        reason = f"the child ended with exit code {os.waitstatus_to_exitcode(status)}"
        self._send({"exited": child_number, "slot": slot, "reason": reason})

    def _send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self.control.send(wire.encode(message))


@contextlib.contextmanager
def _exit_after():  # type: ignore[no-untyped-def]
    """Ends the forked process when the block ends, whatever happens: it never returns to the fork server's loop."""
    try:
        yield
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(70)


def _kill_process(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def serve_operations(connection: socket.socket, operations: Operations) -> None:
    """In a child: answers requests one at a time by `operations` until the connection ends.

    An exception of the environment is a failure of that call.
    """
    stream = connection.makefile("rb")
    while request_line := stream.readline(wire.MAX_REQUEST_BYTES):
        request = wire.decode(request_line)
        try:
            value = to_json(operations[request["op"]](*request["arguments"]))
            reply_line = wire.encode({"n": request["n"], "value": value})
        except MemoryError:
            reply_line = wire.encode({"n": request["n"], **wire.explain(wire.LIMIT_EXCEEDED, "out of memory")})
        except (Exception, SystemExit) as error:
            reason = f"{type(error).__name__}: {error}".encode("utf-8", "replace").decode()
            reply_line = wire.encode({"n": request["n"], **wire.explain(wire.ENVIRONMENT, reason)})
        connection.sendall(reply_line)


def _is_closed(pipe_end: int) -> bool:
    """Whether the other end of the pipe is closed."""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe_end, selectors.EVENT_READ)
        return bool(selector.select(0))


def _keep_only(connection: socket.socket) -> socket.socket:
    """The connection as descriptor 3, /dev/null as 0 to 2; closes all other descriptors."""
    null_device = os.open("/dev/null", os.O_RDWR)
    connection_copy = os.dup(connection.fileno())
    for standard_descriptor in (0, 1, 2):
        os.dup2(null_device, standard_descriptor)
    os.dup2(connection_copy, 3)
    os.closerange(4, 65_536)
    return socket.socket(fileno=3)
