"""BFCL multi-turn: the official tasks, APIs and checker of the installed `bfcl-eval` wheel (Apache-2.0).

calls.py        reads calls from Python, limits them, runs them on an episode's API instances; gives their state as JSON
official.py     reads the wheel: tasks, documentation, APIs, checker; only this file imports it
episode.py      one dialogue: user turns, calls, force-quit, verdict
tools.txt       ONE table of tools: how a user asks for a call of each, and which values to try for its parameters
tools.py        reads the table; turns calls into the user's turns, and finds the calls that would work now
inside.py       the environment, which runs inside the wheel's own virtual environment
"""

from collections.abc import Sequence
from typing import Any

from cojax.environment import Environment
from cojax.types import Call, Group
from ..worker import Bounds, isolate
from ..worker.venv import Recipe, interpreter

RECIPE = Recipe(
    requirements=("bfcl-eval==2026.3.23", "mpmath>=1.3", "filelock>=3.12"),
    # The dependencies that it declares are for model clients; the multi-turn APIs and checker need only these two.
    dependencies=False,
    # The import makes folders, by default among the installed packages.
    proof="import os, tempfile; os.environ['BFCL_PROJECT_ROOT'] = tempfile.mkdtemp(); "
    "from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_checker",
)

# The splits whose tasks bring solutions, which `environments.check` replays.
SPLITS = ("base", "miss_func", "miss_param", "long_context")
# The splits that an evaluation of all splits covers.
EVALUATION = ("base", "miss_func", "miss_param", "long_context")
# The splits from which nothing may be learned: all categories ask for the same work in the same scenarios.
RESERVED = EVALUATION
# Calls that never end.
TRIALS = {
    "a power without end": Call("power", {"base": 9, "exponent": 100_000_000}),
    "a logarithm without end": Call("logarithm", {"value": 7, "base": 3, "precision": 100_000_000}),
}


def make(*, category: str = "base", dev_fraction: float = 0.5, deadline: float = 10.0) -> Environment:
    """The environment `bfcl`, in workers; see `inside.make`. A call of an episode may take `deadline` seconds.

    Raises InstallError if `python -m environments.install bfcl` was not run.
    """
    return isolate(
        f"{__name__}.inside",
        python=interpreter("bfcl", RECIPE),
        bounds=Bounds(deadline=deadline),
        # The official APIs compute with a policy's arguments and store them, which may cause a later loss.
        runs_policy_code=True,
        category=category,
        dev_fraction=dev_fraction,
    )


def measures(groups: Sequence[Group]) -> dict[str, dict[str, Any]]:
    """The benchmark's accuracy: the share of tasks with a valid episode that are solved."""
    valid_groups = [group for group in groups if group.valid]
    scores, episode_count = [group.score for group in valid_groups], sum(len(group.valid) for group in valid_groups)
    return {"accuracy": {"values": scores, "episodes": episode_count}}
