"""AppWorld: the official `appworld` package (its apps Apache-2.0, redistributed encrypted alone), in workers.

data.py         which data roots there are, and how they are made
tiny/           a small data root of our own, built by the installed package
prompt.txt      the prompt of a policy
skills.txt      ONE table of the scripted explorer's skills: words, code
skills.py       reads it; actions of skills → code, and → a query
environment.py  the environment and its episodes, as the trainer sees them; the code blocks in a policy's messages
report.py       reads the reports of the worker that ran code; compares what was done with what a solution does
inside.py       a worker where a model's code runs, without ground truth; the skills that would work now
judge.py        a worker where its calls are made again and judged; the changes that they made in the databases
world.py        one world in one process, its calls recorded or made again; each is limited to its documented route in
                the server, as a user who logged in
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

# Seconds that the judge gets to replay a part of the calls, or to run the tests.
_JUDGED = 25.0
# The splits that an evaluation of all splits takes.
EVALUATION = ("test_normal", "test_challenge")
# The splits from which nothing may be learned.
RESERVED = ("dev", *EVALUATION)
# What an evaluation lists success by, and the kinds of a task.
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
    """The environment `appworld` on the data root of that name, `official` or `tiny`.

    A call of an episode may take `deadline` seconds. A block of code is stopped with an error after three quarters of
    that in processor time. With `solutions`, tasks bring the benchmark's own solutions where it has them; this is for
    checks of the environment, never for a run. `skills` lets a policy that writes no code call the explorer's skills as
    tools, which is not the benchmark; the default is on for the tiny data alone, for policies too small to write code.
    An episode earns nothing if its calls cannot be replayed within `verdict` seconds. A verdict may take half a minute
    more, which a run's limits.environment_deadline must allow.

    Raises InstallError where packages or data are missing, and EnvironmentFailure where this system cannot keep ground
    truth from a model's code.
    """
    python = interpreter("appworld", RECIPE)
    full, public = str(roots.root(data) / "data"), str(roots.public(data) / "data")
    if os.path.realpath(public).startswith("/tmp/"):
        raise InstallError(
            f"{public} lies in /tmp, which every episode has for itself; set COJAX_CACHE to another folder"
        )
    # One runs code on the `public` data, the other judges its calls on the `full` data.
    bounds = Bounds(deadline=deadline, output=4 * 2**20)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        playing = pool.submit(
            isolate,
            f"{__name__}.inside",
            python=python,
            bounds=bounds,
            runs_policy_code=True,
            visible=(public,),
            # The code that makes the tiny data reveals their right answers.
            hidden=(os.path.join(os.path.dirname(__file__), "tiny"),),
            data=public,
            # Both as it is named and where it really is.
            truth=[full, os.path.realpath(full)],
            seconds=0.75 * deadline,
        )
        judging = pool.submit(
            isolate,
            f"{__name__}.judge",
            python=python,
            bounds=dataclasses.replace(bounds, deadline=_JUDGED),
            visible=(full,),
            data=full,
        )
    try:
        environment = AppWorld(
            playing.result(),
            judging.result(),
            data,
            solutions=solutions,
            skills=data == "tiny" if skills is None else skills,
            verdict=verdict,
        )
        environment.play.tools()
    except EnvironmentFailure:
        for worker in (playing, judging):
            if worker.exception() is None:
                worker.result().close()
        raise
    return environment


def check(count: int, *, every: bool = False) -> int:
    """`python -m environments.check appworld`; see audit.py."""
    from .audit import audit

    return audit(make, count, every=every)
