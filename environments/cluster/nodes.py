"""All nodes of an environment: which one gets an episode, which are lost, and which join."""

import concurrent.futures
import dataclasses
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from cojax.environment import PLAYING, Abandoned, EnvironmentFailure, Traits, excuse, running
from ..worker import wire
from ..worker.wire import Malformed, read
from . import messages
from .connection import Place, RayCluster
from .host import code_of
from .node import DOUBT, Node

_T = TypeVar("_T")
_LOG = logging.getLogger(__name__)
# Seconds between two signs of life, between two looks for nodes that joined, and between two looks for a free node.
_BEAT, _JOINED, _LOOK = 0.5, 5.0, 0.25
# Seconds that a node has to make the environment, and that an episode waits for a node that can take it.
_MADE, _PLACED = 180.0, 120.0
# Seconds for a call that concerns the whole environment.
_SERVICE = 120.0
# On one node an actor is started at most so many times within so many seconds.
_STARTS, _WITHIN = 3, 60.0


@dataclasses.dataclass
class _Start:
    """An actor that is making the environment, for so long."""

    place: Place
    actor: Any
    made: concurrent.futures.Future[Any]
    until: float


class Nodes:
    """The nodes that serve one environment; a thread watches them until `close`.

    `described` is what all of them say of the environment.
    """

    def __init__(self, cluster: RayCluster, name: str, settings: Mapping[str, Any]) -> None:
        self.cluster, self.name = cluster, name
        self.order = wire.encode({"name": name, "settings": dict(settings), "code": code_of(name)})
        self.described: dict[str, Any] = {}
        self.live: list[Node] = []
        self._starting: list[_Start] = []
        self._started: dict[str, list[float]] = {}
        self._changed = threading.Condition()
        self._closed = threading.Event()
        # Episodes that one node plays at a time, where the environment limits them.
        self._most: int | None = None

    def begin(self) -> None:
        """Has every node make the environment. Raises EnvironmentFailure where one cannot, or there is none."""
        if not (places := self.cluster.places()):
            raise EnvironmentFailure("the Ray cluster has no node that offers processors; start one: ray start")
        for place in places:
            self._start(place)
        while self._starting:
            concurrent.futures.wait([start.made for start in self._starting], _BEAT)
            for place, failure in self._finish_starts():
                # A node that has left meanwhile is none of this cluster's any more.
                if place in self.cluster.places():
                    raise failure
                _LOG.warning("%s", failure)
        if not self.live:
            raise EnvironmentFailure(
                f"all {len(places)} nodes of the Ray cluster were lost while they made {self.name}"
            )
        self._most = read(Traits, self.described["traits"]).concurrency
        if self._most is not None:
            self.described["traits"]["concurrency"] = self._most * len(self.live)
        threading.Thread(target=self._watch, name="cluster-watch", daemon=True).start()

    def place_episode(self) -> tuple[Node, int]:
        """The node with the fewest open episodes, and the number of a new one there."""
        return self._when_free(lambda node: (node, node.begin()))

    def service(self, op: str, *arguments: Any) -> Any:
        """A call that concerns the whole environment. It may be made twice: a lost node's is made on another."""
        while True:
            node = self._when_free(lambda node: node, full=True)
            try:
                return node.call(0, op, list(arguments), _SERVICE)
            except EnvironmentFailure:
                if not node.lost:
                    node.end(0)  # a call that hangs keeps its thread; the next one gets another
                    raise

    def close(self) -> None:
        """Ends all actors with their processes. Never raises."""
        self._closed.set()
        with self._changed:
            ended = [*(node.actor for node in self.live), *(start.actor for start in self._starting)]
            self.live, self._starting = [], []
            self._changed.notify_all()
        for actor in ended:
            self.cluster.end(actor)

    def _when_free(self, take: Callable[[Node], _T], full: bool = False) -> _T:
        """What `take` does with the node that has the fewest open episodes; `full` also takes one that has all it may.

        The wait for one does not count against an episode's deadline. Raises EnvironmentFailure where there is none for
        too long.
        """
        began = charged = running()
        with self._changed:
            while not self._closed.is_set():
                now = running()
                excuse(now - charged)
                charged = now
                heard = [node for node in self.live if not node.lost and now - node.heard < DOUBT]
                free = [node for node in heard if full or self._most is None or len(node.open) < self._most]
                if free:
                    return take(min(free, key=lambda node: len(node.open)))
                if now - began > _PLACED:
                    raise EnvironmentFailure(
                        f"no node of the cluster was free for {self.name} within {_PLACED:g} s; {len(heard)} are there"
                    )
                if (progress := PLAYING.get()) and progress.abandoned:
                    raise Abandoned
                self._changed.wait(_LOOK)
        raise EnvironmentFailure(f"the environment {self.name} was closed")

    def _watch(self) -> None:
        looked = running()
        while not self._closed.wait(_BEAT):
            for node in list(self.live):
                node.check()
            with self._changed:
                lost = [node for node in self.live if node.lost]
                self.live = [node for node in self.live if not node.lost]
            for node in lost:
                _LOG.warning("%s; its episodes are played again elsewhere", node.lost)
            for _, failure in self._finish_starts():
                _LOG.warning("%s", failure)
            if running() - looked > _JOINED:
                looked = running()
                self._start_missing()

    def _start_missing(self) -> None:
        """Starts actors on nodes that joined, and on those whose actor was lost."""
        try:
            places = self.cluster.places()
        except Exception as error:  # the cluster's head is gone
            _LOG.warning("the Ray cluster does not list its nodes: %s", error)
            return
        have = {node.place.id for node in self.live} | {start.place.id for start in self._starting}
        for place in places:
            if place.id not in have:
                try:
                    self._start(place)
                except Exception as error:  # it is lost again, or the head is; others are watched all the same
                    _LOG.warning("%s takes no actor: %s", place, error)

    def _start(self, place: Place) -> None:
        now = running()
        recent = [moment for moment in self._started.get(place.id, []) if now - moment < _WITHIN]
        if len(recent) >= _STARTS:
            return
        self._started[place.id] = [*recent, now]
        actor = self.cluster.actor(place)
        self._starting.append(_Start(place, actor, self.cluster.send(actor.make, self.order), now + _MADE))

    def _finish_starts(self) -> list[tuple[Place, EnvironmentFailure]]:
        """Adds the nodes that have made the environment; those that could not, with the reason."""
        failures = []
        for start in list(self._starting):
            late = running() > start.until
            if not start.made.done() and not late:
                continue
            self._starting = [one for one in self._starting if one is not start]
            try:
                if late:
                    raise EnvironmentFailure(f"it took longer than {_MADE:g} s")
                self._check_description(start.made)
            except EnvironmentFailure as error:
                self.cluster.end(start.actor)
                failures.append((start.place, EnvironmentFailure(f"{start.place} cannot make {self.name}: {error}")))
                continue
            with self._changed:
                self.live = sorted([*self.live, self._node(start)], key=lambda node: node.place.id)
                self._changed.notify_all()
        if self._closed.is_set():
            self.close()  # an actor that was started meanwhile
        return failures

    def _node(self, start: _Start) -> Node:
        def freed() -> None:
            with self._changed:
                self._changed.notify_all()

        return Node(self.cluster, start.actor, start.place, freed)

    def _check_description(self, made: concurrent.futures.Future[Any]) -> None:
        """Keeps what the first node says of the environment. Raises EnvironmentFailure for a node that differs."""
        try:
            found = messages.decoded(made.result())
        except Malformed:
            raise
        except Exception as error:
            raise EnvironmentFailure(" ".join(f"{type(error).__name__}: {error}".split())[:500]) from error
        if "failure" in found:
            raise EnvironmentFailure(read(str, found.get("message")))
        described = read(dict, found.get("described"))
        if self.described and described | {"traits": 0} != self.described | {"traits": 0}:
            raise EnvironmentFailure("it describes the environment in another way than the first node does")
        self.described = self.described or described
