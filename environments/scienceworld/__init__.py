"""ScienceWorld: the official simulator of the wheel `scienceworld` (Apache-2.0), its thirty tasks and its score.

engine.py       the simulator in a JVM within the process; the only importer of the wheel
limits.py       how many commands an episode may have
solving.py      the simulator's own solutions of official tasks, shortened
data.py         makes and stores these solutions; finds Java
commands.txt    the system message, which lists the commands
inside.py       the environment and its worlds, which run inside the wheel's own virtual environment; their state
"""

from typing import Literal

from cojax.environment import Environment
from ..worker import Bounds, isolate
from ..worker.venv import Recipe, interpreter
from . import data as solutions

RECIPE = Recipe(
    # The wheel imports py4j, and jpype imports packaging; these two need nothing else.
    requirements=("scienceworld==1.2.3", "jpype1==1.7.1", "packaging>=24,<27", "py4j==0.10.9.9"),
    dependencies=False,
    proof="import jpype, scienceworld",
    programs=(("java", solutions.JAVA),),
)

# The splits whose tasks bring solutions, which `environments.check` replays: the official ones.
SPLITS = ("train", "dev", "test")
# The splits that an evaluation of all splits covers.
EVALUATION = ("dev", "test")
# The splits from which nothing may be learned.
RESERVED = ("dev", "test")
# `environments.check` lists drops that the benchmark's own verdict lets through; they are no faults.
OFFICIAL_VERDICT = True


def make(
    *, data: Literal["three", "ten"] = "three", instructions: Literal["full", "brief"] = "full", deadline: float = 30.0
) -> Environment:
    """The environment `scienceworld`, in workers; see docs/text-worlds.md. A call may take `deadline` seconds.

    `data` says how many variations of each official split are tasks. `instructions` selects the system message: `full`
    lists the commands, `brief` does not. Raises InstallError if there is no Java, or if
    `python -m environments.install scienceworld --data=…` was not run.
    """
    jvm_library, tasks_folder = solutions.find_jvm(), str(solutions.find_complete_folder(data))
    python_path = interpreter("scienceworld", RECIPE)
    return isolate(
        f"{__name__}.inside",
        python=python_path,
        # A JVM reserves more address space than it uses, and has some threads of its own.
        bounds=Bounds(deadline=deadline, memory=4 * 2**30, processes=64),
        visible=(*solutions.list_jvm_folders(jvm_library), tasks_folder),
        tasks_folder=tasks_folder,
        instructions=instructions,
        jvm_library=jvm_library,
    )
