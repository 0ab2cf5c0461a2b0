"""AppWorld: the official `appworld` package, in workers. Its apps are Apache-2.0, redistributed only in encrypted form.

data.py         the data roots, and how to make them
tiny/           a small data root of our own, built by the installed package
prompt.txt      the prompt of a policy
skills.txt      ONE table of the scripted explorer's skills: wording and code
skills.py       reads the table; turns actions of skills into code, and into a query
environment.py  the environment and its episodes, as the trainer sees them; finds the code in a policy's messages
report.py       reads the reports of the worker that ran code; compares an episode's changes with the solution's
inside.py       a worker that runs a model's code without ground truth, and finds the skills that would work now
judge.py        a worker that replays the code's calls and judges the changes that they make in the databases
world.py        one world in one process: records or replays its calls, and limits each to its documented route in the
                server, as a user who logged in
audit.py        the TGC and SGC of played tasks; the check `python -m environments.check appworld`
"""

import concurrent.futures
import dataclasses
import os

from cojax.environment import EnvironmentFailure
from ..worker import Bounds, isolate
from ..worker.venv import InstallError, interpreter
from . import data as roots
from .audit import measures, scenario
from .data import RECIPE
from .environment import AppWorld

__all__ = ["RECIPE", "SPLITS", "check", "make", "measures"]

# The benchmark's splits, as it names them.
SPLITS = roots.SPLITS

# Seconds in which the judge must replay one batch of calls, or run the tests.
_JUDGE_DEADLINE_S = 25.0
# The splits that an evaluation of all splits takes.
EVALUATION = ("test_normal", "test_challenge")
# The splits from which nothing may be learned.
RESERVED = ("dev", *EVALUATION)
# The name under which an evaluation groups tasks, and the function from a task to its groups.
KINDS = ("scenario", lambda task: (scenario(task),))
# How the code of an action calls a tool.
CALL_IN_TEXT = r"\bapis\.(\w+\.\w+)"


def make(
    *,
    data: str = "official",
    deadline: float = 40.0,
    solutions: bool = False,
    skills: bool | None = None,
    verdict: float = 120.0,
) -> AppWorld:
    """The environment `appworld` on the data root `data`, `official` or `tiny`.

    A call of an episode may take `deadline` seconds. A block of code is stopped with an error after three quarters of
    that in processor time. With `solutions`, tasks bring the benchmark's own solutions where it has them; this is for
    checks of the environment, never for a run. `skills` lets a policy that writes no code call the explorer's skills as
    tools. The benchmark does not allow this, so it is on by default only for the tiny data, for policies too small to
    write code. An episode earns nothing if its calls cannot be replayed within `verdict` seconds. A verdict may take
    half a minute longer, which a run's limits.environment_deadline must allow.

    Raises InstallError if packages or data are missing, and EnvironmentFailure if this system cannot keep ground truth
    from a model's code.
    """
    python_path = interpreter("appworld", RECIPE)
    full_data, public_data = str(roots.find_root(data) / "data"), str(roots.find_public_root(data) / "data")
    if os.path.realpath(public_data).startswith("/tmp/"):
        raise InstallError(
            f"{public_data} lies in /tmp, which every episode has for itself; set COJAX_CACHE to another folder"
        )
    # One worker runs code on the `public` data, the other judges its calls on the `full` data.
    bounds = Bounds(deadline=deadline, output=4 * 2**20)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        play_future = pool.submit(
            isolate,
            f"{__name__}.inside",
            python=python_path,
            bounds=bounds,
            runs_policy_code=True,
            visible=(public_data,),
            # The code that makes the tiny data reveals the right answers.
            hidden=(os.path.join(os.path.dirname(__file__), "tiny"),),
            data=public_data,
            # The path as given, and the path behind its links.
            truth=[full_data, os.path.realpath(full_data)],
            seconds=0.75 * deadline,
        )
        judge_future = pool.submit(
            isolate,
            f"{__name__}.judge",
            python=python_path,
            bounds=dataclasses.replace(bounds, deadline=_JUDGE_DEADLINE_S),
            visible=(full_data,),
            data=full_data,
        )
    try:
        environment = AppWorld(
            play_future.result(),
            judge_future.result(),
            data,
            solutions=solutions,
            skills=data == "tiny" if skills is None else skills,
            verdict_timeout_s=verdict,
        )
        environment.play.tools()
    except EnvironmentFailure:
        for future in (play_future, judge_future):
            if future.exception() is None:
                future.result().close()
        raise
    return environment


def check(count: int, *, drops_each_call: bool = False) -> int:
    """`python -m environments.check appworld`; see audit.py."""
    from .audit import audit

    return audit(make, count, drops_all=drops_each_call)
