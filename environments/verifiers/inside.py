"""The source of rollouts, as it runs in a worker inside the package's own virtual environment."""

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from cojax.environment import Traits
from ..tools.in_worker import function_of
from ..worker.served import Episodes


def make(
    taskset: str,
    path: Sequence[str],
    arguments: Mapping[str, Any],
    evaluation: Mapping[str, Any] | None,
    most: int,
    full: float,
    state: str,
    solution: str,
) -> Episodes:
    """Episodes and official tasks; wording and verdicts by replay are made outside of the worker."""
    sys.path += path
    # The package keeps the folders of its runtimes below the user's folder.
    os.environ["HOME"] = tempfile.gettempdir()
    from .episode import RolloutEpisode
    from .taskset import Source, divided, documents

    train = Source.of(taskset, path, arguments, most)
    held_out = Source.of(taskset, path, {**arguments, **evaluation}, most) if evaluation else None
    read = function_of(state, path)
    splits, row_of = divided(train, held_out, function_of(solution, path))
    offered = documents([train, *([held_out] if held_out else [])])
    return Episodes(
        "verifiers",
        lambda task: RolloutEpisode(*row_of(task.setup), read, full),
        splits,
        lambda: offered,
        Traits(incomparable="" if state else train.incomparable()),
    )
