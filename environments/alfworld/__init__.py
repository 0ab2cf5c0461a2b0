"""ALFWorld: the official engine and games of the wheel `alfworld` (MIT), with TextWorld, on which it is built.

data.py         the games, generated here or official, and how to get them
tiny.py         our own households, from which the wheel generates games
commands.txt    the system message, which lists the commands
inside.py       the environment and its worlds, which run inside the wheels' own virtual environment
"""

from typing import Literal

from cojax.environment import Environment
from ..worker import Bounds, isolate
from ..worker.venv import Recipe, interpreter, read_requirements
from .data import find_games_folder, find_root

RECIPE = Recipe(
    # What the engine imports; the 3D simulator and the agents trained with torch are left out.
    requirements=read_requirements(__file__),
    dependencies=False,
    proof="import alfworld.agents.environment.alfred_tw_env, fast_downward, textworld.envs",
    # The installation compiles two of the packages.
    programs=(("cmake", "apt-get install cmake"), ("g++", "apt-get install g++"), ("make", "apt-get install make")),
)

# The splits whose tasks bring solutions, which `environments.check` replays: the official ones.
SPLITS = ("train", "valid_seen", "valid_unseen")
# The splits that an evaluation of all splits covers.
EVALUATION = ("valid_seen", "valid_unseen")
# The splits from which nothing may be learned.
RESERVED = ("valid_seen", "valid_unseen")
# `environments.check` lists drops that the benchmark's own verdict lets through; they are no faults.
OFFICIAL_VERDICT = True


def make(
    *,
    data: Literal["tiny", "official"] = "tiny",
    instructions: Literal["full", "brief"] = "full",
    deadline: float = 30.0,
) -> Environment:
    """The environment `alfworld`, in workers; see docs/text-worlds.md. A call may take `deadline` seconds.

    `data` selects the `official` games, or the `tiny` ones that are generated here. `instructions` selects the system
    message: `full` lists the commands, `brief` does not. Raises InstallError if
    `python -m environments.install alfworld --data=…` was not run.
    """
    python_path = interpreter("alfworld", RECIPE)
    root_folder = find_root(data)
    return isolate(
        f"{__name__}.inside",
        python=python_path,
        # The engine copies its planner, a library of 34 MB, for each world, and a verdict opens a second world.
        bounds=Bounds(deadline=deadline, scratch=256 * 2**20),
        visible=(str(root_folder), str(find_games_folder(root_folder))),
        root=str(root_folder),
        instructions=instructions,
    )
