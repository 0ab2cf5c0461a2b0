"""Watches the calls of an environment from another thread, so that one that never returns is told."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from cojax.environment import Environment, Episode
from cojax.environment.wrapping import Wrapped
from cojax.host.background import on_thread
from cojax.host.clock import running
from cojax.types import Action, Evaluation, Message, Observation, Task

_T = TypeVar("_T")
_POLL_SECONDS = 0.2


class HangingCall(RuntimeError):
    """A call of an environment did not return in time."""


def watched(environment: Environment, patience: float, work: Callable[[Environment], _T]) -> _T:
    """The result of `work` on the environment, which runs on a thread of its own, as all its calls do.

    Raises HangingCall once a call of an episode has run for `patience` seconds; the thread is left behind. Other
    exceptions are those of `work`.
    """
    calls = _Calls()
    result = on_thread("check", lambda: work(Wrapped(environment, lambda task: _start(environment, task, calls))))
    while True:
        try:
            return result.result(timeout=_POLL_SECONDS)
        except TimeoutError:
            if result.done():
                raise  # the exception of `work`
            calls.check(patience)


class _Calls:
    """Which call is running, and since when."""

    def __init__(self) -> None:
        self._current: tuple[str, float] | None = None

    @contextlib.contextmanager
    def __call__(self, call: str) -> Iterator[None]:
        self._current = call, running()
        try:
            yield
        finally:
            self._current = None

    def check(self, patience: float) -> None:
        """Raises HangingCall if the current call has run for `patience` seconds."""
        current = self._current
        if current and running() - current[1] > patience:
            raise HangingCall(
                f"{current[0]} has not returned in {patience:g} s; a tool that may hang needs a limit of its own, or "
                "isolation (see docs/tools.md)"
            )


def _start(environment: Environment, task: Task, calls: _Calls) -> Episode:
    with calls(f"task {task.id}: start"):
        return _WatchedEpisode(environment.start(task), f"task {task.id}", calls)


class _WatchedEpisode:
    """`episode`, each of whose calls is noted in `calls`."""

    def __init__(self, episode: Episode, task: str, calls: _Calls) -> None:
        self._episode, self._task, self._calls = episode, task, calls

    def _noted(self, name: str, call: Callable[..., _T], *arguments: Any) -> _T:
        with self._calls(f"{self._task}: {name}"):
            return call(*arguments)

    def reset(self) -> tuple[Message, ...]:
        return self._noted("reset", self._episode.reset)

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return self._noted("tools", self._episode.tools)

    def step(self, action: Action) -> Observation:
        names = ", ".join(call.name for call in action.calls[:3]) or "no call"
        return self._noted(f"step ({names:.100})", self._episode.step, action)

    def state(self) -> Mapping[str, Any]:
        return self._noted("state", self._episode.state)

    def affordances(self) -> tuple[Action, ...]:
        return self._noted("affordances", self._episode.affordances)

    def evaluate(self) -> Evaluation:
        return self._noted("evaluate", self._episode.evaluate)

    def close(self) -> None:
        self._noted("close", self._episode.close)
