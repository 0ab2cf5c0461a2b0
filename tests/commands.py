"""`python -m MODULE …`, many times: what all commands import is imported once, by a process that forks for each.

A command is a process of its own, with its own arguments, environment, folder and output. What is read while importing
is that of the first process: JAX_… and PYTHONPATH of a command's own environment come too late.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from patience import patience

ROOT = Path(__file__).parents[1]
# Reads orders and answers each with one line of JSON. A forked child leaves the loop, and ends as a command ends.
_PROGRAM = """
import gc, json, os, runpy, signal, sys
from absl import flags
import cojax.run.command, cojax.run.train
import sklearn.feature_extraction.text  # which a run imports when its task set grows
# The command defines its flags anew, as the main program.
for name in ("check", "workdir"):
    delattr(flags.FLAGS, name)
del sys.modules["cojax.run.command"]
gc.collect()
gc.freeze()
running = set()
for line in sys.stdin:
    order = json.loads(line)
    if (pid := order.get("status")) is not None:
        ended, status = os.waitpid(pid, os.WNOHANG)
        running.discard(ended)
        answer = os.waitstatus_to_exitcode(status) if ended else None
    elif answer := os.fork():
        running.add(answer)
    else:
        break
    print(json.dumps(answer), flush=True)
else:
    for pid in running:
        os.kill(pid, signal.SIGKILL)
    sys.exit()
os.environ.clear()
os.environ.update(order["environment"])
os.chdir(order["folder"])
for name, flag, descriptor in (
    ("/dev/null", os.O_RDONLY, 0), (order["out"], os.O_WRONLY | os.O_APPEND, 1),
    (order["error"], os.O_WRONLY | os.O_APPEND, 2),
):
    os.dup2(os.open(name, flag), descriptor)
sys.argv[1:] = order["arguments"]
runpy.run_module(order["module"], run_name="__main__", alter_sys=True)
"""


class Command:
    """One that runs, or has run."""

    def __init__(self, server: "Commands", pid: int, arguments: list[str], output_path: Path, error_path: Path):
        self.pid, self.arguments = pid, arguments
        self._server, self._out, self._error = server, output_path, error_path
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit status, or minus the signal; None while it runs."""
        if self.returncode is None:
            self.returncode = self._server.ask({"status": self.pid})
        return self.returncode

    def send_signal(self, signal_number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal_number)

    def wait(self, timeout: float) -> subprocess.CompletedProcess[str]:
        """What it printed, once it has ended. Raises TimeoutExpired, and kills it. `timeout` is for an idle machine."""
        deadline = time.monotonic() + patience(timeout)
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                self.send_signal(signal.SIGKILL)
                raise subprocess.TimeoutExpired(self.arguments, timeout, self.printed())
            time.sleep(0.01)
        return subprocess.CompletedProcess(self.arguments, status, self.printed(), self._error.read_text())

    def printed(self) -> str:
        return self._out.read_text()


class Commands:
    """The process that forks; use as a context."""

    def __enter__(self) -> "Commands":
        self._printed = tempfile.TemporaryDirectory(prefix="commands-")
        self._count = 0
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *raised: object) -> None:
        self._process.communicate(timeout=patience(60))
        self._printed.cleanup()

    def start(
        self, module: str, *arguments: str, environment: Mapping[str, str] | None = None, folder: Path = ROOT
    ) -> Command:
        """Begins the command in the folder."""
        self._count += 1
        output_path, error_path = (Path(self._printed.name, f"{self._count}.{suffix}") for suffix in ("out", "error"))
        output_path.touch()
        error_path.touch()
        order = {
            "module": module, "arguments": arguments, "environment": dict(environment or os.environ),
            "folder": str(folder), "out": str(output_path), "error": str(error_path),
        }  # fmt: skip
        return Command(self, self.ask(order), [module, *arguments], output_path, error_path)

    def run(
        self, module: str, *arguments: str, environment: Mapping[str, str] | None = None, folder: Path = ROOT
    ) -> subprocess.CompletedProcess[str]:
        return self.start(module, *arguments, environment=environment, folder=folder).wait(timeout=300)

    def ask(self, order: object) -> int | None:
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps(order), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer, "the process that forks commands has ended"
        return json.loads(answer)
