"""A command in a child process: started with a safe import path, stopped in order, its failure as an exception."""

import collections
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

_CHILD_PATH = Path(__file__).with_name("child.py")
# Seconds that a command that is asked to stop has to end its step and save a checkpoint, and then to end at once.
STOP_TIMEOUT_S, END_TIMEOUT_S = 600.0, 30.0
# An error quotes at most this many lines of output, and reads at most this many bytes for them.
_MAX_OUTPUT_LINES, _MAX_OUTPUT_BYTES = 20, 20_000


class RunFailed(RuntimeError):
    """A command ended with an error, which is the message: its own line, or else the last lines that it printed.

    `status` is its exit status, or minus the signal that killed it; `lines` are the last lines that it printed.
    """

    def __init__(self, message: str, status: int, lines: Sequence[str]) -> None:
        super().__init__(message)
        self.status, self.lines = status, tuple(lines)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.status, self.lines)


class Child:
    """`cojax NAME ARGUMENTS…` in a process and a session of its own.

    When this process ends, however it ends, the command finishes its step, saves a checkpoint and exits. The command
    does the same when `stop` is called, and when nothing refers to this object any more.
    """

    def __init__(self, arguments: Sequence[str], *, is_shown: bool = False) -> None:
        self.arguments = tuple(arguments)
        self.stopped = threading.Event()
        owner_read, owner_write = os.pipe()
        report_read, report_write = os.pipe()
        with contextlib.ExitStack() as own_files, contextlib.ExitStack() as child_files:
            for pipe, file_stack in ((owner_read, child_files), (report_write, child_files), (owner_write, own_files)):
                file_stack.callback(os.close, pipe)
            os.set_blocking(report_read, False)
            # If another thread closes this file, reading raises; a descriptor could be another file's by then.
            self._reports = own_files.enter_context(open(report_read, "rb", buffering=0))
            # A file, not a pipe: the command prints while it stops, when nobody may be reading any more.
            self._output_file, writer = _open_output()
            own_files.callback(self._output_file.close)
            child_files.callback(writer.close)
            folders_json = json.dumps([os.path.abspath(folder) for folder in sys.path if isinstance(folder, str)])
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(_CHILD_PATH), str(owner_read), str(report_write), folders_json, *arguments],
                pass_fds=(owner_read, report_write), stdin=subprocess.DEVNULL, stdout=writer, stderr=writer,
                env={**os.environ, "PYTHONUTF8": "1", "PYTHONUNBUFFERED": "1"}, start_new_session=True,
            )  # fmt: skip
            self._own_files = own_files.pop_all()
        self._partial_line, self._is_shown, self._shown_bytes = b"", is_shown, 0
        _CHILDREN.add(self)
        self.stop = weakref.finalize(self, _stop, self.process, self.stopped, self._own_files, os.getpid())

    def read_reports(self) -> Iterator[Mapping[str, Any]]:
        """Yields what the command has reported since the last call (cojax/host/processes.py)."""
        with contextlib.suppress(ValueError):  # it was stopped
            while chunk := self._reports.read(65_536):
                self._partial_line += chunk
        *lines, self._partial_line = self._partial_line.split(b"\n")
        yield from map(json.loads, lines)

    def show_output(self) -> None:
        """Prints what the command has printed since the last call, if that was asked for."""
        if self._is_shown:
            with contextlib.suppress(ValueError):  # it was stopped
                self._output_file.seek(self._shown_bytes)
                print(self._output_file.read().decode(errors="replace"), end="", flush=True)
                self._shown_bytes = self._output_file.tell()

    def wait(self, timeout_s: float) -> bool:
        """Waits at most `timeout_s` for the command to end. Returns whether it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout_s)
        return self.process.returncode is not None

    def stop_and_raise_if_failed(self) -> None:
        """Raises RunFailed if the command has ended with an error. A command that was asked to stop has no error."""
        status, was_stopped = self.process.returncode, self.stopped.is_set()
        lines = self._read_last_lines()
        self.stop()
        if status in (0, None) or was_stopped:
            return
        error_lines = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        if error_lines:
            raise RunFailed(error_lines[-1], status, lines)
        signal_number = -status if status < 0 else status - 128
        if signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            name = signal.Signals(signal_number).name
            raise RunFailed(f"the command was ended by {name}; call again to go on from its checkpoint", status, lines)
        output = "\n".join(lines) or "it printed nothing"
        raise RunFailed(f"the command ended with status {status}:\n{output}", status, lines)

    def _read_last_lines(self) -> list[str]:
        try:
            output_size = self._output_file.seek(0, os.SEEK_END)
            self._output_file.seek(max(0, output_size - _MAX_OUTPUT_BYTES))
            output_text = self._output_file.read().decode(errors="replace")
        except ValueError:  # it was stopped
            return []
        return list(collections.deque((line for line in output_text.splitlines() if line.strip()), _MAX_OUTPUT_LINES))


# A fork of this process must not keep its children's pipes open: they tell the children whether this process is alive.
_CHILDREN: weakref.WeakSet[Child] = weakref.WeakSet()


def _close_inherited_pipes() -> None:
    for child in list(_CHILDREN):
        child._own_files.close()


os.register_at_fork(after_in_child=_close_inherited_pipes)


def _open_output() -> tuple[IO[bytes], IO[bytes]]:
    """Opens a file without a name, to read and to append."""
    descriptor, output_path = tempfile.mkstemp(prefix="cojax-")
    try:
        os.close(descriptor)
        return open(output_path, "rb"), open(output_path, "ab")
    finally:
        os.unlink(output_path)


def _stop(process: subprocess.Popen[bytes], stop: threading.Event, files: contextlib.ExitStack, owner_pid: int) -> None:
    """Has the command finish its step and save a checkpoint; if that takes too long, ends it at once, then kills it.

    An interrupt while it waits ends the command at once.
    """
    with files:
        if os.getpid() != owner_pid or process.poll() is not None:
            return
        stop.set()
        try:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_TIMEOUT_S)
        finally:
            if process.poll() is None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(END_TIMEOUT_S)
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait(END_TIMEOUT_S)
