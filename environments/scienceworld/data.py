"""The official tasks and the installed simulator's solutions of them, made once and stored in the cache.

    $COJAX_CACHE/scienceworld/three-…/TASK.json

The repository has none of this. Each file is written when it is complete, so that an installation continues where it
stopped. Standard library only.
"""

import concurrent.futures
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..worker.venv import InstallError, cache, lock, run_module
from .limits import TASKS

# The first is the default of an installation.
ROOTS = ("three", "ten")
# Root → the variations of each official split of a task that are solved.
_SIZES = {"three": 3, "ten": 10}
# Seconds in which the simulator must solve the variations of one task.
_SOLVE_TIMEOUT_S = 7_200
# The solutions depend on these files.
_SOURCE_FILES = ("engine.py", "limits.py", "solving.py")


def find_complete_folder(root_name: str) -> Path:
    """The folder of the thirty tasks. Raises InstallError, which says what to do, if one is missing."""
    root = find_folder(root_name)
    if missing_tasks := [task for task in TASKS if not _task_path(root, task).exists()]:
        raise InstallError(
            f"ScienceWorld's solutions of {missing_tasks[0]} are not in {root}, or were made by another version; "
            f"run: cojax install scienceworld --data={root_name}"
        )
    return root


def load_tasks(root: Path) -> list[dict[str, Any]]:
    """Reads the thirty tasks of a complete folder, in the form of `solving.records`."""
    return [json.loads(_task_path(root, task).read_text()) for task in TASKS]


def provide(root_name: str, python: str, say: Callable[[str], None]) -> None:
    """Solves the variations with the simulator, or reports that it has. `python` is the interpreter with the
    wheel.

    Raises InstallError, which says what to do.
    """
    jvm_library = find_jvm()
    root = find_folder(root_name)

    def solve(task_name: str) -> None:
        arguments = [jvm_library, task_name, str(_SIZES[root_name]), str(_task_path(root, task_name))]
        run_module(python, f"{__package__}.solving", arguments, "ScienceWorld cannot solve its tasks", _SOLVE_TIMEOUT_S)
        say(f"scienceworld: {task_name}")

    with lock(root, "ScienceWorld's solutions", say), concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        root.mkdir(exist_ok=True)
        missing_tasks = [task_name for task_name in TASKS if not _task_path(root, task_name).exists()]
        if not missing_tasks:
            say(f"scienceworld: solutions already in {root}")
            return
        say(
            f"scienceworld: the simulator solves {_SIZES[root_name]} variations of each split of "
            f"{len(missing_tasks)} tasks"
        )
        for future in [pool.submit(solve, task_name) for task_name in missing_tasks]:
            future.result()
    say(f"scienceworld: solutions ready in {root}")


def find_folder(root_name: str) -> Path:
    """The folder of the solutions that this version makes."""
    digest = hashlib.sha256()
    for file_name in _SOURCE_FILES:
        digest.update((Path(__file__).parent / file_name).read_bytes())
    return cache() / "scienceworld" / f"{root_name}-{digest.hexdigest()[:8]}"


def _task_path(root: Path, task: str) -> Path:
    return root / f"{task}.json"


# The command that installs Java.
JAVA = "apt-get install default-jre-headless"
_JVM_PATH = "lib/server/libjvm.so"


def find_jvm() -> str:
    """The library of the JVM of the `java` on PATH. Raises InstallError, which says what to do."""
    java = shutil.which("java")
    if java is None:
        raise InstallError(f"ScienceWorld runs on Java, and there is no `java` on PATH; on Debian and Ubuntu: {JAVA}")
    java_home = Path(java).resolve().parents[1]
    # Java 8 has its runtime in a deeper folder.
    for jvm_library in (java_home / _JVM_PATH, *java_home.glob("**/server/libjvm.so")):
        if jvm_library.exists():
            return str(jvm_library)
    raise InstallError(
        f"{java} belongs to {java_home}, which has no {_JVM_PATH}; put the bin folder of a whole Java runtime first "
        f"on PATH, on Debian and Ubuntu by {JAVA}"
    )


def list_jvm_folders(jvm_library: str) -> tuple[str, ...]:
    """The folders that this JVM reads: its home, and the folders that links in it lead to."""
    java_home = next(parent for parent in Path(jvm_library).parents if (parent / "bin").is_dir())
    link_targets = {str(path.resolve().parent) for path in java_home.rglob("*") if path.is_symlink()}
    return (str(java_home), *sorted(target for target in link_targets if not Path(target).is_relative_to(java_home)))
