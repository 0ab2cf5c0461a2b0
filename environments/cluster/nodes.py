"""All nodes of an environment: which one gets an episode, which are lost, and which join; and the calls of one."""

import concurrent.futures
import contextlib
import itertools
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from cojax.environment import PLAYING, Abandoned, EnvironmentFailure, Traits, running, waiting
from ..worker import wire
from ..worker.served import await_reply
from ..worker.wire import Malformed, read
from . import host
from .connection import RayCluster

_T = TypeVar("_T")
_LOG = logging.getLogger(__name__)
# Seconds between heartbeats, between checks for new nodes, and between checks for a free one.
_BEAT_PERIOD_S, _JOIN_PERIOD_S, _LOOK_PERIOD_S = 0.5, 5.0, 0.25
# Seconds that an episode waits for a node that can take it.
_PLACE_S = 120.0
# Seconds for a call that concerns the whole environment.
_SERVICE_TIMEOUT_S = 120.0
# A node gets at most _MAX_STARTS actors within _START_WINDOW_S seconds.
_MAX_STARTS, _START_WINDOW_S = 3, 60.0
# A node that is silent for MAX_SILENCE_S seconds is lost; after MAX_TRUSTED_SILENCE_S it gets no new episode.
MAX_SILENCE_S, MAX_TRUSTED_SILENCE_S = 30.0, 5.0
# Seconds that a call may count. The watch over an episode, and the worker of an isolated one, allow far fewer.
LONGEST_CALL_S = 3_600.0
# Seconds that a node has to make the environment.
_MAKE_TIMEOUT_S = 180.0


class Node:
    """An actor on the node `id` that makes the environment by `order`. `name` is the node in words.

    `loss` says why it is gone, "" while it is there.

    `description_future` brings what it says about the environment; it is late after `make_deadline`.

    A call raises what the environment raises there, by name, or EnvironmentFailure if the node is lost: nothing that
    happens to a node is an action's doing.
    """

    def __init__(self, cluster: RayCluster, id: str, name: str, order: bytes, on_free: Callable[[], None]) -> None:
        self.cluster, self.actor, self.id, self.name, self._on_free = cluster, cluster.actor(id), id, name, on_free
        self.description_future, self.make_deadline = cluster.send(self.actor.make, order), running() + _MAKE_TIMEOUT_S
        self.loss = ""
        self.pid = 0  # its process id there
        self.open_episode_ids: set[int] = set()
        self._call_ids, self._episode_ids = itertools.count(1), itertools.count(1)
        self._lock = threading.Lock()
        # When the node was last heard, and the time that each call under way had counted by then.
        self.last_heard, self._counted_s_by_call = running(), dict[str, float]()
        self._beat_future: concurrent.futures.Future[Any] | None = None

    def begin_episode(self) -> int:
        """The number of a new episode, which is open until `end_episode`."""
        with self._lock:
            episode_id = next(self._episode_ids)
            self.open_episode_ids.add(episode_id)
            return episode_id

    def end_episode(self, episode_id: int) -> None:
        """Has the episode closed, without waiting for it. Never raises."""
        with self._lock:
            if episode_id and episode_id not in self.open_episode_ids:
                return
            self.open_episode_ids.discard(episode_id)
        if not self.loss:
            with contextlib.suppress(Exception):
                self.cluster.send(self.actor.end, episode_id)
        self._on_free()

    def call(self, episode_id: int, op: str, arguments: list[Any], timeout_s: float = LONGEST_CALL_S) -> Any:
        """The value of one call. `episode_id` 0 is the environment itself."""
        if self.loss:
            raise EnvironmentFailure(self.loss)
        with self._lock:
            call_id = next(self._call_ids)
        request_line = host.encode_request(call_id, episode_id, op, arguments)
        try:
            future = self.cluster.send(self.actor.call, request_line)
        except Exception as error:
            self.fail(f"it took no call: {error}")
            raise EnvironmentFailure(self.loss) from error

        def read_count() -> float:
            if self.loss:
                raise EnvironmentFailure(self.loss)
            if (counted_s := self._counted_s_by_call.get(str(call_id), 0.0)) > timeout_s:
                raise EnvironmentFailure(f"{op} took longer than {timeout_s:g} s on {self.name}")
            if (progress := PLAYING.get()) and progress.is_abandoned:  # the watch over the episode has given it up
                raise Abandoned
            return counted_s

        value, failure = await_reply(future, read_count, lambda: self._receive_reply(future, call_id, episode_id))
        if failure is not None:
            raise failure
        return value

    def _receive_reply(
        self, future: concurrent.futures.Future[Any], call_id: int, episode_id: int
    ) -> tuple[float, tuple[Any, EnvironmentFailure | None]]:
        try:
            reply_line = future.result()
        except Exception as error:
            if self.cluster.is_call_failure(error):
                raise EnvironmentFailure(f"a call failed on {self.name}: {error}"[:500]) from error
            self.fail(f"{type(error).__name__}: {error}")
            raise EnvironmentFailure(self.loss) from error
        try:
            counted_s, value, failure = host.decode_reply(reply_line, call_id, episode_id)
            return counted_s, (value, failure)
        except Malformed as error:
            raise EnvironmentFailure(f"{self.name} answers wrongly: {error}") from error

    def check_life(self) -> None:
        """Asks for a sign of life, if none is awaited, and notes the last; a node that is silent too long is lost."""
        if self.loss:
            return
        try:
            if self._beat_future is not None and self._beat_future.done():
                self._counted_s_by_call = host.decode_progress(reply_line := self._beat_future.result())
                self.pid = int(host.decode(reply_line)["process"])
                self.last_heard, self._beat_future = running(), None
            if self._beat_future is None:
                self._beat_future = self.cluster.send(self.actor.beat)
        except Exception as error:
            self.fail(f"{type(error).__name__}: {error}")
            return
        if running() - self.last_heard > MAX_SILENCE_S:
            self.fail(f"it was silent for {MAX_SILENCE_S:g} s")

    def fail(self, reason: str) -> None:
        """Gives the node up: its calls fail, and its actor is ended if that is still possible."""
        with self._lock:
            if self.loss:
                return
            self.loss = f"{self.name} was lost: {' '.join(reason.split())}"[:500]
        self._on_free()
        self.cluster.kill_actor(self.actor)


