"""A world in a worker, as environments/tools acts on it. A whole action is sent at once, as packages take turns."""

from __future__ import annotations

import collections
import dataclasses
import importlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from cojax.environment import EnvironmentFailure, PolicyLoss
from cojax.types import Action, Call, Evaluation, Task
from environments.tools.toolset import Refused
from environments.worker import IsolatedEnvironment
from environments.worker.isolated import IsolatedEpisode

# The most calls of an action that are sent, as environments/tools carries out; characters of a text, and of arguments.
_CALLS, _TEXT, _ARGUMENTS = 64, 100_000, 100_000


@dataclasses.dataclass(frozen=True)
class Opening:
    """What an episode tells as JSON when it opens: its part of the system message, and why its state cannot be
    compared, if it cannot."""

    introduction: str = ""
    incomparable: str = ""

    def written(self) -> str:
        return json.dumps(dataclasses.asdict(self))


class WorkerWorld:
    """The world of an episode that was started. The episode answers each call of an action with one message."""

    def __init__(self, episode: IsolatedEpisode) -> None:
        (message,) = episode.reset()
        self._episode, self.opening = episode, Opening(**json.loads(message.content))
        self._over = False
        self._replies: collections.deque[tuple[Call, str, bool]] = collections.deque()

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        """The documentation of the tools that the episode offers."""
        return self._episode.tools()

    def introduction(self) -> str:
        return self.opening.introduction

    def listen(self, action: Action) -> None:
        """Sends the action, and keeps the answers to its calls."""
        calls = tuple(_sendable(action.calls[:_CALLS]))
        text = action.text[:_TEXT].encode("utf-8", "replace").decode()
        seen = self._episode.step(Action(text, calls, action.error[:_TEXT]))
        self._over |= seen.done
        messages = seen.messages if len(seen.messages) == len(calls) else seen.messages[:1] * len(calls)
        # A message of the role "user" is an error, as an action may have calls that work and calls that do not.
        self._replies = collections.deque(
            (call, message.content, message.role == "tool") for call, message in zip(calls, messages, strict=True)
        )

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The answer to a call of the action that was sent. Raises Refused for an error."""
        for place, (call, text, worked) in enumerate(self._replies):
            if call.name == name and dict(call.arguments) == dict(arguments):
                for _ in range(place + 1):
                    self._replies.popleft()
                if not worked:
                    raise Refused(text)
                return text
        raise Refused("the call was not carried out: it is too long, or no JSON")

    def listened(self) -> None:
        """Drops the answers to calls that were refused here."""
        self._replies.clear()

    def over(self) -> bool:
        """Whether the episode has ended itself, and all that it answered was taken."""
        return self._over and not self._replies

    def state(self) -> Mapping[str, Any]:
        return self._episode.state()

    def verdict(self) -> Evaluation:
        """The package's own verdict on the episode."""
        return self._episode.evaluate()

    def close(self) -> None:
        self._episode.close()


def opener(worker: IsolatedEnvironment, name: str) -> Callable[[Mapping[str, Any]], WorkerWorld]:
    """setup → a world, of an episode of its own. Raises EnvironmentFailure where that does not open."""

    def opened(setup: Mapping[str, Any]) -> WorkerWorld:
        episode = worker.start(Task(name, "", setup))
        try:
            return WorkerWorld(episode)
        except BaseException as error:
            episode.close()
            if isinstance(error, PolicyLoss):  # before a policy has done anything
                raise EnvironmentFailure(str(error)) from error
            raise

    return opened


def actions_of(solution: Iterable[Any]) -> tuple[Action, ...]:
    """The actions of a user's solution: texts, and calls as {"name", "arguments"}. Raises ValueError."""
    made = []
    for one in solution:
        try:
            made.append(Action(one if isinstance(one, str) else "", () if isinstance(one, str) else (_call(one),)))
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise ValueError(f'a solution holds {one!r:.200}; expected text or {{"name", "arguments"}}') from error
    return tuple(made)


def function_of(name: str) -> Callable[..., Any] | None:
    """The function package.module:function within the worker; None for no name. Raises ValueError."""
    if not name:
        return None
    module, _, attribute = name.partition(":")
    try:
        return vars(importlib.import_module(module))[attribute]
    except (ImportError, KeyError, ValueError) as error:
        raise ValueError(f"there is no {name!r}; expected package.module:name ({error})") from error


def share_of(total: float, full: float) -> float:
    """A package's reward over that of success, as a number in [0, 1]. Raises ValueError for one that is not finite."""
    if not math.isfinite(total):
        raise ValueError(f"the reward is {total}; expected a finite number")
    return min(max(total / full, 0.0), 1.0)


def _call(one: Mapping[str, Any]) -> Call:
    return Call(one["name"], dict(one.get("arguments", {})))


def _sendable(calls: tuple[Call, ...]) -> Iterator[Call]:
    """The calls; of one that is too long or no JSON, a call that no tool takes."""
    for call in calls:
        try:
            size = len(json.dumps([call.name, dict(call.arguments)], allow_nan=False, ensure_ascii=False).encode())
        except (TypeError, ValueError, RecursionError):  # half a character too
            size = _ARGUMENTS + 1
        yield call if size <= _ARGUMENTS else Call("")
