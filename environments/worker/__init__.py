"""Isolation for any environment: its own interpreter and packages, a process for every episode, limits from outside.

    def make(**settings):
        return isolate(f"{__name__}.inside", python=interpreter("NAME", RECIPE), **settings)

trainer ── client ──socket── supervisor ──socket── fork server ──fork── one child an episode
            (threads)         (deadlines,            (imports and         (confined, single-use)
                               kills, relays)         makes once)

client.py       the environment as the trainer's threads call it, and its supervisor process
served.py       an environment in another process: its operations there, its records here; on a cluster's nodes too
wire.py         messages; how a child's replies are checked and read as records
supervisor.py   starts the fork server and relays calls; enforces deadlines and sizes; decides what caused a loss
forkserver.py   in the environment's interpreter: imports once, forks children, cleans up after them
bounds.py       the limits of an episode; which layers of isolation hold
sandbox.py      confines a child
view.py         the files that a child sees, and its own
seccomp.py      the system calls that a child may not make
kernel.py       system calls that Python lacks
venv.py         virtual environments of environments
"""

import sys
from typing import Any

from .bounds import Bounds
from .client import Client, IsolatedEnvironment

_DEFAULT_BOUNDS = Bounds()

__all__ = ["Bounds", "IsolatedEnvironment", "isolate"]


def isolate(
    module: str,
    *,
    python: str = sys.executable,
    bounds: Bounds = _DEFAULT_BOUNDS,
    visible: tuple[str, ...] = (),
    hidden: tuple[str, ...] = (),
    enclosed: bool = True,
    runs_policy_code: bool = False,
    **settings: Any,
) -> IsolatedEnvironment:
    """The environment that `module.make(**settings)` makes, in worker processes of the interpreter `python`.

    `module` is a module, or module:function to call a function other than `make`.

    Its process sees only these files: the system's libraries, Python, our packages, the module's package and
    `visible`, without the contents of `hidden` folders. With `enclosed` false it sees all files and has a network;
    `bounds` still limits each child. `runs_policy_code` declares that a child runs code of the policy, so that the
    policy may have caused any loss of the child after reset. Raises EnvironmentFailure if the environment cannot be
    made.
    """
    launch_arguments = {"module": module, "python": python, "settings": settings, "bounds": bounds, "visible": visible}
    return IsolatedEnvironment(Client({**launch_arguments, "enclosed": enclosed, "hidden": hidden}), runs_policy_code)
