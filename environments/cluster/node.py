"""One node as the trainer's threads call it: its calls, its sign of life, and whether it is lost."""

import concurrent.futures
import contextlib
import itertools
import threading
from collections.abc import Callable
from typing import Any

from cojax.environment import PLAYING, Abandoned, EnvironmentFailure, excuse, running
from ..worker.wire import Malformed
from . import messages
from .connection import Place, RayCluster

# A node that sends nothing for so many seconds is lost; after fewer it gets no new episode.
SILENCE, DOUBT = 30.0, 5.0
# Seconds between two looks for a reply; the most seconds that one call is excused from an episode's deadline.
_LOOK, _EXCUSED = 0.25, 3_600.0
# Seconds that a call may count. The watch over an episode, and the worker of an isolated one, allow far fewer.
LONGEST = 3_600.0


class Node:
    """An actor that has made the environment. `lost` says why it is gone, "" while it is there.

    A call raises what the environment raises there, by name, or EnvironmentFailure where the node is lost: nothing that
    happens to a node is an action's doing.
    """

    def __init__(self, cluster: RayCluster, actor: Any, place: Place, freed: Callable[[], None]) -> None:
        self.cluster, self.actor, self.place, self._freed = cluster, actor, place, freed
        self.lost = ""
        self.process = 0  # its process id there
        self.open: set[int] = set()
        self._numbers, self._episodes = itertools.count(1), itertools.count(1)
        self._lock = threading.Lock()
        # When the node was last heard, and the time that each call under way had counted by then.
        self.heard, self._counted = running(), dict[str, float]()
        self._beat: concurrent.futures.Future[Any] | None = None

    def begin(self) -> int:
        """The number of a new episode, which is open until `end`."""
        with self._lock:
            episode = next(self._episodes)
            self.open.add(episode)
            return episode

    def end(self, episode: int) -> None:
        """Has the episode closed, without waiting for it. Never raises."""
        with self._lock:
            if episode and episode not in self.open:
                return
            self.open.discard(episode)
        if not self.lost:
            with contextlib.suppress(Exception):
                self.cluster.send(self.actor.end, episode)
        self._freed()

    def call(self, episode: int, op: str, arguments: list[Any], deadline: float = LONGEST) -> Any:
        """The value of one call. `episode` 0 is the environment itself."""
        if self.lost:
            raise EnvironmentFailure(self.lost)
        with self._lock:
            number = next(self._numbers)
        line = messages.request(number, episode, op, arguments)
        try:
            future = self.cluster.send(self.actor.call, line)
        except Exception as error:
            self.fail(f"it took no call: {error}")
            raise EnvironmentFailure(self.lost) from error
        _, value, failure = self._reply(future, number, episode, op, deadline)
        if failure is not None:
            raise failure
        return value

    def _reply(
        self, future: concurrent.futures.Future[Any], number: int, episode: int, op: str, deadline: float
    ) -> tuple[float, Any, EnvironmentFailure | None]:
        """The reply. Time that the call did not count on its node is not charged to the episode.

        Raises Abandoned where the watch over the episode has given it up.
        """
        began, excused = running(), 0.0
        while True:
            done, _ = concurrent.futures.wait([future], _LOOK)
            if not done and self.lost:
                raise EnvironmentFailure(self.lost)
            answer = self._received(future, number, episode) if done else None
            counted = answer[0] if answer else self._counted.get(str(number), 0.0)
            due = min(max(0.0, running() - began - counted), _EXCUSED)
            excuse(due - excused)
            excused = due
            if answer:
                return answer
            if counted > deadline:
                raise EnvironmentFailure(f"{op} took longer than {deadline:g} s on {self.place}")
            if (progress := PLAYING.get()) and progress.abandoned:
                raise Abandoned

    def _received(
        self, future: concurrent.futures.Future[Any], number: int, episode: int
    ) -> tuple[float, Any, EnvironmentFailure | None]:
        try:
            line = future.result()
        except Exception as error:
            if self.cluster.of_the_call(error):
                raise EnvironmentFailure(f"a call failed on {self.place}: {error}"[:500]) from error
            self.fail(f"{type(error).__name__}: {error}")
            raise EnvironmentFailure(self.lost) from error
        try:
            return messages.reply(line, number, episode)
        except Malformed as error:
            raise EnvironmentFailure(f"{self.place} answers wrongly: {error}") from error

    def check(self) -> None:
        """Asks for a sign of life, if none is awaited, and notes the last; a node that is silent too long is lost."""
        if self.lost:
            return
        try:
            if self._beat is not None and self._beat.done():
                self._counted = messages.progress(found := self._beat.result())
                self.process = int(messages.decoded(found)["process"])
                self.heard, self._beat = running(), None
            if self._beat is None:
                self._beat = self.cluster.send(self.actor.beat)
        except Exception as error:
            self.fail(f"{type(error).__name__}: {error}")
            return
        if running() - self.heard > SILENCE:
            self.fail(f"it was not heard for {SILENCE:g} s")

    def fail(self, reason: str) -> None:
        """Gives the node up: its calls fail, and its actor is ended where that is still possible."""
        with self._lock:
            if self.lost:
                return
            self.lost = f"{self.place} was lost: {' '.join(reason.split())}"[:500]
        self._freed()
        self.cluster.end(self.actor)