class Nodes:
    """The nodes that serve one environment; a thread watches them until `close`.

    `description` is what all of them say of the environment.
    """

    def __init__(self, cluster: RayCluster, world_name: str, settings: Mapping[str, Any]) -> None:
        self.cluster, self.name = cluster, world_name
        self.order = wire.encode({"name": world_name, "settings": dict(settings), "code": host.hash_code(world_name)})
        self.description: dict[str, Any] = {}
        self.live: list[Node] = []
        self._starting: list[Node] = []
        self._start_times: dict[str, list[float]] = {}
        self._change = threading.Condition()
        self._closing = threading.Event()
        # Episodes that one node plays at a time, where the environment limits them.
        self._max_episodes: int | None = None

    def start_all(self) -> None:
        """Has every node make the environment. Raises EnvironmentFailure if one cannot, or there is none."""
        if not (node_names := self.cluster.list_nodes()):
            raise EnvironmentFailure("the Ray cluster has no node that offers processors; start one: ray start")
        for node_id, node_name in node_names.items():
            self._start_node(node_id, node_name)
        while self._starting:
            concurrent.futures.wait([node.description_future for node in self._starting], _BEAT_PERIOD_S)
            for node_id, failure in self._finish_starts():
                # A node that has left meanwhile no longer belongs to the cluster.
                if node_id in self.cluster.list_nodes():
                    raise failure
                _LOG.warning("%s", failure)
        if not self.live:
            raise EnvironmentFailure(
                f"all {len(node_names)} nodes of the Ray cluster were lost while they made {self.name}"
            )
        self._max_episodes = read(Traits, self.description["traits"]).concurrency
        if self._max_episodes is not None:
            self.description["traits"]["concurrency"] = self._max_episodes * len(self.live)
        threading.Thread(target=self._watch_nodes, name="cluster-watch", daemon=True).start()

    def place_episode(self) -> tuple[Node, int]:
        """The node with the fewest open episodes, and the number of a new one there."""
        return self._take_free_node(lambda node: (node, node.begin_episode()))

    def call_service(self, op: str, *arguments: Any) -> Any:
        """A call that concerns the whole environment. If its node is lost, it is made again on another."""
        while True:
            node = self._take_free_node(lambda node: node, allows_full=True)
            try:
                return node.call(0, op, list(arguments), _SERVICE_TIMEOUT_S)
            except EnvironmentFailure:
                if not node.loss:
                    node.end_episode(0)  # a call that hangs keeps its thread; the next one gets another
                    raise

    def close(self) -> None:
        """Ends all actors with their processes. Never raises."""
        self._closing.set()
        with self._change:
            nodes = [*self.live, *self._starting]
            self.live, self._starting = [], []
            self._change.notify_all()
        for node in nodes:
            self.cluster.kill_actor(node.actor)

    def _take_free_node(self, take: Callable[[Node], _T], allows_full: bool = False) -> _T:
        """The result of `take` for the node with the fewest open episodes; `allows_full` allows one that is full.

        Waiting for a node does not count against an episode's deadline. Raises EnvironmentFailure if there is none for
        too long.
        """
        started_at = running()
        with self._change, waiting():
            while not self._closing.is_set():
                now = running()
                nodes = [node for node in self.live if not node.loss and now - node.last_heard < MAX_TRUSTED_SILENCE_S]
                free_nodes = [
                    node
                    for node in nodes
                    if allows_full or self._max_episodes is None or len(node.open_episode_ids) < self._max_episodes
                ]
                if free_nodes:
                    return take(min(free_nodes, key=lambda node: len(node.open_episode_ids)))
                if now - started_at > _PLACE_S:
                    raise EnvironmentFailure(
                        f"no node of the cluster was free for {self.name} within {_PLACE_S:g} s; {len(nodes)} are there"
                    )
                if (progress := PLAYING.get()) and progress.is_abandoned:
                    raise Abandoned
                self._change.wait(_LOOK_PERIOD_S)
        raise EnvironmentFailure(f"the environment {self.name} was closed")

    def _watch_nodes(self) -> None:
        last_look = running()
        while not self._closing.wait(_BEAT_PERIOD_S):
            for node in list(self.live):
                node.check_life()
            with self._change:
                lost_nodes = [node for node in self.live if node.loss]
                self.live = [node for node in self.live if not node.loss]
            for node in lost_nodes:
                _LOG.warning("%s; its episodes are played again elsewhere", node.loss)
            for _, failure in self._finish_starts():
                _LOG.warning("%s", failure)
            if running() - last_look > _JOIN_PERIOD_S:
                last_look = running()
                self._start_missing_nodes()

    def _start_missing_nodes(self) -> None:
        """Starts actors on nodes that joined, and on those whose actor was lost."""
        try:
            node_names = self.cluster.list_nodes()
        except Exception as error:  # the cluster's head is gone
            _LOG.warning("the Ray cluster does not list its nodes: %s", error)
            return
        served_ids = {node.id for node in (*self.live, *self._starting)}
        for node_id, node_name in node_names.items():
            if node_id not in served_ids:
                try:
                    self._start_node(node_id, node_name)
                except Exception as error:  # it is lost again, or the head is; others are watched all the same
                    _LOG.warning("%s takes no actor: %s", node_name, error)

    def _start_node(self, node_id: str, node_name: str) -> None:
        now = running()
        recent_starts = [moment for moment in self._start_times.get(node_id, []) if now - moment < _START_WINDOW_S]
        if len(recent_starts) >= _MAX_STARTS:
            return
        self._start_times[node_id] = [*recent_starts, now]
        self._starting.append(Node(self.cluster, node_id, node_name, self.order, self._notify))

    def _notify(self) -> None:
        with self._change:
            self._change.notify_all()

    def _finish_starts(self) -> list[tuple[str, EnvironmentFailure]]:
        """Adds the nodes that have made the environment; the ids of those that could not, with the reason."""
        failures = []
        for node in list(self._starting):
            is_late = running() > node.make_deadline
            if not node.description_future.done() and not is_late:
                continue
            self._starting = [starting_node for starting_node in self._starting if starting_node is not node]
            try:
                if is_late:
                    raise EnvironmentFailure(f"it took longer than {_MAKE_TIMEOUT_S:g} s")
                self._check_description(node.description_future)
            except EnvironmentFailure as error:
                self.cluster.kill_actor(node.actor)
                failures.append((node.id, EnvironmentFailure(f"{node.name} cannot make {self.name}: {error}")))
                continue
            node.last_heard = running()
            with self._change:
                self.live = sorted([*self.live, node], key=lambda node: node.id)
                self._change.notify_all()
        if self._closing.is_set():
            self.close()  # an actor that was started meanwhile
        return failures

    def _check_description(self, future: concurrent.futures.Future[Any]) -> None:
        """Keeps what the first node says about the environment. Raises EnvironmentFailure for a node that differs."""
        try:
            answer = host.decode(future.result())
        except Malformed:
            raise
        except Exception as error:
            raise EnvironmentFailure(" ".join(f"{type(error).__name__}: {error}".split())[:500]) from error
        if "failure" in answer:
            raise EnvironmentFailure(read(str, answer.get("message")))
        description = read(dict, answer.get("described"))
        if self.description and description | {"traits": 0} != self.description | {"traits": 0}:
            raise EnvironmentFailure("it describes the environment differently from the first node")
        self.description = self.description or description
