"""AppWorld: the official `appworld` package (its apps Apache-2.0, redistributed encrypted alone), in workers.

data.py         which data roots there are, and how they are made
tiny/           a small data root of our own, built by the installed package
prompt.py       what a policy is told; code blocks in what it writes
skills.py       ONE table of what the scripted explorer does: code, wording
grammar.py      what it did → a query
offers.py       arguments that would work now
environment.py  the environment and its episodes, as the trainer sees them
report.py       what the worker that ran code says of a step, read
verdict.py      the comparison with what a synthesized task's solution does
goal_completion.py  the TGC and SGC of played tasks
inside.py       a worker where a model's code runs, without ground truth
judge.py        a worker where its calls are made again and judged
world.py        one world in one process, its calls recorded or made again
access.py       what a call reaches in the server: its documented route, as a user who logged in
changes.py      what calls did to the databases
audit.py        `python -m environments.check appworld`
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os

from cojax.environment import EnvironmentFailure
from environments.appworld import data as roots
from environments.appworld.data import RECIPE
from environments.appworld.environment import AppWorld
from environments.worker import Bounds, IsolatedEnvironment, isolate
from environments.worker.venv import InstallError, interpreter

__all__ = ["RECIPE", "SPLITS", "check", "make"]

# The benchmark's splits, as it names them.
SPLITS = roots.SPLITS

_Worker = concurrent.futures.Future[IsolatedEnvironment]
# Seconds for a part of the calls to be made again, or for the tests.
_JUDGED = 25.0
# What an evaluation of all splits is of.
EVALUATION = ("test_normal", "test_challenge")
# Of which nothing may be learned.
RESERVED = ("dev", *EVALUATION)


def make(
    *,
    data: str = "official",
    deadline: float = 40.0,
    solutions: bool = False,
    skills: bool | None = None,
    verdict: float = 120.0,
) -> AppWorld:
    """The environment `appworld` on the data root of that name, `official` or `tiny`.

    A call of an episode may take `deadline` seconds; a block of code is stopped once it worked for three quarters of
    that, and told so. With `solutions`, tasks of the benchmark bring its own solutions where it has them:
    for checks of the environment, never for a run. `skills` lets a policy call the explorer's skills as tools where it
    writes no code, which is not the benchmark: by default on the tiny data alone, for policies too small to write code.
    Calls that cannot be made again within `verdict` seconds earn nothing; a verdict may take half a minute more, which
    a run's limits.environment_deadline must allow.
    Raises InstallError where packages or data are missing, and EnvironmentFailure where this system cannot keep ground
    truth from a model's code.
    """
    python = interpreter("appworld", RECIPE)
    full, shown = str(roots.root(data) / "data"), str(roots.public(data) / "data")
    if os.path.realpath(shown).startswith("/tmp/"):
        raise InstallError(
            f"{shown} lies in /tmp, which every episode has for itself; set COJAX_CACHE to another folder"
        )
    playing, judging = _workers(python, shown, full, deadline)
    try:
        made = AppWorld(
            playing.result(),
            judging.result(),
            data,
            solutions=solutions,
            skills=data == "tiny" if skills is None else skills,
            verdict=verdict,
        )
        made.play.tools()
    except EnvironmentFailure:
        for worker in (playing, judging):
            if worker.exception() is None:
                worker.result().close()
        raise
    return made


def _workers(python: str, shown: str, full: str, deadline: float) -> tuple[_Worker, _Worker]:
    """Where code runs, on the data `shown`, and where its calls are judged, on the `full` data: both started."""
    bounds = Bounds(deadline=deadline, output=4 * 2**20)
    with concurrent.futures.ThreadPoolExecutor() as both:
        playing = both.submit(
            isolate,
            "environments.appworld.inside",
            python=python,
            bounds=bounds,
            runs_policy_code=True,
            visible=(shown,),
            # How the tiny data are made tells what is right in them.
            hidden=(os.path.join(os.path.dirname(__file__), "tiny"),),
            data=shown,
            # Where it is called, and where it lies.
            truth=[full, os.path.realpath(full)],
            seconds=0.75 * deadline,
        )
        judging = both.submit(
            isolate,
            "environments.appworld.judge",
            python=python,
            bounds=dataclasses.replace(bounds, deadline=_JUDGED),
            visible=(full,),
            data=full,
        )
    return playing, judging


def check(count: int, *, every: bool = False) -> int:
    """`python -m environments.check appworld`; see audit.py."""
    from environments.appworld.audit import audit

    return audit(count, every=every)
