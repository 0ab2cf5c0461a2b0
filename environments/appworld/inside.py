"""The worker in which a model's code runs: on a root without ground truth, in an interpreter of AppWorld's own.

The trainer uses only the printed output and the calls that it reports, which the judge replays; see environment.py.
"""

import functools
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from cojax.types import Action, Message, Observation, Task, content_hash
from ..worker.kernel import succeeds
from ..worker.served import Episodes, PlainEpisode
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

    def start(task: Task) -> PlainEpisode:
        check_sealed(data, truth)
        world.settle(data)
        opened = World(data, task.setup["task"], seconds)
        opened.tell(task.query)
        return episode(opened, content_hash(task.setup))

    return Episodes("appworld", start, tools=tools)


def episode(opened: World, salt: str) -> PlainEpisode:
    """The episode of one world. An action's text is code; the reply ends with the record of the calls it made, as JSON.

    The skills that it offers would work now; after the same actions they are the same. `salt` stands for its task.
    """
    offers, said = Offers(opened), ""

    def step(action: Action) -> Observation:
        nonlocal salt, said
        printed, calls = opened.execute(action.text)
        salt, said = content_hash([salt, action.text]), printed.strip()
        ok = not printed.startswith(_FAILED)
        left = len(said) - PRINTED
        shown = f"{said[:PRINTED]}\n[{left} characters cut]" if left > 0 else said
        messages = (Message("user", shown), Message(CALLS, json.dumps(calls)))
        return Observation(messages, ok=ok, done=opened.completed)

    return PlainEpisode(step, affordances=lambda: offers.now(salt, said))


# The modules and calls by which a process could get another view of the files.
_ALLOW = "allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, Docker's --security-opt seccomp=unconfined)"


def check_sealed(data: str, truth: Sequence[str]) -> None:
    """Raises PermissionError where this confined process could still read ground truth, or is not confined.

    It tries to, as rules of the kernel can forbid what permissions allow.
    """
    if found := [folder for folder in truth if succeeds(functools.partial(os.listdir, folder))]:
        raise PermissionError(
            f"a model's code could read the ground truth in {found[0]}: this system has for a process neither a view "
            "of its own on the files nor rules about them (Landlock) nor, under root, a user of its own. Run as an "
            f"ordinary user and {_ALLOW}"
        )
    for needed in (data, sys.prefix, sys.base_prefix):
        if not succeeds(functools.partial(os.listdir, needed)):
            raise PermissionError(
                f"a model's code runs as user {os.getuid()} here, who cannot enter {needed}: let others enter every "
                f"folder above it (chmod o+x), or run as an ordinary user and {_ALLOW}"
            )
