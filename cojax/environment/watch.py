"""Watches the calls of an environment from another thread, so that one that never returns is told."""

import functools
import types
from collections.abc import Callable
from typing import Any, TypeVar, cast

from cojax.environment import Environment, Episode
from cojax.environment.wrapping import Wrapped
from cojax.host.background import on_thread, running
from cojax.types import Action, Task

_T = TypeVar("_T")
_POLL_SECONDS = 0.2
_CALLS = ("reset", "tools", "step", "state", "affordances", "evaluate", "close")


class HangingCall(RuntimeError):
    """A call of an environment did not return in time."""


def watched(environment: Environment, patience: float, work: Callable[[Environment], _T]) -> _T:
    """The result of `work` on the environment, which runs on a thread of its own, as all its calls do.

    Raises HangingCall once a call of an episode has run for `patience` seconds; the thread is left behind. Other
    exceptions are those of `work`.
    """
    current: tuple[str, float] | None = None  # the call that is running, and since when

    def run(label: str, owner: Any, name: str, *arguments: Any) -> Any:
        nonlocal current
        label = f"{label}: {name}"
        if arguments and isinstance(action := arguments[0], Action):
            label = f"{label} ({', '.join(one.name for one in action.calls[:3]) or 'no call':.100})"
        current = label, running()
        try:
            return getattr(owner, name)(*arguments)
        finally:
            current = None

    def start(task: Task) -> Episode:
        label = f"task {task.id}"
        episode = run(label, environment, "start", task)
        return cast(
            Episode, types.SimpleNamespace(**{name: functools.partial(run, label, episode, name) for name in _CALLS})
        )

    result = on_thread("check", lambda: work(Wrapped(environment, start)))
    while True:
        try:
            return result.result(timeout=_POLL_SECONDS)
        except TimeoutError:
            if result.done():
                raise  # the exception of `work`
        if (call := current) and running() - call[1] > patience:
            raise HangingCall(
                f"{call[0]} has not returned in {patience:g} s; a tool that may hang needs a limit of its own, or "
                "isolation (see docs/tools.md)"
            )
