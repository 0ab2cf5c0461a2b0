"""Runs the calls of an environment on a thread of their own, and gives up those that hang: the calls of a test, and
those of `play` and `ask` that explorers and validation make."""

import functools
import math
import types
from collections.abc import Callable
from typing import Any, TypeVar, cast

from cojax.environment import HANG_ADVICE, Actor, Environment, EnvironmentFailure, Episode, Progress, ask, play, running
from cojax.environment.wrapping import Wrapped
from cojax.host.background import run_on_thread, wait_until_done
from cojax.types import Action, Task, Trajectory

_T = TypeVar("_T")
# Seconds within which an environment must say what it offers. An actor that asks may have more time for its action, so
# that the watch over its episode would notice a hanging environment too late.
CALL_TIMEOUT_S = 60.0
_METHODS = ("reset", "tools", "step", "state", "affordances", "evaluate", "close")


class HangingCall(RuntimeError):
    """A call of an environment did not return in time."""


def watched_play(call_timeout_s: float, act_timeout_s: float | None = None) -> Callable[..., Trajectory]:
    """`play` on a daemon thread, given up when one call of the environment takes longer than `call_timeout_s`.

    An actor may take `act_timeout_s` for one action. None is `call_timeout_s`, for an actor that does little but
    ask the environment what it may do. A hang gives the outcome environment_error, wherever it happens, because
    an explorer's action is not the policy's. The thread is abandoned, as Python cannot end it, and stops at the next
    step of the loop.
    """

    def play_watched(environment: Environment, task: Task, act: Actor, **play_options: Any) -> Trajectory:
        progress = Progress(since=running())

        def allowed_seconds() -> float:
            return act_timeout_s if progress.phase == "act" and act_timeout_s is not None else call_timeout_s

        future = run_on_thread("watched", lambda: play(environment, task, act, progress=progress, **play_options))
        if wait_until_done(future, lambda: progress.since + allowed_seconds() - running()):
            return future.result()
        progress.is_abandoned = True
        if progress.result is not None:  # only closing hangs: the verdict stands
            return progress.result
        error = (
            f"{progress.phase} took longer than {allowed_seconds():g} s and was abandoned on its thread{HANG_ADVICE}"
        )
        return Trajectory(task, outcome="environment_error", error=error)

    return play_watched


def ask_within(timeout_s: float, call: Callable[[], _T]) -> _T:
    """The environment's answer. Raises EnvironmentFailure if the call fails or takes longer than `timeout_s`."""
    future = run_on_thread("asked", lambda: ask(call))
    deadline = running() + timeout_s
    if not wait_until_done(future, lambda: deadline - running()):
        raise EnvironmentFailure(f"the environment did not say within {timeout_s:g} s what it offers{HANG_ADVICE}")
    return future.result()


def run_watched(environment: Environment, timeout_s: float, work: Callable[[Environment], _T]) -> _T:
    """The result of `work` on the environment, which runs on a thread of its own, as all its calls do.

    Raises HangingCall once a call of an episode has run for `timeout_s` seconds; the thread is left behind. Other
    exceptions are those of `work`.
    """
    running_call: tuple[str, float] | None = None  # the call that is running, and since when

    def run(call_label: str, target: Any, method: str, *arguments: Any) -> Any:
        nonlocal running_call
        call_label = f"{call_label}: {method}"
        if arguments and isinstance(action := arguments[0], Action):
            call_label = f"{call_label} ({', '.join(call.name for call in action.calls[:3]) or 'no call':.100})"
        running_call = call_label, running()
        try:
            return getattr(target, method)(*arguments)
        finally:
            running_call = None

    def start(task: Task) -> Episode:
        call_label = f"task {task.id}"
        episode = run(call_label, environment, "start", task)
        calls = {method_name: functools.partial(run, call_label, episode, method_name) for method_name in _METHODS}
        return cast(Episode, types.SimpleNamespace(**calls))

    hanging_call = ""

    def seconds_left() -> float:
        nonlocal hanging_call
        hanging_call, start_time = running_call or ("", math.inf)
        return start_time + timeout_s - running()

    future = run_on_thread("check", lambda: work(Wrapped(environment, start)))
    if not wait_until_done(future, seconds_left):
        raise HangingCall(
            f"{hanging_call} has not returned in {timeout_s:g} s; a tool that may hang needs a limit of its own, or "
            "isolation (see docs/tools.md)"
        )
    return future.result()
