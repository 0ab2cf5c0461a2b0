"""Isolation for any environment: its own interpreter and packages, a process for every episode, limits from outside.

    def make(**settings):
        return isolate("environments.NAME.inside", python=interpreter("NAME", RECIPE), **settings)

trainer ── client ──socket── supervisor ──socket── fork server ──fork── one child an episode
            (threads)         (deadlines,            (imports and         (confined, single-use)
                               kills, relays)         makes once)

wire.py         messages
client.py       the supervisor process as the trainer's threads call it
isolated.py     Environment and Episode on top of it
records.py      reads what a worker sends as records, exactly
supervisor.py   starts the fork server; ends with the trainer, however that ends
ward.py         relays calls; enforces deadlines and sizes; tells whose a loss is
replies.py      reads replies within bounds, as they come in
timer.py        what of a call's time counts
forkserver.py   in the environment's interpreter: imports once, forks children, buries them
child.py        serves the calls of one episode, or of the environment
bounds.py       what an episode may take; which layers of isolation hold
sandbox.py      what a child cannot do
view.py         the files it sees
scratch.py      its own files, where it has no file system of its own
seccomp.py      the system calls it is refused
kernel.py       system calls that Python lacks
venv.py         virtual environments of environments
"""

from __future__ import annotations

import sys
from typing import Any

from environments.worker.bounds import Bounds
from environments.worker.client import Client, Launch
from environments.worker.isolated import IsolatedEnvironment, environment_of

_BOUNDS = Bounds()

__all__ = ["Bounds", "IsolatedEnvironment", "isolate"]


def isolate(
    module: str,
    *,
    python: str = sys.executable,
    bounds: Bounds = _BOUNDS,
    visible: tuple[str, ...] = (),
    hidden: tuple[str, ...] = (),
    enclosed: bool = True,
    runs_policy_code: bool = False,
    **settings: Any,
) -> IsolatedEnvironment:
    """The environment that `module.make(**settings)` makes, in worker processes of the interpreter `python`.

    `visible` names further files and folders that it may read, `hidden` folders among all it may that are empty to it;
    see `Bounds` for what an episode may take. `runs_policy_code` declares that a child runs what a policy wrote: any
    loss of it after reset may be the policy's doing. Raises EnvironmentFailure where it cannot be made.
    """
    client = Client(Launch(module, python, settings, bounds, visible, enclosed, hidden))
    return environment_of(client, bounds, runs_policy_code)
