"""Runs the official simulator in a JVM within this process. Only this file imports `scienceworld` and `jpype`.

The wheel's own class ScienceWorldEnv reaches the simulator through a network socket, which a confined process does not
have. `Simulator` does what that class does, but calls the simulator's Java classes directly.
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

# The simulator visits its objects in the order of their hashes. Java draws a hash at its first use, so that a look at
# the state would change later events. With hashCode=2, all objects have one hash.
_JAVA_OPTIONS = ("-XX:+UseSerialGC", "-Xss4m", "-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2")
# Only Java's fast compiler (C1), because episodes are short and the process may have few threads. The sizes limit
# address space.
_EPISODE_OPTIONS = (
    "-XX:TieredStopAtLevel=1",
    "-XX:CompressedClassSpaceSize=64m",
    "-XX:ReservedCodeCacheSize=64m",
    "-Xmx384m",
)
# Solving takes minutes, so Java's optimizing compiler pays off.
_SOLVING_OPTIONS = ("-Xmx1g",)
# An episode ends after this many moves, as in ETO's setting of the simulator. A `wait` takes ten moves, a look none.
MAX_MOVES = 200
# The score of a completed task.
FULL_SCORE = 100


class Simulator:
    """One world of a variation of a task. A process may have any number of them; they are independent."""

    def __init__(self, jvm: str, task: str, variation: int, simplifications: str, *, gold: bool = False) -> None:
        """Opens the world in the JVM of the library `jvm`. With `gold`, the simulator also solves
        the task, in seconds or minutes. Raises ValueError for an unknown task or variation."""
        interface = _interface(jvm)
        self._java = interface()
        if task not in (known_tasks := list(self._java.getTaskNames())):
            raise ValueError(f"ScienceWorld has no task {task!r:.100}; it has {', '.join(known_tasks)}")
        if not 0 <= variation < (variation_count := int(self._java.getTaskMaxVariations(task))):
            raise ValueError(f"{task} has variations 0 to {variation_count - 1}, not {variation}")
        self._java.load(task, variation, simplifications, gold)
        self._java.reset()
        self.look()

    def step(self, command: str) -> str:
        """Executes a command; returns the simulator's reply."""
        return str(self._java.step(command))

    def look(self) -> str:
        """Returns the description of the room. A look costs no move."""
        return self.step("look around")

    @property
    def score(self) -> int:
        """The score so far, at most FULL_SCORE; below 0 if the task has failed."""
        return round(FULL_SCORE * float(self._java.getScore()))

    @property
    def over(self) -> bool:
        """Whether the episode has ended, as ScienceWorldEnv decides it."""
        return bool(self._java.getCompleted()) or self.score < 0 or int(self._java.getNumMoves()) > MAX_MOVES

    @property
    def description(self) -> str:
        """The task in words."""
        return str(self._java.getTaskDescription())

    @property
    def progress(self) -> str:
        """The goals, and which of them are reached."""
        return str(self._java.getGoalProgressStr())

    def objects(self) -> Mapping[str, Any]:
        """Returns the tree of all objects, which the simulator writes to a file."""
        with tempfile.TemporaryDirectory() as folder:
            if reason := str(self._java.getObjectTree(folder)):
                raise RuntimeError(reason)
            return json.loads((Path(folder) / "objectTree.json").read_text())

    def valid(self) -> list[str]:
        """Returns the commands that the simulator calls valid now, some of which it would refuse.

        The call draws from the simulator's random numbers, so plants may develop differently afterwards.
        """
        return [str(command) for command in self._java.getValidActionObjectCombinations()]

    def gold(self) -> list[str]:
        """Returns the commands with which the simulator solved the task."""
        return [str(command) for command in self._java.getGoldActionSequence()]

    def splits(self) -> dict[str, list[int]]:
        """Returns the variations of this task in each official split."""
        official_splits: dict[str, Sequence[Any]] = {
            "train": self._java.getVariationsTrain(),
            "dev": self._java.getVariationsDev(),
            "test": self._java.getVariationsTest(),
        }
        return {split: [int(variation) for variation in variations] for split, variations in official_splits.items()}


def prepare_to_solve(jvm: str) -> None:
    """Starts this process's JVM with the compiler that solves fastest. Call it before the first Simulator is made."""
    _interface(jvm, is_solving=True)


def task_names(jvm: str) -> list[str]:
    """Returns the names of the thirty tasks."""
    return [str(name) for name in _interface(jvm)().getTaskNames()]


@functools.cache
def _interface(jvm: str, is_solving: bool = False) -> Any:
    """Returns the simulator's class in this process's JVM. If it starts a JVM, the process can no longer fork."""
    import jpype

    package_folder = _package_folder()
    java_options = (*_JAVA_OPTIONS, *(_SOLVING_OPTIONS if is_solving else _EPISODE_OPTIONS))
    # The simulator reads a file of the wheel from the current folder.
    with _working_in(package_folder):
        if not jpype.isJVMStarted():
            jar_path = str(package_folder / "scienceworld.jar")
            jpype.startJVM(jvm, *java_options, classpath=[jar_path], ignoreUnrecognized=True, convertStrings=True)
        interface = jpype.JClass("scienceworld.runtime.pythonapi.PythonInterface")
        interface()
    return interface


def _package_folder() -> Path:
    spec = importlib.util.find_spec("scienceworld")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("scienceworld is not here; run: cojax install scienceworld")
    return Path(spec.origin).parent


@contextlib.contextmanager
def _working_in(folder: Path) -> Iterator[None]:
    previous_folder = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(previous_folder)
