"""The worker in which a model's code runs: on a root without ground truth, in an interpreter of AppWorld's own.

The trainer uses only the printed output and the calls that it reports, which the judge replays; see environment.py.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from cojax.types import Action, Evaluation, Message, Observation, Task, content_hash
from ..worker.served import Episodes
from . import world
from .offers import Offers
from .world import World

# The role of the message with the calls of a step, which only environment.py reads.
CALLS = "calls"
# The most characters of output that are returned; a note says where it was cut.
PRINTED = 15_000
# The package's words where code did not run to its end.
_FAILED = ("Execution failed", "No code available")


def make(data: str, truth: Sequence[str], seconds: float) -> Episodes:
    """The environment in which code runs, on the data folder `data` without ground truth.

    `truth` are the paths of the folder with ground truth, which must not be readable; the first call of `tools` checks
    that too. One block of code may take `seconds` of processor time. A task's setup names the world: {"task": id}.
    """
    world.warm(data)

    def tools() -> tuple[Mapping[str, Any], ...]:
        check_sealed(data, truth)
        return ()

    def start(task: Task) -> "PlayEpisode":
        check_sealed(data, truth)
        return PlayEpisode(data, seconds, task)

    return Episodes("appworld", start, tools=tools)


class PlayEpisode:
    """One world. An action's text is code; the reply ends with the calls that the code made."""

    def __init__(self, data: str, seconds: float, task: Task) -> None:
        self.data, self.seconds, self.task = data, seconds, task
        self.salt, self.printed = content_hash(task.setup), ""

    def reset(self) -> tuple[Message, ...]:
        """Opens the world; no messages."""
        world.settle(self.data)
        self.world = World(self.data, self.task.setup["task"], self.seconds)
        self.world.tell(self.task.query)
        self.offers = Offers(self.world)
        return ()

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return ()

    def step(self, action: Action) -> Observation:
        """Runs the code; returns what it printed, and the record of its calls as JSON."""
        printed, calls = self.world.execute(action.text)
        self.salt, self.printed = content_hash([self.salt, action.text]), printed.strip()
        ok = not printed.startswith(_FAILED)
        left = len(self.printed) - PRINTED
        shown = f"{self.printed[:PRINTED]}\n[{left} characters cut]" if left > 0 else self.printed
        messages = (Message("user", shown), Message(CALLS, json.dumps(calls)))
        return Observation(messages, ok=ok, done=self.world.completed)

    def state(self) -> Mapping[str, Any]:
        return {}

    def affordances(self) -> tuple[Action, ...]:
        """Skills that would work now; after the same actions they are the same."""
        return self.offers.now(self.salt, self.printed)

    def evaluate(self) -> Evaluation:
        return Evaluation(0.0)

    def close(self) -> None:
        pass


# The modules and calls by which a process could get another view of the files.
_ALLOW = "allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, Docker's --security-opt seccomp=unconfined)"


def check_sealed(data: str, truth: Sequence[str]) -> None:
    """Raises PermissionError where this confined process could still read ground truth, or is not confined."""
    if found := [folder for folder in truth if _opens(folder)]:
        raise PermissionError(
            f"a model's code could read the ground truth in {found[0]}: this system has for a process neither a view "
            "of its own on the files nor rules about them (Landlock) nor, under root, a user of its own. Run as an "
            f"ordinary user and {_ALLOW}"
        )
    for needed in (data, sys.prefix, sys.base_prefix):
        if not _opens(needed):
            raise PermissionError(
                f"a model's code runs as user {os.getuid()} here, who cannot enter {needed}: let others enter every "
                f"folder above it (chmod o+x), or run as an ordinary user and {_ALLOW}"
            )


def _opens(folder: str) -> bool:
    """Tries it, as rules of the kernel can forbid what permissions allow."""
    try:
        os.listdir(folder)
    except OSError:
        return False
    return True
