"""An environment whose actions do whatever hostile code would, run for real in the process of the episode."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cojax.types import Action, Check, Evaluation, Message, Observation, Task, Triplet

# A worker imports this file alone, from wherever it lies.
sys.path.append(str(Path(__file__).parent))
from trespass import TRESPASSES


def _away() -> None:
    """Into a session of its own, where that is allowed."""
    with contextlib.suppress(OSError):
        os.setsid()


def _bomb(argument: str) -> str:
    pids = 0
    try:
        while True:
            if os.fork() == 0:
                _away()
                time.sleep(600)
            pids += 1
    except OSError:
        return f"{pids} forks"


def _orphan(argument: str) -> str:
    """A grandchild in a session of its own, whose parent is gone."""
    reads, writes = os.pipe()
    if os.fork() == 0:
        _away()
        if (pid := os.fork()) == 0:
            time.sleep(600)
        os.write(writes, str(pid).encode())
        os._exit(0)
    return f"orphan {os.read(reads, 20).decode()}"


def _forge(argument: str) -> str:
    """Answers the call under way, and the next one, before the serving loop can."""
    reply = b'{"n":%d,"value":{"reward":1.0,"checks":[]}}\n'
    for call_number in range(1, 9):
        os.write(3, reply % call_number)
    return "forged"


def _connect(argument: str) -> str:
    with socket.socket() as outside:
        outside.settimeout(2)
        outside.connect(("127.0.0.1", int(argument)))
    return "connected"


def _fill(argument: str) -> str:
    byte_count = 0
    with open("/tmp/big", "wb") as file:
        for _ in range(1_000):
            byte_count += file.write(b"x" * 2**20)
    return str(byte_count)


def _identity(argument: str) -> str:
    return f"uid {os.getuid()} pid {os.getpid()} files {sorted(os.listdir('/tmp'))}"


def _later(argument: str) -> str:
    """Ends this process once it has answered."""
    threading.Timer(0.2, os._exit, (0,)).start()
    return "soon"


def _mute(argument: str) -> str:
    """Hangs up once it has answered, and lives on."""
    our_end = socket.socket(fileno=os.dup(3))
    threading.Timer(0.1, our_end.shutdown, (socket.SHUT_WR,)).start()
    return "soon"


def _nested(argument: str) -> str:
    return "[" * 100_000


DEEDS: dict[str, Callable[[str], Any]] = {
    "say": lambda argument: argument,
    "spin": lambda argument: [None for _ in iter(int, 1)],
    "deaf": lambda argument: (signal.signal(signal.SIGTERM, signal.SIG_IGN), time.sleep(600)),
    "allocate": lambda argument: str(len(bytearray(64 * 2**30))),
    "flood": lambda argument: "x" * (16 * 2**20),
    "print": lambda argument: [print("x" * 2**20, flush=True) for _ in range(64)] and "printed",
    "exit": lambda argument: os._exit(0),
    "crash": lambda argument: os.kill(os.getpid(), signal.SIGSEGV),
    "raise": lambda argument: [][1],
    "leave": lambda argument: (_ for _ in ()).throw(SystemExit(3)),
    "read": lambda argument: Path(argument).read_text()[:100],
    "list": lambda argument: " ".join(sorted(os.listdir(argument))),
    "write": lambda argument: Path(argument).write_text("x"),
    "shell": lambda argument: subprocess.run(argument, shell=True, capture_output=True, text=True).stdout,
    "secrets": lambda argument: " ".join(sorted(os.environ)),
    "signal": lambda argument: os.kill(int(argument), signal.SIGKILL),
    "mount": lambda argument: os.chroot("/tmp"),
    "bomb": _bomb,
    "orphan": _orphan,
    "forge": _forge,
    "connect": _connect,
    "fill": _fill,
    "identity": _identity,
    "nested": _nested,
    "later": _later,
    "mute": _mute,
    **TRESPASSES,
}


class HostileEpisode:
    def __init__(self, task: Task):
        self.task, self.said = task, ""
        if task.query:
            DEEDS[task.query](task.setup.get("argument", ""))

    def reset(self) -> tuple[Message, ...]:
        return (Message("user", "do as you like"),)

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return ()

    def step(self, action: Action) -> Observation:
        call = action.calls[0]
        try:
            self.said = str(DEEDS[call.name](call.arguments.get("argument", "")))
        except OSError as error:
            return Observation((Message("tool", f"refused: {error}"),), ok=False)
        return Observation((Message("tool", self.said),))

    def state(self) -> Mapping[str, Any]:
        return {"said": self.said}

    def affordances(self) -> tuple[Action, ...]:
        return ()

    def evaluate(self) -> Evaluation:
        if deed := self.task.setup.get("at_evaluation"):
            DEEDS[deed]("")
        return Evaluation(0.25, (Check("said", bool(self.said)),))

    def close(self) -> None:
        pass


class Hostile:
    name = "hostile"

    def __init__(self, greeting: str = ""):
        self.greeting = greeting

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return ()

    def tasks(self, split: str, count: int, seed: int = 0) -> tuple[Task, ...]:
        if split != "all":
            raise ValueError(f"split {split!r} not found; available: all")
        return tuple(Task("hostile", "", {"number": number}) for number in range(count))

    def start(self, task: Task) -> HostileEpisode:
        return HostileEpisode(task)

    def phrase(self, steps: Sequence[Triplet]) -> str | None:
        return DEEDS[steps[0].action.calls[0].name]("") if steps else self.greeting


def make(greeting: str = "", broken: bool = False, slow: float = 0.0) -> Hostile:
    time.sleep(slow)
    if broken:
        raise RuntimeError("the data is not there")
    return Hostile(greeting)
