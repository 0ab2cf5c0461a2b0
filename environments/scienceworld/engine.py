"""The official simulator in a JVM within this process. The only module that imports `scienceworld` and `jpype`.

The wheel's own class ScienceWorldEnv reaches the simulator through a network socket, which a confined process has not.
Here its Java classes are called directly; `Simulator` does what that class does.
"""

import contextlib
import functools
import importlib.util
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# The simulator goes through its objects in the order of their hashes. Java draws a hash when it is first asked for, so
# that a look at the state would change what happens later; here all objects have the same one.
_OPTIONS = ("-XX:+UseSerialGC", "-Xss4m", "-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2")
# The small compiler: an episode is short, and its process has few threads. Sizes are of address space.
_FOR_AN_EPISODE = (
    "-XX:TieredStopAtLevel=1",
    "-XX:CompressedClassSpaceSize=64m",
    "-XX:ReservedCodeCacheSize=64m",
    "-Xmx384m",
)
# Solving takes minutes, in which Java's optimizing compiler is worth its time.
_FOR_SOLVING = ("-Xmx1g",)
# So many moves end an episode, as ETO sets the simulator; a `wait` is ten moves, a look none.
MOST_MOVES = 200
# The score of a completed task.
FULL = 100


class Simulator:
    """One world of a variation of a task. Any number may live in a process; they do not depend on each other."""

    def __init__(self, jvm: str, task: str, variation: int, simplifications: str, *, gold: bool = False) -> None:
        """Opens the world in the JVM of the library `jvm`. With `gold`, the simulator also solves the task, in seconds
        or minutes. Raises ValueError for a task or a variation that there is not."""
        made = _interface(jvm)
        self._java = made()
        if task not in (known := list(self._java.getTaskNames())):
            raise ValueError(f"ScienceWorld has no task {task!r:.100}; it has {', '.join(known)}")
        if not 0 <= variation < (count := int(self._java.getTaskMaxVariations(task))):
            raise ValueError(f"{task} has variations 0 to {count - 1}, not {variation}")
        self._java.load(task, variation, simplifications, gold)
        self._java.reset()
        self.look()

    def step(self, command: str) -> str:
        """What the simulator says to a command."""
        return str(self._java.step(command))

    def look(self) -> str:
        """The description of the room; it takes no move."""
        return self.step("look around")

    @property
    def score(self) -> int:
        """The score so far, at most FULL; below 0 where the task has failed."""
        return round(FULL * float(self._java.getScore()))

    @property
    def over(self) -> bool:
        """Whether the episode has ended, as ScienceWorldEnv decides it."""
        return bool(self._java.getCompleted()) or self.score < 0 or int(self._java.getNumMoves()) > MOST_MOVES

    @property
    def description(self) -> str:
        """The task in words."""
        return str(self._java.getTaskDescription())

    @property
    def progress(self) -> str:
        """The goals, and which of them are reached."""
        return str(self._java.getGoalProgressStr())

    def objects(self) -> Mapping[str, Any]:
        """The tree of all objects. The simulator gives it as a file."""
        with tempfile.TemporaryDirectory() as folder:
            if reason := str(self._java.getObjectTree(folder)):
                raise RuntimeError(reason)
            return json.loads((Path(folder) / "objectTree.json").read_text())

    def valid(self) -> list[str]:
        """The commands that the simulator takes for valid now; some are refused all the same.

        To ask draws numbers of the simulator's: what plants do later may differ.
        """
        return [str(command) for command in self._java.getValidActionObjectCombinations()]

    def gold(self) -> list[str]:
        """The commands by which the simulator solved the task."""
        return [str(command) for command in self._java.getGoldActionSequence()]

    def splits(self) -> dict[str, list[int]]:
        """The variations of this task in each official split."""
        found: dict[str, Sequence[Any]] = {
            "train": self._java.getVariationsTrain(),
            "dev": self._java.getVariationsDev(),
            "test": self._java.getVariationsTest(),
        }
        return {split: [int(number) for number in numbers] for split, numbers in found.items()}


def prepare_to_solve(jvm: str) -> None:
    """Starts this process's JVM with the compiler that solves fastest. To be called before any Simulator is made."""
    _interface(jvm, solving=True)


def task_names(jvm: str) -> list[str]:
    """The names of the thirty tasks."""
    return [str(name) for name in _interface(jvm)().getTaskNames()]


@functools.cache
def _interface(jvm: str, solving: bool = False) -> Any:
    """The simulator's class, in this process's JVM; one is started if there is none. With a JVM no process can fork."""
    import jpype

    package = _package()
    options = (*_OPTIONS, *(_FOR_SOLVING if solving else _FOR_AN_EPISODE))
    # The simulator reads a file of the wheel from the current folder.
    with _working_in(package):
        if not jpype.isJVMStarted():
            jar = str(package / "scienceworld.jar")
            jpype.startJVM(jvm, *options, classpath=[jar], ignoreUnrecognized=True, convertStrings=True)
        made = jpype.JClass("scienceworld.runtime.pythonapi.PythonInterface")
        made()
    return made


def _package() -> Path:
    found = importlib.util.find_spec("scienceworld")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("scienceworld is not here; run: cojax install scienceworld")
    return Path(found.origin).parent


@contextlib.contextmanager
def _working_in(folder: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
